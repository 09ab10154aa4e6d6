"""The list of runs in terminals of any width."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.made_runs import write_run
from tests.support.preloaded import llmtop
from tests.support.processes import environment
from tests.support.terminal import Terminal


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    command = "/opt/very/long/path/of/an/environment/bin/python train.py --batch 8"
    write_run(tmp_path / "runs", "a", [0.5] * 60, command=command, error="OutOfMemoryError")
    write_run(tmp_path / "runs", "b", [0.5] * 600, started=1.7e9 + 5000, command=command)
    return tmp_path / "runs"


def test_a_list_in_a_pipe_has_all_columns(runs: Path) -> None:
    env = environment(LLMTOP_RUNS=str(runs), XDG_CONFIG_HOME=_old(runs))
    head, newest, older = llmtop("runs", env=env).stdout.splitlines()
    assert head.split()[-1] == "command"
    assert {"ranks", "starts", "goodput", "lasted"} <= set(head.split())
    assert newest.endswith("python train.py --batch 8")
    assert "failed: OutOfMemoryError" in older


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_row_is_one_line_and_keeps_the_command(runs: Path, columns: int) -> None:
    command = [sys.executable, "-m", "llmtop", "runs"]
    extra = {"LLMTOP_RUNS": str(runs), "XDG_CONFIG_HOME": _old(runs)}
    with Terminal(command, (columns, 15), **extra) as terminal:
        terminal.shows("2 runs in")
        lines = terminal.text().splitlines()
    assert lines[0].startswith("run ")
    assert all("python" in line for line in lines[1:3])
    assert lines[3].startswith("2 runs in")
    assert ("goodput" in lines[0]) == (columns == 200)


def _old(runs: Path) -> str:
    """Configuration by which runs of 2023 are kept."""
    folder = runs.parent / "config" / "llmtop"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text("[runs]\ndays = 36500\n")
    return str(runs.parent / "config")
