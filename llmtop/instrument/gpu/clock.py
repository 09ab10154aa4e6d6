"""GPU time of phases: CUDA events at their boundaries, on the stream that is current when the first is recorded.

An event is passed by the GPU when all work given to the stream before it is done. So the time between the
events at a phase's two ends is what the stream spent from the end of all earlier work to the end of the phase's
own work. It is the phase's GPU work, plus the time in which the stream had run out of work: the waiting for a
batch shows up as GPU time of ``dataload`` only if the GPU really ran dry meanwhile. `gpu_times` tells the two
apart.

Work on other streams (NCCL, a prefetching copy) is seen only where this stream waits for it.

Everything here runs in the training thread, because a query from another thread while a CUDA graph is being
captured would spoil the capture. Nothing waits: events are read at the end of later steps, once the GPU has
passed them. Only so many steps are timed that events, whose cost is measured as they are recorded, stay under
`BUDGET` of the time.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from typing import Any, NamedTuple

from llmtop.instrument.gpu.events import Events
from llmtop.instrument.gpu.queueing import CallTimes
from llmtop.instrument.guest.forks import keep_in_children
from llmtop.instrument.guest.interrupts import raised_by_handler
from llmtop.instrument.steps.phase_tree import HIDDEN

BUDGET = 0.001
"""Share of the training thread's time that the GPU clock may take."""
MAX_MARKS = 512
"""Most boundaries of one step; a step with more is not timed."""
MAX_PENDING = 16
"""Steps whose events the GPU has not passed yet; no further one is timed until it has."""
FIRST_COST_NS = 100_000
KEPT = 512


class Timed(NamedTuple):
    """The boundaries of one step, in order, with both clocks (ns; each from a zero of its own)."""

    step_index: int
    slots: list[int]
    begins: list[bool]
    host_ns: list[int]
    gpu_ns: list[int]
    drained: list[bool]
    """True if the stream had nothing to do when the boundary was reached."""


class TimedSteps:
    """The last timed steps; written by the training thread, read by the server thread, as `ring.Ring`."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[Timed | None] = [None] * KEPT

    def add(self, timed: Timed) -> None:
        """Keep the times of one more step; the oldest go when there are `KEPT`."""
        self._kept[self.count % KEPT] = timed
        self.count += 1

    def read(self, first: int) -> tuple[int, list[Timed]]:
        """Return the times of all steps from number `first` on that are kept, and the number after the last of
        them."""
        stop = self.count
        kept = [self._kept[number % KEPT] for number in range(max(first, stop - KEPT + 1, 0), stop)]
        return stop, [timed for timed in kept if timed is not None]


class _Mark(NamedTuple):
    slot: int
    begins: bool
    host_ns: int
    drained: bool
    event: Any


class GpuClock:
    """Times some of the steps. Its `mark` is called at the boundaries of a step that is to be timed."""

    def __init__(self, events: Events) -> None:
        keep_in_children(self)
        self.timed = TimedSteps()
        self._events = events
        self._free: list[Any] = []
        self._marks: list[_Mark] = []
        self._pending: deque[tuple[int, list[_Mark]]] = deque()
        self._spoilt = False
        self.spent_ns = 0
        """Time at boundaries so far, in all."""
        self._calls = CallTimes()
        self._spent_ns = 0
        self._cost_ns = float(FIRST_COST_NS)

    @property
    def is_waiting(self) -> bool:
        """Return True if events of earlier steps are still to be read."""
        return bool(self._pending)

    @property
    def is_full(self) -> bool:
        """Return True if so many are that no further step is to be timed now."""
        return len(self._pending) >= MAX_PENDING

    def steps_between(self, step_ns: float) -> int:
        """Return the sampling interval that keeps the cost of events within `BUDGET`.

        Args:
            step_ns: usual step time of the host.

        Returns:
            1: each step is timed; n: one of n.
        """
        return max(1, round(self._cost_ns / (BUDGET * max(step_ns, 1.0)) + 0.5))

    def begin(self) -> None:
        """The next boundaries belong to a step that is to be timed."""
        self._recycle(self._marks)
        self._spoilt = False
        self._calls.clear()

    def mark(self, slot: int, begins: bool) -> None:
        """Record an event where a step or the phase of that slot begins or ends."""
        if self._spoilt or slot == HIDDEN:
            return
        entered = perf_counter_ns()
        events = self._events
        try:
            if events.is_capturing() or len(self._marks) >= MAX_MARKS:
                self._spoilt = True
                return
            if not self._marks:
                events.take_stream()
            event = self._free.pop() if self._free else events.new()
            drained = events.is_drained()
            self._marks.append(_Mark(slot, begins, perf_counter_ns(), drained, event))
            events.record(event)
        except Exception as error:  # a device that fails, fails in the training's own calls as well
            if raised_by_handler(error):
                raise
            self._spoilt = True
        self._calls.add(perf_counter_ns() - entered)

    def unmark(self, slot: int) -> None:
        """The phase that began last is not to be counted after all."""
        if self._marks and self._marks[-1].slot == slot and self._marks[-1].begins:
            self._free.append(self._marks.pop().event)

    def move(self, slot: int, target: int) -> None:
        """Count what was recorded in the open step for one slot to another."""
        self._marks = [mark._replace(slot=target) if mark.slot == slot else mark for mark in self._marks]

    def end(self, index: int, begun_ns: int) -> None:
        """End the timed step and queue its events until the GPU has reached them.

        Args:
            index: the script's number of the step.
            begun_ns: host's `perf_counter_ns` at its begin; marks from before belong to no step and are dropped.
        """
        self._spent_ns = self._calls.cost_ns()
        self.spent_ns += self._spent_ns
        if self._spoilt or not self._marks:
            self._cost_ns = max(self._cost_ns, float(FIRST_COST_NS))
            self._recycle(self._marks)
            return
        # What was marked before belongs to no step: a phase that encloses steps, a wait given up.
        first = max((place for place, mark in enumerate(self._marks) if mark.host_ns <= begun_ns), default=0)
        self._recycle(self._marks[:first])
        self._pending.append((index, self._marks[first:]))
        self._marks = []

    def read(self) -> None:
        """Take the times of those steps whose last event the GPU has passed; not while a graph is captured."""
        entered = perf_counter_ns()
        events = self._events
        read = 0
        while self._pending and not events.is_capturing():
            index, marks = self._pending[0]
            if not events.is_done(marks[-1].event):
                break
            self._pending.popleft()
            zero = marks[0].event
            gpu_ns = [0, *(events.elapsed_ns(zero, mark.event) for mark in marks[1:])]
            slots, begins, host_ns, drained, used = map(list, zip(*marks, strict=True))
            self.timed.add(Timed(index, slots, begins, host_ns, gpu_ns, drained))
            self._free += used
            read += 1
        if read:
            cost_ns = self._spent_ns + (perf_counter_ns() - entered) / read
            # Follows a change within a few steps; one preempted call does not stop the clock for long.
            self._cost_ns += 0.3 * (min(cost_ns, 10 * self._cost_ns) - self._cost_ns)

    def _recycle(self, marks: list[_Mark]) -> None:
        self._free += [mark.event for mark in marks]
        marks.clear()
