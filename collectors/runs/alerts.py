"""Alerts of a run: those that a monitor saw, and for the rest of it those that rules find in its steps."""

from __future__ import annotations

import hashlib
import os

import msgspec
from msgspec.structs import replace

from collectors.base.pipeline import with_note
from collectors.gpu_busy import GpuBusy
from collectors.refigure import RecomputeFigures
from collectors.runs.snapshots import RunSnapshots
from llmtop.config import current
from llmtop.model.alerts import match_previous
from llmtop.model.severity import severity_rank
from llmtop.model.snapshot import Alert, Rank, Snapshot, Window
from llmtop.rules.engine import Rules
from llmtop.runs import folder, index
from llmtop.runs.node_notes import NodeNotes, RunAlert
from llmtop.runs.store import RUNNING, Run
from llmtop.version import __version__

RECOMPUTED_HOURS, RECOMPUTED_RANK_HOURS = 24.0, 48.0
"""Hours of a longer run, or of one with many ranks, for which alerts are recomputed, from its end: 4 s of
processor time."""
_LEAST_BYTES, _BYTES_PER_HOUR = 128 << 10, 80 << 10
"""Bytes of a file: a rank writes at most 1.5 MiB a day."""
RECOMPUTED_NOTE = "no monitor watched at this time: alerts are recomputed from the steps of the run"
WAS_WATCHED_NOTE = "alerts are those that a monitor saw at this time"


class RunFigures:
    """A stage: figures are made anew of the steps where each is known, and are those of the minute elsewhere."""

    def __init__(self, reader: RunSnapshots) -> None:
        self._reader = reader
        self._recompute = RecomputeFigures()

    def __repr__(self) -> str:
        return "the figures of a run"

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with its ranks' figures."""
        made, in_full = self._recompute(snapshot), self._reader.is_in_full(snapshot.time)
        ranks = tuple(
            replace(new if in_full else kept, change=new.change, rare=new.rare, windows=self._windows(new))
            for kept, new in zip(snapshot.ranks, made.ranks, strict=True)
        )
        return replace(made, ranks=ranks)

    def _windows(self, rank: Rank) -> tuple[Window, ...]:
        """Return the recent steps, and the run by its own sums: five minutes are not known step by step."""
        whole = self._reader.whole_window(rank)
        recent = [window for window in rank.windows if window.name == "recent"]
        return (*recent, whole) if recent and whole is not None else ()


class RunAlerts:
    """A stage: the alerts that hold in a run at the time of a snapshot."""

    def __init__(self, reader: RunSnapshots, *, with_notes: bool = True) -> None:
        """Begin anew.

        Args:
            reader: of the run.
            with_notes: whether a note on the snapshot says where its alerts come from.
        """
        self._notes, self._with_notes = reader.notes, with_notes
        self._rules = Rules()

    def __repr__(self) -> str:
        return "the alerts of a run"

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with its alerts."""
        at = snapshot.time
        recomputed = self._rules.apply(snapshot)
        is_watched = self._notes.is_watched(at)
        if is_watched:
            alerts = tuple(
                one.as_alert()
                for one in self._notes.alerts
                if one.since <= at and (one.until is None or at < one.until)
            )
            recomputed = replace(
                snapshot, alerts=tuple(sorted(alerts, key=lambda one: (-severity_rank(one.severity), one.since)))
            )
        if not self._with_notes:
            return recomputed
        return with_note(recomputed, WAS_WATCHED_NOTE if is_watched else RECOMPUTED_NOTE)


class _Kept(msgspec.Struct, omit_defaults=True):
    """Recomputed alerts of an ended run, as stored in the index."""

    since: float
    """Unix time since when alerts were recomputed."""
    alerts: list[RunAlert]


def add_recomputed(run: Run, notes: NodeNotes) -> None:
    """Add to the notes of a run the alerts that rules find for the times at which no monitor watched.

    Those of a run that has ended are kept in the index of its folder.
    """
    runs, key = run.folder.parent, index.RunPlace(run.folder.name, run.number)
    signature = _signature(run) if run.how != RUNNING and folder.is_local(runs.absolute()) else ""
    kept = _decode_facts(index.load_alerts(runs, key, signature)) if signature else None
    if kept is None:
        kept = _recompute(run, notes)
        if signature:
            index.save_alerts(runs, key, signature, msgspec.msgpack.encode(kept))
    notes.recomputed_since = kept.since
    notes.alerts = sorted([*notes.alerts, *kept.alerts], key=lambda one: one.since)


def _decode_facts(facts: bytes | None) -> _Kept | None:
    try:
        return None if facts is None else msgspec.msgpack.decode(facts, type=_Kept)
    except msgspec.DecodeError:
        return None


def _signature(run: Run) -> str:
    """Return the hash of all inputs of recomputed alerts: the files of the run, this version, the settings of
    alerts."""
    parts = [__version__, repr(current().alerts)]
    for path in sorted({process.folder for process in run.processes}):
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                info = entry.stat()
                parts.append(f"{entry.name} {info.st_size} {info.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _recompute(run: Run, notes: NodeNotes) -> _Kept:
    at_once = max(len(attempt.processes) for attempt in run.attempts)
    hours = min(RECOMPUTED_HOURS, RECOMPUTED_RANK_HOURS / at_once)
    reader = RunSnapshots(run, notes, max(_LEAST_BYTES, int(hours * _BYTES_PER_HOUR)))
    start = max(0.0, reader.length - hours * 3600)
    return _Kept(reader.members[0].first + start, _recompute_alerts(reader, start))


def _recompute_alerts(reader: RunSnapshots, start: float) -> list[RunAlert]:
    """Return the alerts that rules find from a position on (seconds), oldest first."""
    rules, figures, busy = Rules(), RunFigures(reader), GpuBusy()
    found: list[RunAlert] = []
    up: list[tuple[Alert, RunAlert]] = []
    for _, snapshot in reader.snapshots(start):
        is_watched = reader.notes.is_watched(snapshot.time)
        present = () if is_watched else rules.apply(busy(figures(snapshot))).alerts
        places = match_previous([alert for alert, _ in up], present)
        for number, (_, gone) in enumerate(up):
            if number not in places:
                gone.until = snapshot.time
        now = []
        ranks = {rank.pid: rank.rank for rank in snapshot.ranks}
        for alert, place in zip(present, places, strict=True):
            if place is None:
                known = _run_alert(alert, None if alert.pid is None else ranks.get(alert.pid))
                found.append(known)
            else:
                known = up[place][1]
                known.summary, known.points, known.severity = alert.summary, list(alert.points), alert.severity
            now.append((alert, known))
        up = now
    return found


def _run_alert(alert: Alert, rank: int | None) -> RunAlert:
    return RunAlert(
        id=alert.id,
        severity=alert.severity,
        since=alert.since,
        until=None,
        summary=alert.summary,
        advice=alert.next,
        points=list(alert.points),
        rank=rank,
        pid=alert.pid,
        gpu_uuid=alert.gpu,
        recomputed=True,
    )
