"""Traces made of rows, each given in ns, for tests of one function of the analysis."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from llmtop.analysis.idle.idle_causes import CAUSES, Gaps
from llmtop.analysis.steps.device_timeline import DeviceTimeline, device_timelines
from llmtop.analysis.steps.step_finder import ProcessSteps
from llmtop.trace import model

PID = 100
STEP_NS = 1_000_000
"""Length of the steps of `losing_timeline`."""
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


class Tables:
    """Rows of a trace of one process unless another `process` is given; names are given as text."""

    def __init__(self) -> None:
        self._names = model.Names()
        self._rows: dict[str, list[dict[str, int]]] = {}

    def op(self, start: int, end: int, name: str = "gemm_kernel", **columns: Any) -> None:
        """Add device work: a kernel unless `kind` is given. `full_name` is `name` unless given."""
        columns = {"full_name": name, "process": PID, "correlation": -1, **columns}
        self._add("ops", start, end, name, columns)

    def call(self, name: str, start: int, end: int, **columns: Any) -> None:
        """Add a call of the CUDA runtime on the main thread."""
        self._add("calls", start, end, name, {"process": PID, "thread": PID, "correlation": -1, **columns})

    def launched(self, number: int, called: int, start: int, end: int, name: str = "gemm_kernel") -> None:
        """Add a kernel, and a call of 5 ns that launched it, with this correlation id."""
        self.call("cudaLaunchKernel", called, called + 5, correlation=number)
        self.op(start, end, name, correlation=number)

    def range(self, name: str, start: int, end: int, **columns: Any) -> None:
        """Add an NVTX range on the main thread."""
        self._add("ranges", start, end, name, {"process": PID, "thread": PID, **columns})

    def host(self, name: str, start: int, end: int, **columns: Any) -> None:
        """Add an activity of the main thread: an operator unless `kind` is given."""
        self._add("host", start, end, name, {"process": PID, "thread": PID, **columns})

    def trace(self, **fields: Any) -> model.Trace:
        """Return the trace; `fields` are further ones of `Trace`."""
        kinds: dict[str, type[model.Table]] = {
            "ops": model.DeviceOps,
            "calls": model.ApiCalls,
            "ranges": model.Ranges,
            "host": model.HostSpans,
        }
        made = {}
        for table, rows in self._rows.items():
            columns = sorted(set().union(*rows))
            made[table] = model.build(kinds[table], {key: [row.get(key, 0) for row in rows] for key in columns})
        return model.Trace("made", "kineto", names=self._names.all, **made, **fields)

    def _add(self, table: str, start: int, end: int, name: str, columns: dict[str, Any]) -> None:
        texts = {
            key: self._names.number(value) if isinstance(value, str) else value for key, value in columns.items()
        }
        row = {"start": start, "end": end, "name": self._names.number(name), **texts}
        self._rows.setdefault(table, []).append(row)


def steps_at(*edges: int, process: int = PID, **fields: Any) -> ProcessSteps:
    """Return steps that follow one another, between these instants of the host's clock in ns."""
    bounds = np.array(edges, dtype=np.int64)
    return ProcessSteps(process, process, bounds[:-1], bounds[1:], "made", **fields)


def only_timeline(trace: model.Trace, steps: ProcessSteps) -> DeviceTimeline:
    """Return the timeline of a trace that has one process and one device."""
    (timeline,) = device_timelines(trace, {steps.process: steps})
    return timeline


def losing_timeline(lost: int = 0, *, exposed: int = 0, copied: int = 0) -> DeviceTimeline:
    """Three steps of 1 ms, each of twelve kernels, at whose end the device is idle for `lost` ns; before that so
    many ns of exposed NCCL, and of copies alone."""
    made = Tables()
    number = 0
    for step in range(4):
        at = step * STEP_NS
        end = at + STEP_NS - lost
        edges = np.linspace(at, end - exposed - copied, 13).astype(int).tolist() if step < 3 else [at, at + 1]
        for low, high in pairwise(edges):
            made.call("cudaLaunchKernel", at, at + 1, correlation=number)
            made.op(low, high, correlation=number)
            number += 1
        if step < 3 and exposed:
            made.op(end - exposed - copied, end - copied, REDUCE)
        if step < 3 and copied:
            copy = {"kind": model.MEMCPY, "direction": model.HOST_TO_DEVICE, "target_memory": model.DEVICE}
            made.op(end - copied, end, "", **copy)
    found = only_timeline(made.trace(), steps_at(0, STEP_NS, 2 * STEP_NS, 3 * STEP_NS))
    assert found.counted == 3
    return found


def gaps_of(timeline: DeviceTimeline, **causes: float) -> Gaps:
    """All idle time in these parts; the rest is `unknown`."""
    idle = timeline.idle
    by_cause = {cause: np.zeros(len(idle), dtype=np.int64) for cause in CAUSES}
    for cause, part in causes.items():
        by_cause[cause] = (idle.lengths * part).astype(np.int64)
    known = np.sum([ns for cause, ns in by_cause.items() if cause != "unknown"], axis=0)
    by_cause["unknown"] = idle.lengths - known
    return Gaps(idle, by_cause, np.full(len(idle), -1))
