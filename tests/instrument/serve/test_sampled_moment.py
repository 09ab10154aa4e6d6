"""Which phase a sample is of, where the training thread ran on before it could be sampled.

Expected places are read off a time axis in ms: the optimizer runs from 10 to 20, the loop's own code after it, and
the forward pass begins at 60.
"""

from __future__ import annotations

import threading
import time
from collections import deque

import pytest

from llmtop.instrument.record.recorder import Recorder
from llmtop.instrument.serve.lock_wait import LockWait
from llmtop.instrument.serve.sampled_moment import SampledMoment, sampled_moment
from llmtop.instrument.serve.stack_sampling import AIMS, StackSampler
from llmtop.instrument.steps.phase_tree import PhaseNode

MS = 1_000_000


class Wait(LockWait):
    """A sample for which another thread held the lock from one time to another, both in ms; None: it was free."""

    def __init__(self, since: float | None = None, latest: float | None = None) -> None:
        super().__init__()
        self._since, self._latest = since, latest

    @property
    def was_held_since_ns(self) -> int | None:
        return None if self._since is None else round(self._since * MS)

    @property
    def held(self) -> bool | None:
        return None if self._since is not None else False

    @property
    def is_given_up(self) -> bool:
        return self._since is not None

    @property
    def latest_ns(self) -> int | None:
        return None if self._latest is None else round(self._latest * MS)


def training(*phases: tuple[str, float, float | None]) -> Recorder:
    """Return the recorder of a step with phases by name, begin and end in ms; the last may still be open."""
    found = Recorder()
    for name, begun, ended in phases:
        node: PhaseNode = found.root.children.get(name) or found.new_node(found.root, name)
        node.begun = round(begun * MS)
        if ended is None:
            found.node = node
        else:
            found.cells[node.slot] += round((ended - begun) * MS)
            found.cells[node.slot + 1] += 1
    return found


def said(moment: SampledMoment) -> tuple[bool, bool, str]:
    """Return its place, without what only narrows the lines."""
    return moment.is_outside, moment.is_present, moment.phase_before


OPTIMIZER = ("optimizer", 10.0, 20.0)
FORWARD = ("forward", 60.0, None)


@pytest.mark.parametrize(
    ("phases", "wait", "expected"),
    [
        ((OPTIMIZER,), Wait(), (True, True, "optimizer")),
        ((OPTIMIZER, FORWARD), Wait(), (False, True, "forward")),
        ((OPTIMIZER,), Wait(50, 52), (True, True, "optimizer")),
        ((OPTIMIZER, FORWARD), Wait(57, 59), (True, False, "optimizer")),
        ((OPTIMIZER, FORWARD), Wait(57, 61), (False, True, "forward")),
        ((OPTIMIZER, FORWARD), Wait(61, 62), (False, True, "forward")),
        ((OPTIMIZER, FORWARD), Wait(57, None), (False, True, "forward")),
        ((OPTIMIZER,), Wait(18, 19), (False, True, "optimizer")),
        ((OPTIMIZER, ("forward", 60.0, 61.0)), Wait(57, 59), (True, False, "optimizer")),
        ((OPTIMIZER, ("forward", 30.0, 40.0), FORWARD), Wait(57, 59), (False, False, "optimizer")),
        ((), Wait(57, 59), (True, True, "")),
    ],
    ids=[
        *("lock free outside", "lock free in a phase", "held outside", "the phase began since"),
        *("it may have begun before", "it had begun", "the time is not known", "the phase before had not ended"),
        *("a whole phase since", "the phase has run before in this step", "no phase"),
    ],
)
def test_a_sample_is_of_what_ran_when_the_lock_was_held(
    phases: tuple[tuple[str, float, float | None], ...], wait: Wait, expected: tuple[bool, bool, str]
) -> None:
    assert said(sampled_moment(training(*phases), wait)) == expected


def test_the_end_of_a_phase_of_the_step_before_is_known() -> None:
    found = training(OPTIMIZER)
    found.ring.rows[0] = (0, 0, 22 * MS, -1, None, None, *found.cells)
    found.ring.count = 1
    found.forget_cells()
    assert said(sampled_moment(found, Wait(18, 19))) == (False, True, "optimizer")
    assert said(sampled_moment(found, Wait(20, 21))) == (True, True, "optimizer")


def test_a_phase_within_a_phase_counts_with_the_outer_one() -> None:
    found = training(OPTIMIZER, FORWARD)
    found.node = found.new_node(found.node, "attention")
    found.node.begun = 70 * MS
    assert sampled_moment(found, Wait(65, 66)).is_outside is False
    assert said(sampled_moment(found, Wait(57, 58))) == (True, False, "optimizer")


@pytest.mark.parametrize(
    ("wait", "expected"),
    [(Wait(57, 59), {"code after the phase optimizer": 1000 * MS}), (Wait(61, 62), {}), (Wait(), {})],
    ids=["before the phase", "in the phase", "lock free in the phase"],
)
def test_a_sample_that_waited_is_of_no_phase_that_began_since(
    wait: Wait, expected: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, end = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        end.wait(100)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait(100)
    clock = {"ns": 1000 * MS}
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock["ns"])
    found = training(OPTIMIZER, FORWARD)
    found.thread, found.ring.count = thread.ident or 0, 1
    found.ring.rows[0] = (0, 0, 22 * MS, -1, None, None)
    sampler = StackSampler(found, deque())
    sampler.lock_wait = wait
    try:
        sampler.sample()
        clock["ns"] += 1000 * MS
        sampler.sample()
    finally:
        end.set()
        thread.join(100)
    assert (sampler.outside.found if sampler.outside is not None else {}) == expected


def test_a_phase_without_a_place_is_looked_for_when_it_is_next_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 100 ms; the optimizer ran from 10 to 20, so a quarter of it is over at 12.5 ms of each step."""
    clock = {"ns": 1000 * MS}
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock["ns"])
    found = training(OPTIMIZER, FORWARD)
    found.thread, found.ring.count = threading.get_ident(), 1
    found.ring.rows[0] = (0, 0, 90 * MS, 100 * MS, None, None, *found.cells)
    sampler = StackSampler(found, deque())
    sampler.lock_wait = Wait(57, 59)
    sampler.sample()
    assert sampler.aim_s() is None
    clock["ns"] += 1000 * MS
    sampler.sample()
    looks = []
    while (aim := sampler.aim_s()) is not None:
        clock["ns"] += round(1e9 * aim)
        looks.append(clock["ns"] / MS)
        number = sampler.number
        sampler.sample()
        assert sampler.number == number, "such a look is no sample"
    assert looks[:3] == [2112.5, 2212.5, 2312.5]
    assert len(looks) == AIMS, "then it is left alone"


def test_the_phases_around_a_late_sample_are_in_order() -> None:
    found = training(("backward", 2.0, 9.0), OPTIMIZER, ("dataload", 60.0, 61.0), ("forward", 62.0, None))
    moment = sampled_moment(found, Wait(57, 59))
    assert (moment.passed, moment.before) == (("optimizer", "backward"), "dataload")
