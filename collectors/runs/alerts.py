"""Alerts of a run: those that a monitor saw, and for the rest of it those that rules find in its steps."""

from __future__ import annotations

import gc
import hashlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

import collectors.runs
import collectors.trainings
import llmtop.model
import llmtop.rules
import llmtop.step_history
from collectors.base.pipeline import with_note
from collectors.gpu_busy import GpuBusy
from collectors.refigure import with_figures
from collectors.runs.snapshots import RunSnapshots, SlotLengths
from collectors.trainings.checkpoints import Checkpoints
from collectors.trainings.step_figures import StepFigures
from llmtop.config import current
from llmtop.model.alerts import match_previous
from llmtop.model.severity import severity_rank
from llmtop.model.snapshot import Alert, Rank, Snapshot, Window
from llmtop.rules.engine import GAP_SECONDS, Rules
from llmtop.runs import folder, index
from llmtop.runs.node_notes import TURN_SECONDS, NodeNotes, RunAlert
from llmtop.runs.store import RUNNING, Run
from llmtop.version import __version__

RECOMPUTED_HOURS, RECOMPUTED_RANK_HOURS = 24.0, 36.0
"""Hours of a longer run, or of one with many ranks, for which alerts are recomputed, from its end: 0.7 s
of processor time."""
_EDGE_SECONDS = 120.0
"""Rules look at steps for so long at the begin and the end of a time at which a monitor watched: an alert that
holds before and after a short visit is one."""
_MINUTE_SLOT = 59.0
"""Rules forget what they know where two snapshots are a minute apart."""
_LAST_STEPS, _LEAST_LAST_SECONDS = 5000, 70.0
"""Steps of all ranks that are taken one by one, at most but for the last minute, of which no means are written."""
_RANKS_PER_SECOND, _MOST_FULL_SECONDS = 6.0, 10.0
RULE_PACKAGES = (llmtop.rules, llmtop.step_history, llmtop.model, collectors.runs, collectors.trainings)
"""Packages on whose code the recomputed alerts depend."""
_LEAST_BYTES, _BYTES_PER_HOUR = 128 << 10, 80 << 10
"""Bytes of a file: a rank writes at most 1.5 MiB a day."""
RECOMPUTED_NOTE = "no monitor watched at this time: alerts are recomputed from the steps of the run"
WAS_WATCHED_NOTE = "alerts are those that a monitor saw at this time"


class RunFigures:
    """A stage: figures are made anew of the steps where each is known, and are those of the minute elsewhere."""

    def __init__(self, reader: RunSnapshots) -> None:
        self._reader = reader
        self._ranks: dict[tuple[str, int, float], StepFigures] = {}
        self._checkpoints: dict[tuple[str, int, float], Checkpoints] = {}
        self._last = -math.inf

    def __repr__(self) -> str:
        return "the figures of a run"

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with its ranks' figures."""
        known, self._ranks = self._ranks, {}
        saved, self._checkpoints = self._checkpoints, {}
        since, self._last = max(self._last, snapshot.time - GAP_SECONDS), snapshot.time
        in_full = self._reader.is_in_full(snapshot.time)
        # Figures of the first steps in full are made of the mean steps before them, too.
        counted = in_full or self._reader.is_in_full(snapshot.time + self._reader.slots.of_minutes)
        ranks = []
        for rank in snapshot.ranks:
            key = rank.host, rank.pid, rank.attached_at or 0.0
            steps = self._ranks[key] = known.get(key) or StepFigures(with_long_windows=False)
            for step in rank.new_steps:
                (steps.add if counted else steps.follow)(step)
            checkpoints = self._checkpoints[key] = saved.get(key) or Checkpoints()
            last_saved = checkpoints.current(tuple(self._reader.steps_in_full(rank, since, snapshot.time)))
            ranks.append(replace(self._figured(rank, steps, in_full=in_full), checkpoint=last_saved))
        return replace(snapshot, ranks=tuple(ranks))

    def _figured(self, rank: Rank, steps: StepFigures, *, in_full: bool) -> Rank:
        made = with_figures(rank, steps) if in_full else rank
        recent = (
            next((one for one in made.windows if one.name == "recent"), None) if in_full else _minute_window(rank)
        )
        whole = self._reader.whole_window(rank)
        # Five minutes are not known step by step.
        windows = () if recent is None or whole is None else (recent, whole)
        return replace(made, change=steps.change, rare=steps.rare, windows=windows)


def _minute_window(rank: Rank) -> Window | None:
    """Return the figures of a minute as a window; None without any."""
    mean, p50, p95 = rank.step_seconds_mean, rank.step_seconds_p50, rank.step_seconds_p95
    if mean is None or p50 is None or p95 is None or not rank.window_steps:
        return None
    return Window(
        name="recent",
        seconds=rank.window_seconds or mean * rank.window_steps,
        steps=rank.window_steps,
        step_seconds=mean,
        step_seconds_p50=p50,
        step_seconds_p95=p95,
        outside_seconds=rank.outside_seconds,
        tokens_per_s=rank.tokens_per_s,
    )


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
    notes.alerts = join_alerts([*notes.alerts, *kept.alerts])


