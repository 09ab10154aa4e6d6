"""The screen on runs: one that was killed, and one that goes on and is older than the screen."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmtop.runs.records import RecentSteps
from llmtop.runs.run_file import RunFile
from tests.support.processes import environment, wait_for
from tests.support.terminal import Terminal

LLMTOP = [sys.executable, "-m", "llmtop"]
STEPS = """
import time, llmtop
while True:
    with llmtop.step(tokens=10):
        with llmtop.phase("data"):
            time.sleep(0.06)
        with llmtop.phase("forward"):
            time.sleep(0.04)
    llmtop.log(loss=1.0)
"""


def variables(runs: Path, directory: Path) -> dict[str, str]:
    return {"LLMTOP_RUNS": str(runs), "LLMTOP_RUN_LOG": "1", "LLMTOP_DIR": str(directory)}


def start(runs: Path, directory: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", STEPS], env=environment(**variables(runs, directory)))
    wait_for(lambda: list(runs.glob("*/*.run")))
    return process


def recent_steps(runs: Path) -> int:
    """How many steps of the last minute are in the files of these runs."""
    found = (one for file in runs.glob("*/*.last?") for one in RunFile(file).records())
    return sum(len(one.steps) for one in found if isinstance(one, RecentSteps))


@pytest.mark.slow("a run and a screen; test_a_replay_shows_what_was_seen_and_marks_what_is_recomputed replays one")
def test_a_killed_training_is_opened_in_its_last_minute(runtime_dir: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    training = start(runs, runtime_dir)
    wait_for(lambda: recent_steps(runs) >= 50, what="five seconds of steps in its files")
    training.send_signal(signal.SIGKILL)
    training.wait(60)
    with Terminal([*LLMTOP, "runs", "open"], (120, 30), **variables(runs, runtime_dir)) as terminal:
        terminal.shows("REPLAY")
        terminal.shows("alerts are recomputed from the steps")
        terminal.shows("time line · all")
        terminal.shows(" end ", 60)  # of the recording
        terminal.shows("─ step ")
        assert "step –" not in terminal.text()
        terminal.keys("q")
        assert terminal.ends() == 0


@pytest.mark.slow("over a minute, so that the run is older; the past itself is in tests/collectors/runs")
def test_a_screen_shows_the_time_from_before_it_was_started(runtime_dir: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    training = start(runs, runtime_dir)
    try:
        env = environment(**variables(runs, runtime_dir))
        watcher = [*LLMTOP, "record", "--daemon", "--foreground", "--interval", "0.5", "--seconds", "20"]
        subprocess.run(watcher, env=env, check=True, timeout=240)
        time.sleep(50)
        shown = subprocess.run(
            [*LLMTOP, "runs", "show", "--json"], env=env, capture_output=True, timeout=240, check=True
        )
        seen = [one["id"] for one in json.loads(shown.stdout)["alerts"] if not one["recomputed"]]
        assert "input_bound" in seen
        with Terminal(LLMTOP, (120, 40), **variables(runs, runtime_dir)) as terminal:
            terminal.shows("LIVE")
            terminal.keys("a")
            terminal.shows("Ended alerts:", 60)
            terminal.shows("INPUT-BOUND")
            terminal.keys("q")
            terminal.shows("time line")
            terminal.keys("]" * 6)
            terminal.shows("time line · all, ")
            terminal.keys("q")
            assert terminal.ends() == 0
    finally:
        training.kill()
        training.wait(60)
