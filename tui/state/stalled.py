"""Which trainings make no steps: their rates and idle shares are of what was before."""

from __future__ import annotations

from typing import Final

from llmtop.model.bottlenecks import AlertId
from llmtop.model.snapshot import CollectiveCount, Job, Rank, Snapshot
from llmtop.model.stall_thresholds import stall_seconds

_NO_STEPS: Final[tuple[AlertId, ...]] = ("stalled", "hung_collective")


def stalled_seconds(rank: Rank, now: float) -> float | None:
    """Return the seconds since the last step if they are long for this rank; None if not, or if unknown.

    The training checks its collectives against the median step. Here rates leave the screen, which must not
    flicker with slow steps: so this compares with p95, and a checkpoint does not count.
    """
    if rank.last_step_at is None or rank.kind != "step" or rank.state == "gone":
        return None
    silent = now - rank.last_step_at
    rare = None if rank.rare is None else rank.rare.seconds
    return silent if silent >= stall_seconds(rank.step_seconds_p95 or 0.0, rare) else None


def open_collective(rank: Rank) -> CollectiveCount | None:
    """Return the collective that the rank has entered and that does not complete while no step ends, or None."""
    return next(
        (one for one in rank.collectives if one.completed is not None and one.completed < one.enqueued), None
    )


def still_pids(snapshot: Snapshot) -> frozenset[int]:
    """Return the processes that run no step now by their state, an open collective, an alert, or the time since
    the last step.

    Beside such a state, tokens per second or an idle share of earlier steps would contradict it.
    """
    accused = {one.pid or one.gpu for one in snapshot.alerts if one.id in _NO_STEPS} - {None}
    return frozenset(
        one.pid
        for one in snapshot.ranks
        if one.state != "running"
        or not accused.isdisjoint((one.pid, one.gpu_uuid))
        or open_collective(one) is not None
        or stalled_seconds(one, snapshot.time) is not None
    )


def is_still(job: Job, still: frozenset[int]) -> bool:
    """Return True if a job makes no steps: its ranks wait for each other, so one that stands still is enough.

    Args:
        job: its ranks that have ended do not count.
        still: what `still_pids` returned.
    """
    return not still.isdisjoint(job.pids)
