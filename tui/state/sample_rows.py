"""Rows of the time line's series from kept snapshots: those of this monitor, or those of a recording."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from llmtop.errors import LlmtopError
from llmtop.model.snapshot import Alert, Gpu, Snapshot
from tui.paint.gpu_metrics import METRICS
from tui.series.phase_history import parts_of
from tui.series.series_store import COARSE_BUCKETS, COARSE_SECONDS
from tui.state.history import HOLE_SECONDS, Name, key_of, samples_beside_gpus, step_values
from tui.state.past_rows import PastRow, PastRows, RankKey
from tui.state.stalled import stalled_seconds

if TYPE_CHECKING:
    from collectors.replay import SnapshotReader
    from llmtop.runs.node_notes import RunAlert

LONG_SECONDS = 60.0
"""Length of a row of what is older than the buckets of `COARSE_SECONDS` reach: the shortest of the longer ones."""
_LONG_PIECE_SECONDS = 14400.0
"""A piece ends where the longest buckets of the time line do."""
_PIECE_SECONDS = 600.0
_TOGETHER, _PAUSE_SECONDS = 16, 0.002
"""Snapshots that are read at once, some 3 ms of processor time for eight GPUs, and the pause before them."""
_Phases = dict[RankKey, list[tuple[float, float, Mapping[str, float]]]]


def rows_of_samples(
    samples: Iterable[tuple[float, Snapshot]], begin: float, seconds: float = COARSE_SECONDS
) -> Iterator[PastRows]:
    """Yield the pieces of a stretch: of each GPU, of each training, of the machine, and its alerts. Slow, so in a
    thread.

    Args:
        samples: unix times and snapshots, oldest first; it may begin anew at an earlier time.
        begin: unix time since when anything is known.
        seconds: length of a row.
    """
    piece_seconds = _PIECE_SECONDS if seconds < LONG_SECONDS else _LONG_PIECE_SECONDS
    piece, number = _Piece(begin, seconds), None
    for at, snapshot in samples:
        place = at // piece_seconds
        if number is not None and place != number:
            yield from piece.rows()
            piece = _Piece(begin, seconds)
        number = place
        piece.add(snapshot, at)
    yield from piece.rows()


def recorded_rows(open_reader: Callable[[], SnapshotReader], since: float, until: float) -> Iterator[PastRows]:
    """Yield the pieces of a part of a recording, its last two hours first; none where it cannot be read again.

    Args:
        open_reader: opens the recording once more.
        since: unix time; what is from before is known already.
        until: unix time.
    """
    try:
        reader = open_reader()
    except (LlmtopError, OSError):
        return
    try:
        begin = reader.members[0].first
        near = max(until - COARSE_SECONDS * COARSE_BUCKETS, begin)
        for start, end, seconds in ((near, until, COARSE_SECONDS), (begin, near, LONG_SECONDS)):
            if (first := max(start, since)) < end:
                yield from rows_of_samples(_recorded(reader, first, end), begin, seconds)
    except (LlmtopError, OSError, ValueError):
        return
    finally:
        reader.close()


def _recorded(reader: SnapshotReader, since: float, until: float) -> Iterator[tuple[float, Snapshot]]:
    """Yield (unix time, snapshot) of a part, with pauses in which other threads run."""
    begin = reader.members[0].first
    for number, (position, snapshot) in enumerate(reader.snapshots(since - begin)):
        if begin + position >= until:
            return
        if number % _TOGETHER == 0:
            time.sleep(_PAUSE_SECONDS)
        yield begin + position, snapshot


class _Piece:
    """Rows under construction."""

    def __init__(self, begin: float, seconds: float) -> None:
        self._begin = begin
        self._seconds = seconds
        self._rows: dict[Name, list[PastRow]] = {}
        self._phases: _Phases = {}
        self._gpus: dict[str, Gpu] = {}
        self._alerts: dict[tuple[object, ...], tuple[Alert, float, float]] = {}
        self._values: dict[Name, list[float]] = {}
        """Values of the open row."""
        self._parts: dict[RankKey, Mapping[str, float]] = {}
        self._since = self._last = -math.inf

    def add(self, snapshot: Snapshot, at: float) -> None:
        start = math.floor(at / self._seconds) * self._seconds
        if start > self._last:
            self._close()
            follows = at - self._last <= HOLE_SECONDS
            before = math.floor(self._last / self._seconds + 1) * self._seconds if follows else at
            self._since = min(before, at)
        self._last = at
        for gpu in snapshot.gpus:
            self._gpus[gpu.uuid] = gpu
            for metric in METRICS:
                self._take((gpu.uuid, metric.key), metric.value(gpu))
        for name, value in samples_beside_gpus(snapshot):
            self._take(name, value)
        for rank in snapshot.ranks:
            key = key_of(rank)
            for since, until, value in step_values(rank, at - snapshot.time):
                if until - since < self._seconds:
                    self._take((key, "step"), value)
                else:
                    self._rows.setdefault((key, "step"), []).append((since, until, value, value, value))
            if rank.phases and stalled_seconds(rank, snapshot.time) is None:
                self._parts[key] = parts_of(rank)
        for alert in snapshot.alerts:
            named = alert.id, alert.gpu, alert.pid, alert.since
            self._alerts[named] = alert, alert.since + at - snapshot.time, at

    def rows(self) -> Iterator[PastRows]:
        """Yield all that was added, series of one subject together: each is taken in without a pause."""
        self._close()
        subjects: dict[object, dict[Name, list[PastRow]]] = {}
        for name, rows in self._rows.items():
            subjects.setdefault(name[0], {})[name] = rows
        for found in subjects.values():
            yield PastRows(self._begin, found, {}, self._gpus, [])
        for key, phases in self._phases.items():
            yield PastRows(self._begin, {}, {key: phases}, {}, [])
        if self._alerts:
            yield PastRows(self._begin, {}, {}, {}, [_run_alert(*one) for one in self._alerts.values()])

    def _take(self, name: Name, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            self._values.setdefault(name, []).append(value)

    def _close(self) -> None:
        since, until = self._since, self._last
        for name, values in self._values.items():
            row = since, until, sum(values) / len(values), min(values), max(values)
            self._rows.setdefault(name, []).append(row)
        for key, parts in self._parts.items():
            self._phases.setdefault(key, []).append((until - self._seconds, until, parts))
        self._values, self._parts = {}, {}


def _run_alert(alert: Alert, since: float, until: float) -> RunAlert:
    from llmtop.runs.node_notes import RunAlert  # not at start

    return RunAlert(
        id=alert.id,
        severity=alert.severity,
        since=since,
        until=until,
        summary=alert.summary,
        advice=alert.next or "",
        points=list(alert.points),
        pid=alert.pid,
        gpu_uuid=alert.gpu,
    )
