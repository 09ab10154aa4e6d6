"""What the screen remembers of past snapshots: short series of numbers, bounded, cheap to add to and to draw.

One sample a snapshot for each figure of each GPU, all of the same length, so that a column of cells is one instant
on every card. Absent is NaN. Steps are remembered by training process, one number a step.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

from llmtop.snapshot import Host, Rank, Snapshot
from llmtop.steady import SteadyTime
from llmtop.whole_steps import latency
from tui.paint.gpu_metrics import METRICS

SAMPLES = 1200
"""Snapshots kept: 20 minutes at one a second."""
STEPS = 1000
METRICS_OF_A_RANK = 16
"""A training may log any number of names; only the first ones get a series."""
NAN = math.nan
_LARGEST = 3.4e38
"""Beyond it a 32-bit float is infinite, and so cannot be drawn."""


def level(value: float | None, limit: float | None) -> int:
    """How high to draw a value in a row of eighth blocks: 0 absent, 1 up to 1/8 of the limit, 8 from 7/8 on."""
    if value is None or not math.isfinite(value) or limit is None or not 0 < limit < math.inf:
        return 0
    return 1 if value <= 0 else min(1 + int(min(value / limit, 1.0) * 8.0), 8)


class Series:
    """The last values of one figure, as 32-bit floats, and how high each is drawn in one row.

    The height is worked out once, when the value comes: a hundred histories are drawn with every frame. All the
    room is taken at once, so that a monitor does not grow while its histories fill.
    """

    __slots__ = ("_end", "_keep", "_levels", "_room", "_values")

    def __init__(self, keep: int, missed: int = 0) -> None:
        self._keep = keep
        self._room = keep + keep // 4
        self._end = min(missed, keep)
        self._values = array("f", [NAN]) * self._room
        self._levels = bytearray(self._room)

    def add(self, value: float | None, limit: float | None = None) -> None:
        """Append one value; the oldest go when there is no more room.

        Args:
            limit: the upper end of the axis on which `levels` are drawn.
        """
        end, keep = self._end, self._keep
        if end == self._room:
            self._values[:keep] = self._values[end - keep :]
            self._levels[:keep] = self._levels[end - keep :]
            end = keep
        self._values[end] = NAN if value is None or not -_LARGEST < value < _LARGEST else value
        self._levels[end] = level(value, limit)
        self._end = end + 1

    def last(self, count: int) -> array[float]:
        """Up to so many of the newest values, oldest first."""
        return self._values[max(0, self._end - max(count, 0)) : self._end]

    def levels(self, count: int) -> bytearray:
        """How high up to so many of the newest values are drawn, 0 to 8."""
        return self._levels[max(0, self._end - max(count, 0)) : self._end]


class GpuHistory:
    """The last values of one GPU: a series for each figure that is drawn."""

    __slots__ = ("series",)

    def __init__(self, missed: int) -> None:
        self.series = {metric.key: Series(SAMPLES, missed) for metric in METRICS}


class RankHistory:
    """Steps and logged values of one training process."""

    __slots__ = ("metrics", "seconds")

    def __init__(self) -> None:
        self.seconds = Series(STEPS)
        """Of each step, from its start to the next one's, a gap where that is not known; of a request, its own."""
        self.metrics: dict[str, Series] = {}

    def add(self, rank: Rank) -> None:
        """Take in what finished since the snapshot before."""
        for step in rank.new_steps:
            self.seconds.add(latency(step) if rank.kind == "request" else step.interval_seconds)
        if not rank.new_steps:
            return
        for name, value in rank.metrics.items():
            series = self.metrics.get(name)
            if series is None:
                if len(self.metrics) >= METRICS_OF_A_RANK:
                    continue
                series = self.metrics[name] = Series(STEPS)
            series.add(value)


_Key = tuple[str, int, float]


def _key(rank: Rank) -> _Key:
    """What names a training process for good: its pid is given to another once it has ended."""
    return rank.host, rank.pid, rank.attached_at or 0.0


class History:
    """Everything remembered, by GPU uuid and by pid."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all, as after a jump in a recording."""
        self.times = array("d")
        self._clock = SteadyTime()
        self.gpus: dict[str, GpuHistory] = {}
        self.ranks: dict[_Key, RankHistory] = {}
        self.cpu = Series(SAMPLES)

    def replace(self, snapshots: Iterable[Snapshot]) -> None:
        """Forget all and take these in instead."""
        self.clear()
        for snapshot in snapshots:
            self.add(snapshot)

    def add(self, snapshot: Snapshot) -> None:
        """Take in one snapshot. A GPU that is not in it gets a gap, so columns stay in step."""
        self._add_host(snapshot.host)
        present = {gpu.uuid: gpu for gpu in snapshot.gpus}
        for uuid in present:
            if uuid not in self.gpus:
                self.gpus[uuid] = GpuHistory(len(self.times))
        for uuid, known in self.gpus.items():
            gpu = present.get(uuid)
            series = known.series
            for metric in METRICS:
                if gpu is None:
                    series[metric.key].add(None)
                else:
                    series[metric.key].add(metric.value(gpu), metric.limit(gpu))
        self.times.append(self._clock.of(snapshot))
        if len(self.times) >= 2 * SAMPLES:
            del self.times[:-SAMPLES]
        self._add_ranks(snapshot.ranks)

    def _add_host(self, host: Host) -> None:
        self.cpu.add(host.cpu_pct, 100.0)

    def _add_ranks(self, ranks: tuple[Rank, ...]) -> None:
        present = {_key(rank) for rank in ranks}
        for gone in [key for key in self.ranks if key not in present]:
            del self.ranks[gone]
        for rank in ranks:
            key = _key(rank)
            known = self.ranks.get(key)
            if known is None:
                known = self.ranks[key] = RankHistory()
            known.add(rank)

    def gpu(self, uuid: str, key: str, count: int) -> array[float]:
        """The newest values of one figure of one GPU."""
        known = self.gpus.get(uuid)
        return known.series[key].last(count) if known is not None else array("f")

    def levels(self, uuid: str, key: str, count: int) -> bytearray:
        """How high the newest values of one figure of one GPU are drawn, 0 to 8."""
        known = self.gpus.get(uuid)
        return known.series[key].levels(count) if known is not None else bytearray()

    def rank(self, rank: Rank) -> RankHistory:
        """What is remembered of one training process; empty when nothing is known."""
        return self.ranks.get(_key(rank)) or RankHistory()
