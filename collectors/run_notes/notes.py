"""Notes of a monitor on one run: minutes of its GPUs, its alerts, and captures of it. For one thread."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from collectors.run_notes.gpu_minutes import GpuMinutes
from llmtop import config
from llmtop.capture.base import folder as capture_folder
from llmtop.instrument.run_log.disk import DiskTrouble, open_disk
from llmtop.model.alerts import match_previous, with_known_target
from llmtop.model.snapshot import Alert, Gpu, Rank
from llmtop.naming import file_names
from llmtop.recording.members import pack
from llmtop.runs import folder, records
from llmtop.runs.running import RunningProcess
from llmtop.system import procfs

FLUSH_SECONDS = 1.0
MINUTE_SECONDS = 60.0
CAPTURE_CHECK_SECONDS = 10.0
_MOST_PENDING = 256
"""Records that wait for a disk that takes none; the oldest go."""


class SeenSnapshot(NamedTuple):
    """Part of a snapshot that the notes need."""

    at: float
    """Unix time."""
    mono: float
    """CLOCK_MONOTONIC in seconds."""
    gpus: tuple[Gpu, ...]
    ranks: tuple[Rank, ...]
    """Trainings of this user."""
    alerts: tuple[Alert, ...]


class RunNotes:
    """The file of this monitor's turn in the folder of one run."""

    def __init__(self, found: RunningProcess, monitor: str, at: float, mono: float) -> None:
        """Begin a file.

        Args:
            found: where one of its trainings writes.
            monitor: which command watches.
            at: unix time.
            mono: CLOCK_MONOTONIC in seconds.

        Raises:
            NotPossibleHere: the folder is not to be had.
            OSError: no process that writes can be started.
        """
        self.pids: set[int] = set()
        """Pids of its trainings that run now, in this host's namespace."""
        self.trouble = ""
        self._disk = open_disk(found.runs, found.path.name)
        self._name = folder.new_name(None, at).text + folder.NODE
        self._monitor = monitor
        self._gpus = GpuMinutes()
        self._up: list[Alert] = []
        self._ranks: dict[int, int | None] = {}
        self._numbers: dict[str, int] = {}
        self._captures: set[str] = set()
        self._attached_at = at
        self._pending: list[records.Record] = [records.Watched(at=at, monitor=monitor, pid=os.getpid())]
        self._lost = 0
        self._minute_at = mono
        self._flush_at = self._captures_at = mono
        self._since = at
        self._first: float | None = at
        """When the oldest of the records that wait may have come; None: none waits."""

    def take(self, seen: SeenSnapshot, left_out: int) -> None:
        """Take in what a snapshot shows, of this run and of others.

        Args:
            seen: the snapshot.
            left_out: how many since the last call did not come here.
        """
        at, mono, gpus = seen.at, seen.mono, seen.gpus
        mine = [rank for rank in seen.ranks if rank.pid in self.pids]
        self.pids = {rank.pid for rank in mine if rank.state != "gone"} or self.pids
        self._ranks |= {rank.pid: rank.rank for rank in mine}
        self._attached_at = min([self._attached_at, *(rank.attached_at or at for rank in mine)])
        self._lost += left_out
        used = {rank.gpu_uuid for rank in mine if rank.gpu_uuid is not None}
        self._numbers |= {gpu.uuid: gpu.index for gpu in gpus}
        self._gpus.add(gpu for gpu in gpus if gpu.uuid in used)
        self._take_alerts(at, [one for one in seen.alerts if self._concerns(one, used)])
        if mono - self._minute_at >= MINUTE_SECONDS:
            self._end_minute(at, mono, mine)
        if mono - self._captures_at >= CAPTURE_CHECK_SECONDS:
            self._captures_at = mono
            self._note_captures()
        if self._pending and mono - self._flush_at >= FLUSH_SECONDS:
            self._flush_at = mono
            self._flush(at)

    def end(self, at: float) -> None:
        """Write what is known: this monitor, or the run, ends."""
        self._end_minute(at, None, [])
        self._flush(at)
        self._disk.close()

    def _concerns(self, alert: Alert, used: set[str]) -> bool:
        if alert.pid is not None:
            return alert.pid in self._ranks
        return alert.gpu is None or alert.gpu in used

    def _take_alerts(self, at: float, present: list[Alert]) -> None:
        places = match_previous(self._up, present)
        going_on = set(places)
        for place, alert in enumerate(self._up):
            if place not in going_on:
                self._pending.append(self._alert_record(alert, at, ended=True))
        up: list[Alert] = []
        for alert, known in zip(present, places, strict=True):
            if known is None:
                self._pending.append(self._alert_record(alert, at))
                up.append(alert)
            else:
                up.append(with_known_target(alert, self._up[known]))
        self._up = up

    def _alert_record(self, alert: Alert, at: float, *, ended: bool = False) -> records.AlertSeen:
        return records.AlertSeen(
            at=at,
            id=alert.id,
            ended=ended,
            severity=alert.severity,
            summary=alert.summary,
            advice=alert.next,
            rank=None if alert.pid is None else self._ranks.get(alert.pid),
            pid=alert.pid,
            gpu=None if alert.gpu is None else self._numbers.get(alert.gpu),
            since=alert.since,
            points=list(alert.points),
            gpu_uuid=alert.gpu,
        )

    def _end_minute(self, at: float, mono: float | None, ranks: list[Rank]) -> None:
        pids: dict[str, list[int]] = {}
        for rank in ranks:
            if rank.gpu_uuid is not None and rank.state != "gone":
                pids.setdefault(rank.gpu_uuid, []).append(rank.pid)
        self._pending += self._gpus.end_minute(at, max(0.0, at - self._since), pids)
        lost, self._lost = self._lost, 0
        self._pending.append(records.Watched(at=at, monitor=self._monitor, pid=os.getpid(), lost=lost))
        self._since = at
        self._minute_at = self._minute_at if mono is None else mono

    def _note_captures(self) -> None:
        """Note captures of these trainings that have been taken since, here or where the trainings run."""
        for parent in self._parents():
            for path, info in capture_folder.list_infos(parent):
                is_new = str(path) not in self._captures and info.state != "running"
                if not is_new or info.started_at < self._attached_at or not self._ranks.keys() & set(info.pids):
                    continue
                self._captures.add(str(path))
                self._pending.append(
                    records.CaptureSeen(
                        at=info.started_at,
                        path=str(path),
                        engine=info.engine,
                        verdict=capture_folder.verdict_of(path) if info.state == "done" else info.state,
                        pids=info.pids,
                    )
                )

    def _parents(self) -> set[Path]:
        """Return where captures of these trainings may be: beside this monitor, beside a training, where
        configured."""
        found = {Path.cwd() / file_names.CAPTURES}
        chosen = config.current().capture.out
        if chosen is not None:
            found.add(Path(chosen).expanduser())
        for pid in self.pids:
            with contextlib.suppress(OSError):
                found.add(Path(procfs.folder(pid)) / file_names.CAPTURES)
        return found

    def _flush(self, at: float) -> None:
        """Write a member; what the disk does not take is tried again with the next one."""
        found = self._pending[-_MOST_PENDING:]
        if not found:
            return
        first, self._first = self._first or at, at
        data = pack(records.lines_of(found), first, at, len(found))
        try:
            self._disk.append(self._name, data)
        except DiskTrouble as trouble:
            self.trouble = f"the runs' disk takes no GPU signals and alerts: {trouble}"
            self._pending, self._first = found, first
            return
        self.trouble = ""
        self._pending = []
