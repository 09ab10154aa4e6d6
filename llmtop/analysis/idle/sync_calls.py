"""Where a training waits for the GPU: calls that wait, by phase and, where a capture has them, by operator."""

from __future__ import annotations

import numpy as np

from llmtop.analysis.idle import cuda_calls as cuda
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.step_finder import PhaseSpans
from llmtop.report.model import WaitPlace
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.groups import distinct_values, is_among
from llmtop.trace.intervals import Ns

_MOST_CALLS = 20_000
_DEEPEST = 64


def wait_places(timeline: DeviceTimeline, phases: list[PhaseSpans]) -> tuple[WaitPlace, ...]:
    """Calls of the launching threads that wait, within whole steps of the host, most of them first."""
    steps, trace = timeline.steps, timeline.trace
    if not len(steps):
        return ()
    low, high = int(steps.starts[0]), int(steps.ends[-1])
    calls = trace.calls
    waiting = (cuda.call_kinds(trace) == cuda.SYNC)[calls.name]
    mine = waiting & (calls.process == timeline.process) & is_among(calls.thread, timeline.launchers)
    rows = calls.select(mine & (calls.start >= low) & (calls.start < high))
    if not len(rows):
        return ()
    inside = _innermost_phases(rows.start, phases)
    by = _innermost_operators(rows, trace) if len(rows) <= _MOST_CALLS else np.zeros(len(rows), dtype=np.int64)
    key = np.stack([rows.name, inside, by], axis=1)
    different, which = np.unique(key, axis=0, return_inverse=True)
    counts = np.bincount(which.reshape(-1))
    waited = np.bincount(which.reshape(-1), weights=rows.end - rows.start)
    found = [
        WaitPlace(
            pid=timeline.process,
            call=cuda.unversioned_name(trace.names[call]),
            phase=phases[phase].path if phase >= 0 else "",
            operator=trace.names[operator],
            calls_per_step=int(counts[index]) / len(steps),
            host_ms_per_step=float(waited[index]) / 1e6 / len(steps),
        )
        for index, (call, phase, operator) in enumerate(different.tolist())
    ]
    return tuple(sorted(found, key=lambda place: -place.calls_per_step))


def _innermost_phases(instants: Ns, phases: list[PhaseSpans]) -> Ns:
    """Return the innermost phase that each instant lies in; -1 for none."""
    inside = np.full(len(instants), -1, dtype=np.int64)
    for index in sorted(range(len(phases)), key=lambda i: phases[i].path.count("/")):
        inside = np.where(iv.contains(phases[index].spans, instants), index, inside)
    return inside


def _innermost_operators(rows: model.ApiCalls, trace: model.Trace) -> Ns:
    """Return the name of the innermost operator of the framework around each call of a process; 0, the empty
    name, for none."""
    found = np.zeros(len(rows), dtype=np.int64)
    # Thread ids repeat across processes, in containers as a rule.
    mine = (trace.host.kind == model.OPERATOR) & (trace.host.process == rows.process[0])
    operators = trace.host.select(mine)
    if not len(operators):
        return found
    for thread in distinct_values(rows.thread).tolist():
        own = operators.select(operators.thread == thread)
        own = own.select(np.argsort(own.start, kind="stable"))
        for row in np.flatnonzero(rows.thread == thread).tolist():
            at = int(np.searchsorted(own.start, rows.start[row], side="right")) - 1
            # Operators nest: the last one that began before the call and has not ended is the innermost.
            for place in range(at, max(at - _DEEPEST, -1), -1):
                if own.end[place] >= rows.end[row]:
                    found[row] = own.name[place]
                    break
    return found
