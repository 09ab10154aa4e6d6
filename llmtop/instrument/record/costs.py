"""Measures the cost of llmtop's own calls in the training thread, at intervals between steps.

In a loop of its own a phase costs half a microsecond, between the matrix products of a real step five times that:
the interpreter's code and data are out of the caches by then. So the calls are timed where they are cold, right
after a step and with the caches emptied before, and once more where they are not. What is timed are the recorder's
own methods on a phase that is not reported; nothing of it is in any step, and no observer of phases sees it.
"""

from __future__ import annotations

from _thread import get_native_id
from collections import deque
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING

from llmtop.instrument.record.recorder import Phase
from llmtop.instrument.steps.phase_tree import HIDDEN, PhaseNode

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder_parts import WorkingTime
    from llmtop.instrument.record.state import State

SAMPLES = 15
"""How many are kept. One takes some 0.2 ms."""
SOON_NS = 1_000_000_000
"""Time between the first samples."""
LATER_NS = 10_000_000_000
"""Time between all others: 0.002 % of the time."""
WARM_TRIES = 5
_SWEPT_BYTES = 1 << 20
"""Size of a core's second cache. More was tried: to allocate it costs a call more than the caches do."""


class Costs:
    """Nanoseconds that llmtop takes from the training thread. Written by that thread, read by the server's."""

    def __init__(self) -> None:
        self.periodic_ns = 0
        """Processor time between steps so far, in all."""
        self.native_id = get_native_id()
        """Number by which the system knows the thread that trains."""
        self.others: list[WorkingTime] = []
        """Working times of llmtop's other threads, for which the training may wait."""
        self._cold: deque[int] = deque(maxlen=SAMPLES)
        self._warm: deque[int] = deque(maxlen=SAMPLES)
        self._due_ns = 0
        self._sweep = bytearray(_SWEPT_BYTES)
        self._ended = Phase("")

    @property
    def has_samples(self) -> bool:
        """Return True if there is a sample."""
        return bool(self._warm)

    def cold_ns(self) -> float:
        """Return the cost of one entry of a phase with cold caches."""
        return median(tuple(self._cold))

    def warm_ns(self) -> float:
        """Return the cost of one entry of a phase right after others: the least of all samples."""
        return min(tuple(self._warm))

    def sample(self, recorder: State, now: int) -> None:
        """Take a sample if it is time for one. Only between steps, in the thread that trains.

        Args:
            recorder: of this process; left as it is.
            now: perf_counter ns.
        """
        if now < self._due_ns or recorder.open_step is not None or recorder.node is not recorder.root:
            return
        self.native_id = get_native_id()
        self._due_ns = now + (SOON_NS if len(self._warm) < SAMPLES else LATER_NS)
        children, watch, kept = recorder.root.children, recorder.watch, recorder.root.children.get("")
        pending, begun, index = recorder.pending, recorder.begun, recorder.next_index
        children[""] = hidden = PhaseNode("", recorder.root, "", HIDDEN)
        recorder.watch = None
        try:
            cold = self._time_cold()
            warm = min(self._time_warm() for _ in range(WARM_TRIES))
            self._cold.append(cold)
            self._warm.append(warm)
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
