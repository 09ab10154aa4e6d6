"""How a training's memory moves: whether its floor rises, and when the allocator last ran out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from llmtop.model.snapshot import Rank

BUCKETS: Final = 8
"""Floors in a row that must rise; by chance that happens once in 40,000."""
BRIEF_LEAK: Final = (30, 2.0)
FAST_LEAK: Final = (30, 20.0)
SLOW_LEAK: Final = (100, 300.0)
"""A bucket closes after so many steps and seconds: 240 steps in some 20 s show a leak that soon fills the GPU, in
3 minutes a fast one, 40 minutes a slow one."""
BRIEF_SECONDS: Final = 60.0
"""A shorter rise may be chance: three samples are enough for a minimum there. So the peaks must rise as well."""
_SAMPLES: Final = 3


class MemoryRise(NamedTuple):
    """How far the least memory has risen, where it has risen all the time."""

    first_bytes: int
    last_bytes: int
    steps: int
    seconds: float
    since: float
    """Snapshot time at which the first of the stretches began that have risen since without a break."""

    @property
    def is_brief(self) -> bool:
        """Return True if it was observed for so short that only a rise which fills the GPU soon should raise
        the alert."""
        return self.seconds < BRIEF_SECONDS

    @property
    def bytes_per_second(self) -> float | None:
        """How fast, None where no time passed."""
        return (self.last_bytes - self.first_bytes) / self.seconds if self.seconds > 0 else None


class _Bucket(NamedTuple):
    """One stretch of steps."""

    step: int
    time: float
    floor: int
    peak: int


class _Floors:
    """The least memory in each of the last stretches of steps: within a step it goes up and down."""

    __slots__ = (
        "_closed",
        "_floor",
        "_from_step",
        "_from_time",
        "_peak",
        "_rises_from",
        "_samples",
        "_seconds",
        "_steps",
    )

    def __init__(self, steps: int, seconds: float) -> None:
        self._steps, self._seconds = steps, seconds
        self._closed: deque[_Bucket] = deque(maxlen=BUCKETS)
        self._from_step = self._from_time = self._rises_from = 0.0
        self._floor = self._peak = self._samples = 0

    def add(self, time: float, step: int, allocated: int) -> None:
        if self._samples == 0:
            self._from_step, self._from_time, self._floor, self._peak = step, time, allocated, allocated
        self._samples += 1
        self._floor, self._peak = min(self._floor, allocated), max(self._peak, allocated)
        if (
            self._samples >= _SAMPLES
            and step - self._from_step >= self._steps
            and time - self._from_time >= self._seconds
        ):
            if not self._closed or self._floor <= self._closed[-1].floor:
                self._rises_from = self._from_time
            self._closed.append(_Bucket(step, time, self._floor, self._peak))
            self._samples = 0

    def growth(self) -> MemoryRise | None:
        closed = self._closed
        if len(closed) < BUCKETS:
            return None
        if any(later.floor <= earlier.floor for earlier, later in pairwise(closed)):
            return None
        first, last = closed[0], closed[-1]
        growth = MemoryRise(
            first.floor, last.floor, last.step - first.step, last.time - first.time, self._rises_from
        )
        if growth.is_brief and any(later.peak <= earlier.peak for earlier, later in pairwise(closed)):
            return None
        return growth


class MemoryTrend:
    """torch's allocator in one process over time."""

    __slots__ = ("_floors", "_known", "_unused", "allocator_failed_at", "failures")

    def __init__(self) -> None:
        self._floors = [_Floors(steps, seconds) for steps, seconds in (BRIEF_LEAK, FAST_LEAK, SLOW_LEAK)]
        self._unused = [_Floors(steps, seconds) for steps, seconds in (FAST_LEAK, SLOW_LEAK)]
        self._known: int | None = None
        self.failures = 0
        """Allocations that did not fit at the first try, while it was watched."""
        self.allocator_failed_at: float | None = None
        """Snapshot time of the last one."""

    def add(self, now: float, rank: Rank) -> None:
        """Take the rank's figures. Retries before the first snapshot do not count; an out-of-memory error does."""
        if rank.alloc_retries is not None or rank.ooms is not None:
            failed = (rank.alloc_retries or 0) + (rank.ooms or 0)
            before = (rank.alloc_retries or 0) if self._known is None else self._known
            if failed > before:
                self.failures += failed - before
                self.allocator_failed_at = now
            self._known = failed
        allocated, reserved = rank.memory_allocated_bytes, rank.memory_reserved_bytes
        if allocated is None or rank.step is None or rank.step <= rank.warmup_steps:
            return
        for floors in self._floors:
            floors.add(now, rank.step, allocated)
        if reserved is not None and rank.memory_peak_bytes is not None:
            for floors in self._unused:
                floors.add(now, rank.step, reserved - max(allocated, rank.memory_peak_bytes))

    def growths(self) -> Iterator[MemoryRise]:
        """Return the rises of the floor that were steady, the briefest first."""
        return (growth for floors in self._floors if (growth := floors.growth()) is not None)

    def unused_growths(self) -> Iterator[MemoryRise]:
        """Return the steady rises of the memory that the allocator has taken from the driver beyond the most that
        tensors have used at once: fragmentation."""
        return (growth for floors in self._unused if (growth := floors.growth()) is not None)
