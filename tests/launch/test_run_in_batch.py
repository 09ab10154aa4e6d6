"""A training that llmtop starts without a terminal: its streams, files, signals and children are its own."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.conftest import Launcher
from tests.support.processes import wait_for

Script = Callable[[str], list[str]]

DESCRIBE = """
import json, os, signal
def children():
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return "none"
ignored = [line.split()[1] for line in open("/proc/self/status") if line.startswith("SigIgn")]
blocked = [line.split()[1] for line in open("/proc/self/status") if line.startswith("SigBlk")]
environment = {k: v for k, v in os.environ.items() if k.split("_")[0] not in ("LLMTOP", "NSYS", "QUADD")}
print(json.dumps({
    "children": children(), "files": sorted(os.listdir("/proc/self/fd")), "folder": os.getcwd(),
    "group": os.getpgrp() == GROUP, "session": os.getsid(0), "umask": os.umask(0),
    "nice": os.nice(0), "ignored": ignored, "blocked": blocked, "environment": environment,
}))
"""


OF_NSYS = {
    "LD_PRELOAD", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "CUPTI_PROFILE_MODE", "USE_AGENT_API",
    "TRACE_START_IMMEDIATELY", "__GL_CONSTANT_FRAME_RATE_HINT",
}  # fmt: skip
"""What nsys 2023.4.4 puts into the environment of its target besides NSYS_* and QUADD_*."""


def run(
    launcher: Launcher, *command: str, bare: bool = False, **options: object
) -> subprocess.CompletedProcess[bytes]:
    whole = list(command) if bare else launcher(*command)
    return subprocess.run(
        whole, env=launcher.environment, capture_output=True, timeout=240, check=False, **options
    )  # type: ignore[call-overload, no-any-return]


def test_streams_pass_every_byte_and_stay_apart(launcher: Launcher, script: Script) -> None:
    data = bytes(range(256)) * 4096
    command = script("""
import sys
data = sys.stdin.buffer.read()
sys.stdout.buffer.write(data)
sys.stderr.buffer.write(data[::-1])
""")
    done = run(launcher, *command, input=data)
    assert done.returncode == 0
    assert done.stdout == data
    assert data[::-1] in done.stderr
    if not launcher.nsys:
        assert (
            done.stderr == data[::-1] + b"llmtop: not attached: training0.py ended without having imported torch\n"
        )


@pytest.mark.slow(
    "three codes of the matrix; each starts a command",
    kept=(
        "run-3",
        "run-255",
        "run --nsys-3",
    ),
)
@pytest.mark.parametrize("code", [0, 1, 3, 126, 255])
def test_exit_codes_come_back(launcher: Launcher, code: int) -> None:
    assert run(launcher, "sh", "-c", f"exit {code}").returncode == code


def test_a_death_by_signal_comes_back(launcher: Launcher) -> None:
    assert run(launcher, "sh", "-c", "kill -SEGV $$").returncode == -signal.SIGSEGV


def test_files_are_written_in_place_and_appended_to(launcher: Launcher, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = shlex.join(launcher("sh", "-c", "echo two; echo three >&2; echo four"))
    subprocess.run(
        ["bash", "-c", f"{{ echo one; {command} 2>/dev/null; echo five; }} > {log}"],
        env=launcher.environment,
        timeout=240,
        check=True,
    )
    assert log.read_text() == "one\ntwo\nfour\nfive\n"


def test_a_reader_that_leaves_ends_it_as_it_would_without_llmtop(launcher: Launcher) -> None:
    command = shlex.join(launcher("yes"))
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; echo ${{PIPESTATUS[0]}}"],
        env=launcher.environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout == f"y\n{128 + signal.SIGPIPE}\n"


def test_nothing_that_a_process_can_see_of_itself_differs(launcher: Launcher, script: Script) -> None:
    command = script(DESCRIBE.replace("GROUP", "os.getpgid(os.getppid())"))
    reading, writing = os.pipe()  # a file descriptor that the shell hands down must arrive, and no other
    try:
        options = {"pass_fds": (writing,), "preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
        without = json.loads(run(launcher, *command, bare=True, **options).stdout)
        within = json.loads(run(launcher, *command, **options).stdout)
    finally:
        os.close(reading)
        os.close(writing)
    before, now = without.pop("environment"), within.pop("environment")
    assert {name for name in before if now.get(name) != before[name]} <= {"PYTHONPATH", "LD_PRELOAD"}
    added = {name for name in now if name not in before} - {"PYTHONPATH"}
    assert added <= (OF_NSYS if launcher.nsys else set())
    if launcher.nsys:  # the injected library opens files of its own
        assert set(without.pop("files")) <= set(within.pop("files"))
    assert within == without


def test_options_of_the_command_are_not_read_by_llmtop(launcher: Launcher) -> None:
    whole = [*launcher()[:-1], "echo", "--nsys", "--help", "--", "-x"]  # without the --
    done = subprocess.run(whole, env=launcher.environment, capture_output=True, timeout=240, check=True)
    assert done.stdout == b"--nsys --help -- -x\n"


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [
        (["no-such-program"], 127, "no-such-program: no such command"),
        (["/etc/passwd"], 126, "/etc/passwd cannot be executed"),
        ([], 2, "No command given"),
    ],
)
def test_what_cannot_be_started_is_said_in_a_sentence(
    launcher: Launcher, command: list[str], code: int, word: str
) -> None:
    done = run(launcher, *command)
    assert done.returncode == code
    assert done.stdout == b""
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("llmtop: ")
    assert word in last


def test_a_script_without_an_interpreter_line_runs_in_a_shell(launcher: Launcher, tmp_path: Path) -> None:
    path = tmp_path / "job"
    path.write_text("echo $1\nexit 4\n")
    path.chmod(0o755)
    done = run(launcher, str(path), "word")
    assert (done.returncode, done.stdout) == (4, b"word\n")


@pytest.mark.parametrize(
    ("options", "hosted"),
    [([], False), (["--kineto"], True), (["--no-auto"], True), (["--no-auto", "--no-kineto"], False)],
)
def test_the_kineto_fabric_is_hosted_where_llmtop_does_not_attach(
    options: list[str], hosted: bool, runtime_dir: Path
) -> None:
    launcher = Launcher(options)
    done = run(launcher, "sh", "-c", "echo $KINETO_USE_DAEMON; ls $KINETO_IPC_SOCKET_DIR/dynolog")
    assert (done.returncode == 0) == hosted
    assert done.stdout.decode().splitlines()[0] == ("1" if hosted else "")
    if "--no-kineto" in options:
        names = "import json, os; print(json.dumps(dict(os.environ)))"
        within = json.loads(run(launcher, sys.executable, "-S", "-c", names).stdout)
        without = json.loads(run(launcher, sys.executable, "-S", "-c", names, bare=True).stdout)
        assert within == without, "nothing at all is changed"


STREAMS = """
import json, os, sys
def opened(number):
    try:
        return os.fstat(number).st_rdev, os.get_inheritable(number)
    except OSError:
        return None
