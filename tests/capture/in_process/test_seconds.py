"""Captures by the clock that a training takes of itself: so many seconds are recorded, or it says why not."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from llmtop.capture import take
from llmtop.capture.base.job import Cancelled, Plan, Progress, Target
from llmtop.capture.take import Result
from llmtop.errors import NotPossibleHere
from llmtop.protocol import client, wire
from tests.capture.conftest import Start, Training
from tests.support.installed import needs
from tests.support.processes import wait_for

needs("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def training(start_once: Start) -> Training:
    """One for all tests that must leave it running."""
    return start_once("--torch", "--step-ms", "50")


@pytest.fixture
def no_median(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step of before is heard when the capture begins, as of a training whose first step is under way."""
    monkeypatch.setattr("llmtop.capture.base.step_listener.HISTORY", 0)


def taken(target: Target, parent: Path, seconds: float, **more: object) -> Result:
    plan = {"engine": "torch.profiler", "targets": (target,), "parent": parent, "seconds": seconds, **more}
    return take.take(Plan(**plan))  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_median")
def test_so_many_seconds_are_recorded_whatever_a_step_takes(training: Training, captures: Path) -> None:
    info = taken(training.wait_attached(), captures, 2.0).info
    assert info.seconds_wanted == 2.0
    assert info.seconds_recorded is not None
    assert info.seconds_recorded >= 2.0
    assert info.stopped_early is None
    training.wait_for_steps(3)


@pytest.mark.slow("a recording of its own; test_so_many_seconds_are_recorded_whatever_a_step_takes has one")
@pytest.mark.usefixtures("no_median")
def test_of_steps_that_are_longer_than_that_one_is_whole(start: Start, captures: Path) -> None:
    training = start("--torch", "--step-ms", "1500")
    result = taken(training.wait_attached(), captures, 0.3)
    assert result.info.steps == 2
    assert result.report.steps.count >= 1  # by the clock of a device the second has no end
    assert result.info.seconds_recorded >= 3.0  # type: ignore[operator]


@pytest.mark.slow("a recording of its own; test_so_many_seconds_are_recorded_whatever_a_step_takes has one")
def test_a_training_that_ends_within_says_after_how_long(start: Start, captures: Path, tmp_path: Path) -> None:
    end = tmp_path / "end"
    training = start("--torch", "--step-ms", "50", "--until", str(end))
    target = training.wait_attached()

    def end_it(progress: Progress) -> None:
        if progress.stage == "record":
            end.touch()

    with pytest.raises(
        NotPossibleHere, match=r"the training ended after \d+\.\d s of the 600\.0 s to be recorded"
    ):
        take.take(Plan("torch.profiler", (target,), captures, seconds=600.0), end_it)
    assert training.process.wait(60) == 0
    assert list(captures.iterdir()) == []


@pytest.mark.slow("a recording of its own; test_so_many_seconds_are_recorded_whatever_a_step_takes has one")
def test_the_bound_of_memory_ends_it_and_is_the_first_line(start: Start, captures: Path) -> None:
    training = start("--torch", "--step-ms", "5")
    result = taken(training.wait_attached(), captures, 600.0, memory_bytes=1 << 20)
    assert result.info.stopped_early is not None
    assert "of the 10m 00s asked for: the recording reached the bound of 1 MiB" in result.info.stopped_early
    first = (result.folder / "report.md").read_text().splitlines()[0]
    assert "the recording reached the bound of 1 MiB" in first
    training.wait_for_steps(10)


def test_a_cancel_leaves_nothing_and_the_training_can_be_captured_again(
    training: Training, captures: Path
) -> None:
    target = training.wait_attached()
    cancelled = threading.Event()

    def cancel(progress: Progress) -> None:
        if progress.stage == "record":
            cancelled.set()

    with pytest.raises(Cancelled):
        take.take(Plan("torch.profiler", (target,), captures, seconds=600.0), cancel, cancelled)
    assert list(captures.iterdir()) == []
    result = wait_for(lambda: _taken_if_free(target, captures), what="the process to be free for another capture")
    assert result is not None
    assert result.info.seconds_recorded is not None


@pytest.mark.slow(
    "test_killing_llmtop_at_any_stage_leaves_the_training_running_and_not_collected finds the same fault"
)
def test_nothing_is_recorded_for_a_monitor_that_has_gone(training: Training, captures: Path) -> None:
    target = training.wait_attached()
    captures.mkdir()
    assert target.socket is not None
    with client.Connection.open(target.socket, history=0) as monitor:
        path = str(captures / "left.json")
        monitor.send(wire.CaptureRequest(id="x", engine="torch.profiler", path=path, steps=5, seconds=600.0))
        wait_for(lambda: _records(monitor), what="the recording to begin")
    result = wait_for(lambda: _taken_if_free(target, captures), what="the process to be free for another capture")
    assert result is not None
    assert result.info.state == "done"
    assert not (captures / "left.json").exists()


def _records(monitor: client.Connection) -> bool:
    found = monitor.receive(0.1)
    return any(isinstance(one, wire.CaptureState) and one.state == "recording" for one in found)


def _taken_if_free(target: Target, captures: Path) -> take.Result | None:
    try:
        return taken(target, captures, 0.3)
    except NotPossibleHere as refusal:
        if "is running in this process" not in str(refusal):
            raise
        return None
