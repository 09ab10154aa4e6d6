"""The nsys session beside a training: it records it, ends with it, and is no danger to it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from llmtop.nsys_cli import tool as nsys
from llmtop.system import procfs
from tests.launch.conftest import LLMTOP, Launcher
from tests.support.nsys import NO_NSYS, find_nsys, starved_nsys
from tests.support.processes import environment, wait_for

pytestmark = pytest.mark.nsys
Script = Callable[[str], list[str]]

READS = """
import os, sys, time
print("ready", flush=True)
while not os.path.exists({end!r}):
    with open("/proc/self/stat") as file:
        file.read()
    time.sleep(0.01)
sys.exit(6)
"""


@pytest.fixture
def tool() -> nsys.Nsys:
    path = find_nsys()
    if path is None:
        pytest.skip(NO_NSYS)
    return nsys.nsys_at(Path(path))


@pytest.fixture
def start(tool: nsys.Nsys) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    launcher = Launcher(["--nsys"])
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        launcher.options = ["--nsys", *options]
        process = subprocess.Popen(
            launcher(*command), env=launcher.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=240)


@pytest.fixture
def end(tmp_path: Path) -> Path:
    """The file that ends what READS runs."""
    return tmp_path / "end"


def session_of(tool: nsys.Nsys, process: subprocess.Popen[str]) -> nsys.Session | None:
    name = nsys.session_of(process.pid)
    return next((session for session in nsys.list_sessions(tool) if session.id == name), None)


def processes_of(session: nsys.Session) -> list[int]:
    """The keeper and nsys's own; a dead one that nobody has waited for yet does not count."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if session.name in (procfs.command(pid) or "") and procfs.is_alive(pid)]


def bytes_read(process: subprocess.Popen[str]) -> int:
    """What a process has read so far; an ended one has no such figure."""
    return int(Path(f"/proc/{process.pid}/io").read_text().split()[1])


@pytest.mark.slow("a capture of its own; test_five_steps_are_captured_and_the_report_is_cut_to_five has one")
def test_a_capture_holds_what_the_training_did(
    tool: nsys.Nsys, start: Callable[..., subprocess.Popen[str]], script: Script, tmp_path: Path, end: Path
) -> None:
    training = start(*script(READS.format(end=str(end))), options=("--with", "osrt"))
    session = session_of(tool, training)
    assert session is not None
    assert session.name.startswith(f"llmtop-{training.pid}")
    report = tmp_path / "report.nsys-rep"
    wanted = ["-o", str(report), "-f", "true", "--sample=none", "--cpuctxsw=none", "--stop-on-exit=false"]
    assert tool.run("start", f"--session={session.name}", *wanted, seconds=240).returncode == 0
    before = bytes_read(training)
    wait_for(lambda: bytes_read(training) > before + 10_000, what="the training to read its file some forty times")
    assert tool.run("stop", f"--session={session.name}", seconds=240).returncode == 0
    tables = tmp_path / "report.sqlite"
    tool.run("export", "-t", "sqlite", "-o", str(tables), str(report), seconds=240)
    with sqlite3.connect(tables) as connection:
        rows = connection.execute("SELECT DISTINCT (globalTid >> 24) & 0xFFFFFF FROM OSRT_API").fetchall()
    assert rows == [(training.pid,)], "the training, and neither nsys's keeper nor anything else"
    assert training.poll() is None


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_the_session_goes_when_the_training_has_gone(
    tool: nsys.Nsys, start: Callable[..., subprocess.Popen[str]], script: Script, end: Path
) -> None:
    training = start(*script(READS.format(end=str(end))))
    session = session_of(tool, training)
    assert session is not None
    end.touch()
    assert training.wait(60) == 6
    wait_for(lambda: session.id not in [s.id for s in nsys.list_sessions(tool)], what="the session to end")
    wait_for(lambda: not processes_of(session), what="nsys to leave")


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_the_session_stays_for_what_the_command_left_in_the_background(
    tool: nsys.Nsys, start: Callable[..., subprocess.Popen[str]], tmp_path: Path, end: Path
) -> None:
    asked = tmp_path / "asked"
    before, within = (f"while [ ! -e {file} ]; do sleep 0.1; done" for file in (asked, end))
    worker = start("sh", "-c", f'echo ready; {before}; {{ {within}; }} >/dev/null 2>&1 & echo "$!"; exit 0')
    session = session_of(tool, worker)
    assert session is not None
    asked.touch()
    assert worker.stdout is not None
    background = int(worker.stdout.readline())
    assert worker.wait(60) == 0
    time.sleep(1.0)  # four times what a keeper waits that looks at the command alone
    assert procfs.is_alive(background)
    assert session.id in [s.id for s in nsys.list_sessions(tool)]
    end.touch()
    wait_for(lambda: not processes_of(session), what="nsys to leave")


