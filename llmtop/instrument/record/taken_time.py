"""How long the training thread waited for another thread of llmtop's.

That thread holds Python's lock while it works, and may take a processor. A training that computes without the lock
on a processor of its own loses nothing meanwhile; one that runs Python waits for all of it. So the processor time
of the training thread is read when the other thread begins and when it ends: what the training did not run then,
although it runs at other times, it has waited for.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State

_OF_THREAD = 6
"""Lowest bits of the clock that tells a thread's processor time: CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED of
<linux/posix-timers.h>. Made of the system's number of the thread: pthread_getcpuclockid() may crash for one that
has ended."""


class TakenTime:
    """Sums over the working times of one thread. For that thread alone."""

    def __init__(self, recorder: State) -> None:
        self._recorder = recorder
        self._is_known = False
        self._clock = 0
        self._began = 0
        self._ran = 0
        self.busy_ns = 0
        """For which this thread worked."""
        self.ran_ns = 0
        """Part of this time in which the training thread ran."""

    def begin(self) -> None:
        """Call when this thread has Python's lock again after a sleep."""
        costs = self._recorder.costs
        if costs is None or not costs.native_id:
            return
        if not self._is_known:
            self._is_known = True
            costs.others.append(self)
        self._clock = thread_clock(costs.native_id)
        self._ran = processor_ns(self._clock)
        self._began = time.perf_counter_ns() if self._ran else 0

    def end(self) -> None:
        """Call right before the next sleep."""
        ran = processor_ns(self._clock) if self._began else 0
        if ran:
            self.busy_ns += time.perf_counter_ns() - self._began
            self.ran_ns += ran - self._ran
        self._began = 0


def thread_clock(native_id: int) -> int:
    """Return the clock with the processor time of a thread of this process."""
    return ~native_id << 3 | _OF_THREAD


def processor_ns(clock: int) -> int:
    """Return the time of that clock; 0 once the thread has ended."""
    try:
        return time.clock_gettime_ns(clock)
    except OSError:
        return 0
