"""A root folder without /dev/null, as a chroot has it that nobody filled."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import nvml_stub
from tests.support.processes import REPOSITORY, environment, wait_for
from tests.support.terminal import Terminal

WITHOUT = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev && exec "$@"', "sh"]


@pytest.fixture(autouse=True)
def has_namespaces() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    tried = subprocess.run(
        [*WITHOUT, "test", "!", "-e", "/dev/null"], check=False, capture_output=True, timeout=240
    )
    if tried.returncode != 0:
        pytest.skip("this user may not make a namespace for mounts")


def test_gpus_are_read_and_nothing_is_on_standard_error(tmp_path: Path) -> None:
    scenario = nvml_stub.Scenario.eight_gpus()
    scenario.write(tmp_path / "scenario")
    env = environment(**nvml_stub.environment(nvml_stub.build(), tmp_path / "scenario"))
    command = [*WITHOUT, sys.executable, "-m", "llmtop", "--once"]

    def shows_gpus() -> bool:
        shown = subprocess.run(
            command,
            input="",
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            env=env,
            timeout=240,
            check=False,
        )
        assert (shown.returncode, shown.stderr) == (0, "")
        return "H200" in shown.stdout

    wait_for(shows_gpus, what="the GPUs, for which it may wait too short on a busy machine")


@pytest.mark.slow("a screen each; test_gpus_are_read_and_nothing_is_on_standard_error has a monitor there")
@pytest.mark.parametrize("end", ["q", "SIGKILL"])
def test_the_screen_gives_the_terminal_back(end: str) -> None:
    with Terminal([*WITHOUT, sys.executable, "-m", "llmtop", "demo"]) as terminal:
        terminal.shows("REPLAY")
        if end == "q":
            terminal.keys("q")
            assert terminal.ends() == 0
        else:
            terminal.process.kill()
            assert terminal.ends() == -signal.SIGKILL
        wait_for(lambda: terminal.attributes() == terminal.before, what="the settings of before")
        wait_for(lambda: b"\x1b[?1049l" in terminal.raw, what="the shell's screen")
        assert b"Traceback" not in terminal.raw
        assert b"/dev/null" not in terminal.raw
