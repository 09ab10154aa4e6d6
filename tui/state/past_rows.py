"""The past of runs as rows of the time line's series, in pieces that a screen takes in without a pause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from llmtop.model.snapshot import Gpu
from tui.paint.gpu_metrics import METRICS

if TYPE_CHECKING:
    from collectors.runs.past import PastMinute, RunPast
    from llmtop.runs.node_notes import RunAlert
    from llmtop.runs.records import GpuMinute

METRICS_OF_A_RANK = 4
"""A training may log any number of names; only the first ones get a history."""
PastRow = tuple[float, float, float, float, float]
"""Unix times from when to when, then mean, lowest, highest."""
RankKey = tuple[str, int, float]
"""Key, as in `tui.state.history.key_of`."""


class PastRows(NamedTuple):
    """A piece of the past of a run."""

    begin: float
    """Unix time at which the run began."""
    rows: dict[tuple[object, ...], list[PastRow]]
    """Rows by name of the series."""
    phases: dict[RankKey, list[tuple[float, float, Mapping[str, float]]]]
    """(since, until, mean seconds by top-level phase) of each process."""
    gpus: dict[str, Gpu]
    alerts: list[RunAlert]


def rows_of(past: RunPast) -> Iterator[PastRows]:
    """Yield the pieces of a part of the past; slow, so in a thread."""
    for rank in past.ranks:
        yield _rank_rows(past.begin, rank.keys, rank.minutes)
    for uuid in dict.fromkeys(minute.uuid for minute in past.gpu_minutes):
        known = [minute for minute in past.gpu_minutes if minute.uuid == uuid]
        for gpu_minutes in _pieces(known):
            yield _gpu_rows(past.begin, uuid, gpu_minutes)
    if past.alerts:
        yield PastRows(past.begin, {}, {}, {}, past.alerts)


def _pieces(minutes: list[GpuMinute]) -> Iterator[list[GpuMinute]]:
    from collectors.runs.past import PIECE_SECONDS  # of a run alone

    piece: list[GpuMinute] = []
    number = None
    for minute in minutes:
        place = minute.at // PIECE_SECONDS
        if place != number and piece:
            yield piece
            piece = []
        number = place
        piece.append(minute)
    if piece:
        yield piece


def _rank_rows(begin: float, keys: list[RankKey], minutes: list[PastMinute]) -> PastRows:
    rows: dict[tuple[object, ...], list[PastRow]] = {}
    for minute in minutes:
        since, until = minute.since, minute.until
        found: dict[tuple[object, ...], tuple[float, float, float]] = {}
        if minute.step_seconds is not None:
            found["step",] = minute.step_seconds
        if minute.tokens_per_s is not None:
            found["tokens",] = (minute.tokens_per_s,) * 3
        for name in list(minute.values)[:METRICS_OF_A_RANK]:
            found["metric", name] = (minute.values[name],) * 3
        for key in keys:
            for series, bounds in found.items():
                rows.setdefault((key, *series), []).append((since, until, *bounds))
    phases = [(minute.since, minute.until, minute.phases) for minute in minutes if minute.phases]
    return PastRows(begin, rows, {key: [*phases] for key in keys}, {}, [])


def _gpu_rows(begin: float, uuid: str, minutes: list[GpuMinute]) -> PastRows:
    from collectors.runs.snapshots import gpu_of  # of a run alone

    rows: dict[tuple[object, ...], list[PastRow]] = {}
    for minute in minutes:
        gpus = [gpu_of(minute, statistic) for statistic in range(3)]
        for metric in METRICS:
            mean, low, high = (metric.value(gpu) for gpu in gpus)
            if mean is not None and low is not None and high is not None:
                row = minute.at - minute.seconds, minute.at, mean, low, high
                rows.setdefault((uuid, metric.key), []).append(row)
    return PastRows(begin, rows, {}, {uuid: gpu_of(minutes[-1], 0)}, [])
