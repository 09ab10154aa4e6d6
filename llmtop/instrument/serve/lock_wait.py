"""Tells whether the server thread, once it had slept, had to wait for Python's lock.

A thread that ends a sleep gets the lock at once while no other holds it: then the training thread waits, or runs
code of C without the lock, where its frame says. Otherwise it waits up to Python's switch interval (5 ms), and
requests the lock after that. Until then it gets the lock only where the training thread gives it up by itself, as
most operators of torch do: what ran when the sleep ended is not known then.

A late sample alone proves nothing: on a busy machine this thread waits for a CPU as well. The kernel counts both:
the time that the thread was ready to run without a CPU (schedstat), and voluntary context switches, of which each
wait for the lock is one. Where the kernel counts no such time, a late sample proves nothing at all.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from typing import Final, NamedTuple

from llmtop.system import procfs

_OWN: Final = getattr(resource, "RUSAGE_THREAD", None)
_WAITS_WHEN_ASKED: Final = 2
"""Waits for the lock, if it was asked for: one for the switch interval, and one until it comes."""
READ_SLEEPS: Final = 64
"""Sleeps before which the time without a CPU is read after a sample asked for it: some 12 s. To open the file in
/proc takes 30 to 80 µs with cold caches, for which the training waits. A training that is outside of phases for
more than a sixtieth of its time has nearly all of its samples judged."""
AT_ONCE_NS: Final = 200_000
"""How late it gets the lock if no thread holds it: the kernel's slack of 50 µs, and a thread's waking up."""


class _Judgement(NamedTuple):
    """The properties of `LockWait` of these names."""

    held: bool | None = None
    is_given_up: bool = False
    after_request_ns: int = 0
    latest_ns: int | None = None


_UNKNOWN: Final = _Judgement()


class LockWait:
    """Watches one sleep of this thread at a time."""

    def __init__(self) -> None:
        self._switches = 0
        self._began = 0
        self._longest_ns = 0
        self._cpu_wait_ns: int | None = None
        """Time without a CPU before the sleep; None where unknown."""
        self._waits = 0
        """Times that this thread waited for the lock after the last sleep."""
        self._judgement: _Judgement | None = _UNKNOWN
        """None until it is asked for."""
        self._reads_left = READ_SLEEPS
        self.late_ns: int | None = None
        """How late the last sleep ended by its timeout; None where an event ended it."""

    @property
    def held(self) -> bool | None:
        """After the last sleep: False where the lock was free at its end, True where another thread held it until
        it was requested; None where neither is certain."""
        return self._judge().held

    @property
    def is_given_up(self) -> bool:
        """True if another thread held the lock and gave it up by itself, before it was requested."""
        return self._judge().is_given_up

    @property
    def after_request_ns(self) -> int:
        """Where `held` is True: how long the other thread kept the lock after the request."""
        return self._judge().after_request_ns

    @property
    def latest_ns(self) -> int | None:
        """If another thread held the lock: the latest time, as perf_counter ns, that the sample can be of.

        It is of the moment at which this thread, once it had a CPU, waited for the lock; where it requested the
        lock, of that request. None where the lock was free, so that the sample is of the present, and where the
        time is not known.
        """
        return self._judge().latest_ns

    @property
    def was_held_since_ns(self) -> int | None:
        """If another thread held the lock after the last sleep: the earliest time, as perf_counter ns, that the
        sample can be of. None where the lock was free, and where that is not known. Reads no file."""
        return self._began + self._longest_ns if self.late_ns is not None and self._waits > 0 else None

    def begin(self, timeout_s: float | None) -> None:
        """Call right before the sleep.

        Args:
            timeout_s: after which it ends; None: at an event only.
        """
        # poll() sleeps for whole milliseconds, rounded up.
        self._longest_ns = -1 if timeout_s is None else 1_000_000 * math.ceil(1e3 * timeout_s)
        is_read = self._longest_ns > 0 and self._reads_left > 0
        self._reads_left -= is_read
        self._cpu_wait_ns = procfs.own_cpu_wait_ns() if is_read else None
        self._switches, self._began = _voluntary_switches(), time.perf_counter_ns()

    def end(self, timed_out: bool) -> None:
        """Call right after it.

        Args:
            timed_out: whether no event ended it: events come from the training, and so not at random.
        """
        self.late_ns, self._judgement, self._waits = None, _UNKNOWN, 0
        if timed_out and self._longest_ns > 0:
            self.late_ns = time.perf_counter_ns() - self._began - self._longest_ns
        if _OWN is None or self.late_ns is None:
            return
        self._waits, self._judgement = _voluntary_switches() - self._switches - 1, None

    def _judge(self) -> _Judgement:
        """Return what the last sleep showed.

        At the first call after it, which comes before this thread gives up the lock again: few samples ask for it.
        """
        if self._judgement is None:
            self._judgement = self._find_judgement(self._waits, self.late_ns or 0)
        return self._judgement

    def _find_judgement(self, waits: int, late_ns: int) -> _Judgement:
        if waits > 0:
            self._reads_left = READ_SLEEPS
        cpu_wait_ns = procfs.own_cpu_wait_ns() if waits > 0 and self._cpu_wait_ns is not None else None
        if waits == 0 or (waits < 0 and late_ns <= AT_ONCE_NS):
            return _Judgement(held=False)
        if waits < 0 or cpu_wait_ns is None or self._cpu_wait_ns is None:
            return _UNKNOWN
        without_cpu_ns, interval_ns = cpu_wait_ns - self._cpu_wait_ns, int(1e9 * sys.getswitchinterval())
        after_request_ns = late_ns - without_cpu_ns - interval_ns
        latest_ns = self._began + self._longest_ns + without_cpu_ns
        if after_request_ns < 0:  # more waits: it was given up before, and taken back
            return _Judgement(is_given_up=waits <= _WAITS_WHEN_ASKED, latest_ns=latest_ns)
        if waits >= _WAITS_WHEN_ASKED:
            return _Judgement(held=True, after_request_ns=after_request_ns, latest_ns=latest_ns + interval_ns)
        return _Judgement(latest_ns=latest_ns)


def _voluntary_switches() -> int:
    return 0 if _OWN is None else resource.getrusage(_OWN).ru_nvcsw
