"""The time of snapshots by the monotonic clock.

A snapshot has two: `time`, the wall clock's, which is shown, and `monotonic`, by which everything that lasts is
measured. A snapshot that has the first alone, as those of the shipped demo, is placed by it.
"""

from __future__ import annotations

from llmtop.model.snapshot import Snapshot

_ANOTHER_BOOT_SECONDS = 1.0


class MonotonicTime:
    """Unix time of each snapshot of a stream, without any setting of the wall clock since the first."""

    def __init__(self) -> None:
        self._first_time = self._first_monotonic = 0.0  # no snapshot: a first one may have a thousand steps
        self._newest: float | None = None

    def time_of(self, snapshot: Snapshot) -> float:
        """Return the time of the next snapshot of the stream.

        Where its monotonic clock begins anew (another machine's recording is joined on) so does this.
        """
        now, newest = snapshot.monotonic, self._newest
        if now is None:
            return snapshot.time
        if newest is None or now < newest - _ANOTHER_BOOT_SECONDS:
            self._first_time, self._first_monotonic, self._newest = snapshot.time, now, now
            return snapshot.time
        self._newest = max(now, newest)
        return self._first_time + now - self._first_monotonic
