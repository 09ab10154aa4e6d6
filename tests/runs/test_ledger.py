"""Where the time of real trainings went, against the stamps that they print themselves."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmtop.errors import UnusableInput
from llmtop.runs import ledger, store
from llmtop.runs.report import report_of
from tests.runs.test_run_files import finish, start
from tests.support.clock import Clock
from tests.support.preloaded import llmtop
from tests.support.processes import WAITS_FOR_RUN_FILE, environment, wait_for

PHASES = f"""{WAITS_FOR_RUN_FILE}
import os, sys, time, llmtop
fails = "--fail" in sys.argv and not os.path.exists("failed")
begun = time.monotonic()
for number in range(60):
    with llmtop.phase("dataload"):
        time.sleep(0.02)
    with llmtop.step(tokens=10):
        with llmtop.phase("forward"):
            time.sleep(0.03)
    if number % 20 == 19:
        with llmtop.phase("checkpoint"):
            time.sleep(0.3)
    if fails and number == 49:
        open("failed", "w").close()
        raise SystemError("planted")
"""


STEADY = """
import sys, time, llmtop
for _ in range(int(sys.argv[1])):
    with llmtop.step():
        time.sleep(float(sys.argv[2]))
"""


def train(runs: Path, *options: str, code: int = 0, name: str = "mine") -> None:
    env = environment(LLMTOP_RUN_LOG="1", LLMTOP_RUNS=str(runs), LLMTOP_RUN_NAME=name)
    command = [sys.executable, "-c", PHASES, *options]
    done = subprocess.run(command, env=env, cwd=runs.parent, capture_output=True, timeout=240, check=False)
    assert done.returncode == code, done.stderr


def test_the_classes_add_up_to_the_wall_time(tmp_path: Path) -> None:
    train(tmp_path / "runs")
    (run,) = store.list_runs(tmp_path / "runs")
    found = ledger.ledger_of(run)
    assert sum(found.seconds.values()) == pytest.approx(found.rank_seconds, rel=0.005)
    # The last checkpoint comes after the last step. A sleep lasts at least as long as it is asked to.
    assert found.seconds[ledger.CHECKPOINT_TIME] >= 0.9
    assert found.seconds[ledger.WAIT_DATA] >= 59 * 0.02
    assert found.seconds[ledger.PRODUCTIVE] >= 59 * 0.03
    assert found.seconds[ledger.LOST] == 0


@pytest.mark.slow("test_without_a_checkpoint_all_steps_of_a_killed_start_are_lost finds the same fault")
def test_steps_after_the_last_checkpoint_of_a_failed_start_are_lost(tmp_path: Path) -> None:
    train(tmp_path / "runs", "--fail", code=1)
    train(tmp_path / "runs", "--fail")
    (run,) = store.list_runs(tmp_path / "runs")
    assert [attempt.how for attempt in run.attempts] == [store.FAILED, store.ENDED]
    found = ledger.ledger_of(run)
    assert sum(found.seconds.values()) == pytest.approx(found.rank_seconds, rel=0.005)
    assert found.seconds[ledger.LOST] >= 9 * 0.05  # ten steps, less what rounding takes
    assert found.seconds[ledger.DOWN] > 0
    report = report_of(run)
    assert report.steps == 110
    assert [attempt.error for attempt in report.attempts] == ["SystemError", ""]


def test_without_a_checkpoint_all_steps_of_a_killed_start_are_lost(tmp_path: Path) -> None:
    for seconds in (1.5, None):
        steps = 60 if seconds is None else 100_000
        process = start(tmp_path / "runs", steps, 0.03, STEADY, LLMTOP_RUN_NAME="mine")
        if seconds is None:
            finish(process)
        else:
            wait_for(
                lambda: [one for run in store.list_runs(tmp_path / "runs") for one in run.processes if one.state]
            )
            time.sleep(seconds)
            process.kill()
            process.communicate(timeout=240)
    (run,) = store.list_runs(tmp_path / "runs")
    assert [attempt.how for attempt in run.attempts] == [store.KILLED, store.ENDED]
    found = ledger.ledger_of(run)
    assert sum(found.seconds.values()) == pytest.approx(found.rank_seconds, rel=0.005)
    second = run.attempts[1].leader.state
    assert second is not None
    assert found.seconds[ledger.PRODUCTIVE] <= second.step_seconds
    assert found.seconds[ledger.LOST] >= 0.5


def test_files_that_cannot_be_read_are_of_unknown_time(tmp_path: Path) -> None:
    finish(start(tmp_path / "runs", 30, 0.05, STEADY, LLMTOP_RUN_NAME="mine"))
    for path in (tmp_path / "runs").glob("*/*.*"):
        path.write_bytes(bytes(4500))
    (run,) = store.list_runs(tmp_path / "runs")
    assert set(ledger.ledger_of(run).seconds.values()) == {0.0}
    shown = " ".join(llmtop("runs", "show", env=environment(LLMTOP_RUNS=str(tmp_path / "runs"))).stdout.split())
    assert "files that cannot be read, 1 rank" in shown
    assert "9.00k bytes of the files cannot be read" in shown


def test_a_run_is_found_by_its_name_its_id_and_as_the_newest(tmp_path: Path) -> None:
    for name in ("one", "two"):
        finish(start(tmp_path / "runs", 20, 0.05, STEADY, LLMTOP_RUN_NAME=name))
    newest = store.find_run(tmp_path / "runs", None)
    assert newest.name == "two"
    assert store.find_run(tmp_path / "runs", "one").name == "one"
    assert store.find_run(tmp_path / "runs", newest.id[:6]).id == newest.id
    with pytest.raises(UnusableInput, match="List the runs"):
        store.find_run(tmp_path / "runs", "zzz")


@pytest.mark.slow("test_a_wall_clock_that_is_set_keeps_the_order_of_steps finds the same fault")
def test_a_wall_clock_that_is_set_back_changes_no_duration(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    process = start(tmp_path / "runs", 60, 0.05, **clock.environment())
    wait_for(lambda: list((tmp_path / "runs").glob("*/*.last*")))
    time.sleep(1.2)
    clock.step(-3600)
    finish(process)
    (run,) = store.list_runs(tmp_path / "runs")
    found = ledger.ledger_of(run)
    assert 60 * 0.05 <= found.wall_seconds < 120
    assert sum(found.seconds.values()) == pytest.approx(found.rank_seconds, rel=0.005)
    assert found.seconds[ledger.PRODUCTIVE] >= 59 * 0.05
