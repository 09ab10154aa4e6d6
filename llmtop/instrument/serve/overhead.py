"""Estimated overhead of llmtop per step of this process, from its operations and their measured costs.

The hot path is not timed itself: that would cost more than it does. Its calls are counted anyway, and some are
timed now and then between steps (`record.costs`). What a script's own phases cost in their place shows in the
steps: between the end of one and the begin of the next there is often nothing but llmtop. What is done between
steps and at the GPU clock's boundaries is measured as it is. Of the threads of llmtop's that serve monitors and
write the run, only what the training thread waited for them counts (`record.taken_time`).
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from llmtop.instrument.record.taken_time import processor_ns, thread_clock
from llmtop.instrument.steps.ring import FIELDS, Row, in_phases

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder_parts import MeasuredCosts
    from llmtop.instrument.record.state import State

EVERY_S = 2.0
"""How often it is estimated anew."""
HOOKED = 3.8
"""A phase that hooks open and close costs so many times the phase itself, with the hook and what it asks
(docs/measurements.md)."""
STEP_PHASES = 2.0
"""A step without phases costs so many phases: 0.79 to 0.85 µs and 0.41 µs in a loop of their own."""
WARM_UNTIL_NS, COLD_AFTER_NS = 10_000, 24_000
"""Time between two calls up to which the caches keep what a call needs, and from which on they have lost it: found
by twelve kinds of step (docs/measurements.md)."""
WARM_FACTOR = 1.7
"""A phase with warm caches costs so many times its begin and end: it is also asked for by its name."""
GAP_FACTOR = 2.4
"""A phase costs so many times what lies between two that follow each other, in steps that replace the caches: it
works outside of its stamps too, and the step's code is out of the caches after it (docs/measurements.md)."""
_OWN_GAP = 1.5
"""A gap that takes longer than so many calls with cold caches has code of the script's in it."""
_STEPS = 64
"""Steps that it is an average of."""


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
        estimate = hot_path_ns(recorder, costs)
        if self._before is not None:
            beside = max(0, sums.measured - self._before.measured) + _waited_ns(self._before, sums)
            estimate += beside / (count - self._count)
        self._at_s, self._count, self._before = now, count, sums
        self.step_ns = round(estimate)
        self.version += 1


def hot_path_ns(recorder: State, costs: MeasuredCosts) -> float:
    """Return what the calls of a step take from the training, in nanoseconds, over the last steps.

    Args:
        recorder: of this process; at least one step has ended.
        costs: with samples.
    """
    _, rows = recorder.ring.read(recorder.ring.count - _STEPS, _STEPS)
    if not rows:  # all overwritten while they were read
        return STEP_PHASES * costs.cold_ns()
    phases = sum(sum(row[FIELDS + 1 :: 2]) for row in rows) / len(rows)
    calls = 2 * (1 + phases)
    between: float = median(row[2] for row in rows) / calls
    replaced = min(max((between - WARM_UNTIL_NS) / (COLD_AFTER_NS - WARM_UNTIL_NS), 0.0), 1.0)
    cold, times = costs.cold_ns(), 1.0
    if recorder.facts.auto and not recorder.manual_used:
        times = HOOKED
    elif recorder.watch is None and 0 < (gap := _gap_ns(recorder, rows)) <= _OWN_GAP * cold:
        # An observer of phases works in the gaps too, and what it takes is known.
        cold = GAP_FACTOR * gap
    each = replaced * cold + (1 - replaced) * WARM_FACTOR * costs.warm_ns()
    return (STEP_PHASES + phases * times) * each


def _gap_ns(recorder: State, rows: list[Row]) -> float:
    """Return the time from a phase's end to the next one's begin; a step's begin and end count as one too."""
    phases = [in_phases(row, recorder.root) for row in rows]
    gaps: list[float] = [(row[2] - ns) / (1 + count) for row, (ns, count) in zip(rows, phases, strict=True)]
    return median(gaps)


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
