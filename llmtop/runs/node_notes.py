"""Notes of monitors on a run: minutes of its GPUs, alerts with start and end, captures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from llmtop.model.severity import SEVERITIES, severity_rank
from llmtop.model.snapshot import Alert
from llmtop.runs import folder, records
from llmtop.runs.run_file import RunFile
from llmtop.runs.store import Run

AROUND_SECONDS = 120.0
"""Notes written within this time after the last record of a run still belong to it, such as the alert on its
end."""
TURN_SECONDS = 15.0
"""A monitor takes the place of one that was killed within five seconds: an alert that both saw is one."""


class RunAlert(msgspec.Struct, kw_only=True):
    """An alert of a run."""

    id: str
    severity: str
    since: float
    until: float | None
    """Unix times; the second is None where it held when the run or the last monitor ended."""
    summary: str
    advice: str = ""
    points: list[str] = []
    rank: int | None = None
    pid: int | None = None
    gpu: int | None = None
    """The driver's index."""
    gpu_uuid: str | None = None
    recomputed: bool = False
    """True if no monitor watched then: it is worked out from the steps that the run keeps, after the fact."""

    def as_alert(self) -> Alert:
        """Return it as part of a snapshot; one that was recomputed has that as its second clause."""
        points = [*self.points[:1], "recomputed", *self.points[1:]] if self.recomputed else self.points
        return Alert(
            id=self.id,
            severity=SEVERITIES[severity_rank(self.severity)],
            gpu=self.gpu_uuid,
            pid=self.pid,
            since=self.since,
            summary=self.summary,
            next=self.advice,
            points=tuple(points),
        )


class RunCapture(msgspec.Struct, kw_only=True, frozen=True):
    """A capture that was taken of a run."""

    at: float
    """Unix time."""
    path: str
    engine: str
    verdict: str


@dataclass
class NodeNotes:
    """All of it, oldest first."""

    gpu_minutes: list[records.GpuMinute] = field(default_factory=list)
    alerts: list[RunAlert] = field(default_factory=list)
    captures: list[RunCapture] = field(default_factory=list)
    watched: list[tuple[float, float]] = field(default_factory=list)
    """Unix times from when to when a monitor watched; without overlap."""

    recomputed_since: float | None = None
    """Unix time since when alerts were recomputed where no monitor watched; None: none were."""

    def is_watched(self, at: float) -> bool:
        """Return True if a monitor watched at that unix time."""
        return any(begin <= at <= end for begin, end in self.watched)


def read_notes(run: Run) -> NodeNotes:
    """Return what the node's files beside a run hold."""
    notes = NodeNotes()
    begin, end = run.started - 1.0, run.last_sign + AROUND_SECONDS
    captures: dict[str, RunCapture] = {}
    alerts = _Alerts()
    for path in node_files({process.folder for process in run.processes}):
        try:
            file = RunFile(path)
        except OSError:
            continue
        found = [record for record in file.records() if begin <= getattr(record, "at", begin) <= end]
        if not found or not file.members:
            continue
        notes.watched.append((min(file.members[0].first, end), min(file.members[-1].last, end)))
        notes.gpu_minutes += [one for one in found if isinstance(one, records.GpuMinute)]
        alerts.add((one for one in found if isinstance(one, records.AlertSeen)), notes.watched[-1][1])
        for one in found:
            if isinstance(one, records.CaptureSeen):
                captures[one.path] = RunCapture(at=one.at, path=one.path, engine=one.engine, verdict=one.verdict)
    notes.watched = _join_stretches(notes.watched)
    notes.gpu_minutes.sort(key=lambda one: one.at)
    notes.captures = sorted(captures.values(), key=lambda one: one.at)
    alerts.end(run.last_sign)
    notes.alerts = sorted(alerts.found, key=lambda one: one.since)
    return notes


def node_files(folders: Iterable[Path]) -> list[Path]:
    """Return the files of monitors in folders of runs, in the order in which they were begun."""
    found = []
    for where in folders:
        for path in where.iterdir():
            parsed = folder.parsed_name(path.name)
            if parsed is not None and parsed[1] == folder.NODE:
                found.append((parsed[0].started_ms, path))
    return [path for _, path in sorted(found)]


class _Alerts:
    """Alerts made of the records of one file after the other."""

    def __init__(self) -> None:
        self.found: list[RunAlert] = []
        self._open: dict[tuple[str, int | None, str | None], RunAlert] = {}
        """Alerts that no record has ended; `until` is when their monitor ended."""

    def add(self, seen: Iterable[records.AlertSeen], last: float) -> None:
        """Take the records of a file; an alert that goes on from the file before stays one.

        Args:
            seen: oldest first.
            last: unix time of the last record of that file.
        """
        up = set()
        for one in seen:
            key = one.id, one.pid, one.gpu_uuid
            known = self._open.get(key)
            if known is None or (key not in up and one.at - (known.until or one.at) > TURN_SECONDS):
                known = self._open[key] = _new_alert(one)
                self.found.append(known)
            up.add(key)
            known.severity, known.summary, known.points, known.advice = (
                one.severity, one.summary, one.points, one.advice,
            )  # fmt: skip
            if one.ended:
                known.until = one.at
                del self._open[key]
        for key in up & self._open.keys():
            self._open[key].until = last

    def end(self, last_sign: float) -> None:
        """Note which alerts held at the end of the run, or still hold.

        Args:
            last_sign: unix time of the last record of the run's ranks.
        """
        for alert in self._open.values():
            if alert.until is not None and alert.until >= last_sign - TURN_SECONDS:
                alert.until = None


def _new_alert(one: records.AlertSeen) -> RunAlert:
    return RunAlert(
        id=one.id,
        severity=one.severity,
        since=one.at if one.since is None else min(one.since, one.at),
        until=None,
        summary=one.summary,
        rank=one.rank,
        pid=one.pid,
        gpu=one.gpu,
        gpu_uuid=one.gpu_uuid,
    )


def _join_stretches(stretches: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Stretches without overlap; those of monitors that took turns are one."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(stretches):
        if found and begin <= found[-1][1] + TURN_SECONDS:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found
