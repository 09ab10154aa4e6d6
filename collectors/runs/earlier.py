"""Snapshots of running trainings at instants from before a screen was started, made of the files of their runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from collectors.base.pipeline import with_note
from collectors.runs.alerts import RunFigures
from collectors.runs.past import running_runs
from collectors.runs.snapshots import RunSnapshots
from llmtop.model import jobs
from llmtop.model.snapshot import Rank, Snapshot
from llmtop.runs.node_notes import read_notes

BEFORE_NOTE = "from before the oldest sample of this screen: what the run's files keep, as means of a minute"
_FULL_SECONDS = 60.0
"""Steps that figures of an instant are made of, where each step is known."""


class _Known(NamedTuple):
    reader: RunSnapshots
    job: str
    """Name of the job on the live screen."""
    pids: dict[tuple[str, int, float], int]
    """On this host, by host, pid and start as the files have them: they differ in a container."""


class EarlierSnapshots:
    """Makes the snapshots. It reads files, so in a thread."""

    def __init__(self, ranks: Iterable[Rank]) -> None:
        """Read the ends of the files of the runs that some trainings of this node are part of.

        Args:
            ranks: of a live snapshot.
        """
        live = {(rank.host, rank.pid, rank.attached_at or 0.0): rank for rank in ranks}
        self._runs: list[_Known] = []
        for run, keys in running_runs(live.values()):
            job = next((live[key].job for key in keys.values() if key in live), run.name or run.id)
            pids = {own: key[1] for own, key in keys.items()}
            self._runs.append(_Known(RunSnapshots(run, read_notes(run)), job, pids))

    @property
    def first(self) -> float | None:
        """Unix time of the earliest instant; None where no files are."""
        return min((one.reader.members[0].first for one in self._runs), default=None)

    def at(self, instant: float) -> Snapshot | None:
        """Return what the runs were doing then, or at their beginning; None where their files are gone.

        Args:
            instant: unix time.
        """
        instant = max(instant, self.first or instant)
        found = [
            (known, shown) for known in self._runs if (shown := _snapshot_at(known.reader, instant)) is not None
        ]
        if not found:
            return None
        ranks = [_rename_rank(known, rank) for known, shown in found for rank in shown.ranks]
        gpus = {gpu.uuid: gpu for _, shown in found for gpu in shown.gpus}
        note = BEFORE_NOTE if gpus else f"{BEFORE_NOTE}; no monitor recorded GPUs then"
        whole = replace(
            found[0][1],
            time=max(shown.time for _, shown in found),
            source="live",
            ranks=tuple(ranks),
            gpus=tuple(sorted(gpus.values(), key=lambda gpu: (gpu.index, gpu.uuid))),
            jobs=jobs.job_totals(ranks),
        )
        return with_note(whole, note)


def _snapshot_at(reader: RunSnapshots, instant: float) -> Snapshot | None:
    """Return the last snapshot of a run at or before an instant, with its figures."""
    begin = reader.members[0].first
    place = reader.position_before(instant - begin)
    if place is None:
        return None
    before = _FULL_SECONDS if reader.is_in_full(begin + place) else reader.slots.of_minutes
    figures, shown = RunFigures(reader), None
    for position, snapshot in reader.snapshots(max(0.0, place - before)):
        if position > place + 0.5:
            break
        shown = figures(snapshot)
    return shown


def _rename_rank(known: _Known, rank: Rank) -> Rank:
    """Return the rank as the live screen names it."""
    pid = known.pids.get((rank.host, rank.pid, rank.attached_at or 0.0), rank.pid)
    return replace(rank, pid=pid, job=known.job)
