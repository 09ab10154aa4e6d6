"""nsys captures of a real training by a real nsys."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from llmtop.capture import take
from llmtop.capture.base.job import Plan, Target
from llmtop.nsys_cli import tool as nsys
from tests.capture.conftest import Start, Training
from tests.capture.nsys.under_nsys import odd_notes, plan, ranges, session_state
from tests.capture.windows import sampled
from tests.support.captured_steps import whole_steps
from tests.support.processes import environment, wait_for

pytestmark = [pytest.mark.nsys, pytest.mark.usefixtures("real_nsys")]


def test_five_steps_are_captured_and_the_report_is_cut_to_five(under_nsys: Training, captures: Path) -> None:
    target = under_nsys.wait_attached()
    stages: list[str] = []
    result = take.take(plan(target, captures), lambda progress: stages.append(progress.stage))
    assert list(dict.fromkeys(stages)) == ["prepare", "start", "record", "stop", "export", "analyse", "done"]
    assert result.trace is not None
    assert ranges(result.trace, "step") >= 5, "steps go on until nsys has stopped"
    assert ranges(result.trace, "forward") >= 5
    assert whole_steps(result.report) == 5
    assert result.info.state == "done"
    assert odd_notes(result) == []
    assert (result.folder / "report.md").is_file()
    assert (result.folder / "trace.nsys-rep").is_file()
    under_nsys.wait_for_steps(5)
    assert session_state(target) == "Launched"
    assert under_nsys.end() == 0


@pytest.mark.slow("a capture of its own; test_five_steps_are_captured_and_the_report_is_cut_to_five has one")
def test_the_folder_says_what_was_captured(under_nsys: Training, captures: Path) -> None:
    target = under_nsys.wait_attached()
    result = take.take(plan(target, captures))
    written = json.loads((result.folder / "capture.json").read_bytes())
    assert written["pids"] == [under_nsys.pid]
    assert written["command"].endswith("training.py")
    assert written["steps"] >= 5
    assert written["tool"]["nsys"].startswith("20")
    assert written["git"]["commit"]
    assert 0.06 <= written["step_seconds"]["before_p50"] < 1.0, (
        "a step sleeps for 60 ms; a busy machine adds to that"
    )
    assert written["step_seconds"]["slowest_during"] is not None
    names = {file["name"] for file in written["files"]}
    assert {"trace.nsys-rep", "trace.sqlite", "report.md", "report.json"} <= names
    assert str(result.folder) in result.copy_command
    assert "trace.nsys-rep" in result.open_command


@pytest.mark.slow("a capture of its own; test_five_steps_are_captured_and_the_report_is_cut_to_five has one")
def test_the_command_line_captures_and_prints_json_alone(under_nsys: Training, captures: Path) -> None:
    under_nsys.wait_attached()
    done = subprocess.run(
        [sys.executable, "-m", "llmtop", "capture", "--steps", "5", "--json", "--out", str(captures)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert ranges(Path(facts["trace"]), "step") >= 5
    assert facts["report"]["steps"]["count"] == 5
    assert facts["capture"]["engine"] == "nsys"
    assert facts["bytes"] > 0


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_a_training_under_plain_nsys_launch_is_found(start: Start, real_nsys: Path, captures: Path) -> None:
    session = nsys.new_session_name()
    training = start(behind=(str(real_nsys), "launch", f"--session-new={session}", "--trace=nvtx"))
    target = wait_for(lambda: next(iter(_attached()), None))
    try:
        result = take.take(plan(target, captures, steps=3))
        assert result.trace is not None
        assert ranges(result.trace, "step") >= 3
        training.wait_for_steps(3)
    finally:
        os.kill(
            target.pid, signal.SIGTERM
        )  # nsys launch would not pass a signal on, and its agent stays without it
        training.process.wait(60)


def _attached() -> tuple[Target, ...]:
    from llmtop.capture import targets

    return targets.list_attached()


@pytest.mark.slow("a capture of its own; test_five_steps_are_captured_and_the_report_is_cut_to_five has one")
def test_the_ranks_of_one_launch_are_in_one_report_and_elsewhere_a_file_each(
    start: Start, llmtop_run: tuple[str, ...], captures: Path
) -> None:
    both = 'RANK=0 WORLD_SIZE=2 "$0" "$@" & RANK=1 WORLD_SIZE=2 "$0" "$@"; wait'
    start(behind=(*llmtop_run, "--nsys", "--", "sh", "-c", both))
    ranks = wait_for(lambda: found if len(found := _attached()) == 2 else None)
    together = take.take(Plan("nsys", ranks, captures, steps=3))
    assert together.info.ranks == [0, 1]
    assert together.trace is not None
    assert {path.name for path in together.folder.glob("*.nsys-rep")} == {"trace.nsys-rep"}
    with closing(sqlite3.connect(together.trace)) as database:
        pids = {
            pid for (pid,) in database.execute("SELECT DISTINCT (globalTid >> 24) & 0xFFFFFF FROM NVTX_EVENTS")
        }
    assert pids == {target.pid for target in ranks}
    apart = sampled(lambda seconds: take.take(Plan("py-spy", ranks, captures, seconds=seconds)))
    assert {path.name for path in apart.folder.glob("*.speedscope.json")} == {
        "rank0.speedscope.json",
        "rank1.speedscope.json",
    }


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_without_step_messages_the_clock_decides_and_an_empty_report_is_told(
    start: Start, llmtop_run: tuple[str, ...], captures: Path
) -> None:
    training = start("--plain", behind=(*llmtop_run, "--nsys", "--"))
    result = take.take(plan(Target(training.pid), captures, steps=None, seconds=0.5))
    assert (result.info.window_seconds or 0) >= 0.5
    assert result.info.steps is None
    (note,) = (note for note in result.info.notes if "neither kernels nor NVTX ranges" in note)
    assert ("nvtx 0.2.11" in note) == (nsys.find_nsys().version < (2025, 3))
