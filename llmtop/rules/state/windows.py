"""Rolling statistics over the stream of snapshots: bounded, cheap, by the snapshots' own time.

`RecentValues` keeps the last seconds of one value; `Hold` turns a sampled condition into an alert that a single
odd sample does not raise, and that does not flap.
"""

from __future__ import annotations

import math
from collections import deque


def finite_or_none(value: float | None) -> float | None:
    """`value`, or None where it is absent or no number (NVML and GPM give NaN at times)."""
    return value if value is not None and math.isfinite(value) else None


class RecentValues:
    """The values of the last `seconds`, at most `limit` of them; the newest two stay however old they are.

    Two stay because a monitor may sample only every ten seconds: then there are no more to average.
    """

    __slots__ = ("_limit", "_seconds", "_sum", "_values")

    def __init__(self, seconds: float, limit: int = 64) -> None:
        """Begin without values.

        Args:
            seconds: length of the window, by the snapshots' unix time.
            limit: the most values kept. The newest two stay however old they are.
        """
        self._seconds = seconds
        self._limit = limit
        self._values: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def __len__(self) -> int:
        return len(self._values)

    def add(self, time: float, value: float) -> None:
        """Add a finite value seen at unix `time`, and forget what is too old."""
        values = self._values
        values.append((time, value))
        self._sum += value
        oldest = time - self._seconds
        while len(values) > 2 and (values[0][0] < oldest or len(values) > self._limit):
            self._sum -= values.popleft()[1]

    def clear(self) -> None:
        """Drop all values."""
        self._values.clear()
        self._sum = 0.0

    def mean(self) -> float | None:
        """Return the plain mean, None without values."""
        return self._sum / len(self._values) if self._values else None

    def since(self, time: float) -> list[float]:
        """Return the values seen at unix `time` or later, oldest first."""
        return [value for seen, value in self._values if seen >= time]


class Hold:
    """State of a condition that must hold for long enough, with hysteresis.

    `score` runs from 0 to 1. An interval counts for the condition when it held at both its ends, so a single
    sample proves nothing and two samples suffice once they are `hold_seconds` apart. Before the alert is raised a
    sample against it costs three times what one for it gives: it must hold in about four samples of five. Once it
    is raised, time against it counts over `clear_seconds`, and a single sample takes away half at most, so slow
    sampling does not flap either. Hence an alert is up for at least the time that clearing takes, and down for at
    least `hold_seconds`.
    """

    __slots__ = ("_held", "_seen", "is_raised", "score", "since")

    def __init__(self, now: float) -> None:
        self.score = 0.0
        self.is_raised = False
        self.since = now
        """Unix time at which the condition began to hold."""
        self._held = False
        self._seen = now

    @property
    def idle(self) -> bool:
        """Nothing is held and nothing is pending: the object may be dropped."""
        return not self.is_raised and not self._held and self.score <= 0.0

    def update(self, now: float, holds: bool, hold_seconds: float, clear_seconds: float) -> None:
        """Feed one evaluation of the condition.

        Args:
            now: unix seconds of the snapshot; must not go back.
            holds: whether the condition holds in this snapshot.
            hold_seconds: time for which it must hold until the alert is raised; 0: raised at once.
            clear_seconds: time against it after which a raised alert is cleared; 0: cleared at once.
        """
        elapsed = max(now - self._seen, 0.0)
        self._seen = now
        if holds:
            self._held_for(now, elapsed, clear_seconds if self.is_raised else hold_seconds)
        elif self.is_raised:
            self.score = max(
                self.score - min(_share(elapsed, clear_seconds), 0.5 if clear_seconds > 0 else 1.0), 0.0
            )
            self.is_raised = self.score > 1e-9
        else:
            self.score = max(self.score - 3 * _share(elapsed, hold_seconds), 0.0)
        self._held = holds

    def _held_for(self, now: float, elapsed: float, seconds: float) -> None:
        if self.score <= 0.0 and not self.is_raised and not self._held:
            self.since = now
        if self._held or seconds <= 0:
            self.score = min(self.score + _share(elapsed, seconds), 1.0)
        self.is_raised = self.is_raised or self.score >= 1.0 - 1e-9


def _share(elapsed: float, seconds: float) -> float:
    return 1.0 if seconds <= 0 else min(elapsed / seconds, 1.0)
