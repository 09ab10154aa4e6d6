"""Removal of unusable events: without times, with an end before the start, or from a clock that jumped."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llmtop.trace import model

ABSENT = -(1 << 62)
"""A loader writes this where an event has no time."""

_HOLE_NS = 60_000_000_000
_HOLE_RATIO = 20
_MAJORITY = 0.9


def drop_unusable_rows(trace: model.Trace) -> model.Trace:
    """Drop unusable rows of a loaded trace in place, add a note on them, and return the trace."""
    timeless = backwards = 0
    for column in ("ops", "calls", "ranges", "host", "off_cpu", "samples", "memory", "overhead"):
        table = getattr(trace, column)
        known = (table.start > ABSENT) & (table.end > ABSENT) & (table.start < -ABSENT)
        forward = table.end >= table.start
        timeless += int((~known).sum())
        backwards += int((known & ~forward).sum())
        if not (known & forward).all():
            setattr(trace, column, table.select(known & forward))
    if timeless:
        trace.notes.append(f"{timeless} events have no usable time and are left out")
    if backwards:
        trace.notes.append(f"{backwards} events end before they start and are left out")
    _drop_distant_rows(trace)
    return trace


def _drop_distant_rows(trace: model.Trace) -> None:
    """Leave out a few events that lie so far from all others that only a clock can have put them there."""
    columns = [table.start for table in (trace.ops, trace.calls, trace.ranges, trace.host) if len(table)]
    if not columns or max(int(one.max()) for one in columns) - min(int(one.min()) for one in columns) < _HOLE_NS:
        return
    starts = np.sort(np.concatenate(columns))
    if len(starts) < 3:
        return
    holes = np.diff(starts)
    edges = np.concatenate([[0], np.flatnonzero(holes >= _HOLE_NS) + 1, [len(starts)]])
    largest = int(np.argmax(np.diff(edges)))
    low, high = int(edges[largest]), int(edges[largest + 1])
    first, last = starts[low], starts[high - 1]
    around = [int(holes[edge - 1]) for edge in (low, high) if 0 < edge < len(starts)]
    dropped = len(starts) - (high - low)
    if not around or high - low < _MAJORITY * len(starts) or min(around) < _HOLE_RATIO * (last - first):
        return
    trace.notes.append(
        f"{dropped} events lie more than a minute from all others (the clock jumped?) and are left out"
    )

    def near(table: model.Table) -> npt.NDArray[np.bool_]:
        return np.asarray((table.start >= first) & (table.start <= last))

    trace.ops, trace.calls = trace.ops.select(near(trace.ops)), trace.calls.select(near(trace.calls))
    trace.ranges, trace.host = trace.ranges.select(near(trace.ranges)), trace.host.select(near(trace.host))
