"""Estimated overhead of llmtop per step of this process, from its operations and their measured costs.

The hot path is not timed itself: that would cost more than it does. Its calls are counted anyway, and some are
timed in their place now and then (`record.costs`). What is done between steps and at the GPU clock's boundaries is
measured as it is. Of the threads of llmtop's that serve monitors and write the run, only what the training thread
waited for them counts (`record.taken_time`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from llmtop.instrument.record.taken_time import processor_ns, thread_clock
from llmtop.instrument.steps.ring import FIELDS

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder_parts import MeasuredCosts
    from llmtop.instrument.record.state import State

EVERY_S = 2.0
"""How often it is estimated anew."""
HOOKED = 3.2
"""A phase that hooks open and close costs so many times the phase itself, with the hook and what it asks
(docs/measurements.md)."""
_STEPS = 64
"""Steps over which the number of phases is averaged."""


class _Sums(NamedTuple):
    """Since the process attached, in nanoseconds."""

    measured: int
    """Processor time of llmtop in the training thread, beside the hot path."""
    wall: int
    ran: int
    """Processor time of the training thread."""
    busy: int
    """For which other threads of llmtop's worked."""
    ran_meanwhile: int
    """Processor time of the training thread within that."""


class OverheadEstimate:
    """Asked by the server thread alone."""

    def __init__(self, recorder: State) -> None:
        self._recorder = recorder
        self._at_s = float("-inf")
        self._count = 0
        self._before: _Sums | None = None
        self.version = 0
        """Grows with every estimate."""
        self.step_ns = 0

    def update(self) -> None:
        """Estimate anew, if it is time to and something is known."""
        recorder, costs = self._recorder, self._recorder.costs
        now = time.monotonic()
        count = recorder.ring.count
        if now - self._at_s < EVERY_S or costs is None or not costs.has_samples or count == self._count:
            return
        sums = _sums(recorder, costs)
        _, rows = recorder.ring.read(count - _STEPS, _STEPS)
        phases = sum(sum(row[FIELDS + 1 :: 2]) for row in rows) / max(len(rows), 1)
        each = costs.phase_ns() * (HOOKED if recorder.facts.auto and not recorder.manual_used else 1.0)
        estimate = costs.step_ns() + phases * each
        if self._before is not None:
            beside = max(0, sums.measured - self._before.measured) + _waited_ns(self._before, sums)
            estimate += beside / (count - self._count)
        self._at_s, self._count, self._before = now, count, sums
        self.step_ns = round(estimate)
        self.version += 1


def _sums(recorder: State, costs: MeasuredCosts) -> _Sums:
    measured = costs.periodic_ns
    if recorder.clock is not None:
        measured += recorder.clock.spent_ns
    if recorder.arrivals is not None:
        measured += recorder.arrivals.spent_ns
    ran = processor_ns(thread_clock(costs.native_id))
    busy = sum(one.busy_ns for one in costs.others)
    return _Sums(measured, time.perf_counter_ns(), ran, busy, sum(one.ran_ns for one in costs.others))


def _waited_ns(before: _Sums, now: _Sums) -> float:
    """For how long the training thread waited for other threads of llmtop's from one moment to the other.

    While they work it would run as much as it does at other times.
    """
    busy, meanwhile = now.busy - before.busy, now.ran_meanwhile - before.ran_meanwhile
    elsewhen = now.wall - before.wall - busy
    if elsewhen <= 0:
        return 0.0
    usual = min(max((now.ran - before.ran - meanwhile) / elsewhen, 0.0), 1.0)
    return max(0.0, usual * busy - meanwhile)
