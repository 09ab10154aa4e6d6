"""Sleep that another thread can end early.

threading.Event and Condition wait by the wall clock where Python was built for an older glibc (conda's and
standalone builds lack sem_clockwait): set back by an hour, it makes a wait of a second last for an hour. poll()
uses the monotonic clock.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress

_DAY_S = 86_400.0
"""poll() takes no more than 24 of them."""


class InterruptibleSleep:
    """May be set from any thread, and repeatedly; one thread waits."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def __del__(self) -> None:
        fd = getattr(self, "_fd", None)
        if fd is not None:
            os.close(fd)

    def set(self) -> None:
        """End the wait that is under way, or the next one."""
        with suppress(BlockingIOError):  # it was set so often that the counter is full
            os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Forget that it was set."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def wait(self, seconds: float | None = None) -> bool:
        """Sleep until the alarm is set, or for a time.

        Args:
            seconds: at most a day; negative counts as 0. None: until the alarm is set.

        Returns:
            True if the alarm was set; it stays set until `clear()`.
        """
        return bool(self._poll.poll(None if seconds is None else min(max(0.0, seconds), _DAY_S) * 1000))
