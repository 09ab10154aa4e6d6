"""Which ranks are one run, and what they come to together: the one place where jobs are made of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Final, TypeVar

from llmtop.model.health import Checkpoint
from llmtop.model.snapshot import Job, Rank, RankState

_URGENT: Final[tuple[RankState, ...]] = ("stalled", "stopped", "running", "paused", "gone")
"""The first of these that any rank is in is the state of the job."""

NAME_SEPARATOR: Final = " · "
"""Separator of the parts of a job's name."""
Known = TypeVar("Known")


def job_totals(ranks: Iterable[Rank]) -> tuple[Job, ...]:
    """Return the totals of each job over its ranks, in the order in which jobs began.

    Args:
        ranks: of a snapshot; those without the name of a job are in none.
    """
    members: dict[str, list[Rank]] = {}
    for rank in ranks:
        if rank.job:
            members.setdefault(rank.job, []).append(rank)
    jobs = [_job(name, of_it) for name, of_it in members.items()]
    return tuple(sorted(jobs, key=lambda job: (job.attached_at or math.inf, job.name)))


def _job(name: str, known: list[Rank]) -> Job:
    # Those that have ended are in no total; they stand for the job once there are no others.
    seen = [rank for rank in known if rank.state != "gone"]
    ranks = sorted(seen or known, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.host, rank.pid))
    first = ranks[0]
    steps = [rank.step for rank in ranks]
    return Job(
        name=name,
        kind=first.kind,
        state=min((rank.state for rank in ranks), key=_URGENT.index),
        launcher=first.launcher,
        run_id=first.run_id,
        slurm_job_id=first.slurm_job_id,
        world_size=max((rank.world_size for rank in ranks if rank.world_size is not None), default=None),
        ranks_seen=len(seen),
        ranks=tuple(rank.rank for rank in seen if rank.rank is not None),
        hosts=tuple(dict.fromkeys(rank.host for rank in ranks)),
        pids=tuple(rank.pid for rank in ranks),
        step=_combine(steps, min),
        steps_per_s=_combine([rank.steps_per_s for rank in seen], sum if first.kind == "request" else median),
        tokens_per_s=_combine([rank.tokens_per_s for rank in seen], sum),
        samples_per_s=_combine([rank.samples_per_s for rank in seen], sum),
        overhead_seconds=max((r.overhead_seconds for r in seen if r.overhead_seconds is not None), default=None),
        attached_at=min((rank.attached_at for rank in ranks if rank.attached_at is not None), default=None),
    )


def latest_checkpoint(rank: Rank, ranks: Iterable[Rank]) -> Checkpoint | None:
    """Return the last complete checkpoint of any rank of a rank's job; None where none is known.

    Args:
        rank: of a snapshot.
        ranks: all of that snapshot.
    """
    members = [one for one in ranks if one.job == rank.job] if rank.job else [rank]
    known = [one.checkpoint for one in members if one.checkpoint is not None]
    return max(known, key=lambda one: (one.step, one.at), default=None)


def steps_at_risk(rank: Rank, checkpoint: Checkpoint) -> int | None:
    """Return how many steps of a rank are lost if its job ends now; None before its first step."""
    return None if rank.step is None else max(rank.step - checkpoint.step, 0)


def _combine(values: Sequence[Known | None], together: Callable[[list[Known]], Known]) -> Known | None:
    """Combine values; None as long as one of them is unknown."""
    known = [value for value in values if value is not None]
    return together(known) if known and len(known) == len(values) else None
