"""Copies by direction and kind of memory, with the rate they reached."""

from __future__ import annotations

import numpy as np

from llmtop.report.model import CopyTime
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.groups import distinct_values


def copy_times(trace: model.Trace) -> tuple[CopyTime, ...]:
    """Return all copies and memsets, whole file, all devices; most time first."""
    ops = trace.ops
    rows = []
    copies = ops.select(ops.kind == model.MEMCPY)
    key = (copies.direction.astype(np.int64) << 8) + (copies.source_memory << 4) + copies.target_memory
    for number in distinct_values(key).tolist():
        mine = copies.select(key == number)
        rows.append(
            _row(
                mine,
                model.DIRECTIONS.get(number >> 8, "unknown"),
                model.MEMORIES.get((number >> 4) & 15, "unknown"),
                model.MEMORIES.get(number & 15, "unknown"),
            )
        )
    memsets = ops.select(ops.kind == model.MEMSET)
    if len(memsets):
        rows.append(_row(memsets, "memset", "", "device"))
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _row(ops: model.DeviceOps, direction: str, source: str, target: str) -> CopyTime:
    size, total = int(ops.bytes.sum()), int((ops.end - ops.start).sum())
    # Copies of several devices or streams run at once: the rate is over the time in which any of these ran.
    wall = iv.union(ops.start, ops.end).total
    return CopyTime(
        direction=direction,
        source_memory=source,
        target_memory=target,
        count=len(ops),
        bytes=size,
        seconds=total / 1e9,
        gb_per_s=size / wall if wall and size else None,
        largest_bytes=int(ops.bytes.max()),
    )
