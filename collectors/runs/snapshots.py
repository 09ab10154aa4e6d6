"""A run as snapshots, made of its files: what a replay plays, and what rules are applied to after the fact.

Of the last minutes of each start there is a snapshot a second, with every step. Before that there is one each half
minute, whose steps are means of their minute, beside those that the run keeps in full.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from collectors.runs.process_track import GONE_SECONDS, TAIL_BYTES, ProcessTrack
from llmtop.model import jobs
from llmtop.model.snapshot import Gpu, Host, Rank, Snapshot, Step, Window
from llmtop.runs import records
from llmtop.runs.node_notes import NodeNotes
from llmtop.runs.store import Run

_WHOLE_NUMBERS = frozenset(("mem_used_bytes", "mem_total_bytes", "pcie_gen", "pcie_width"))
_TOLERANCE_SECONDS = 1e-6
APPROACH_RANKS = 700
"""Ranks times snapshots before a position to which a screen jumps: 0.2 s of processor time."""
_LONGEST_SECONDS = 50.0
"""Rules forget what they know where two snapshots are over a minute apart."""
_GPU_SECONDS = 5.0
"""Seconds by which the times of a monitor and of a run may differ."""


class SlotLengths(NamedTuple):
    """Lengths of the stretches that snapshots are made of: seconds from one snapshot to the next."""

    of_minutes: float = 30.0
    """Where the means of minutes are known."""
    in_full: float = 1.0
    """Where each step is known."""
    last: float = math.inf
    """Seconds before the end of a process from which on each step is taken, of those that are known."""


EVERY_SECOND = SlotLengths()


class SlotRun(NamedTuple):
    """Snapshots at equal distances."""

    first: float
    """Unix time of the first."""
    number: int
    seconds: float
    is_in_full: bool
    """True if each step is known."""

    @property
    def last(self) -> float:
        """Unix time of the last."""
        return self.first + (self.number - 1) * self.seconds


class RunSnapshots:
    """The snapshots of a run, as `collectors.replay.SnapshotReader` has those of a recording."""

    recordings = 1
    median_gap: float = 1.0

    def __init__(
        self, run: Run, notes: NodeNotes, tail_bytes: int = TAIL_BYTES, slots: SlotLengths = EVERY_SECOND
    ) -> None:
        """Read the ends of the files of all its processes; other parts are read as they are needed.

        Args:
            run: with its restarts.
            notes: what monitors have added.
            tail_bytes: how much of each file is in memory.
            slots: how far apart snapshots are.
        """
        self.slots = slots
        self.path = Path(run.folder.name)
        self.notes = notes
        job = run.name or run.id
        made = [
            [ProcessTrack(process, job, tail_bytes, slots.last) for process in attempt.processes]
            for attempt in run.attempts
        ]
        self.attempts = [sorted(tracks, key=lambda one: (one.rank is None, one.rank or 0)) for tracks in made]
        """The processes of each start."""
        self.tracks = [track for tracks in self.attempts for track in tracks]
        self._host = next((track.start.host for track in self.tracks if track.start.host), "")
        self._gpu_times: dict[str, list[float]] = {}
        self._gpu_minutes: dict[str, list[records.GpuMinute]] = {}
        for minute in notes.gpu_minutes:
            self._gpu_times.setdefault(minute.uuid, []).append(minute.at)
            self._gpu_minutes.setdefault(minute.uuid, []).append(minute)
        damaged = sum(process.damaged_bytes for process in run.processes)
        self.damage = f"{damaged} bytes of the files of run {run.id} cannot be read" if damaged else None
        self.members: list[SlotRun] = []
        for attempt, tracks in zip(run.attempts, self.attempts, strict=True):
            self._add_slots(tracks, attempt.last_sign)

    def _add_slots(self, tracks: list[ProcessTrack], last_sign: float) -> None:
        begin = min(track.attached_at for track in tracks)
        if self.members:
            begin = max(begin, self.members[-1].last + 1.0)
        end = last_sign + (2.0 if all(track.ended is not None for track in tracks) else 0.0)
        full = min(max(begin, min(track.full_since for track in tracks)), end)
        coarse = max(0, math.ceil((full - begin) / self.slots.of_minutes))
        if coarse:
            self.members.append(SlotRun(begin, coarse, self.slots.of_minutes, is_in_full=False))
        number = max(1, math.floor((end - full) / self.slots.in_full) + 1)
        self.members.append(SlotRun(full, number, self.slots.in_full, is_in_full=True))

    @property
    def length(self) -> float:
        """Seconds from the first snapshot to the last."""
        return self.members[-1].last - self.members[0].first

    @property
    def end(self) -> float:
        """Unix time of the last snapshot."""
        return self.members[-1].last

    def is_in_full(self, at: float) -> bool:
        """Return True if each step is known at that unix time."""
        place = bisect_right(self.members, at + _TOLERANCE_SECONDS, key=lambda one: one.first) - 1
        return place >= 0 and self.members[place].is_in_full

    def close(self) -> None:
        """Do nothing: no file is open."""

    def refresh(self) -> bool:
        """Return False: what a running training writes later is not taken in."""
        return False

    def snapshots(self, start: float = 0.0, first_member: int | None = None) -> Iterator[tuple[float, Snapshot]]:
        """Yield (position in seconds, snapshot) from the first at or after `start`.

        Args:
            start: position in seconds.
            first_member: begin with this one of `members` instead.
        """
        begin = self.members[0].first
        if first_member is not None:
            start = self.members[first_member].first - begin if first_member < len(self.members) else math.inf
        for at, seconds in self._times(start):
            yield at - begin, self.snapshot_at(at, at - seconds)

    def approach(self, position: float, seconds: float) -> Iterator[tuple[float, Snapshot]]:
        """Yield what leads up to a position, thinned out where the run has many ranks, then all that follows.

        Args:
            position: in seconds.
            seconds: how long before it to begin.
        """
        at_once = max(len(tracks) for tracks in self.attempts)
        least = min(seconds * at_once / APPROACH_RANKS, _LONGEST_SECONDS)
        begin, before = self.members[0].first, -math.inf
        for at, length in self._times(position - seconds):
            if at - begin >= position - _TOLERANCE_SECONDS or at - before >= least:
                yield at - begin, self.snapshot_at(at, max(before, at - max(length, least)))
                before = at

    def _times(self, start: float) -> Iterator[tuple[float, float]]:
        """Yield the unix times of the snapshots from a position on, each with the distance to the one before."""
        begin = self.members[0].first
        for slots in self.members:
            first = max(0, math.ceil((start - _TOLERANCE_SECONDS - (slots.first - begin)) / slots.seconds))
            for number in range(first, slots.number):
                yield slots.first + number * slots.seconds, slots.seconds

    def position_before(self, position: float) -> float | None:
        """Return the position of the last snapshot at or before this one; None if there is none."""
        begin = self.members[0].first
        at = begin + position + _TOLERANCE_SECONDS
        place = bisect_right(self.members, at, key=lambda one: one.first) - 1
        if place < 0:
            return None
        slots = self.members[place]
        number = min(math.floor((at - slots.first) / slots.seconds), slots.number - 1)
        return slots.first + number * slots.seconds - begin

    def whole_window(self, rank: Rank) -> Window | None:
        """Return the figures of all steps of a process, up to its end; None where there is no whole one."""
        track = self._track_of(rank)
        return None if track is None else track.whole

    def steps_in_full(self, rank: Rank, since: float, at: float) -> Sequence[Step]:
        """Return the steps of a process that ended within a stretch, as far as each is known; no means."""
        track = self._track_of(rank)
        return () if track is None else track.steps_in_full(since, at)

    def _track_of(self, rank: Rank) -> ProcessTrack | None:
        found = (track for track in self.tracks if track.attached_at == rank.attached_at and track.pid == rank.pid)
        return next(found, None)

    def snapshot_at(self, at: float, since: float) -> Snapshot:
        """Return what was known at an instant.

        Args:
            at: unix time.
            since: unix time of the snapshot before.
        """
        ranks: list[Rank] = []
        for track in self.tracks:
            if track.attached_at <= at <= (track.ended or at) + GONE_SECONDS:
                rank = track.rank_at(since, at)
                if rank is not None:
                    ranks.append(rank)
        return Snapshot(
            time=at,
            monotonic=at,
            source="replay",
            host=Host(name=self._host),
            gpus=tuple(self._gpus(at)),
            ranks=tuple(ranks),
            jobs=jobs.job_totals(ranks),
        )

    def _gpus(self, at: float) -> Iterator[Gpu]:
        found = []
        for uuid, times in self._gpu_times.items():
            place = bisect_left(times, at - _TOLERANCE_SECONDS)
            if place >= len(times):
                continue
            minute = self._gpu_minutes[uuid][place]
            if at >= minute.at - minute.seconds - _GPU_SECONDS:
                found.append(gpu_of(minute, 0, sampled_at=at))
        yield from sorted(found, key=lambda gpu: (gpu.index, gpu.uuid))


def gpu_of(minute: records.GpuMinute, statistic: int, *, sampled_at: float | None = None) -> Gpu:
    """Return a GPU with one statistic of a minute as its values.

    Args:
        minute: as a monitor wrote it.
        statistic: 0 the mean, 1 the lowest, 2 the highest value.
        sampled_at: unix time.
    """
    known: dict[str, Any] = {
        name: round(row[statistic]) if name in _WHOLE_NUMBERS else row[statistic]
        for name, row in minute.signals.items()
        if name in Gpu.__struct_fields__
    }
    return Gpu(index=minute.index, uuid=minute.uuid, name=minute.name, sampled_at=sampled_at, **known)
