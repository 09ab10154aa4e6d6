"""Waits for a CPU, in phases and in no phase, of a few steps a second.

On a machine with more to run than CPUs, the kernel takes the CPU away at system calls and where a thread wakes
another one, more often than elsewhere. What a script does between phases is short and has such calls, and so has
llmtop's own end of a step. So the time in no phase is a larger share of the step by the clock than by what the
script does there: 8 % became 21 % beside six equal trainings on two cores (docs/measurements.md).

In a sampled step each boundary takes three stamps: the time, the processor time of the thread, and how often it
has gone to sleep. Where a stretch without a sleep is longer than its processor time, the rest is a wait for a CPU.
Where a stretch has a sleep the rest is kept apart: a disk, a lock or another program may be why. llmtop's own end
of the step before is in no stretch.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from llmtop.instrument.steps.phase_tree import PhaseNode

MOST_KEPT: Final = 64
"""Sampled steps that are kept until the server thread takes them; some four are taken a second."""
_OWN: Final = getattr(resource, "RUSAGE_THREAD", None)


class SampledStep(NamedTuple):
    """Time of one step by what the thread did, in ns."""

    ran_inside: int
    """Processor time in phases."""
    slept_inside: int
    """Beside the processor time, in stretches with a sleep."""
    ran_outside: int
    """Processor time in no phase."""
    slept_outside: int
    queued: int
    """Waits for a CPU, in stretches without a sleep."""


class CpuWaits:
    """Observer of the phases of a sampled step. For the training thread; another one takes `sampled`."""

    def __init__(self) -> None:
        self.is_wanted = False
        """True while a monitor is subscribed; set by the server thread."""
        self.sampled: deque[SampledStep] = deque(maxlen=MOST_KEPT)
        self._at: tuple[int, int, int] | None = None
        """Stamps of the last boundary; None where no step is sampled."""
        self._times = [0] * len(SampledStep._fields)

    def start(self) -> None:
        """Begin the sample: llmtop has ended the step before, and the script goes on."""
        self._times = [0] * len(SampledStep._fields)
        self._at = thread_stamps()

    def begins(self, node: PhaseNode) -> None:
        """Count the stretch in no phase that ends where a top-level phase begins."""
        if self._at is not None and node.depth == 1:
            self._count(self._at, 2)

    def ends(self, node: PhaseNode) -> None:
        """Count a top-level phase, or the stretch between the last one and the end of the step."""
        if self._at is None or node.depth > 1:
            return
        self._count(self._at, 0 if node.depth else 2)
        if not node.depth:
            self._at = None
            if self._times[0]:
                self.sampled.append(SampledStep(*self._times))

    def give_up(self) -> None:
        """Drop the sample: a phase or a step is not counted."""
        self._at = None

    def _count(self, before: tuple[int, int, int], place: int) -> None:
        """Add the stretch up to now at a place of the times, and after it."""
        self._at = now = thread_stamps()
        wall, ran, sleeps = now[0] - before[0], now[1] - before[1], now[2] - before[2]
        self._times[place] += ran
        self._times[place + 1 if sleeps else -1] += max(0, wall - ran)


def can_measure() -> bool:
    """Return True if this system counts the sleeps of a single thread, as Linux does."""
    return _OWN is not None


def thread_stamps() -> tuple[int, int, int]:
    """Return the time and the processor time of this thread, both in ns, and how often it has gone to sleep."""
    # The time first: what the kernel takes at the return of the two calls is in the next stretch by all three.
    now = time.perf_counter_ns()
    return now, time.thread_time_ns(), 0 if _OWN is None else resource.getrusage(_OWN).ru_nvcsw