print_fails = False
try:
    print("a line", flush=True)
except OSError:
    print_fails = True
streams = [opened(number) for number in range(3)]
with open(sys.argv[1], "w") as file:
    json.dump([streams, print_fails], file)
os._exit(3)
"""


@pytest.mark.slow(
    "four redirections of the matrix; each starts two commands",
    kept=(
        "run-2>&-",
        "run-<&- >&- 2>&-",
        "run --nsys->&-",
        "run --nsys-2>/dev/full",
    ),
)
@pytest.mark.parametrize(
    "redirections",
    ["2>&-", "<&-", ">&-", "<&- 2>&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full", ">/dev/full 2>&1"],
)
def test_closed_and_full_streams_are_the_commands_own(
    redirections: str, launcher: Launcher, script: Script, tmp_path: Path
) -> None:
    command = [*script(STREAMS), str(tmp_path / "seen")]
    seen = []
    for whole in (command, launcher(*command)):
        done = subprocess.run(
            ["sh", "-c", f"{shlex.join(whole)} {redirections}"],
            env=launcher.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 3
        seen.append(json.loads((tmp_path / "seen").read_text()))
        (tmp_path / "seen").unlink()
    (before, print_failed), (now, print_fails) = seen
    assert print_fails == print_failed
    if launcher.nsys:  # which opens files of its own in the training: a closed stream is /dev/null there
        null = [os.stat(os.devnull).st_rdev, True]
        before = [null if stream is None else stream for stream in before]
    assert now == before


@pytest.mark.slow(
    "without nsys; each starts a command",
    kept=(
        "run-2>/dev/full",
        "run-2>&-",
    ),
)
@pytest.mark.parametrize("redirections", ["2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_what_has_to_be_said_of_a_command_does_not_keep_it_from_starting(
    redirections: str, launcher: Launcher
) -> None:
    command = shlex.join(
        launcher(sys.executable, "-E", "-c", "import os; os._exit(3)")
    )  # not attached: said before
    done = subprocess.run(
        ["sh", "-c", f"{command} {redirections}"], env=launcher.environment, timeout=240, check=False
    )
    assert done.returncode == 3


@pytest.mark.slow("one redirection stands for all", kept=("run-2>&-",))
@pytest.mark.parametrize("redirections", ["2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_a_command_that_is_not_there_exits_as_ever_without_a_stderr(redirections: str, launcher: Launcher) -> None:
    command = shlex.join(launcher("no-such-program"))
    done = subprocess.run(
        ["sh", "-c", f"{command} {redirections}"], env=launcher.environment, timeout=240, check=False
    )
    assert done.returncode == 127


def test_the_kineto_host_has_its_sockets_where_streams_are_closed(runtime_dir: Path, tmp_path: Path) -> None:
    # With the numbers of the streams they would be lost: the host points those at /dev/null.
    launcher, begun = Launcher(["--no-auto"]), tmp_path / "begun"
    command = shlex.join(launcher("sh", "-c", f"echo $KINETO_IPC_SOCKET_DIR > {begun}; exec sleep 1000"))
    with subprocess.Popen(["sh", "-c", f"exec {command} <&- >&- 2>&-"], env=launcher.environment) as training:
        try:
            folder = wait_for(lambda: begun.exists() and begun.read_text().strip(), 60)
            host, words = wait_for(lambda: _kineto_host(str(folder)), 60, "the host of the fabric")
            for number in words[words.index(str(folder)) + 1 :][:2]:
                assert os.readlink(f"/proc/{host}/fd/{number}").startswith("socket:")
        finally:
            training.kill()


def _kineto_host(folder: str) -> tuple[str, list[str]] | None:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "llmtop.capture.kineto.spawn" in words and folder in words:
                return pid, words
    return None
