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
        self._first: Snapshot | None = None
        self._newest: float | None = None

    def time_of(self, snapshot: Snapshot) -> float:
        """Return the time of the next snapshot of the stream.

        Where its monotonic clock begins anew (another machine's recording is joined on) so does this.
        """
        now, newest = snapshot.monotonic, self._newest
        if now is None:
            return snapshot.time
        if self._first is None or newest is None or now < newest - _ANOTHER_BOOT_SECONDS:
            self._first, self._newest = snapshot, now
            return snapshot.time
        self._newest = max(now, newest)
        return self._first.time + now - (self._first.monotonic or 0.0)
