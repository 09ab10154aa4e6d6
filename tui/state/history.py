"""Past of the screen: figures by time, phases as shares, alerts with start and end.

All that is drawn of it covers the same span up to the same instant (`History.end`), so that what stands above each
other on any screen happened at the same time. Moving the instant back is rewinding; what came after it stays.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from llmtop.model.snapshot import Alert, Gpu, Rank, Snapshot
from llmtop.recording.steady import MonotonicTime
from llmtop.step_history.whole_steps import request_latency
from tui.paint.charts import nice_limit
from tui.paint.gpu_metrics import BY_KEY, METRICS
from tui.series.heights import SPIKE, FigureHistory, fixed_heights, heights
from tui.series.phase_history import BUCKET_SECONDS, PhaseHistory
from tui.series.series_store import (
    COARSE_BUCKETS,
    COARSE_SECONDS,
    LONG_BUCKETS,
    SERIES,
    Cells,
    SeriesStore,
    Spread,
)
from tui.state.past_rows import METRICS_OF_A_RANK, PastRows
from tui.state.stalled import stalled_seconds

if TYPE_CHECKING:
    from llmtop.runs.node_notes import RunAlert

DAY_SECONDS = 86400.0
SPANS: tuple[float | None, ...] = (60.0, 300.0, 1200.0, 7200.0, DAY_SECONDS, None)
"""Seconds that the keys choose among; None is all that is known."""
_ALL_SPANS = tuple(
    float(seconds)
    for seconds in (
        *(15, 20, 25, 30, 40, 50, 60, 75, 90, 120, 150, 180, 240, 300, 360, 480, 600, 720, 900),
        *(1200, 1500, 1800, 2400, 3000, 3600, 4500, 5400, 7200, 9000, 10800, 14400, 18000, 21600, 28800, 36000),
        *(43200, 57600, 72000, *(86400 * days for days in (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 15, 20))),
        *(86400 * days for days in (25, 30, 40, 50, 60, 75, 90)),
    )
)
"""Lengths that the span "all" is rounded up to: the picture does not move with every second, and at most a
quarter of it is empty."""
GPU_SERIES = 8 * len(METRICS)
"""Number of series for GPUs: all figures of eight GPUs, the first figures of each where there are more."""
MOST_RANKS = 32
MOST_ALERTS = 200
HOLE_SECONDS, _HOLE_TIMES = 90.0, 5.0
"""A pause between snapshots longer than both (seconds, and multiples of the usual pause) is a gap in the data."""
_BUCKETS_SECONDS = (60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0)
_PHASE_BUCKETS = 3
"""Number of the longest buckets in one bucket of phases: a third as many are kept."""
_IDLE_SECONDS = 600.0
"""A series that was not written for so long may make room for another."""
_MOST_CACHED = 160
_CLIPPED_FROM = 0.9
"""Share of the cells that an axis from 0 shows whole; higher ones are clipped where they lie far above these."""
CHART_SECONDS = 0.75
"""Charts take in what is newer together: the finest buckets are of a second. Below a snapshot a second, for its
jitter."""
REFRESH_SECONDS = 2.0
"""A row whose newest cell goes on is drawn anew no oftener."""
NAN = math.nan

Name = tuple[object, ...]


class AlertSpan(Struct):
    """An alert from when to when."""

    alert: Alert
    """The alert as last reported."""
    since: float
    until: float
    """Unix times; the second is that of the last snapshot that had it."""


class _Drawn(Struct):
    """Computed cells of a row, so that only its newest cells are computed the next time."""

    cells: Cells
    until: float
    rewritten: int
    spreads: list[Spread | None]
    changed_from: int = 0
    """The first cell that was worked out anew this time."""
    since: float = 0.0
    """The `until` of the time before."""
    moved: int = 0
    """Number of cells by which all others moved to the left; -1: nothing was kept."""


class _Heights(Struct):
    """How the cells of a row were drawn."""

    drawn: _Drawn
    axis: tuple[float, float, int]
    past: FigureHistory


class _FixedHeights(Struct):
    """How the cells of a row on a fixed axis were drawn."""

    cells: Cells
    until: float
    axis: tuple[float, int, int]
    """Its upper end, the rows, and how often the past of the series had been rewritten."""
    past: FigureHistory


_Key = tuple[str, int, float]


def key_of(rank: Rank) -> _Key:
    """Return the permanent key of a training process. Its pid may be reused once it has ended."""
    return rank.host, rank.pid, rank.attached_at or 0.0


def samples_beside_gpus(snapshot: Snapshot) -> Iterator[tuple[Name, float | None]]:
    """Yield the sampled figures of trainings, jobs and the host by the names of their series."""
    silent = {key_of(rank) for rank in snapshot.ranks if stalled_seconds(rank, snapshot.time) is not None}
    for rank in snapshot.ranks:
        key = key_of(rank)
        if key not in silent:
            yield (key, "tokens"), rank.tokens_per_s
        for logged in list(rank.metrics)[:METRICS_OF_A_RANK]:
            yield (key, "metric", logged), rank.metrics[logged]
    stopped = {rank.job for rank in snapshot.ranks if key_of(rank) in silent}
    for job in snapshot.jobs:
        if job.name not in stopped:
            yield ("job", job.name), job.tokens_per_s
    host = snapshot.host
    yield ("host", "cpu"), host.cpu_pct
    yield ("host", "disk_read"), host.disk_read_bytes_per_s
    yield ("host", "disk_write"), host.disk_write_bytes_per_s
    yield ("host", "net_rx"), host.net_rx_bytes_per_s
    yield ("host", "net_tx"), host.net_tx_bytes_per_s
    yield ("host", "memory"), host.memory_used_bytes


def step_values(rank: Rank, late: float) -> Iterator[tuple[float, float, float]]:
    """Yield (since, until, seconds) of the new steps or requests of a process.

    Args:
        rank: as a snapshot has it.
        late: seconds to add to its unix times.
    """
    for step in rank.new_steps:
        start, took = step.started_at + late, step.interval_seconds
        if rank.kind == "request":
            yield start, start + step.seconds, request_latency(step)
        elif took is not None:
            yield start - took, start, took


def without_new_steps(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot for the screen, which shows no single step. A training of short steps has a thousand."""
    ranks = tuple(replace(rank, new_steps=(), gpu_updates=()) for rank in snapshot.ranks)
    return replace(snapshot, ranks=ranks)


