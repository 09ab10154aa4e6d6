"""The calls that launch work on one GPU: how many a step, and what they cost the host."""

from __future__ import annotations

import numpy as np

from llmtop.analysis.idle import cuda_calls as cuda
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.trace import model
from llmtop.trace.intervals import Ns


def launch_calls(timeline: DeviceTimeline) -> model.ApiCalls:
    """Return the calls that launch kernels or graphs on this timeline's device, whole file."""
    return timeline.trace.once(
        "launch calls", (timeline.process, timeline.device), lambda: _find_launch_calls(timeline)
    )


def launches_per_step(timeline: DeviceTimeline) -> float | None:
    """Calls that launch something on this device in a step; None without whole steps, or where the capture has no
    such call at all.

    Both are counted by the host's clock: a device that lags behind runs in its window what was launched before it.
    """
    calls = launch_calls(timeline)
    if not timeline.counted or not len(calls):
        return None
    inside = (calls.start >= timeline.launched_from) & (calls.start < timeline.launched_until)
    return float(np.count_nonzero(inside)) / timeline.counted


def _find_launch_calls(timeline: DeviceTimeline) -> model.ApiCalls:
    trace, calls = timeline.trace, timeline.trace.calls
    launching = cuda.call_kinds(trace) == cuda.LAUNCH
    names = trace.once("no memset", None, lambda: np.array(["memset" not in name.lower() for name in trace.names]))
    part = trace.rows_of("calls", timeline.process)
    own = calls.part(part)
    mine = (own.process == timeline.process) & (launching & names)[own.name]
    if timeline.alone:
        return own.select(mine)
    rows = np.flatnonzero(mine) + part.start
    return calls.select(rows[_launch_devices(trace, timeline.process, rows) == timeline.device])


def _launch_devices(trace: model.Trace, process: int, rows: Ns) -> Ns:
    """Return the device that each of these calls launched on; -1 where unknown.

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
