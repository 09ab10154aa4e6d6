"""NCCL: what each collective costs, what of it is exposed, and which rank the others wait for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmtop.analysis.device_timeline import Lane
from llmtop.kernel_names import collective_of
from llmtop.report.model import CollectiveTime
from llmtop.trace import intervals as iv

UNEVEN_PCT = 5.0
"""Of a step. The exposed NCCL time of the two ranks of a healthy run differed by 0.2 points on two H200s, that of
a run with one rank 40 % slower by 12."""


def collective_times(lanes: list[Lane]) -> tuple[CollectiveTime, ...]:
    """NCCL kernels by collective and device, over whole steps; over all activity of a device that has none."""
    rows = []
    for lane in lanes:
        ops = lane.ops.where(lane.is_nccl & (lane.ops.start >= lane.low) & (lane.ops.start < lane.high))
        if not len(ops):
            continue
        used, which = np.unique(ops.name, return_inverse=True)
        names = np.array([collective_of(lane.trace.names[number]) for number in used.tolist()])[which.reshape(-1)]
        for name in np.unique(names).tolist():
            mine = ops.where(names == name)
            spans = iv.clip(iv.union(mine.start, mine.end), lane.low, lane.high)
            exposed = iv.both(spans, lane.exposed_nccl).total
            rows.append(
                CollectiveTime(
                    device=lane.device,
                    pid=lane.process,
                    name=name,
                    count_per_step=len(mine) / lane.counted if lane.counted else None,
                    ms_per_step=lane.per_step_ms(spans.total),
                    exposed_ms_per_step=lane.per_step_ms(exposed),
                    share_pct=lane.share(spans.total),
                )
            )
    return tuple(rows)


@dataclass(frozen=True)
class Uneven:
    """One rank that the others wait for."""

    culprit: Lane
    waiting: Lane
    """The one that waits most."""
    culprit_pct: float
    """Exposed NCCL of that rank, in percent of whole steps."""
    waiting_pct: float


def exposed_pct(lane: Lane) -> float:
    """Exposed NCCL in percent of whole steps."""
    return lane.share(lane.within(lane.exposed_nccl))


def uneven(lanes: list[Lane]) -> Uneven | None:
    """The rank that waits least in NCCL, if the others wait clearly longer: they wait for it."""
    with_nccl = [lane for lane in lanes if len(lane.nccl)]
    if len(with_nccl) < 2:
        return None
    least, most = min(with_nccl, key=exposed_pct), max(with_nccl, key=exposed_pct)
    low, high = exposed_pct(least), exposed_pct(most)
    if high - low < UNEVEN_PCT or high < 1.5 * low:
        return None
    return Uneven(least, most, low, high)
