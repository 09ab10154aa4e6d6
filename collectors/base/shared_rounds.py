"""Periodic work on several devices in one thread, for as long as no device keeps it waiting.

A thread of its own for each of eight GPUs wakes up with cold caches and waits for Python's lock: a round of 25 µs
of work took 120 µs of processor time. In one thread the eight follow each other.
"""

from __future__ import annotations

import threading
import time

from collectors.base.periodic_thread import PeriodicThread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class RoundMember:
    """The work on one device. `SharedRounds` calls it; at most one thread is inside of it."""

    def __init__(
        self, rounds: SharedRounds, name: str, work: Callable[[], None], at_end: Callable[[], None]
    ) -> None:
        """Prepare; `start()` adds it to the rounds.

        Args:
            rounds: whose thread does the work.
            name: named in `fault`.
            work: one round. An exception ends the round alone and becomes `fault`.
            at_end: called once in `join`, after the last round.
        """
        self._rounds, self._name, self._work, self._at_end = rounds, name, work, at_end
        self._inside = threading.Lock()
        self._is_wanted = self._has_begun = False
        self.ended_at = 0.0
        """End of the last round, in monotonic seconds."""
        self.fault: str | None = None
        """Fault in llmtop itself in the last round, else None."""

    def start(self) -> None:
        """Take part in the rounds, the next of which begins now; does nothing if it takes part already."""
        if not self._is_wanted:
            self._is_wanted = True
            self._rounds.add(self)

    def stop(self) -> None:
        """Take part in no further round; returns at once."""
        self._is_wanted = False
        self._rounds.remove(self)

    def join(self, seconds: float) -> bool:
        """Wait for the end of the round in hand, then call `at_end`; to be called after `stop()`.

        Args:
            seconds: the longest wait.

        Returns:
            True if no thread is inside the work.
        """
        if not self._inside.acquire(timeout=max(0.0, seconds)):
            return False
        try:
            if self._has_begun:
                self._has_begun = False
                self._call(self._at_end)
        finally:
            self._inside.release()
        return True

    def run(self) -> None:
        """Do one round, unless another thread is still inside one, or it is not wanted."""
        if not self._inside.acquire(blocking=False):
            return
        try:
            if self._is_wanted:
                self._has_begun = True
                self._call(self._work)
        finally:
            self.ended_at = time.monotonic()
            self._inside.release()

    def _call(self, work: Callable[[], None]) -> None:
        try:
            work()
            self.fault = None
        except Exception as error:  # noqa: BLE001  a mistake about one device must not end the others' rounds
            self.fault = f"a fault in llmtop itself ({self._name}: {error!r})"


class _Runner:
    """State of a thread that does the rounds, until it is stuck in one.

    It does not refer to its thread: in a reference cycle, a thread that was replaced would keep its descriptor
    until the next garbage collection, which is rare in a process that allocates little.
    """

    def __init__(self) -> None:
        self.busy_since: float | None = None
        """Beginning of the round in hand, in monotonic seconds."""


class SharedRounds:
    """The rounds of all devices. Who waited least for the device last time comes first."""

    def __init__(
        self,
        name: str,
        seconds: float,
        *,
        patience: float,
        offset: float = 0.0,
        spacing: float = 0.0,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; the thread starts with the first member.

        Args:
            name: suffix of the thread's name.
            seconds: between rounds, as for `PeriodicThread`.
            patience: seconds after which `hand_over` gives the rest of a round to another thread.
            offset: seconds by which the rounds come after the multiples of `seconds`.
            spacing: seconds from the beginning of one device's work to that of the next.
            at_end: called after each round.
        """
        self._name, self._patience, self._at_end = name, patience, at_end
        self._seconds, self._offset, self._spacing = seconds, offset, spacing
        self._lock = threading.Lock()
        self._members: tuple[RoundMember, ...] = ()
        self._runner: _Runner | None = None
        self._thread: PeriodicThread | None = None
        """Thread of `_runner`."""

    def set_seconds(self, seconds: float, *, offset: float = 0.0, spacing: float = 0.0) -> None:
        """Change the pace, from the next round on.

        Args:
            seconds: between rounds.
            offset: seconds by which the rounds come after the multiples of `seconds`.
            spacing: seconds from the beginning of one device's work to that of the next.
        """
        with self._lock:
            self._seconds, self._offset, self._spacing = seconds, offset, spacing
            if self._thread is not None:
                self._thread.set_seconds(seconds, offset)

    def add(self, member: RoundMember) -> None:
        """Take a member into the rounds, which begin anew now: rates need two samples."""
        with self._lock:
            self._members = (*self._members, member)
            if self._thread is None:
                self._start_runner(warms_up=True)
            else:
                self._thread.warm_up()

    def remove(self, member: RoundMember) -> None:
        """Leave a member out from now on; the thread ends with the last one."""
        with self._lock:
            self._members = tuple(one for one in self._members if one is not member)
            if not self._members and self._thread is not None:
                self._thread.stop()
                self._runner = self._thread = None

    @property
    def is_busy(self) -> bool:
        """Return True if a round is in hand."""
        runner = self._runner
        return runner is not None and runner.busy_since is not None

    def hand_over(self) -> None:
        """Give the rest of a round that takes too long to a new thread; to be called now and then."""
        with self._lock:
            thread, since = self._thread, None if self._runner is None else self._runner.busy_since
            patience = self._patience + self._spacing * len(self._members)
            if thread is not None and since is not None and time.monotonic() - since >= patience:
                thread.stop()  # once it comes back
                self._start_runner(warms_up=False)

    def _start_runner(self, *, warms_up: bool) -> None:
        runner = self._runner = _Runner()
        self._thread = PeriodicThread(
            self._name, lambda: self._round(runner), self._seconds, offset=self._offset, warms_up=warms_up
        )
        self._thread.start()

    def _round(self, runner: _Runner) -> None:
        began = runner.busy_since = time.monotonic()
        for place, member in enumerate(sorted(self._members, key=lambda one: one.ended_at)):
            if self._spacing:
                time.sleep(max(0.0, began + place * self._spacing - time.monotonic()))
            if self._runner is not runner:
                return
            member.run()
        runner.busy_since = None
        self._at_end()
