"""Where the limit of open files is low, each command says so in one sentence."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from llmtop.errors import EXIT_ENVIRONMENT
from tests.support.processes import REPOSITORY, environment
from tests.support.terminal import Terminal

COMMANDS = ("", "--json", "report none", "doctor", "demo", "replay none", "cluster", "bench true")


def run_with_limit(limit: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmtop", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment(),
        timeout=240,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )


def assert_refused(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == EXIT_ENVIRONMENT, result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("llmtop: the limit of open files allows ")
    assert line.endswith(" more, and llmtop needs 32. Raise the limit: ulimit -n 1024")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_names_the_limit_of_open_files(command: str) -> None:
    assert_refused(run_with_limit(8, *command.split()))


@pytest.mark.parametrize("limit", [6, 10, 20])
def test_any_low_limit_is_one_sentence(limit: int) -> None:
    assert_refused(run_with_limit(limit, "--once"))


def test_a_training_help_and_a_sufficient_limit_are_not_refused() -> None:
    started = run_with_limit(8, "run", "--", "sh", "-c", "exit 7")
    assert started.returncode == 7
    assert run_with_limit(8, "--help").returncode == 0
    assert run_with_limit(64, "doctor").returncode == 0


def test_the_screen_starts_with_the_fewest_files_that_it_asks_for() -> None:
    command = ["sh", "-c", f"ulimit -n 36; exec {sys.executable} -m llmtop demo"]
    with Terminal(command) as terminal:
        terminal.shows("REPLAY")
        terminal.keys("q")
        assert terminal.ends() == 0
    with Terminal(["sh", "-c", f"ulimit -n 8; exec {sys.executable} -m llmtop demo"]) as terminal:
        assert terminal.ends() == EXIT_ENVIRONMENT
        assert b"Raise the limit: ulimit -n 1024" in terminal.raw
        assert b"Traceback" not in terminal.raw
