"""Operators that PyTorch marks for the window of a capture with a real nsys, and for no longer."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from llmtop.capture import take
from llmtop.capture.base.job import Cancelled, Progress, Target
from llmtop.capture.nsys import pause
from llmtop.errors import LlmtopError, NotPossibleHere
from llmtop.nsys_cli import tool as nsys
from llmtop.protocol import wire
from llmtop.protocol.client import Connection
from llmtop.system import procfs
from llmtop.trace.nsys.nvtx_operators import parse_operator_range
from tests.capture.conftest import Start, Training
from tests.capture.killed import kill_capture_at
from tests.capture.nsys.under_nsys import odd_notes, plan, session_state, touch_within
from tests.support.captured_steps import whole_steps
from tests.support.processes import wait_for
from tests.support.trainings import Heard

pytestmark = [pytest.mark.nsys, pytest.mark.torch, pytest.mark.usefixtures("real_nsys")]
OPS = frozenset({"ops"})


@pytest.fixture
def training(start: Start, llmtop_run: tuple[str, ...]) -> Training:
    """One whose PyTorch can mark operators, under nsys."""
    return start("--torch", "--nvtx", "--step-ms", "40", behind=(*llmtop_run, "--nsys", "--"))


class Range(NamedTuple):
    start: int
    end: int
    text: str
    thread: int


def marked(path: Path) -> list[Range]:
    """All ranges with a name of their own, in order of their start."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(
            "SELECT start, end, coalesce(text, value), globalTid FROM NVTX_EVENTS LEFT JOIN StringIds "
            "ON textId = id WHERE end IS NOT NULL ORDER BY start"
        ).fetchall()
    return [Range(*row) for row in rows]


def operators(path: Path) -> list[Range]:
    """Those that PyTorch marked."""
    return [one for one in marked(path) if parse_operator_range(one.text) is not None]


def heard(target: Target) -> Heard:
    """Listen to what a training says of its operators, from now on."""
    assert target.socket is not None
    return Heard(Connection.open(target.socket, history=0))


def states(listener: Heard) -> list[str]:
    return [one.state for one in listener.messages if isinstance(one, wire.OpRangesState)]


@pytest.mark.slow("two captures by nsys; test_marks_begin_and_end_with_a_step has the marks alone")
def test_operators_with_sizes_within_the_window_and_none_after_it(training: Training, captures: Path) -> None:
    target = training.wait_attached()
    first = take.take(plan(target, captures, options=OPS))
    assert first.trace is not None
    found = [parse_operator_range(one.text) for one in operators(first.trace)]
    names = {one.name for one in found if one is not None}
    assert {"aten::linear", "aten::addmm", "AddmmBackward0"} <= {name.split(": ")[-1] for name in names}
    assert any(one.inputs and one.sequence for one in found if one is not None)
    linear = {one.inputs for one in found if one is not None and one.name == "aten::linear"}
    assert all(inputs.startswith("[[") and inputs.endswith("]] []") for inputs in linear), linear
    assert whole_steps(first.report) == 5, "the marks are neither steps nor phases"
    phases = {phase.name for phase in first.report.phases} - {"outside"}
    assert phases == {"dataload", "forward", "backward", "optimizer"}
    assert odd_notes(first) == []
    training.wait_for_steps(3)
    second = take.take(plan(target, captures))
    assert second.trace is not None
    assert operators(second.trace) == []
    assert training.end() == 0
    assert not [line for line in training.lines if not line.strip().isdigit() and "llmtop" not in line]


@pytest.mark.slow("test_marks_begin_and_end_with_a_step finds the same fault")
def test_every_operator_lies_in_a_step_that_the_window_began(training: Training, captures: Path) -> None:
    result = take.take(plan(training.wait_attached(), captures, options=OPS))
    assert result.trace is not None
    steps = [one for one in marked(result.trace) if one.text == "step"]
    found = operators(result.trace)
    each = [sum(step.start <= one.start and one.end <= step.end for one in found) for step in steps]
    whole = [count for count in each if count]
    assert sum(each) == len(found)
    assert len(set(whole)) == 1, f"steps with marks have all of them, the others none: {each}"
    assert len(whole) >= 6


@pytest.mark.slow("a capture by nsys; test_marks_begin_and_end_with_a_step has the marks alone")
def test_a_pause_ends_and_begins_with_them(
    training: Training, captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pause, "LONGEST_SECONDS", 9.0)  # a busy machine takes seconds to start nsys
    result = take.take(plan(training.wait_attached(), captures, options=OPS | {"pause"}))
    assert result.trace is not None
    assert len(result.info.paused_seconds) == 2
    steps = [one for one in marked(result.trace) if one.text == "step"]
    found = operators(result.trace)
    assert all(any(step.start <= one.start <= step.end for one in found) for step in steps[:5])