def join_alerts(alerts: list[RunAlert]) -> list[RunAlert]:
    """Return alerts, oldest first, with one for each episode: recomputed ones of one rule and one process or GPU
    that overlap with each other, or with one that a monitor saw, are one alert."""
    found: list[RunAlert] = []
    last: dict[tuple[object, ...], RunAlert] = {}
    partly_recomputed: set[tuple[object, ...]] = set()
    for alert in sorted(alerts, key=lambda one: one.since):
        key = alert.id, alert.gpu_uuid if alert.pid is None else alert.pid
        earlier = last.get(key)
        is_recomputed = alert.recomputed or key in partly_recomputed
        if earlier is None or not is_recomputed or not _overlaps(earlier, alert):
            last[key] = alert
            found.append(alert)
            partly_recomputed.discard(key)
            if alert.recomputed:
                partly_recomputed.add(key)
            continue
        partly_recomputed.add(key)
        if earlier.recomputed and not alert.recomputed:  # a monitor had all signals, not the steps alone
            earlier.summary, earlier.points, earlier.advice = alert.summary, alert.points, alert.advice
        earlier.recomputed = earlier.recomputed and alert.recomputed
        earlier.severity = max(earlier.severity, alert.severity, key=severity_rank)
        untils = earlier.until, alert.until
        earlier.until = None if None in untils else max(one for one in untils if one is not None)
    return found


def _overlaps(earlier: RunAlert, later: RunAlert) -> bool:
    return earlier.until is None or later.since <= earlier.until + TURN_SECONDS


def _decode_facts(facts: bytes | None) -> _Kept | None:
    try:
        return None if facts is None else msgspec.msgpack.decode(facts, type=_Kept)
    except msgspec.DecodeError:
        return None


def _signature(run: Run) -> str:
    """Return the hash of all inputs of recomputed alerts: the files of the run, this version, the settings of
    alerts."""
    parts = [__version__, repr(current().alerts), *_sources()]
    for path in sorted({process.folder for process in run.processes}):
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                info = entry.stat()
                parts.append(f"{entry.name} {info.st_size} {info.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _sources() -> Iterator[str]:
    """Yield size and time of the source files of the rules: in a checkout they change within a version."""
    for package in RULE_PACKAGES:
        for path in package.__path__:
            for file in sorted(Path(path).rglob("*.py")):
                info = file.stat()
                yield f"{file.name} {info.st_size} {info.st_mtime_ns}"


def _recompute(run: Run, notes: NodeNotes) -> _Kept:
    at_once = max(len(attempt.processes) for attempt in run.attempts)
    hours = min(RECOMPUTED_HOURS, RECOMPUTED_RANK_HOURS / at_once)
    reader = RunSnapshots(run, notes, max(_LEAST_BYTES, int(hours * _BYTES_PER_HOUR)), _rule_slots(run, at_once))
    start = max(0.0, reader.length - hours * 3600)
    was_on = gc.isenabled()
    gc.disable()  # a tenth of the time, and what is made here is freed without it
    try:
        return _Kept(reader.members[0].first + start, _recompute_alerts(reader, start))
    finally:
        if was_on:
            gc.enable()


def _rule_slots(run: Run, at_once: int) -> SlotLengths:
    """Return how far apart the rules look at a run, by its ranks and the length of its steps."""
    known = [process.state.usual_seconds for process in run.attempts[-1].processes if process.state is not None]
    last_seconds = max(_LEAST_LAST_SECONDS, _LAST_STEPS / at_once * min(known, default=0.0))
    return SlotLengths(_MINUTE_SLOT, min(max(1.0, at_once / _RANKS_PER_SECOND), _MOST_FULL_SECONDS), last_seconds)


def _recompute_alerts(reader: RunSnapshots, start: float) -> list[RunAlert]:
    """Return the alerts that rules find from a position on (seconds), oldest first."""
    rules, figures, busy = Rules(), RunFigures(reader), GpuBusy()
    found: list[RunAlert] = []
    texts: dict[int, list[Alert]] = {}
    up: list[tuple[Alert, RunAlert]] = []
    watched, last_up = reader.notes.watched, 0.0
    for _, snapshot in reader.snapshots(start):
        at = snapshot.time
        is_long_watched = any(since + _EDGE_SECONDS < at < until - _EDGE_SECONDS for since, until in watched)
        present = () if is_long_watched else rules.apply(busy(figures(snapshot))).alerts
        places = match_previous([alert for alert, _ in up], present)
        for number, (_, gone) in enumerate(up):
            if number not in places:
                gone.until = max(last_up, gone.since)
        now = []
        ranks = {rank.pid: rank.rank for rank in snapshot.ranks}
        for alert, place in zip(present, places, strict=True):
            if place is None:
                known = _run_alert(alert, None if alert.pid is None else ranks.get(alert.pid))
                found.append(known)
            else:
                known = up[place][1]
                known.severity = max(known.severity, alert.severity, key=severity_rank)
            texts.setdefault(id(known), []).append(alert)
            now.append((alert, known))
        up, last_up = now, snapshot.time
    found = [one for one in found if not _is_all_watched(one, watched)]
    for known in found:  # the first and the last numbers are those at the threshold
        alert = texts[id(known)][len(texts[id(known)]) // 2]
        known.summary, known.points, known.advice = alert.summary, list(alert.points), alert.next
    return found


def _is_all_watched(alert: RunAlert, watched: list[tuple[float, float]]) -> bool:
    """Return True if a monitor watched for as long as an alert held: what it did not see did not hold."""
    until = math.inf if alert.until is None else alert.until
    return any(since <= alert.since and until <= ended for since, ended in watched)


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
