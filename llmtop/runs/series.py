"""The steps of a run in order: one by one where all of them are kept in full, else by minute."""

from __future__ import annotations

import math
import statistics
import struct
from typing import NamedTuple

from llmtop.naming.own_phases import OUTSIDE
from llmtop.runs import records
from llmtop.runs.store import RankProcess, Run

POINT_SECONDS = 60.0
_P50, _MEAN = records.STATISTICS.index("p50"), records.STATISTICS.index("mean")


class Point(NamedTuple):
    """One step, or those that ended within a minute; durations are by the host's clock."""

    ended: float
    """Unix time at which the last of them ended."""
    elapsed: float
    """Seconds from the start of the run until then."""
    first: int
    last: int
    """Numbers of the first and the last of them, by the script's count."""
    steps: int
    step_seconds: float | None
    """Median from start to start; None where that is not known."""
    phases: dict[str, float]
    """Mean seconds per step; of `OUTSIDE` too."""
    tokens: float | None
    samples: float | None
    """Both: of all of these steps; None where the script does not count them."""
    values: dict[str, float]
    """The last logged value of each name by then."""


class Series(NamedTuple):
    """Series of the lowest rank of a run."""

    points: list[Point]
    """Points in the order of time, all starts."""
    is_full: bool
    """True if each point is one step."""

    def lasting_points(self) -> list[Point]:
        """Return the points without those of steps that a later start has made again, by number."""
        kept: list[Point] = []
        least = math.inf
        for point in reversed(self.points):
            if point.first < least:
                kept.append(point)
                least = point.first
        return kept[::-1]


def series_of(run: Run) -> Series:
    """Return the steps of the lowest rank of a run over all its starts."""
    leaders = [attempt.leader for attempt in run.attempts]
    is_full = all(_is_full(process) for process in leaders)
    points: list[Point] = []
    for process in leaders:
        points += _full(process, run.started) if is_full else _by_minute(process, run.started)
    return Series(points, is_full)


def batch_of(points: list[Point]) -> tuple[float | None, float | None]:
    """Return the median tokens and samples per step of one rank; None where the script does not count them."""
    tokens = [point.tokens / point.steps for point in points if point.tokens is not None and point.steps]
    samples = [point.samples / point.steps for point in points if point.samples is not None and point.steps]
    return statistics.median(tokens) if tokens else None, statistics.median(samples) if samples else None


def _is_full(process: RankProcess) -> bool:
    rows = process.last_steps()
    state = process.state
    done = 0 if state is None else state.steps + state.lost
    return done == 0 or (bool(rows) and rows[0][0] == 0 and len(rows) == done)


def _full(process: RankProcess, run_started: float) -> list[Point]:
    """A step is whole once the next one has begun: the interval of a row is of the step before."""
    rows = _last_rows(process)
    after = [one.row[3] for one in rows[1:]] + [None]
    return [
        _point([one._replace(row=(*one.row[:3], interval, *one.row[4:]))], run_started, one.values)
        for one, interval in zip(rows, after, strict=True)
    ]


def _by_minute(process: RankProcess, run_started: float) -> list[Point]:
    points: list[Point] = []
    done = 0
    for names, minute in process.minutes():
        done += minute.steps + minute.lost
        if minute.steps:
            points.append(_of_minute(names, minute, process, run_started))
    groups: dict[int, list[_Row]] = {}
    for row in _last_rows(process):
        if row.ordinal >= done:
            groups.setdefault(int(row.ended // POINT_SECONDS), []).append(row)
    points += [_point(rows, run_started, rows[-1].values) for rows in groups.values()]
    return points


def _of_minute(names: records.Names, minute: records.Minute, process: RankProcess, run_started: float) -> Point:
    rows = records.statistics_of(names, minute)
    phases = {name: rows[name][_MEAN] for name in names.phases if name in rows}
    if "step" in rows:
        outer = sum(seconds for name, seconds in phases.items() if "/" not in name)
        phases[OUTSIDE] = max(0.0, rows["interval" if "interval" in rows else "step"][_MEAN] - outer)
    numbers = struct.unpack(f"<{len(minute.values) // 4}f", minute.values)
    values = {name: value for name, value in zip(names.values, numbers, strict=False) if not math.isnan(value)}
    ended = minute.mono + process.unix_offset
    return Point(
        ended=ended,
        elapsed=ended - run_started,
        first=minute.first,
        last=minute.last,
        steps=minute.steps,
        step_seconds=rows["interval"][_P50] if "interval" in rows else None,
        phases=phases,
        tokens=minute.tokens,
        samples=minute.samples,
        values=values,
    )


class _Row(NamedTuple):
    """A step of the last minutes."""

    ordinal: int
    """How many steps the process had finished before it."""
    row: records.StepRow
    ended: float
    """Unix time, without settings of the wall clock since the process attached."""
    values: dict[str, float]
    """Values logged by the end of its second."""


def _last_rows(process: RankProcess) -> list[_Row]:
    """Return the steps of the last minutes, oldest first."""
    found: dict[int, _Row] = {}
    values: dict[str, float] = {}
    newest: int | None = None
    for record in process.last_records():
        if isinstance(record, records.RecentSteps):
            for newest, row in enumerate(record.steps, record.first):
                ended = (row[1] + row[2] - record.mono_offset_ns) / 1e9 + process.unix_offset
                found[newest] = _Row(newest, row, ended, values)
        elif isinstance(record, records.Values):
            values = {**values, **record.values}
            if newest is not None:
                found[newest] = found[newest]._replace(values=values)
    return [found[ordinal] for ordinal in sorted(found)]


def _point(found: list[_Row], run_started: float, values: dict[str, float]) -> Point:
    rows = [one.row for one in found]
    intervals = [row[3] / 1e9 for row in rows if row[3] is not None]
    phases: dict[str, float] = {}
    for row in rows:
        spent = {name: ns / 1e9 for name, ns, _ in row[6]}
        whole = (row[2] if row[3] is None else row[3]) / 1e9
        spent[OUTSIDE] = max(0.0, whole - sum(ns for name, ns in spent.items() if "/" not in name))
        for name, seconds in spent.items():
            phases[name] = phases.get(name, 0.0) + seconds / len(rows)
    tokens, samples = ([row[place] for row in rows if row[place] is not None] for place in (4, 5))
    ended = found[-1].ended
    return Point(
        ended=ended,
        elapsed=ended - run_started,
        first=min(row[0] for row in rows),
        last=max(row[0] for row in rows),
        steps=len(rows),
        step_seconds=statistics.median(intervals) if intervals else None,
        phases=phases,
        tokens=sum(tokens) if tokens else None,
        samples=sum(samples) if samples else None,
        values=values,
    )
