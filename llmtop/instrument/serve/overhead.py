"""Estimated overhead of llmtop per step of this process, from its operations and their measured costs.

The hot path is not timed itself: that would cost more than it does. Its calls are counted anyway, and some are
timed in their place now and then (`record.costs`). What is done between steps, at the GPU clock's boundaries and
in the server's thread is measured as it is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from llmtop.instrument.steps.ring import FIELDS

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State

EVERY_S = 2.0
"""How often it is estimated anew."""
HOOKED = 2.0
"""A phase that hooks open and close costs so many times the phase itself, with the hook and what it asks."""
_STEPS = 64
"""Steps over which the number of phases is averaged."""


class OverheadEstimate:
    """Asked by the server thread alone: the processor time of its thread is part of it."""

    def __init__(self, recorder: State) -> None:
        self._recorder = recorder
        self._at_s = float("-inf")
        self._count = 0
        self._measured_ns: int | None = None
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
        measured_ns = time.thread_time_ns() + costs.periodic_ns
        if recorder.clock is not None:
            measured_ns += recorder.clock.spent_ns
        if recorder.arrivals is not None:
            measured_ns += recorder.arrivals.spent_ns
        _, rows = recorder.ring.read(count - _STEPS, _STEPS)
        phases = sum(sum(row[FIELDS + 1 :: 2]) for row in rows) / max(len(rows), 1)
        each = costs.phase_ns() * (HOOKED if recorder.facts.auto and not recorder.manual_used else 1.0)
        estimate = costs.step_ns() + phases * each
        if self._measured_ns is not None:
            estimate += max(0, measured_ns - self._measured_ns) / (count - self._count)
        self._at_s, self._count, self._measured_ns = now, count, measured_ns
        self.step_ns = round(estimate)
        self.version += 1
