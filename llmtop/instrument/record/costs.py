"""Measures the cost of llmtop's own calls in the training thread, at intervals between steps.

In a loop of its own a phase costs half a microsecond, between the matrix products of a real step five times that:
the interpreter's code and data are out of the caches by then. So the calls are timed where they are cold, right
after a step and with the caches emptied before, and once more where they are not. The less time a step has between
two calls, the less of the caches it replaces. What is timed are the recorder's own methods on a phase that is not
reported; nothing of it is in any step, and no observer of phases sees it.
"""

from __future__ import annotations

from _thread import get_native_id
from collections import deque
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING

from llmtop.instrument.record.recorder import Phase
from llmtop.instrument.steps.phase_tree import HIDDEN, PhaseNode
from llmtop.instrument.steps.ring import FIELDS, MASK

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder_parts import WorkingTime
    from llmtop.instrument.record.state import State

SAMPLES = 15
"""Medians are over the last so many; one takes some 0.2 ms."""
SOON_NS = 1_000_000_000
"""Time between the first samples."""
LATER_NS = 10_000_000_000
"""Time between all others: 0.002 % of the time."""
WARM_TRIES = 5
STEP_PHASES = 2.0
"""A step without phases costs so many phases: 0.79 to 0.85 µs and 0.41 µs in a loop of their own. The end of a
step that these samples follow takes longer than usual, and so is not timed."""
_SWEPT_BYTES = 1 << 20
"""Size of a core's second cache."""
COLD_AFTER_NS = 32_000
"""Time between two calls in which a step replaces the core's second cache: a core reads some 32 bytes a ns."""


class Costs:
    """Nanoseconds that llmtop takes from the training thread. Written by that thread, read by the server's."""

    def __init__(self) -> None:
        self.periodic_ns = 0
        """Processor time between steps so far, in all."""
        self.native_id = get_native_id()
        """Number by which the system knows the thread that trains."""
        self.others: list[WorkingTime] = []
        """Working times of llmtop's other threads, for which the training may wait."""
        self._phase: deque[int] = deque(maxlen=SAMPLES)
        self._due_ns = 0
        self._sweep = bytearray(_SWEPT_BYTES)
        self._ended = Phase("")

    @property
    def has_samples(self) -> bool:
        """Return True if there is a sample."""
        return bool(self._phase)

    def step_ns(self) -> float:
        """Return the cost of a step without phases."""
        return STEP_PHASES * self.phase_ns()

    def phase_ns(self) -> float:
        """Return the cost of one entry of a phase."""
        return median(tuple(self._phase))

    def sample(self, recorder: State, now: int) -> None:
        """Take a sample if it is time for one. Only between steps, in the thread that trains.

        Args:
            recorder: of this process; left as it is.
            now: perf_counter ns.
        """
        if now < self._due_ns or recorder.open_step is not None or recorder.node is not recorder.root:
            return
        self.native_id = get_native_id()
        self._due_ns = now + (SOON_NS if len(self._phase) < SAMPLES else LATER_NS)
        children, watch, kept = recorder.root.children, recorder.watch, recorder.root.children.get("")
        pending, begun, index = recorder.pending, recorder.begun, recorder.next_index
        children[""] = hidden = PhaseNode("", recorder.root, "", HIDDEN)
        recorder.watch = None
        try:
            cold = self._time_cold()
            warm = min(self._time_warm() for _ in range(WARM_TRIES))
            self._phase.append(round(cold * _cold_share(recorder, warm / max(cold, 1))))
        finally:
            recorder.node, recorder.watch = recorder.root, watch
            recorder.pending, recorder.begun, recorder.next_index = pending, begun, index
            recorder.cells[hidden.slot] = recorder.cells[hidden.slot + 1] = 0
            if kept is None:
                children.pop("", None)
            else:
                children[""] = kept

    def _time_cold(self) -> int:
        """Time the end of a phase and the begin of the next one: between them most scripts do next to nothing."""
        self._ended.__enter__()
        self._empty_caches()
        begun = perf_counter_ns()
        self._ended.__exit__(None, None, None)
        self._ended.__enter__()
        taken = perf_counter_ns() - begun
        self._ended.__exit__(None, None, None)
        return taken

    def _time_warm(self) -> int:
        begun = perf_counter_ns()
        self._ended.__enter__()
        self._ended.__exit__(None, None, None)
        return perf_counter_ns() - begun

    def _empty_caches(self) -> None:
        self._sweep.find(b"\x01")


def _cold_share(recorder: State, warm: float) -> float:
    """Return the cost of a call in the last step as a share of its cost with cold caches.

    Args:
        recorder: of this process; a step has ended.
        warm: what a call costs when nothing is, of the same.
    """
    row = recorder.ring.rows[(recorder.ring.count - 1) & MASK]
    between = row[2] / (2 * (1 + sum(row[FIELDS + 1 :: 2])))
    cold: float = min(1.0, between / COLD_AFTER_NS)
    return cold + (1 - cold) * min(warm, 1.0)