@pytest.mark.slow("test_marks_end_without_a_word finds the same fault")
@pytest.mark.parametrize("stage", ["record", "stop"])
def test_a_killed_llmtop_leaves_nothing_marked(training: Training, captures: Path, stage: str) -> None:
    target = training.wait_attached()
    listener = heard(target)
    kill_capture_at(stage, target, captures, "nsys", "ops")
    listener.until(lambda: states(listener)[-1:] in (["off"], ["ready"]) and "on" not in states(listener)[-1:])
    wait_for(lambda: session_state(target) == "Launched", what="the end of the collection")
    result = take.take(plan(target, captures))
    assert result.trace is not None
    assert operators(result.trace) == []


@pytest.mark.slow("test_marks_end_without_a_word finds the same fault")
def test_a_capture_that_is_given_up_leaves_nothing_marked(training: Training, captures: Path) -> None:
    target, cancelled = training.wait_attached(), threading.Event()
    listener = heard(target)

    def cancel(progress: Progress) -> None:
        if progress.stage == "record" and (progress.steps or 0) >= 2:
            cancelled.set()

    with pytest.raises(Cancelled):
        take.take(plan(target, captures, steps=500, options=OPS), cancel, cancelled)
    listener.until(lambda: states(listener) == ["ready", "on", "off"])
    training.wait_for_steps(3)


@pytest.mark.slow("a training of torch under nsys, of which nothing is captured")
def test_it_is_refused_before_nsys_starts(start: Start, llmtop_run: tuple[str, ...], captures: Path) -> None:
    target = start("--torch", behind=(*llmtop_run, "--nsys", "--")).wait_attached()
    with pytest.raises(NotPossibleHere, match=r"cannot mark operators .*compiled without CUDA"):
        take.take(plan(target, captures, options=OPS))
    unattached = Target(target.pid)
    with pytest.raises(NotPossibleHere, match="is not attached"):
        take.take(plan(unattached, captures, options=OPS))
    assert session_state(target) == "Launched"
    assert not list(captures.iterdir())


PROFILING = """
import sys, time
from tests.support import torch_nvtx
torch_nvtx.register()
import torch, llmtop
profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
while True:
    with llmtop.step():
        time.sleep(0.02)
    print(0, flush=True)
"""


@pytest.mark.slow("a training of torch under nsys, of which nothing is captured")
def test_a_script_with_a_profiler_is_left_alone(
    start: Start, llmtop_run: tuple[str, ...], captures: Path, tmp_path: Path
) -> None:
    script = tmp_path / "profiling.py"
    script.write_text(PROFILING)
    target = start(behind=(*llmtop_run, "--nsys", "--", sys.executable, str(script))).wait_attached()
    with pytest.raises(NotPossibleHere, match="the script has a profiler of PyTorch's own"):
        take.take(plan(target, captures, options=OPS))


@pytest.mark.slow("a capture by another engine; one whole capture of each is in make test")
def test_a_training_that_ends_within_the_window_ends_as_it_would(
    start: Start, llmtop_run: tuple[str, ...], captures: Path, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    training = start(
        "--torch", "--nvtx", "--step-ms", "40", "--until", str(end), behind=(*llmtop_run, "--nsys", "--")
    )
    result = take.take(plan(training.wait_attached(), captures, steps=500, options=OPS), touch_within(end))
    assert result.trace is not None
    assert operators(result.trace)
    assert any("ended within the window" in note for note in result.info.notes), result.info.notes
    assert training.process.wait(60) == 0


@pytest.mark.slow("test_marks_end_without_a_word finds the same fault")
def test_a_killed_nsys_leaves_nothing_marked(training: Training, captures: Path) -> None:
    target, killed = training.wait_attached(), threading.Event()
    listener = heard(target)
    _, session = nsys.find_session(target.pid)

    def kill(progress: Progress) -> None:
        if progress.stage == "record" and (progress.steps or 0) >= 2 and not killed.is_set():
            killed.set()
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit() and session.name in (procfs.command(int(entry.name)) or ""):
                    os.kill(int(entry.name), signal.SIGKILL)

    with pytest.raises(LlmtopError):
        take.take(plan(target, captures, steps=8, options=OPS), kill)
    assert killed.is_set()
    listener.until(lambda: states(listener) == ["ready", "on", "off"])
    training.wait_for_steps(3)
