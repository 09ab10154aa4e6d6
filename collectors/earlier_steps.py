"""Snapshots of the seconds before a monitor started, from the steps that trainings keep and send on connecting.

Rules that judge them first know what holds and since when: an alert that needs a condition for some seconds is
there in the only snapshot of `llmtop --once`. Only steps are known of that time; GPUs, processes, memory and
logged values are absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from collectors.gpu_busy import GpuBusy
from collectors.refigure import RecomputeFigures
from llmtop.model.snapshot import Rank, Snapshot, Step

EARLIER_SECONDS: Final = 300
"""Reach of the steps that trainings keep which step once a second or slower; more than the time line shows."""
EARLIER_APART_SECONDS: Final = 5
"""From one snapshot to the next, up to the last `CLOSE_SECONDS`."""
CLOSE_SECONDS = 30
"""Twice what the slowest rule needs (`hold_seconds`), at one snapshot per second."""


def earlier_snapshots(snapshot: Snapshot, seconds: int = EARLIER_SECONDS) -> Iterator[Snapshot]:
    """Yield the snapshots before one, oldest first; none before the first known step.

    Args:
        snapshot: the first of a monitor; its ranks bring the steps that the trainings have kept.
        seconds: how far they reach back.
    """
    figures, busy = RecomputeFigures(), GpuBusy()
    known = {id(rank): sorted(rank.new_steps, key=_end) for rank in snapshot.ranks if rank.state == "running"}
    taken = dict.fromkeys(known, 0)
    far = range(seconds, CLOSE_SECONDS, -EARLIER_APART_SECONDS)
    for ago in (*far, *range(min(seconds, CLOSE_SECONDS), 0, -1)):
        at, ranks = snapshot.time - ago, []
        for rank in snapshot.ranks:
            steps = known.get(id(rank), [])
            first = last = taken.get(id(rank), 0)
            while last < len(steps) and _end(steps[last]) <= at:
                last += 1
            if last:
                taken[id(rank)] = last
                ranks.append(_rank_then(rank, steps[first:last], steps[last - 1]))
        if ranks:
            monotonic = None if snapshot.monotonic is None else snapshot.monotonic - ago
            host = replace(snapshot.host, links=())
            then = replace(
                snapshot, time=at, monotonic=monotonic, host=host, gpus=(), processes=(), ranks=tuple(ranks),
                stuck_communicators=(),
            )  # fmt: skip
            yield busy(figures(then))


def _end(step: Step) -> float:
    return step.started_at + step.seconds


def _rank_then(rank: Rank, new: list[Step], last: Step) -> Rank:
    """Return a rank as it was when its last step was `last`, as far as that is known."""
    return replace(
        rank,
        step=last.index,
        step_seconds=last.interval_seconds,
        last_step_at=_end(last),
        last_work_at=None,
        new_steps=tuple(new),
        gpu_updates=(),
        new_waits=(),
        new_values=(),
        collectives=(),
        metrics={},
        checkpoint=None,
        loading=None,
        outside_causes=(),
        outside_work_pct=None,
        gpu_wait_pct=None,
        gpu_waits=(),
        memory_allocated_bytes=None,
        memory_reserved_bytes=None,
        memory_peak_bytes=None,
        alloc_retries=None,
        ooms=None,
        memory_kept_bytes={},
        mfu_pct=None,
    )
