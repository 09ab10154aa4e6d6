"""The wall clock beside the monotonic one.

Everything is stamped with the monotonic clock, and shown in unix time. The offset of the two changes when NTP
steps the wall clock, when a person sets it, and when the machine has slept, since the monotonic clock stands
meanwhile. Slewing moves both alike.
"""

from __future__ import annotations

import time

TOLERANCE_NS = 100_000_000
"""A step of the wall clock by less moves no stamps: the order of steps is worth more than that."""
_TRIES = 3
_SHARP_NS = 20_000


class WallClock:
    """Unix time minus CLOCK_MONOTONIC, the same at each call until the wall clock is set. For one thread."""

    def __init__(self) -> None:
        self._offset_ns = _measure_offset()[0]

    def offset_ns(self) -> int:
        """Return the offset from a monotonic stamp (`time.perf_counter_ns`, `time.monotonic_ns`) to unix time."""
        offset, doubt = _measure_offset()
        if abs(offset - self._offset_ns) > TOLERANCE_NS + doubt:
            self._offset_ns = offset
        return self._offset_ns


def _measure_offset() -> tuple[int, int]:
    """Return the offset, and by how much it may be wrong: a thread that loses its core between two clocks reads
    them at different times."""
    best = (0, 1 << 62)
    for _ in range(_TRIES):
        before = time.monotonic_ns()
        unix = time.time_ns()
        between = time.monotonic_ns() - before
        if between < best[1]:
            best = (unix - before - between // 2, between)
        if between < _SHARP_NS:
            break
    return best
