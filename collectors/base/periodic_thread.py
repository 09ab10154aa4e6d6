"""A thread that does one piece of work at a steady pace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from collectors.base.interruptible_sleep import InterruptibleSleep

EARLY_SECONDS = 0.15
"""When the second round follows the first, whatever the pace: rates need two samples, at least 0.1 s apart."""
WARM_SECONDS = 2.5
WARM_PACE_SECONDS = 0.5
"""For so long rounds then follow each other so soon at least: what one source tells, another needs. A screen gets
snapshots that lack rates as soon one after the other."""


class PeriodicThread:
    """Does `work` at once, again after `EARLY_SECONDS`, and then at every multiple of `seconds` (plus `offset`).

    Beats of the same pace run at the same instants, so what they read belongs together, and who puts it together
    knows when that is (`last_tick`). A round that takes longer than the pace leaves rounds out. The thread is a
    daemon: work that never returns cannot keep the program alive.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        seconds: float,
        *,
        offset: float = 0.0,
        at_end: Callable[[], None] | None = None,
        warms_up: bool = True,
    ) -> None:
        """Prepare the thread; `start()` runs it.

        Args:
            name: suffix of the thread's name, "llmtop-NAME"; also named in `fault`.
            work: one round. An exception ends the round alone and becomes `fault`.
            seconds: between rounds, which run at multiples of it on the monotonic clock.
            offset: seconds by which the rounds come after these multiples; negative: before.
            at_end: called in the thread after its last round.
            warms_up: whether the first rounds follow each other soon; False: one at once, then the usual pace.
        """
        self._warms_up = self._is_cold = warms_up
        self._name, self._work, self._offset, self._at_end = name, work, offset, at_end
        self._seconds = seconds
        self._wake = InterruptibleSleep()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.fault: str | None = None
        """Fault in llmtop itself in the last round, else None."""

    def start(self) -> None:
        """Begin, also again after a stop; does nothing while the thread lives."""
        if self.is_alive:
            return
        self._stopping = False
        self._is_cold = self._warms_up
        self._wake.clear()
        self._thread = threading.Thread(target=self._run, name=f"llmtop-{self._name}", daemon=True)
        self._thread.start()

    def set_seconds(self, seconds: float, offset: float | None = None) -> None:
        """Change the pace; the wait under way ends early if the next round is now due sooner.

        Args:
            seconds: between rounds from now on.
            offset: seconds after the multiples of the pace; None: unchanged.
        """
        self._seconds = seconds
        self._offset = self._offset if offset is None else offset
        self._wake.set()

    def warm_up(self) -> None:
        """Do the next rounds as after the start: one now, and the next ones soon."""
        self._is_cold = True
        self._wake.set()

    def stop(self) -> None:
        """Ask the thread to end after the round in hand; returns at once."""
        self._stopping = True
        self._wake.set()

    def join(self, seconds: float) -> bool:
        """Wait for the thread to end; does not wait when called from the thread itself.

        Args:
            seconds: the longest wait; a daemon thread may outlive it.

        Returns:
            True if the thread has ended.
        """
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, seconds))
        return not self.is_alive

    @property
    def is_alive(self) -> bool:
        """Return True if the thread runs now."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        warm_until = 0.0
        while not self._stopping:
            is_first, self._is_cold = self._is_cold, False
            if is_first:
                warm_until = time.monotonic() + WARM_SECONDS
            self._round(self._work)
            now = time.monotonic()
            soon, tick = now + WARM_PACE_SECONDS, self._tick_after(now)
            if is_first:
                self._wait_until(now + min(EARLY_SECONDS, self._seconds))
            else:
                self._wait_until(soon if soon < min(warm_until, tick) else None)
        if self._at_end is not None:
            self._round(self._at_end)

    def _round(self, work: Callable[[], None]) -> None:
        try:
            work()
            self.fault = None
        except Exception as error:  # noqa: BLE001  a mistake in one collector must not end its thread unseen
            self.fault = f"a fault in llmtop itself ({self._name}: {error!r})"

    def _wait_until(self, due: float | None) -> None:
        """Sleep until `due`, or the next multiple of the pace as it is then; stop() and warm_up() end it early."""
        while not (self._stopping or self._is_cold):
            now = time.monotonic()
            target = self._tick_after(now) if due is None else due
            if not self._wake.wait(target - now):
                return
            self._wake.clear()

    def _tick_after(self, now: float) -> float:
        return last_tick(now, self._seconds, self._offset) + self._seconds


def last_tick(now: float, seconds: float, offset: float = 0.0) -> float:
    """Return the latest instant at which rounds of this pace run.

    Args:
        now: monotonic seconds; the answer is at or before it.
        seconds: the pace; must be positive.
        offset: seconds by which rounds come after the multiples of the pace.

    Returns:
        Monotonic seconds. Threads of equal pace and offset get equal instants.
    """
    return (now - offset) // seconds * seconds + offset
