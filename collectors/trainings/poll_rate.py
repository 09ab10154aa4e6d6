"""Checks whether another thread polls often enough."""

from __future__ import annotations

from math import inf

OFTEN_SECONDS = 1.1
"""A second reading of the sockets in each second costs half as much as the first one again."""


class CallRate:
    """When something was done the last two times, in monotonic seconds."""

    def __init__(self) -> None:
        self._last = self._before = -inf

    def record(self, now: float) -> None:
        """It is done now."""
        self._last, self._before = now, self._last

    def is_frequent(self, now: float) -> bool:
        """Return True if it was done so often of late that it will soon be again."""
        return self._last - self._before <= OFTEN_SECONDS and now - self._last <= OFTEN_SECONDS
