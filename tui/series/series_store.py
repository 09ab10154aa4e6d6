"""Numbers of the last two hours, in room that is taken once: buckets in two resolutions for each figure.

A bucket keeps the lowest, the highest and the mean of what fell into it, and how many those were, so that a spike
is there at any zoom. The arrays are the standard library's: numpy would cost the monitor 6 MiB and 60 ms to load,
and a snapshot writes a few hundred numbers.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Sequence
from itertools import pairwise
from operator import mul
from typing import NamedTuple

INF = math.inf
FINE_SECONDS, FINE_BUCKETS = 1.0, 400
COARSE_SECONDS, COARSE_BUCKETS = 5.0, 1440
"""The last 400 s second by second, the last two hours by five seconds."""
LONG_BUCKETS = 1440
"""Buckets of a day or longer, where a run is shown that goes back so far: 20 KB a series."""
SERIES = 208
"""Number of series: at 26 KB each they take 5.1 MiB."""
_TOGETHER = 8
"""Series whose room is taken together."""
MOST_COUNTED = 65_535
_MOST_CUT = 32
RECENT_SECONDS = 8.0
"""Younger cells are drawn anew each time while values of the last seconds still arrive."""
_new_tuple = tuple.__new__
"""Constructor of a NamedTuple, without the call of a Python function for each cell."""
_LARGEST = 3.4e38
"""Beyond it a 32-bit float is infinite, and so cannot be drawn."""


class Spread(NamedTuple):
    """Values over a stretch of time."""

    mean: float
    low: float
    high: float


class Cells(NamedTuple):
    """A stretch of time cut into cells of a screen: cell n covers [n * seconds, (n + 1) * seconds) of unix time.

    The cuts stay where they are while time goes on, so that a history moves by whole cells and what it has drawn
    stays as it is.
    """

    first: int
    number: int
    seconds: float

    @classmethod
    def ending_at(cls, end: float, span_seconds: float, count: int) -> Cells:
        """Return the cells of a span, cut at multiples of their length, so that they move by whole cells.

        Args:
            end: unix seconds; lies in the last cell, which may reach beyond it.
            span_seconds: length of all cells together.
            count: how many; must be positive.
        """
        seconds = span_seconds / max(count, 1)
        return cls(math.floor(end / seconds) - count + 1, count, seconds)

    def index_of(self, time: float) -> int:
        """Return the cell that an instant lies in, counted from the first; negative before it."""
        return math.floor(time / self.seconds) - self.first


class Level:
    """All series in one resolution: a ring of buckets for each, one behind the other."""

    __slots__ = ("count", "high", "keep", "low", "mean", "newest", "seconds")

    def __init__(self, seconds: float, keep: int) -> None:
        self.seconds, self.keep = seconds, keep
        self.mean, self.low, self.high, self.count = array("f"), array("f"), array("f"), array("H")
        self.newest: int | None = None
        """The number of the newest bucket: unix time over `seconds`."""

    def grow(self, series: int) -> None:
        """Take the room for so many more series."""
        number = self.keep * series
        self.mean.extend(array("f", [0.0]) * number)
        self.low.extend(array("f", [INF]) * number)
        self.high.extend(array("f", [-INF]) * number)
        self.count.extend(array("H", [0]) * number)

    def advance(self, bucket: int) -> None:
        """Make room up to this bucket; the oldest ones are emptied for it."""
        newest = self.newest
        if newest is not None and bucket <= newest:
            return
        first = bucket if newest is None else max(newest + 1, bucket - self.keep + 1)
        rings = len(self.mean) // self.keep
        for number in range(first, bucket + 1):
            place = number % self.keep
            self.mean[place :: self.keep] = array("f", [0.0]) * rings
            self.low[place :: self.keep] = array("f", [INF]) * rings
            self.high[place :: self.keep] = array("f", [-INF]) * rings
            self.count[place :: self.keep] = array("H", [0]) * rings
        self.newest = bucket

    def clear(self, slot: int) -> None:
        """Empty one series."""
        span = slice(slot * self.keep, (slot + 1) * self.keep)
        self.mean[span] = array("f", [0.0]) * self.keep
        self.low[span] = array("f", [INF]) * self.keep
        self.high[span] = array("f", [-INF]) * self.keep
        self.count[span] = array("H", [0]) * self.keep

    def merge(self, slot: int, bucket: int, number: int, total: float, low: float, high: float) -> None:
        """Add `number` values, of which sum and extremes are given, to a bucket that is still there."""
        place = slot * self.keep + bucket % self.keep
        known = self.count[place]
        if not known:
            self.mean[place], self.low[place], self.high[place] = total / number, low, high
            self.count[place] = min(number, MOST_COUNTED)
            return
        self.mean[place] = (self.mean[place] * known + total) / (known + number)
        self.low[place] = min(self.low[place], low)
        self.high[place] = max(self.high[place], high)
        self.count[place] = min(known + number, MOST_COUNTED)

    def reaches(self, time: float) -> bool:
        """Return True if the bucket that this instant lies in is still there, or nothing was ever older."""
        return self.newest is not None and math.floor(time / self.seconds) > self.newest - self.keep

    def spread(self, slot: int, first: int, end: int) -> Spread | None:
        """Return mean and extremes of the buckets from `first` to before `end`; None where nothing was put in."""
        if end == first + 1:
            place = slot * self.keep + first % self.keep
            if not self.count[place]:
                return None
            return _new_tuple(Spread, (self.mean[place], self.low[place], self.high[place]))
        if end <= first:
            return None
        means, lows, highs, counts = self.read(slot, first, end)
        number = sum(counts)
        if not number:
            return None
        return _new_tuple(Spread, (sum(map(mul, means, counts)) / number, min(lows), max(highs)))

    def read(self, slot: int, first: int, end: int) -> tuple[array[float], array[float], array[float], array[int]]:
        """Mean, lowest, highest and number of the buckets from `first` to before `end`, which are all there."""
        start, stop = slot * self.keep + first % self.keep, slot * self.keep + (end - 1) % self.keep + 1
        if start < stop:
            return self.mean[start:stop], self.low[start:stop], self.high[start:stop], self.count[start:stop]
        ring, back = slice(start, (slot + 1) * self.keep), slice(slot * self.keep, stop)
        return (
            self.mean[ring] + self.mean[back],
            self.low[ring] + self.low[back],
            self.high[ring] + self.high[back],
            self.count[ring] + self.count[back],
        )


class Stretches(NamedTuple):
    """The buckets that some cells are of."""

    level: Level
    runs: list[tuple[int, int, int]]
    """The first bucket of a cell, the one after its last, and how many cells in a row have these."""


class SeriesStore:
    """Series by name. The room of each is taken when it begins, so a monitor does not grow while it fills."""

    def __init__(self, series: int = SERIES) -> None:
        self._levels = [Level(FINE_SECONDS, FINE_BUCKETS), Level(COARSE_SECONDS, COARSE_BUCKETS)]
        self._room = 0
        """For how many series it has been taken."""
        self.slots: dict[Hashable, int] = {}
        """Place of each series by name."""
        self._late = [False] * series
        """True if past values are added to it, as steps are after their end."""
        self._written = [-INF] * series
        """Unix time of each series' last value; the oldest series makes room for a new one."""
        self._free = list(range(series - 1, -1, -1))
        self.rewritten = [0] * series
        """Grows when what may have been drawn of a series was changed."""
        self.newest = -INF
        """Unix time of the newest value."""
        self._level_of: tuple[Cells | None, float, float] = None, -INF, 0.0
        """Last result of `unsettled_seconds`: the cells, the time, and the seconds of a bucket."""
        self._cut: dict[tuple[object, ...], Stretches] = {}
        """Results of `stretches`."""

    @property
    def is_empty(self) -> bool:
        """Return True if nothing was ever put in."""
        return self._levels[0].newest is None

    @property
    def reach_seconds(self) -> float:
        """How far back the coarsest buckets go."""
        return max(level.seconds * level.keep for level in self._levels)

    def extend(self, bucket_seconds: float) -> None:
        """Keep longer buckets as well, `LONG_BUCKETS` of them, in place of such that were kept so far.

        Args:
            bucket_seconds: length of each.
        """
        coarse, *longer = self._levels[1:]
        level = Level(bucket_seconds, LONG_BUCKETS)
        level.grow(self._room)
        if coarse.newest is not None:
            level.advance(math.floor(self.newest / bucket_seconds))
            self._copy(coarse, level, math.inf)
            for before in longer:
                self._copy(before, level, (coarse.newest - coarse.keep + 1) * coarse.seconds)
        del self._levels[2:]
        self._levels.append(level)
        self._level_of = None, -INF, 0.0
        self._cut.clear()
        self.rewritten = [number + 1 for number in self.rewritten]

    def _copy(self, source: Level, target: Level, until: float) -> None:
        """Copy the buckets that begin before an instant (unix time) into longer ones."""
        newest = -1 if source.newest is None else source.newest
        for slot in self.slots.values():
            base = slot * source.keep
            for bucket in range(newest - source.keep + 1, newest + 1):
                place, at = base + bucket % source.keep, bucket * source.seconds
                if at < until and (number := source.count[place]):
                    total = source.mean[place] * number
                    target.merge(
                        slot, math.floor(at / target.seconds), number, total, source.low[place], source.high[place]
                    )

    def put_past(self, slot: int, rows: Sequence[tuple[float, float, float, float, float]]) -> None:
        """Write values into the empty buckets of one series, each (since, until, mean, lowest, highest)."""
        for level in self._levels:
            newest = level.newest
            if newest is None:
                continue
            oldest, base = newest - level.keep + 1, slot * level.keep
            fresh: set[int] = set()
            for since, until, mean, low, high in rows:
                last = min(math.floor(until / level.seconds), newest)
                for bucket in range(max(math.floor(since / level.seconds), oldest), last + 1):
                    if bucket in fresh or not level.count[base + bucket % level.keep]:
                        fresh.add(bucket)
                        level.merge(slot, bucket, 1, mean, low, high)
        self.rewritten[slot] += 1

    def slot(self, name: Hashable) -> int | None:
        """Return where a series is; None if there is none of that name."""
        return self.slots.get(name)

    def make(self, name: Hashable, idle_since: float = -INF) -> int | None:
        """Return where a series is, made if it is new.

        Args:
            name: of the series.
            idle_since: one that was written last before this instant may be forgotten to make room.

        Returns:
            None where there is no room.
        """
        known = self.slots.get(name)
        if known is not None:
            return known
        if not self._free:
            oldest = min(self.slots, key=lambda other: self._written[self.slots[other]], default=None)
            if oldest is None or self._written[self.slots[oldest]] >= idle_since:
                return None
            self._free.append(self.slots.pop(oldest))
        slot = self.slots[name] = self._free.pop()
        while slot >= self._room:
            for level in self._levels:
                level.grow(_TOGETHER)
            self._room += _TOGETHER
        self._written[slot] = -INF
        self._late[slot] = False
        self.rewritten[slot] += 1
        for level in self._levels:
            level.clear(slot)
        return slot

    def advance(self, time: float) -> None:
        """Advance the time to this instant."""
        self.newest = max(self.newest, time)
        for level in self._levels:
            level.advance(math.floor(time / level.seconds))

    def put(self, slots: Sequence[int], values: Sequence[float], since: float, until: float) -> None:
        """Write one value into each of some series, at all resolutions.

        Args:
            slots: numbers of the series.
            values: one for each of them, in their units; NaN and infinity are skipped.
            since: unix seconds after which the values hold, usually the snapshot before.
            until: unix seconds up to which they hold. `advance` must have been called for it.
        """
        finite = [(slot, value) for slot, value in zip(slots, values, strict=True) if -_LARGEST < value < _LARGEST]
        for level in self._levels:
            last = math.floor(until / level.seconds)
            first = min(math.floor(since / level.seconds) + 1, last)
            keep = level.keep
            mean, low, high, count = level.mean, level.low, level.high, level.count
            for bucket in range(max(first, last - keep + 1), last + 1):
                ring = bucket % keep
                for slot, value in finite:
                    place = slot * keep + ring
                    known = count[place]
                    if known:
                        mean[place] = (mean[place] * known + value) / (known + 1)
                        if value < low[place]:  # noqa: PLR1730  (a call for each value)
                            low[place] = value
                        if value > high[place]:  # noqa: PLR1730  (the same)
                            high[place] = value
                        if known < MOST_COUNTED:
                            count[place] = known + 1
                    else:  # as most are, where they are as long as the interval
                        mean[place] = low[place] = high[place] = value
                        count[place] = 1
        for slot in slots:
            self._written[slot] = until

    def put_one(self, slot: int, values: Sequence[tuple[float, float, float]]) -> None:
        """Write values into one series, each (since, until, value) of a stretch that may lie in the past."""
        earliest = INF
        self._late[slot] = True
        for level in self._levels:
            newest = level.newest
            if newest is None:
                return
            gathered: dict[int, tuple[int, float, float, float]] = {}
            for since, until, value in values:
                last = min(math.floor(until / level.seconds), newest)
                first = min(math.floor(since / level.seconds) + 1, last)
                earliest = min(earliest, first * level.seconds)
                for bucket in range(max(first, newest - level.keep + 1), last + 1):
                    number, total, low, high = gathered.get(bucket, (0, 0.0, INF, -INF))
                    low, high = value if value < low else low, value if value > high else high
                    gathered[bucket] = number + 1, total + value, low, high
            for bucket, (number, total, low, high) in gathered.items():
                level.merge(slot, bucket, number, total, low, high)
        self._written[slot] = self.newest
        if earliest < self.newest - RECENT_SECONDS / 2:
            self.rewritten[slot] += 1

    def _level(self, cells: Cells) -> Level:
        """Return the finest one that reaches back to the first cell."""
        begin = cells.first * cells.seconds
        for level in self._levels:
            if level.reaches(begin):
                return level
        return self._levels[-1]

    def unsettled_seconds(self, slot: int, cells: Cells) -> float:
        """Return how long before an instant values may still have come into a series since then.

        What is put in as it is read goes on in the bucket of the last reading, at most.
        """
        if self._late[slot]:
            return RECENT_SECONDS
        if self._level_of[:2] != (cells, self.newest):  # the same for nearly all series of a frame
            self._level_of = cells, self.newest, self._level(cells).seconds
        return self._level_of[2]

    def spreads(self, slot: int, cells: Cells, start: int, until: float) -> list[Spread | None]:
        """Return what `runs` gives, by cell from `start` on; cells of the same buckets have the same object."""
        found: list[Spread | None] = []
        for spread, times in self.runs(slot, cells, start, until):
            if times == 1:
                found.append(spread)
            else:
                found += [spread] * times
        return found

    def runs(self, slot: int, cells: Cells, start: int, until: float) -> list[tuple[Spread | None, int]]:
        """Return mean and extremes of a series, each with the number of cells next to each other that have them.

        Args:
            slot: number of the series.
            cells: of the axis; they select the finest resolution that reaches back to the first.
            start: index of the first cell to return; the ones before are known to the caller.
            until: unix seconds; values from later are ignored, for an earlier instant that is shown.

        Returns:
            Of all cells from `start` on; None where nothing was put in.
        """
        if self.is_empty:
            return [(None, cells.number - start)]
        level, runs = self.stretches(cells, start, until)
        return [(level.spread(slot, first, end), times) for first, end, times in runs]

    def stretches(self, cells: Cells, start: int, until: float) -> Stretches:
        """Return which buckets the cells from the one counted `start` on are of: the same for most series of a
        frame; asked only of a store that has buckets."""
        key = cells, start, until, self.newest
        known = self._cut.get(key)
        if known is not None:
            return known
        level = self._level(cells)
        assert level.newest is not None, "asked only of what has buckets"
        seconds, oldest = level.seconds, level.newest - level.keep + 1
        end = min(math.floor(until / seconds), level.newest) + 1
        ratio = cells.seconds / seconds
        # A bucket is of the cell in which it begins; a cell in which none begins shows the one that it lies in.
        edges = [math.ceil((cells.first + n) * ratio) for n in range(start, cells.number + 1)]
        bottom = max(math.floor((cells.first + start) * ratio), oldest)
        top = min(edges[-1] + 1, end)
        runs: list[tuple[int, int, int]] = []
        before, times = (-1, -1), 0
        for n, (begin, until_bucket) in enumerate(pairwise(edges), cells.first + start):
            one, other = begin, min(until_bucket, end)
            if other <= one:
                one = math.floor(n * ratio)
                other = one + 1
            one, other = max(one, bottom), min(other, top)
            stretch = (one, other) if one < other else (bottom, bottom)
            if stretch == before:
                times += 1
            else:
                if times:
                    runs.append((*before, times))
                before, times = stretch, 1
        if times:
            runs.append((*before, times))
        if len(self._cut) >= _MOST_CUT:
            self._cut.clear()
        found = self._cut[key] = Stretches(level, runs)
        return found
