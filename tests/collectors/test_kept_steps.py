"""No step outlives its snapshot: a training with steps of one millisecond sends a thousand in each."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from collectors.gpu_busy import GpuBusy
from collectors.trainings.step_window import CountedStep, StepWindow
from llmtop.model.snapshot import Phase, Snapshot, Step
from llmtop.recording.steady import MonotonicTime
from llmtop.rules.engine import Rules
from tests.support.snapshots import rank, snapshot
from tui.state.history import History, without_new_steps


def _step(index: int) -> Step:
    phases = (Phase(name="forward", host_seconds=0.001),)
    return Step(index=index, started_at=100.0 + index / 1000, seconds=0.001, interval_seconds=0.001, phases=phases)


class _Kept:
    """What a screen keeps of the newest snapshot."""

    def __call__(self, one: Snapshot) -> None:
        self.newest = without_new_steps(one)


STAGES: dict[str, Callable[[], Callable[[Snapshot], object]]] = {
    "clock": lambda: MonotonicTime().time_of,
    "busy": GpuBusy,
    "rules": lambda: Rules().apply,
    "history": lambda: History().add,
    "screen": _Kept,
}


@pytest.mark.parametrize("stage", STAGES)
def test_no_stage_keeps_the_steps_of_a_snapshot(stage: str) -> None:
    call = STAGES[stage]()
    steps = [_step(index) for index in range(40)]
    before = sys.getrefcount(steps[0])
    one = snapshot(ranks=(rank(step=39, new_steps=tuple(steps)),))
    call(replace(one, monotonic=5.0))
    del one
    gc.collect()
    after = sys.getrefcount(steps[0])  # not within assert, whose rewritten form holds on to it
    assert after == before


def test_a_window_of_many_steps_keeps_the_last_512_alone() -> None:
    window = StepWindow()
    steps = [_step(index) for index in range(2000)]
    before = sys.getrefcount(steps[0])
    for one in steps:
        window.add(CountedStep(one, one.seconds, one.seconds, None))
    assert len(window) == 2000
    del one
    kept = sum(sys.getrefcount(steps[place]) > before for place in range(len(steps)))
    assert 512 <= kept <= 513
