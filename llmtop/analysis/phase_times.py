"""What each phase of a step costs, by the host's clock and on the device."""

from __future__ import annotations

import numpy as np

from llmtop.analysis.device_timeline import Lane
from llmtop.analysis.step_finder import PhaseSpans, ProcessSteps
from llmtop.report.model import PhaseMean
from llmtop.trace import intervals as iv
from llmtop.whole_steps import OUTSIDE


def phase_times(steps: ProcessSteps, phases: list[PhaseSpans], lanes: list[Lane]) -> list[PhaseMean]:
    """The phases of one process, means over its whole steps, in the order in which they occur in a step.

    Args:
        steps: of the process.
        phases: of the process.
        lanes: of the same process; device time is the sum over them, as a step's work on two GPUs is.
    """
    if not len(steps):
        return []
    low, high, count = int(steps.starts[0]), int(steps.ends[-1]), len(steps)
    step = (high - low) / count
    rows: list[tuple[float, PhaseMean]] = []
    for phase in phases:
        host = iv.clip(phase.spans, low, high)
        if not len(host):
            continue
        gpu = sum(_device_time(lane, host) for lane in lanes)
        idle = sum(iv.both(lane.idle, host).total for lane in lanes)
        inside = phase.starts[(phase.starts >= low) & (phase.starts < high)]
        row = PhaseMean(
            name=phase.path,
            pid=steps.process,
            host_seconds=host.total / count / 1e9,
            gpu_seconds=gpu / count / 1e9 if lanes else None,
            share_pct=100.0 * host.total / count / step,
            gpu_share_pct=100.0 * gpu / count / step if lanes else None,
            gpu_idle_seconds=idle / count / 1e9 if lanes else None,
            count_per_step=len(inside) / count,
        )
        rows.append((_place(steps, inside), row))
    found = [row for _, row in sorted(rows, key=lambda item: item[0])]
    return [*found, _outside(steps, phases, lanes)] if found else found


def _outside(steps: ProcessSteps, phases: list[PhaseSpans], lanes: list[Lane]) -> PhaseMean:
    """The time of whole steps in which the host was in no phase."""
    low, high, count = int(steps.starts[0]), int(steps.ends[-1]), len(steps)
    host = iv.rest(iv.either(*(phase.spans for phase in phases)), low, high)
    gpu = sum(_device_time(lane, host) for lane in lanes) / count
    idle = sum(iv.both(lane.idle, host).total for lane in lanes) / count
    step = (high - low) / count
    return PhaseMean(
        name=OUTSIDE,
        pid=steps.process,
        host_seconds=host.total / count / 1e9,
        gpu_seconds=gpu / 1e9 if lanes else None,
        share_pct=100.0 * host.total / count / step,
        gpu_share_pct=100.0 * gpu / step if lanes else None,
        gpu_idle_seconds=idle / 1e9 if lanes else None,
        count_per_step=1.0,
    )


def _place(steps: ProcessSteps, starts: iv.Ns) -> float:
    """Where in a step a phase begins, as a share of the step: the median over the steps."""
    if not len(starts):
        return 0.0
    at = np.clip(np.searchsorted(steps.starts, starts, side="right") - 1, 0, len(steps) - 1)
    first = np.unique(at, return_index=True)[1]
    return float(
        np.median((starts[first] - steps.starts[at[first]]) / (steps.ends[at[first]] - steps.starts[at[first]]))
    )


def _device_time(lane: Lane, host: iv.Spans) -> int:
    """How long the device worked on what was launched within `host`, by any thread of the process."""
    called = lane.launched_by
    if not len(lane.trace.calls):
        return 0
    launched_at = lane.trace.calls.start[np.maximum(called, 0)]
    mine = (called >= 0) & iv.contains(host, launched_at)
    return iv.union(lane.ops.start[mine], lane.ops.end[mine]).total