@pytest.mark.parametrize(
    "collecting",
    [pytest.param(False, marks=pytest.mark.slow("an idle nsys is the easier case")), True],
    ids=["idle", "collecting"],
)
def test_a_killed_nsys_leaves_the_training_alone(
    tool: nsys.Nsys,
    start: Callable[..., subprocess.Popen[str]],
    script: Script,
    tmp_path: Path,
    end: Path,
    collecting: bool,
) -> None:
    training = start(*script(READS.format(end=str(end))), options=("--with", "osrt"))
    session = session_of(tool, training)
    assert session is not None
    if collecting:
        tool.run("start", f"--session={session.name}", "-o", str(tmp_path / "r"), "-f", "true", "--sample=none")
    for pid in processes_of(session):
        with suppress(ProcessLookupError):  # it has ended with one before it
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not processes_of(session), what="nsys to be gone")
    before = bytes_read(training)
    wait_for(lambda: bytes_read(training) > before + 10_000, what="the training to go on")
    end.touch()
    assert training.wait(60) == 6


def test_a_training_is_not_started_without_the_nsys_that_was_asked_for(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    done = subprocess.run(
        [*LLMTOP, "--nsys", "--", "touch", str(touched)],
        env=environment(LLMTOP_NSYS=str(tmp_path / "nsys")),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.startswith("llmtop: there is no nsys at ")
    assert done.stderr.count("\n") == 1
    assert not touched.exists()


def test_an_nsys_that_fails_is_quoted_and_the_training_not_started(tmp_path: Path) -> None:
    touched, broken = tmp_path / "touched", tmp_path / "nsys"
    broken.write_text(
        "#!/bin/sh\n"
        "[ $1 = --version ] && echo NVIDIA Nsight Systems version 2025.3.1 && exit\n"
        "echo out of luck\nexit 1\n"
    )
    broken.chmod(0o755)
    done = subprocess.run(
        [*LLMTOP, "--nsys", "--", "touch", str(touched)],
        env=environment(LLMTOP_NSYS=str(broken)),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.endswith("nsys ended before the training was started: out of luck\n")
    assert not touched.exists()


def test_an_nsys_that_fails_once_is_asked_again(tool: nsys.Nsys, tmp_path: Path) -> None:
    failed, moody = tmp_path / "failed", tmp_path / "nsys"
    moody.write_text(
        f'#!/bin/sh\n[ $1 = launch ] && [ ! -e {failed} ] && touch {failed} && exit 1\nexec {tool.path} "$@"\n'
    )
    moody.chmod(0o755)
    done = subprocess.run(
        [*LLMTOP, "--nsys", "--", "sh", "-c", "exit 7"],
        env=environment(LLMTOP_NSYS=str(moody)),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert failed.exists(), done.stderr
    assert done.returncode == 7, done.stderr
    assert "ended before" not in done.stderr


@pytest.mark.slow("test_an_nsys_that_fails_once_is_asked_again finds the same fault")
def test_an_nsys_that_gives_up_on_a_busy_machine_is_asked_until_it_has_a_session(
    tool: nsys.Nsys, script: Script, tmp_path: Path, end: Path
) -> None:
    folder = tmp_path / "nsys"
    folder.mkdir()
    starved = starved_nsys(folder, tool.path, times=2)
    with subprocess.Popen(
        [*LLMTOP, "--nsys", "--", *script(READS.format(end=str(end)))],
        env=environment(LLMTOP_NSYS=str(starved)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as training:
        try:
            assert training.stdout is not None
            assert training.stderr is not None
            assert training.stdout.readline() == "ready\n", training.stderr.read()
            # On a busy machine the real one may give up as well, and is then launched once more.
            assert (folder / "launched-3").exists()
            session = session_of(tool, training)
            assert session is not None
            assert session.state == "Launched"
        finally:
            training.kill()
    wait_for(lambda: not processes_of(session), what="nsys to leave")


def test_an_nsys_that_gives_up_all_the_time_is_said_to_need_a_quieter_machine(tmp_path: Path) -> None:
    touched, starved = tmp_path / "touched", tmp_path / "nsys"
    starved.write_text(
        "#!/bin/sh\n"
        "[ $1 = --version ] && echo NVIDIA Nsight Systems version 2025.3.1 && exit\n"
        "echo 'ProcessWaiterImpl.cpp(186): Throw in function QuadDCommon::ProcessWaiter'\nexit 1\n"
    )
    starved.chmod(0o755)
    call = "from llmtop.__main__ import main; main()"
    impatient = "from llmtop.launch import nsys_session as one; one.BUSY_SECONDS = 0.2"
    done = subprocess.run(
        [sys.executable, "-c", f"{impatient}; {call}", "run", "--nsys", "--", "touch", str(touched)],
        env=environment(LLMTOP_NSYS=str(starved)),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 3
    assert "this machine is too busy" in done.stderr
    assert "QuadD" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert not touched.exists()


@pytest.mark.parametrize(
    ("options", "word"), [(["--with", "osrt"], "add --nsys"), (["--nsys", "--with", "x"], "'x'")]
)
def test_an_option_that_nsys_has_not_is_refused(tool: nsys.Nsys, options: list[str], word: str) -> None:
    done = subprocess.run(
        [*LLMTOP, *options, "--", "true"],
        env=environment(LLMTOP_NSYS=str(tool.path)),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2
    assert word in done.stderr.splitlines()[-1]
