"""Kineto captures of an unmodified PyTorch script."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from llmtop.capture import take, targets
from llmtop.capture.base.job import Cancelled, Plan, Progress, Target
from llmtop.capture.kineto import engine as kineto_engine
from llmtop.capture.kineto import spawn as kineto_spawn
from llmtop.errors import NotPossibleHere
from tests.capture.conftest import Start, Training
from tests.support.captured_steps import whole_steps
from tests.support.installed import needs
from tests.support.processes import wait_for

BEHIND = (sys.executable, str(Path(__file__).with_name("launch_with_kineto.py")))


@pytest.fixture(scope="module")
def training(start_once: Start) -> Training:
    """A script that imports nothing of llmtop; one for all tests that must leave it running."""
    needs("torch")
    training = start_once("--torch", "--plain", "--step-ms", "50", behind=BEHIND)
    wait_for(lambda: _asks(training), what="the first question to the host")
    return training


def _asks(training: Training) -> bool:
    directory = kineto_engine.directory_of(training.pid)
    return directory is not None and training.pid in [one.pid for one in kineto_engine.list_pollers(directory)]


def plan(training: Training, parent: Path, **more: object) -> Plan:
    return Plan(**{"engine": "kineto", "targets": (Target(training.pid),), "parent": parent, "steps": 5, **more})  # type: ignore[arg-type]


@pytest.mark.torch
class TestCapture:
    def test_five_steps_of_an_unmodified_script(self, training: Training, captures: Path) -> None:
        wait_for(lambda: Target(training.pid) in targets.list_unattached(), what="a training that is not named")
        result = take.take(plan(training, captures))
        assert result.trace == result.folder / "traces" / f"pid{training.pid}.pt.trace.json"
        assert whole_steps(result.report) == 5
        assert result.report.engine == "kineto"
        training.wait_for_steps(3)

    @pytest.mark.slow("a capture more; test_five_steps_of_an_unmodified_script has one")
    def test_by_the_clock(self, training: Training, captures: Path) -> None:
        result = take.take(plan(training, captures, steps=None, seconds=2.0))
        # Fewer where steps take longer than they sleep, more where Kineto's thread wakes up late.
        assert 1 <= result.report.steps.count <= 60, "forty"

    def test_cancelled_before_the_process_was_told(self, training: Training, captures: Path) -> None:
        cancelled = threading.Event()

        def cancel(progress: Progress) -> None:
            if progress.stage == "start":
                cancelled.set()

        with pytest.raises(Cancelled):
            take.take(plan(training, captures), cancel, cancelled)
        assert list(captures.iterdir()) == []
        training.wait_for_steps(3)

    @pytest.mark.slow("a capture more; test_five_steps_of_an_unmodified_script has one")
    def test_a_folder_that_goes_while_it_records_does_not_harm_the_training(
        self, training: Training, captures: Path
    ) -> None:
        cancelled = threading.Event()

        def cancel(progress: Progress) -> None:
            if progress.stage == "record":
                cancelled.set()

        with pytest.raises(Cancelled):
            take.take(plan(training, captures, steps=20), cancel, cancelled)
        training.wait_for_steps(40)
        assert whole_steps(take.take(plan(training, captures)).report) == 5, "and it can be captured again"

    @pytest.mark.slow(
        "test_killing_llmtop_at_any_stage_leaves_the_training_running_and_not_collected finds the same fault"
    )
    def test_a_killed_host_does_not_harm_the_training(self, start: Start, captures: Path) -> None:
        training = start("--torch", "--plain", "--step-ms", "50", behind=BEHIND)
        wait_for(lambda: _asks(training))
        directory = kineto_engine.directory_of(training.pid)
        assert directory is not None
        os.kill(_host_of(directory), signal.SIGKILL)
        with pytest.raises(NotPossibleHere, match="started to reach Kineto has ended"):
            take.take(plan(training, captures))
        training.wait_for_steps(30)
        assert training.end() == 0
        assert not any("ERROR" in line for line in training.lines)

    @pytest.mark.slow("an end within a capture; test_a_captured_training_ends_as_it_would_without has one")
    def test_a_training_that_ends_before_its_trace_is_written(
        self, start: Start, captures: Path, tmp_path: Path
    ) -> None:
        end = tmp_path / "end"
        training = start("--torch", "--plain", "--until", str(end), behind=BEHIND)
        wait_for(lambda: _asks(training))

        def end_it(progress: Progress) -> None:
            if progress.stage == "record":
                end.touch()

        with pytest.raises(NotPossibleHere, match="ended before its trace was written"):
            take.take(plan(training, captures, steps=500), end_it)


def test_the_host_is_no_child_and_goes_with_the_training(start: Start) -> None:
    training = start("--plain", behind=BEHIND)
    directory = kineto_engine.directory_of(training.pid)
    assert directory is not None
    host = _host_of(directory)
    parent = Path(f"/proc/{host}/stat").read_text().rpartition(")")[2].split()[1]
    assert int(parent) != training.pid
    assert os.readlink(f"/proc/{host}/fd/1") == "/dev/null"
    assert training.end() == 0
    wait_for(lambda: not directory.exists(), what="the host to end")


def _host_of(directory: Path) -> int:
    def look() -> int | None:
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # a process that ends meanwhile
                words = entry.read_bytes().split(b"\0")
                if b"llmtop.capture.kineto.spawn" in words and os.fsencode(directory) in words:
                    return int(entry.parent.name)
        return None

    # The host's fork may become its program after the training's first step.
    host = wait_for(look, what=f"a host of {directory}")
    assert host is not None
    return host


def test_the_users_own_kineto_settings_are_left_alone() -> None:
    mine = {"KINETO_USE_DAEMON": "1"}
    assert not kineto_spawn.start_host(mine, os.getpid())
    assert mine == {"KINETO_USE_DAEMON": "1"}
