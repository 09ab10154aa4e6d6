"""The calls that launch work on one GPU: how many a step, and what they cost the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmtop.analysis.idle import cuda_calls as cuda
from llmtop.analysis.steps.device_timeline import Lane
from llmtop.trace import model
from llmtop.trace.intervals import Ns


def launch_calls(lane: Lane) -> model.ApiCalls:
    """The calls that launch kernels or graphs on this lane's device, whole file."""
    return lane.trace.once("launch calls", (lane.process, lane.device), lambda: _launch_calls(lane))


def launches_per_step(lane: Lane) -> float | None:
    """Calls that launch something on this device in a step; None without whole steps, or where the capture has no
    such call at all.

    Both are counted by the host's clock: a device that lags behind runs in its window what was launched before it.
    """
    calls = launch_calls(lane)
    if not lane.counted or not len(calls):
        return None
    inside = (calls.start >= lane.launched_from) & (calls.start < lane.launched_until)
    return float(np.count_nonzero(inside)) / lane.counted


def runs_per_step(names: Ns, lanes: Sequence[Lane]) -> int | None:
    """How often a process runs kernels of these names in a step; None without whole steps.

    Args:
        names: numbers of short names in `Trace.names`; at least one occurs in the capture.
        lanes: all of the capture; the figure is the mean over their processes, and at least 1.
    """
    whole = [lane for lane in lanes if lane.counted]
    if not whole:
        return None
    a_step = 0.0
    for lane in whole:
        ops = lane.ops
        mine = np.isin(ops.name, names) & (ops.kind == model.KERNEL)
        inside = mine & (ops.start >= lane.low) & (ops.start < lane.high)
        a_step += np.count_nonzero(inside) / lane.counted
    return max(1, round(a_step / len({lane.process for lane in whole})))


def _launch_calls(lane: Lane) -> model.ApiCalls:
    trace, calls = lane.trace, lane.trace.calls
    launching = cuda.kinds(trace) == cuda.LAUNCH
    names = trace.once("no memset", None, lambda: np.array(["memset" not in name.lower() for name in trace.names]))
    mine = (calls.process == lane.process) & (launching & names)[calls.name]
    if lane.alone:
        return calls.where(mine)
    rows = np.flatnonzero(mine)
    return calls.where(rows[_devices(trace, lane.process, rows) == lane.device])


def _devices(trace: model.Trace, process: int, rows: Ns) -> Ns:
    """The device that each of these calls launched on; -1 where that cannot be told.

    A call of which nothing was recorded on a device is counted where the last one of its thread went: CUDA's
    current device is the thread's.
    """
    device = np.full(len(trace.calls), -1, dtype=np.int64)
    known = (trace.launched_by >= 0) & (trace.ops.process == process)
    device[trace.launched_by[known]] = trace.ops.device[known]
    order = np.lexsort((trace.calls.start[rows], trace.calls.thread[rows]))
    found, thread = device[rows][order], trace.calls.thread[rows][order]
    place = np.arange(len(rows))
    begins = np.ones(len(rows), dtype=bool)
    begins[1:] = thread[1:] != thread[:-1]
    last = np.maximum.accumulate(np.where((found >= 0) | begins, place, 0))
    filled = np.empty(len(rows), dtype=np.int64)
    filled[order] = found[last]
    return filled
