"""Kernels that a process launched and that the capture does not have: the device appears idle while they ran.

Seen with nsys 2025.3.1 on an H200: in a process that it has collected from before, a later collection may lack all
kernels that one thread launched, or all of them. CUPTI joins a kernel to its launch by a correlation id, so each
launch without a kernel is one that was lost, unless the kernel had no time to run before the capture ended or the
launch only went into a CUDA graph.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmtop.analysis.idle import cuda_calls as cuda
from llmtop.analysis.idle.nonrecurring_work import BEGINS_GRAPH, ENDS_GRAPH
from llmtop.trace import model
from llmtop.trace.groups import distinct_values, is_among
from llmtop.trace.intervals import Ns

FEWEST = 20
LEAST_PCT = 2.0
"""A capture is called incomplete from so many missing kernels on that are also so much of those launched: at the
edges of any capture a few are lost."""

_LAUNCHES_KERNEL = re.compile(r"^(cuda|cu|hip)\w*Launch(Cooperative)?Kernel(?!\w*MultiDevice)", re.I)


@dataclass(frozen=True)
class UnrecordedKernels:
    """Kernels that a process launched and the profiler did not record."""

    process: int
    launched: int
    """Kernels, of those that had the time to run before the end."""
    missing: int
    threads: tuple[int, ...]
    """Threads that launched the missing kernels, most first."""

    @property
    def missing_pct(self) -> float:
        """Missing kernels in percent of those that the process launched."""
        return 100.0 * self.missing / self.launched


def unrecorded_kernels(trace: model.Trace) -> dict[int, UnrecordedKernels]:
    """Return the processes with too many unrecorded kernels, by pid."""
    calls = trace.calls
    if not len(calls):
        return {}
    kernels = trace.ops.select(trace.ops.kind == model.KERNEL)
    launched_by = trace.launched_by[trace.ops.kind == model.KERNEL]
    # A tool that records no correlation of its kernels would seem to have lost them all.
    if len(kernels) and not (launched_by >= 0).any():
        return {}
    launches = _matching_calls(trace, _LAUNCHES_KERNEL) & ~_calls_during_capture(trace)
    found = {}
    for process in distinct_values(calls.process[launches]).tolist():
        own = (launched_by >= 0) & (kernels.process == process)
        mine = launches & (calls.process == process)
        if own.any():
            mine &= calls.start <= _certain_run_time(kernels.end[own], calls.start[launched_by[own]])
        else:
            mine &= calls.start < _last_sync_begin(trace, process)
        rows = np.flatnonzero(mine)
        missing = rows[~is_among(calls.correlation[rows], kernels.correlation[kernels.process == process])]
        # A runtime call and the driver's within it are one launch where they share their correlation.
        launched, lost = (len(distinct_values(calls.correlation[chosen])) for chosen in (rows, missing))
        row = UnrecordedKernels(process, launched, lost, _threads_by_count(calls.thread[missing]))
        if row.missing >= FEWEST and row.missing_pct >= LEAST_PCT:
            found[process] = row
    return found


def _certain_run_time(ended: Ns, launched_at: Ns) -> int:
    """Until when what was launched has run by the last kernel's end: as long before it as any kernel took from its
    launch to its end. The host may be far ahead of the device."""
    return int(ended.max() - (ended - launched_at).max())


def _last_sync_begin(trace: model.Trace, process: int) -> int:
    """Return when the last call began that waited for the device and came back: what was launched before has
    run."""
    calls = trace.calls
    waits = (cuda.call_kinds(trace) == cuda.SYNC)[calls.name] & (calls.process == process)
    return int(calls.start[waits].max()) if waits.any() else 0


def _matching_calls(trace: model.Trace, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """For each call, whether its name matches the pattern."""
    fits = np.array([bool(pattern.match(name)) for name in trace.names])
    return np.asarray(fits[trace.calls.name])


def _calls_during_capture(trace: model.Trace) -> npt.NDArray[np.bool_]:
    """Return which calls were made while their process captured a stream into a CUDA graph: those run nothing."""
    calls = trace.calls
    begins, ends = _matching_calls(trace, BEGINS_GRAPH), _matching_calls(trace, ENDS_GRAPH)
    inside = np.zeros(len(calls), dtype=bool)
    for process in distinct_values(calls.process[begins | ends]).tolist():
        mine = calls.process == process
        opened, closed = np.sort(calls.start[mine & begins]), np.sort(calls.start[mine & ends])
        more_opened = np.searchsorted(opened, calls.start, side="right")
        more_closed = np.searchsorted(closed, calls.start, side="left")
        # One that was begun before the capture is only seen to end.
        unbegun = np.arange(1, len(closed) + 1) - np.searchsorted(opened, closed, side="left")
        already = max(0, int(unbegun.max(initial=0)))
        inside |= mine & (more_opened + already > more_closed)
    return inside


def _threads_by_count(threads: npt.NDArray[np.int64]) -> tuple[int, ...]:
    numbers, counts = np.unique(threads, return_counts=True)
    return tuple(int(number) for number in numbers[np.argsort(-counts, kind="stable")])
