"""Tells whether the server thread, once it had slept, had to wait for Python's lock.

A thread that ends a sleep gets the lock at once while no other holds it: then the training thread waits, or runs
code of C without the lock, where its frame says. Otherwise it waits up to Python's switch interval (5 ms), and
requests the lock after that. A late sample alone proves nothing: on a busy machine the kernel lets a thread wait
as well. But each wait for the lock is a voluntary context switch of this thread, which the kernel counts; being
preempted is none.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from typing import Final

_OWN: Final = getattr(resource, "RUSAGE_THREAD", None)
_WAITS_WHEN_ASKED: Final = 2
"""Waits for the lock, if it was asked for: one for the switch interval, and one until it comes."""


class LockWait:
    """Watches one sleep of this thread at a time."""

    def __init__(self) -> None:
        self._switches = 0
        self._began = 0
        self._longest_ns = 0
        self.late_ns: int | None = None
        """How late the last sleep ended by its timeout; None where an event ended it."""
        self.held: bool | None = None
        """After the last sleep: False where the lock was free at its end, True where another thread held it until
        it was requested; None where neither is certain."""

    def begin(self, timeout_s: float | None) -> None:
        """Call right before the sleep.

        Args:
            timeout_s: after which it ends; None: at an event only.
        """
        self._switches, self._began = _voluntary_switches(), time.perf_counter_ns()
        # poll() sleeps for whole milliseconds, rounded up.
        self._longest_ns = -1 if timeout_s is None else 1_000_000 * math.ceil(1e3 * timeout_s)

    def end(self, timed_out: bool) -> None:
        """Call right after it.

        Args:
            timed_out: whether no event ended it: events come from the training, and so not at random.
        """
        self.held = self.late_ns = None
        if timed_out and self._longest_ns > 0:
            self.late_ns = time.perf_counter_ns() - self._began - self._longest_ns
        if _OWN is None or self.late_ns is None:
            return
        waits = _voluntary_switches() - self._switches - 1
        if waits <= 0:
            self.held = False
        elif waits >= _WAITS_WHEN_ASKED and self.late_ns >= 1e9 * sys.getswitchinterval():
            self.held = True


def _voluntary_switches() -> int:
    return 0 if _OWN is None else resource.getrusage(_OWN).ru_nvcsw
