"""A training that llmtop starts has its terminal to itself: the same with nsys and without."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from llmtop.system.procfs import is_alive
from tests.launch.conftest import Launcher
from tests.support.processes import wait_for

Script = Callable[[str], list[str]]
SECONDS = 240
"""Against hanging."""

TERMINAL = """
import os, signal, sys
print("streams", [os.isatty(fd) for fd in (0, 1, 2)])
with open("/dev/tty", "w") as tty:
    print("tty", os.ttyname(0) == os.ttyname(2), tty.isatty())
print("foreground", os.tcgetpgrp(0) == os.getpgrp(), os.getsid(0) == os.getpid())
signal.signal(signal.SIGWINCH, lambda *_: print("resized", *os.get_terminal_size(0)))
print("size", *os.get_terminal_size(0))
for line in sys.stdin:
    print("read", line.strip().upper())
    if line.strip() == "end":
        sys.exit(5)
"""

CHECKPOINT = """
import signal, sys, time
interrupts = []
signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))
print("ready")
while not interrupts:
    time.sleep(0.02)
time.sleep(0.4)
print("checkpoint after", len(interrupts))
sys.exit(7)
"""

SLEEP = """
import os, time
print("ready", os.getpid())
time.sleep(120)
"""


def spawn(launcher: Launcher, command: list[str]) -> pexpect.spawn:
    program, *arguments = launcher(*command)
    return pexpect.spawn(
        program, arguments, env=launcher.environment, timeout=SECONDS, dimensions=(31, 97), encoding="utf-8"
    )


def test_it_is_a_terminal_of_the_right_size_that_can_be_read_and_resized(
    launcher: Launcher, script: Script
) -> None:
    child = spawn(launcher, script(TERMINAL))
    child.expect_exact("streams [True, True, True]")
    child.expect_exact("tty True True")
    child.expect_exact("foreground True True")
    child.expect_exact("size 97 31")
    child.setwinsize(50, 140)
    child.expect_exact("resized 140 50")
    child.sendline("some words")
    child.expect_exact("read SOME WORDS")
    child.sendline("end")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 5


def test_ctrl_c_reaches_it_once_and_its_exit_code_comes_back(launcher: Launcher, script: Script) -> None:
    child = spawn(launcher, script(CHECKPOINT))
    child.expect_exact("ready")
    child.sendintr()
    child.expect_exact("checkpoint after 1")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1])
def test_a_signal_to_what_was_started_is_a_signal_to_the_training(
    launcher: Launcher, script: Script, number: signal.Signals
) -> None:
    child = spawn(launcher, script(SLEEP))
    child.expect(r"ready (\d+)")
    assert int(child.match.group(1)) == child.pid
    os.kill(child.pid, number)
    child.expect(pexpect.EOF)
    child.close()
    assert child.signalstatus == number


def test_it_can_be_put_aside_and_brought_back(launcher: Launcher, script: Script) -> None:
    shell = pexpect.spawn(
        "bash",
        ["--norc", "--noprofile", "-i"],
        env={**launcher.environment, "PS1": "$ ", "TERM": "dumb"},
        timeout=SECONDS,
        encoding="utf-8",
    )
    shell.sendline(shlex.join(launcher(*script(CHECKPOINT))))
    shell.expect_exact("ready")
    shell.sendcontrol("z")
    shell.expect_exact("Stopped")
    shell.sendline("jobs -s | wc -l")
    shell.expect(r"\n1\r")
    shell.sendline("fg; echo code=$?")
    shell.expect(r"training0.py\r")
    wait_for(lambda: os.tcgetpgrp(shell.child_fd) != shell.pid, what="fg to give it the terminal")
    shell.sendintr()
    shell.expect_exact("checkpoint after 1")
    shell.expect_exact("code=7")
    shell.sendline("exit")
    shell.expect(pexpect.EOF)
    shell.close()


class Pane:
    """A pane of a tmux of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._name = f"llmtop-{uuid.uuid4().hex[:8]}"
        self._environment = {name: value for name, value in environment.items() if name != "TMUX"}
        self("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "bash --norc --noprofile")

    def __call__(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._name, *arguments]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=True, timeout=240
        )
        return done.stdout

    def type(self, line: str) -> None:
        self("send-keys", line, "Enter")

    def text(self) -> str:
        return self("capture-pane", "-p", "-J")

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._name, "kill-server"], capture_output=True, check=False, timeout=240)


@pytest.fixture
def pane(launcher: Launcher) -> Iterator[Pane]:
    if shutil.which("tmux") is None:
        pytest.skip("no tmux")
    pane = Pane(launcher.environment)
    yield pane
    pane.close()


@pytest.mark.tmux
def test_closing_the_pane_ends_the_training(
    launcher: Launcher, script: Script, pane: Pane, tmp_path: Path
) -> None:
    pid_file, told = tmp_path / "pid", tmp_path / "told"
    command = script(f"""
import os, signal, sys, time
def hung_up(*_):
    open({str(told)!r}, "a").write("SIGHUP\\n")
    sys.exit(1)
signal.signal(signal.SIGHUP, hung_up)
open({str(pid_file)!r}, "w").write(str(os.getpid()))
while True:
    time.sleep(0.05)
""")
    pane.type(shlex.join(launcher(*command)))
    pid = int(wait_for(lambda: pid_file.exists() and pid_file.read_text(), SECONDS, "the training to start"))
    pane("kill-pane")
    wait_for(lambda: not is_alive(pid), SECONDS, "the training to end with its pane")
    # The kernel tells the foreground job and the shell tells its jobs: without llmtop it comes twice, too.
    assert set(told.read_text().split()) == {"SIGHUP"}


@pytest.mark.tmux
def test_a_shell_in_a_pane_sees_its_exit_code(launcher: Launcher, script: Script, pane: Pane) -> None:
    pane.type(shlex.join(launcher(*script("import sys; print('over'); sys.exit(9)"))) + "; echo code=$?")
    wait_for(lambda: "code=9" in pane.text(), SECONDS, "the exit code in the pane")
    pane.type(shlex.join(launcher("sh", "-c", "kill -TERM $$")) + "; echo code=$?")
    wait_for(lambda: "code=143" in pane.text(), SECONDS, "128 + SIGTERM in the pane")


@pytest.mark.slow("test_a_signal_to_what_was_started_is_a_signal_to_the_training finds the same fault")
@pytest.mark.torch
def test_torchrun_with_two_workers_ends_cleanly_on_ctrl_c(launcher: Launcher, tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("""
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
os.write(1, f"rank {dist.get_rank()} is {os.getpid()}\\n".encode())  # in one piece: the other rank writes too
while True:
    time.sleep(0.05)
""")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(worker)]
    launcher.environment["OMP_NUM_THREADS"] = "1"
    child = spawn(launcher, torchrun)
    workers = []
    for _ in range(2):
        child.expect(r"rank \d is (\d+)", timeout=240)
        workers.append(int(child.match.group(1)))
    child.sendintr()
    child.expect(pexpect.EOF, timeout=240)
    child.close()
    assert not child.isalive()
    assert child.exitstatus == 1, "what torchrun itself ends with after ctrl+c"
    wait_for(lambda: not any(is_alive(pid) for pid in workers), SECONDS, "the workers to be gone")
