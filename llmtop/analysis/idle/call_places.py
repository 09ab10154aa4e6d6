"""Which places of the program made the CUDA calls whose stacks were recorded."""

from __future__ import annotations

import numpy as np

from llmtop.analysis.idle import cuda_calls as cuda
from llmtop.report.host_work import MOST_ROWS, CallPlace
from llmtop.trace import model
from llmtop.trace.groups import grouped


def call_places(trace: model.Trace) -> tuple[CallPlace, ...]:
    """Return the calls by function and place, those that took most time first."""
    calls = trace.calls.select(trace.calls.place > 0)
    if not len(calls):
        return ()
    took = calls.end - calls.start
    keys, which = grouped(calls.process, calls.name, calls.place)
    counts = np.bincount(which, minlength=len(keys))
    sums = np.bincount(which, weights=took, minlength=len(keys))
    longest = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(longest, which, took)
    kinds = cuda.call_kinds(trace)
    found = [
        CallPlace(
            pid=pid,
            call=cuda.unversioned_name(trace.names[name]),
            kind=cuda.KIND_NAMES[int(kinds[name])],
            place=trace.names[place],
            count=int(counts[row]),
            seconds=float(sums[row]) / 1e9,
            max_us=int(longest[row]) / 1e3,
        )
        for row, (pid, name, place) in enumerate(keys)
    ]
    return tuple(sorted(found, key=lambda one: -one.seconds)[:MOST_ROWS])