class History:
    """Everything remembered of the past, and which part of it is shown."""

    def __init__(self) -> None:
        self._span: float | None = SPANS[1]
        self.chosen = False
        """True if a person chose the span; else it is shorter while less is known: no chart is nearly empty."""
        self.instant: float | None = None
        """Unix time that is shown; None: the newest."""
        self.clear()

    def clear(self) -> None:
        """Drop all data."""
        self.store = SeriesStore()
        self.first: float | None = None
        """Unix time of the oldest that is known."""
        self.newest: float | None = None
        """Unix time of the newest snapshot."""
        self._drawn_until: float | None = None
        """The same, of the newest that charts end at."""
        self.alerts: deque[AlertSpan] = deque(maxlen=MOST_ALERTS)
        self.phases: dict[_Key, PhaseHistory] = {}
        self._long_phases: dict[_Key, PhaseHistory] = {}
        """Over the time that the longest buckets reach back, of processes whose past was read."""
        self._gpus: dict[str, Gpu] = {}
        self._clock = MonotonicTime()
        self._usual = 1.0
        self._known = 0.0
        """Seconds that were known when the newest instant was shown last."""
        self._drawn: dict[tuple[int, int], _Drawn] = {}
        self._heights: dict[tuple[Name, int], _Heights] = {}
        self._fixed: dict[tuple[int, int], _FixedHeights] = {}
        self._cells_of: tuple[object, ...] = ()
        """Inputs from which end and length of the last span were computed."""
        self._cells: dict[int, Cells] = {}
        """Into how many cells, and which."""
        self._bucket_seconds = 0.0
        """Length of the longest buckets; 0: there are none beyond two hours."""
        self._gpu_series = 0
        self._wanting: set[Name] = set()

    # --- what is shown ------------------------------------------------------------------------------------------

    @property
    def end(self) -> float:
        """Unix time at which charts end: the instant shown, or less than `CHART_SECONDS` before the newest one."""
        if self.instant is not None:
            return self.instant
        return self._drawn_until or 0.0

    @property
    def span(self) -> float | None:
        """Seconds that every strip and chart covers once so much is known; one of `SPANS`."""
        return self._span

    @span.setter
    def span(self, seconds: float | None) -> None:
        self._span, self.chosen = seconds, True

    @property
    def seconds(self) -> float:
        """How much time every chart covers."""
        if self.span is not None:
            return self.span if self.chosen else self._filled_span(self.span)
        known = self.end - (self.end if self.first is None else self.first)
        return next((one for one in _ALL_SPANS if known <= one or one >= self.store.reach_seconds), _ALL_SPANS[-1])

    def _filled_span(self, usual: float) -> float:
        """Return a span that what is known fills, at most the usual one; the same while an earlier instant is
        shown."""
        if self._drawn_until is not None and self.first is not None and self.end >= self._drawn_until:
            self._known = self._drawn_until - self.first
        return next((one for one in _ALL_SPANS if self._known <= one < usual), usual)

    def cells(self, count: int) -> Cells:
        """Return the span cut into so many cells."""
        of = self._drawn_until, self.first, self.instant, self._span, self.chosen
        if of != self._cells_of:
            self._cells_of, self._cells = of, {}
        found = self._cells.get(count)
        if found is None:
            found = self._cells[count] = Cells.ending_at(self.end, self.seconds, count)
        return found

    # --- taking in ----------------------------------------------------------------------------------------------

    def join(self, snapshots: Iterable[Snapshot]) -> None:
        """Take in what lies before the place that a recording has jumped to; what is known already stays."""
        self._clock = MonotonicTime()
        for snapshot in snapshots:
            self.add(snapshot)

    def add(self, snapshot: Snapshot) -> float:
        """Take in one snapshot, unless it is older than what is known, as after a jump back in a recording.

        Returns:
            Its unix time without any setting of the wall clock.
        """
        now = self._clock.time_of(snapshot)
        before = self.newest
        if before is not None and now <= before:
            return now
        gap = self._usual if before is None else now - before
        if before is not None and gap <= max(HOLE_SECONDS, _HOLE_TIMES * self._usual):
            self._usual += 0.2 * (gap - self._usual)
            since = before
        else:
            since = now - self._usual
        self.newest = now
        if self._drawn_until is None or now - self._drawn_until >= CHART_SECONDS:
            self._drawn_until = now
        self.store.advance(now)
        self._add_samples(snapshot, since, now)
        late = now - snapshot.time
        for rank in snapshot.ranks:
            self._add_steps(rank, late)
            if stalled_seconds(rank, snapshot.time) is None:
                self._add_phases(rank, now)
        self._add_alerts(snapshot, now)
        self.first = since if self.first is None else min(self.first, since)
        if self._span is None or self._span > COARSE_SECONDS * COARSE_BUCKETS:
            self.extend(self.first)
        return now

    def _add_samples(self, snapshot: Snapshot, since: float, now: float) -> None:
        slots: list[int] = []
        values: list[float] = []

        def take(name: Name, value: float | None) -> None:
            if value is not None:
                slot = self._slot(name)
                if slot is not None:
                    slots.append(slot)
                    values.append(value)

        for name, value in samples_beside_gpus(snapshot):
            take(name, value)
        gpus, slot_of = snapshot.gpus, self.store.slots.get
        self._gpus |= {gpu.uuid: gpu for gpu in gpus}
        for metric in METRICS:
            figure, read = metric.key, metric.value
            for gpu in gpus:
                value = read(gpu)
                if value is not None:  # the same as `take`, without its calls: all figures of all GPUs go through
                    slot = slot_of((gpu.uuid, figure))
                    if slot is None:
                        slot = self._slot((gpu.uuid, figure))
                    if slot is not None:
                        slots.append(slot)
                        values.append(value)
        self.store.put(slots, values, since, now)

    def is_left_out(self, name: Name) -> bool:
        """Return True if there was no room for a series: it has no chart."""
        return name in self._wanting

    def _slot(self, name: Name) -> int | None:
        slot = self.store.slot(name)
        if slot is not None or name in self._wanting:
            return slot
        if name[-1] == "tokens" or "metric" in name:  # every rank's steps have room before them
            of_steps = sum(known[-1] == "step" for known in self.store.slots if isinstance(known, tuple))
            if len(self.store.slots) + MOST_RANKS - of_steps >= SERIES:
                self._wanting.add(name)
                return None
        of_gpu = isinstance(name[0], str) and name[0] not in ("host", "job")
        if not of_gpu or self._gpu_series < GPU_SERIES:
            slot = self.store.make(name, (self.newest or 0.0) - _IDLE_SECONDS)
            self._gpu_series += of_gpu
        if slot is None and len(self._wanting) < 4096:
            self._wanting.add(name)
        return slot

    def _add_steps(self, rank: Rank, late: float) -> None:
        found = list(step_values(rank, late))
        if not found:
            return
        slot = self._slot((key_of(rank), "step"))
        if slot is not None:
            self.store.put_one(slot, found)
            earliest = min(start for start, _, _ in found)
            self.first = earliest if self.first is None else min(self.first, earliest)

    def _add_phases(self, rank: Rank, now: float) -> None:
        if not rank.phases:
            return
        key = key_of(rank)
        known = self.phases.get(key)
        if known is None:
            if len(self.phases) >= MOST_RANKS:
                self.phases.pop(min(self.phases, key=lambda other: self.phases[other].newest))
            known = self.phases[key] = PhaseHistory()
        known.add(rank, now)
        longer = self._long_phases.get(key)
        if longer is not None:
            longer.add(rank, now)

    def phases_of(self, rank: Rank) -> PhaseHistory | None:
        """Return how the steps of a process were made up over the span that is shown; None where unknown."""
        key = key_of(rank)
        longer = self._long_phases.get(key) if self.seconds > COARSE_SECONDS * COARSE_BUCKETS else None
        return longer or self.phases.get(key)

    # --- the past from before -----------------------------------------------------------------------------------

    def begin_with(self, begin: float, end: float) -> None:
        """Reach from one instant to another (unix times): what was then comes with `take_past`."""
        self.first, self.newest = begin, end
        self._drawn_until = end
        self.store.advance(end)
        self.extend(begin)

    def take_past(self, past: PastRows) -> None:
        """Take in a piece of what a run keeps of the time before; what is known already stays."""
        newest = self.newest
        if newest is None:
            return
        begin = min(past.begin, newest if self.first is None else self.first)
        self.extend(begin)
        self._gpus = {**past.gpus, **self._gpus}
        for name, rows in past.rows.items():
            slot = self._slot(name)
            if slot is not None:
                self.store.put_past(slot, rows)
        for key, phases in past.phases.items():
            self._take_phases(key, phases)
        if past.alerts:
            self._take_past_alerts(past.alerts)
        self.first = begin
        self._known = newest - begin
        self._cells_of = ()

    def extend(self, begin: float) -> None:
        """Extend the charts back to an instant, and a quarter longer, as far as that is over two hours.

        Args:
            begin: unix time.
        """
        seconds = (self.newest or begin) - begin
        if seconds < COARSE_SECONDS * COARSE_BUCKETS or seconds <= self.store.reach_seconds * 0.95:
            return
        wanted = max(DAY_SECONDS, 1.25 * seconds) / LONG_BUCKETS
        self._bucket_seconds = next((one for one in _BUCKETS_SECONDS if one >= wanted), _BUCKETS_SECONDS[-1])
        self.store.extend(self._bucket_seconds)
        self._long_phases = {key: PhaseHistory(_PHASE_BUCKETS * self._bucket_seconds) for key in self.phases}
        self._drawn.clear()
        self._heights.clear()
        self._fixed.clear()

    def _take_phases(self, key: _Key, phases: Iterable[tuple[float, float, Mapping[str, float]]]) -> None:
        longer = self._long_phases.get(key)
        if longer is None and self._bucket_seconds and len(self._long_phases) < MOST_RANKS:
            longer = self._long_phases[key] = PhaseHistory(_PHASE_BUCKETS * self._bucket_seconds)
        known = self.phases.get(key)
        if known is None and len(self.phases) < MOST_RANKS:
            known = self.phases[key] = PhaseHistory()
        recent = (self.newest or 0.0) - COARSE_SECONDS * COARSE_BUCKETS
        for since, until, parts in phases:
            if longer is not None:
                longer.add_parts(parts, until)
            at = until
            while known is not None and at > max(since, recent):  # the quarters that nothing is known of
                if known.mean_phases(at, at) is None:
                    known.add_parts(parts, at)
                at -= BUCKET_SECONDS

    def _take_past_alerts(self, alerts: list[RunAlert]) -> None:
        newest = self.newest or 0.0
        known = list(self.alerts)
        found = []
        for one in alerts:
            alert = one.as_alert()
            until = newest if one.until is None else one.until
            again = any(
                alert.is_continuation_of(other.alert) and other.since <= until and one.since <= other.until
                for other in known
            )
            if not again:
                found.append(AlertSpan(alert, one.since, until))
        self.alerts.clear()
        self.alerts.extend(sorted([*found, *known], key=lambda one: one.since))

    def _add_alerts(self, snapshot: Snapshot, now: float) -> None:
        late = now - snapshot.time
        for alert in snapshot.alerts:
            known = next(
                (
                    one
                    for one in reversed(self.alerts)
                    if one.until >= (now - 30.0) and alert.is_continuation_of(one.alert)
                ),
                None,
            )
            if known is None:
                self.alerts.append(AlertSpan(alert, min(alert.since + late, now), now))
            else:
                known.alert, known.until = alert, now

    # --- reading ------------------------------------------------------------------------------------------------

    def spreads(self, name: Name, count: int) -> list[Spread | None]:
        """Return one figure over so many cells; None where nothing is known."""
        drawn = self._brought_up(name, count)
        return [None] * max(count, 0) if drawn is None else drawn.spreads

    def _brought_up(self, name: Name, count: int) -> _Drawn | None:
        slot = self.store.slot(name)
        if slot is None or count <= 0:
            return None
        cells, until = self.cells(count), self.end
        known = self._drawn.get((slot, count))
        rewritten = self.store.rewritten[slot]
        moved = -1 if known is None else cells.first - known.cells.first
        if (
            known is None
            or known.cells.seconds != cells.seconds
            or known.rewritten != rewritten
            or until < known.until
            or not 0 <= moved < count
        ):
            drawn = _Drawn(cells, until, rewritten, self.store.spreads(slot, cells, 0, until), moved=-1)
        elif moved == 0 and until - known.until < REFRESH_SECONDS:
            known.changed_from, known.since, known.moved = count, known.until, 0
            return known
        else:
            unsettled = known.until - self.store.unsettled_seconds(slot, cells)
            start = max(min(cells.index_of(unsettled), count - 1), 0)
            spreads = known.spreads[moved : moved + start] + self.store.spreads(slot, cells, start, until)
            drawn = _Drawn(cells, until, rewritten, spreads, start, known.until, moved)
        if len(self._drawn) >= _MOST_CACHED:
            self._drawn.clear()
        self._drawn[slot, count] = drawn
        return drawn

    def heights_of(self, name: Name, count: int, limit: float | None, rows: int = 1) -> FigureHistory:
        """Return one figure over the cells of a row, on an axis from 0.

        Args:
            name: of the series.
            count: cells.
            limit: value at the top of the axis; None or 0: no axis, and nothing is drawn.
            rows: rows of the chart, 8 heights each.
        """
        store = self.store
        slot = store.slot(name)
        if slot is None or count <= 0:
            return FigureHistory(bytes(max(count, 0)), 0.0, 0.0, None, None)
        cells, until, axis = self.cells(count), self.end, (limit or 0.0, rows, store.rewritten[slot])
        known = self._fixed.get((slot, count))
        start, kept = 0, b""
        if (
            known is not None
            and known.axis == axis
            and known.cells.seconds == cells.seconds
            and until >= known.until
        ):
            moved = cells.first - known.cells.first
            if moved == 0 and until - known.until < REFRESH_SECONDS:
                return known.past
            if 0 <= moved < count:
                unsettled = known.until - store.unsettled_seconds(slot, cells)
                start = max(min(cells.index_of(unsettled), count - 1), 0)
                kept = known.past.heights[moved : moved + start]
        newest = fixed_heights(store, slot, cells, start, until, axis[:2])
        if len(self._fixed) >= _MOST_CACHED:
            self._fixed.clear()
        past = FigureHistory(kept + newest, 0.0, axis[0], None, None)
        self._fixed[slot, count] = _FixedHeights(cells, until, axis, past)
        return past

    def heights_from_zero(self, name: Name, count: int, rows: int = 1) -> FigureHistory:
        """Return heights on an axis from 0 to what the values need; what lies far above the others is clipped.

        Args:
            name: the series.
            count: cells.
            rows: rows of one chart.
        """
        drawn = self._brought_up(name, count)
        if drawn is None:
            return FigureHistory(bytes(max(count, 0)), 0.0, 0.0, None, None)
        known = self._heights.get((name, count))
        if known is not None and drawn.moved == 0 and known.axis[2] == rows and known.axis[1] > 0:
            least, most = _extremes(drawn.spreads[drawn.changed_from :], known.past.least, known.past.most)
            return self._past_heights(name, drawn, known, known.axis, least, most)
        means = sorted([one[0] for one in drawn.spreads if one is not None])
        least, most = self._extremes_after(drawn, known)
        limit = 0.0
        if means and most is not None:
            last = len(means) - 1
            usual = (means[last // 2] + means[(last + 1) // 2]) / 2  # the median
            upper = means[int(_CLIPPED_FROM * last)]
            limit = nice_limit(max(1.25 * usual, min(most, 2.0 * usual), upper) or most)
        return self._past_heights(name, drawn, known, (0.0, limit, rows), least, most)

    def heights_in_range(self, name: Name, count: int, rows: int = 1) -> FigureHistory:
        """Return the same on an axis from the lowest to the highest value in the span."""
        drawn = self._brought_up(name, count)
        if drawn is None:
            return FigureHistory(bytes(max(count, 0)), 0.0, 0.0, None, None)
        known = self._heights.get((name, count))
        least, most = self._extremes_after(drawn, known)
        low, high = least or 0.0, most or 0.0
        if high <= low:  # flat: a low line
            low, high = low - (abs(low) or 1.0) / 8, low + (abs(low) or 1.0)
        return self._past_heights(name, drawn, known, (low, high, rows), least, most)

    def _past_heights(
        self,
        name: Name,
        drawn: _Drawn,
        known: _Heights | None,
        axis: tuple[float, float, int],
        least: float | None,
        most: float | None,
    ) -> FigureHistory:
        """Return the heights of all cells, of which those stay that were drawn on the same axis before."""
        low, limit, rows = axis
        if known is not None and known.axis == axis and known.drawn is drawn:
            return known.past
        start = 0
        kept = b""
        if known is not None and known.axis == axis and drawn.moved >= 0 and self._continues(drawn, known.drawn):
            start = drawn.changed_from
            kept = known.past.heights[drawn.moved : drawn.moved + start]
        newest = heights(zip(drawn.spreads[start:], repeat(1)), low, limit, rows)
        if len(self._heights) >= _MOST_CACHED:
            self._heights.clear()
        past = FigureHistory(kept + newest, low, limit, least, most)
        self._heights[name, drawn.cells.number] = _Heights(drawn, axis, past)
        return past

    def _extremes_after(self, drawn: _Drawn, known: _Heights | None) -> tuple[float | None, float | None]:
        """Return the lowest and the highest of all values: those known before, unless a cell with one of them has
        left the row."""
        if known is not None and drawn.moved >= 0 and self._continues(drawn, known.drawn):
            least, most = known.past.least, known.past.most
            left = [one for one in known.drawn.spreads[: drawn.moved] if one is not None]
            if least is None or most is None or all(least < one[1] and one[2] < most for one in left):
                return _extremes(drawn.spreads[drawn.changed_from :], least, most)
        return _extremes(drawn.spreads, None, None)

    @staticmethod
    def _continues(drawn: _Drawn, known: _Drawn) -> bool:
        """Return True if nothing was worked out between these two."""
        return known.cells.first + drawn.moved == drawn.cells.first and known.until == drawn.since

    def levels(self, uuid: str, key: str, count: int) -> bytes:
        """Return how high the cells of one figure of one GPU are drawn, 0 to 8, on the figure's own axis."""
        gpu = self._gpus.get(uuid)
        limit = None if gpu is None else BY_KEY[key].limit(gpu)
        return bytes(one % SPIKE for one in self.heights_of((uuid, key), count, limit).heights)

    def gpu(self, uuid: str, key: str, count: int) -> array[float]:
        """Return the means of one figure of one GPU over so many cells; NaN where nothing is known."""
        return array("f", [NAN if one is None else one.mean for one in self.spreads((uuid, key), count)])


def _extremes(
    spreads: list[Spread | None], least: float | None, most: float | None
) -> tuple[float | None, float | None]:
    """Return the lowest and the highest of all values, and of those known before."""
    before, distinct = None, []
    for one in spreads:
        if one is not before and one is not None:  # neighbours of the same bucket are the same object
            distinct.append(one)
        before = one
    if not distinct:
        return least, most
    low, high = min([one[1] for one in distinct]), max([one[2] for one in distinct])
    return (low if least is None or low < least else least), (high if most is None or high > most else most)
