"""What a capture with a real nsys must never do to a training, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from llmtop.capture import take
from llmtop.capture.base.job import Cancelled, Progress
from llmtop.capture.nsys import orphans
from llmtop.errors import NotPossibleHere
from llmtop.nsys_cli import tool as nsys
from tests.capture.conftest import Start, Training
from tests.capture.killed import kill_capture_at
from tests.capture.nsys.under_nsys import abandon, plan, ranges, session_state, touch_within
from tests.support.captured_steps import whole_steps
from tests.support.processes import wait_for

pytestmark = [pytest.mark.nsys, pytest.mark.usefixtures("real_nsys")]


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_a_cancelled_capture_leaves_no_folder_and_no_collection(under_nsys: Training, captures: Path) -> None:
    target = under_nsys.wait_attached()
    cancelled = threading.Event()

    def cancel_in_the_middle(progress: Progress) -> None:
        if progress.stage == "record" and (progress.steps or 0) >= 2:
            cancelled.set()

    with pytest.raises(Cancelled):
        take.take(plan(target, captures, steps=500), cancel_in_the_middle, cancelled)
    assert list(captures.iterdir()) == []
    wait_for(lambda: session_state(target) == "Launched")
    under_nsys.wait_for_steps(5)
    assert take.take(plan(target, captures)).info.state == "done"


@pytest.mark.slow("the longest stage; each is a capture", kept=("record",))
@pytest.mark.parametrize("stage", ["prepare", "start", "record", "stop", "export", "analyse"])
def test_killing_llmtop_at_any_stage_leaves_the_training_running_and_not_collected(
    under_nsys: Training, captures: Path, stage: str
) -> None:
    target = under_nsys.wait_attached()
    kill_capture_at(stage, target, captures, "nsys")
    under_nsys.wait_for_steps(5)
    wait_for(lambda: session_state(target) == "Launched", what="the collection to be stopped")
    result = take.take(plan(target, captures))
    assert result.info.state == "done"
    under_nsys.wait_for_steps(5)
    assert under_nsys.end() == 0


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_a_collection_whose_llmtop_and_holder_were_killed_is_found_and_stopped(
    under_nsys: Training, captures: Path, real_nsys: Path, tmp_path: Path
) -> None:
    target = under_nsys.wait_attached()
    tool, session = nsys.find_session(target.pid)
    abandon(tool, session, target, tmp_path)
    assert any(session.id in sentence for sentence in orphans.orphan_messages())
    outcomes = list(orphans.stop_orphans())
    assert all(isinstance(outcome, str) for outcome in outcomes)
    assert session_state(target) == "Launched"
    assert orphans.orphan_messages() == []
    under_nsys.wait_for_steps(3)


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_the_next_capture_stops_what_a_killed_llmtop_left_collecting(
    under_nsys: Training, captures: Path, tmp_path: Path
) -> None:
    target = under_nsys.wait_attached()
    tool, session = nsys.find_session(target.pid)
    abandon(tool, session, target, tmp_path)
    result = take.take(plan(target, captures))
    assert whole_steps(result.report) == 5
    under_nsys.wait_for_steps(3)


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_a_collection_that_somebody_started_by_hand_is_left_alone(
    under_nsys: Training, captures: Path, tmp_path: Path
) -> None:
    target = under_nsys.wait_attached()
    tool, session = nsys.find_session(target.pid)
    tool.run("start", f"--session={session.id}", "-o", str(tmp_path / "mine"), "-f", "true")
    with pytest.raises(NotPossibleHere, match="another program is capturing"):
        take.take(plan(target, captures))
    assert nsys.find_session(target.pid)[1].collecting
    tool.run("stop", f"--session={session.id}", seconds=240)
    assert (tmp_path / "mine.nsys-rep").is_file()


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_a_second_monitor_is_told(under_nsys: Training, captures: Path) -> None:
    target = under_nsys.wait_attached()
    recording, cancelled = threading.Event(), threading.Event()

    def watch(progress: Progress) -> None:
        if progress.stage == "record":
            recording.set()

    def first() -> None:
        with pytest.raises(Cancelled):
            take.take(plan(target, captures, steps=900), watch, cancelled)

    thread = threading.Thread(target=first)
    thread.start()
    assert recording.wait(60)
    with pytest.raises(NotPossibleHere, match=rf"another llmtop \(pid {os.getpid()}\) has been capturing"):
        take.take(plan(target, captures))
    cancelled.set()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_a_training_that_ends_within_the_window_leaves_its_report(
    start: Start, llmtop_run: tuple[str, ...], captures: Path, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    training = start("--until", str(end), behind=(*llmtop_run, "--nsys", "--"))
    target = training.wait_attached()
    result = take.take(plan(target, captures, steps=500), touch_within(end))
    assert training.process.wait(60) == 0
    assert any("ended within the window" in note for note in result.info.notes)
    assert result.trace is not None
    assert ranges(result.trace, "step") >= 1


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
@pytest.mark.usefixtures("stops_training")
def test_a_stopped_training_is_captured_without_waiting_for_ever(under_nsys: Training, captures: Path) -> None:
    target = under_nsys.wait_attached()
    os.kill(under_nsys.pid, signal.SIGSTOP)
    try:
        result = take.take(plan(target, captures, steps=None, seconds=0.3))
        assert result.info.state == "done"
    finally:
        os.kill(under_nsys.pid, signal.SIGCONT)
    under_nsys.wait_for_steps(3)


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_a_full_disk_keeps_what_nsys_recorded_and_says_where(
    under_nsys: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(small)], check=False, timeout=240
    )
    if mounted.returncode != 0:
        pytest.skip("a small disk needs root to be mounted")
    try:
        monkeypatch.setattr("llmtop.capture.nsys.collection.MIN_FREE_BYTES", 0)
        monkeypatch.setattr("llmtop.capture.base.folder.check_disk", lambda *_: 1)
        target = under_nsys.wait_attached()
        # nsys leaves its raw data in its scratch folder; the report is then made there, where there is room.
        info = take.take(plan(target, small)).info
        (note,) = [note for note in info.notes if "not in the folder, which is full" in note]
        kept = Path(note.partition("full: ")[2])
        assert kept.stat().st_size > 0
        assert small not in kept.parents
        for left in kept.parent.glob(f"{kept.stem}.*"):
            left.unlink()
        under_nsys.wait_for_steps(3)
    finally:
        subprocess.run(["umount", str(small)], check=True, timeout=240)
