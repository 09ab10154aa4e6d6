"""Cost of each phase of a step, by the host clock and on the device.

Each figure is over whole steps of its own clock. The host runs ahead of the device, so five steps of the host can
be four on the device, each three times as long; what the host launched in one step may run in the device's next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.step_finder import PhaseSpans, ProcessSteps
from llmtop.naming.own_phases import OUTSIDE
from llmtop.report.model import PhaseMean
from llmtop.trace import intervals as iv
from llmtop.trace.intervals import Ns, Spans

PASSING_PCT = 1.0
"""A process may touch a GPU in passing (every rank of torchrun can leave a context on GPU 0): where it works less
than this part of what it works on its busiest one, it has no phases there."""


def phase_times(steps: ProcessSteps, phases: list[PhaseSpans], timelines: list[DeviceTimeline]) -> list[PhaseMean]:
    """Return the phases of one process, means over its whole steps, in the order in which they occur in a step.

    Args:
        steps: of the process.
        phases: of the process.
        timelines: of the same process; each has rows of its own.
    """
    if not len(steps):
        return []
    most = max((timeline.busy.total for timeline in timelines), default=0)
    real = [timeline for timeline in timelines if 100 * timeline.busy.total >= PASSING_PCT * most]
    lanes_or_none: list[DeviceTimeline | None] = [*real] or [None]
    return [row for timeline in lanes_or_none for row in _device_phase_times(steps, phases, timeline)]


def _device_phase_times(
    steps: ProcessSteps, phases: list[PhaseSpans], timeline: DeviceTimeline | None
) -> list[PhaseMean]:
    if timeline is not None and timeline.slow_first and len(steps) > 1:
        # As of the device's figures, the step that carries the capture's start is no part of a mean step.
        steps = replace(steps, starts=steps.starts[1:], ends=steps.ends[1:])
    low, high = int(steps.starts[0]), int(steps.ends[-1])
    device = None if timeline is None else _DevicePhases.from_timeline(timeline, low, high)
    rows: list[tuple[float, PhaseMean]] = []
    for phase in phases:
        host = iv.clip(phase.spans, low, high)
        if not len(host):
            continue
        inside = phase.starts[(phase.starts >= low) & (phase.starts < high)]
        gpu = _ABSENT if device is None else device.figures(host, iv.contains(phase.spans, device.launched_at))
        rows.append((_place_in_step(steps, inside), _row(phase.path, steps, host, gpu, len(inside) / len(steps))))
    found = [row for _, row in sorted(rows, key=lambda item: item[0])]
    if not found:
        return found
    in_phases = iv.union_of(*(phase.spans for phase in phases))
    host = iv.complement(in_phases, low, high)
    gpu = _ABSENT if device is None else device.figures(host, ~iv.contains(in_phases, device.launched_at))
    return [*found, _row(OUTSIDE, steps, host, gpu, 1.0)]


@dataclass(frozen=True)
class _PhaseFigures:
    """Figures of one phase on one device, in ns: over all whole steps of the host, or over one step of the
    device."""

    device: int | None
    step_ns: float | None
    share_pct: float | None
    idle_ns: int | None


_ABSENT = _PhaseFigures(None, None, None, None)


@dataclass(frozen=True)
class _DevicePhases:
    """Data from which the phases of one device are measured."""

    timeline: DeviceTimeline
    rows: Ns
    """The timeline's ops with a known launch."""
    launched_at: Ns
    """When each of them was launched."""
    idle: Spans
    """When the device had nothing to do while the host made whole steps: from its first to its last activity, and
    to the edges of its own whole steps."""

    @staticmethod
    def from_timeline(timeline: DeviceTimeline, low: int, high: int) -> _DevicePhases:
        """Return the phases of a device for the host's whole steps from `low` to `high`."""
        rows = np.flatnonzero(timeline.launched_by >= 0)
        launched_at = timeline.trace.calls.start[timeline.launched_by[rows]]
        first, last = int(timeline.ops.start[0]), int(timeline.ops.end.max())
        if timeline.counted:
            first, last = min(first, timeline.begin_ns), max(last, timeline.end_ns)
        low, high = max(low, first), min(high, last)
        return _DevicePhases(
            timeline, rows, launched_at, iv.complement(timeline.busy, low, high) if low < high else iv.EMPTY
        )

    def figures(self, host: Spans, chosen: npt.NDArray[np.bool_]) -> _PhaseFigures:
        """Return the figures of the phase that the host was in during `host`, in which it launched the `chosen`
        ones of `rows`."""
        timeline = self.timeline
        idle = iv.intersection(self.idle, host).total
        # Without a known launch the device time of a phase is unknown.
        if not len(self.rows) or not timeline.counted:
            return _PhaseFigures(timeline.device, None, None, idle)
        rows = self.rows[chosen]
        worked = timeline.ns_in_steps(iv.union(timeline.ops.start[rows], timeline.ops.end[rows]))
        return _PhaseFigures(timeline.device, worked / timeline.counted, timeline.share(worked), idle)


def _row(name: str, steps: ProcessSteps, host: Spans, gpu: _PhaseFigures, count: float) -> PhaseMean:
    whole = max(int(steps.ends[-1]) - int(steps.starts[0]), 1)
    return PhaseMean(
        name=name,
        pid=steps.process,
        host_seconds=host.total / len(steps) / 1e9,
        gpu_seconds=None if gpu.step_ns is None else gpu.step_ns / 1e9,
        share_pct=100.0 * host.total / whole,
        gpu_share_pct=gpu.share_pct,
        gpu_idle_seconds=None if gpu.idle_ns is None else gpu.idle_ns / len(steps) / 1e9,
        count_per_step=count,
        device=gpu.device,
    )


def _place_in_step(steps: ProcessSteps, starts: Ns) -> float:
    """Return where in a step a phase begins, as a share of the step: the median over the steps."""
    if not len(starts):
        return 0.0
    at = np.clip(np.searchsorted(steps.starts, starts, side="right") - 1, 0, len(steps) - 1)
    first = np.unique(at, return_index=True)[1]
    return float(
        np.median((starts[first] - steps.starts[at[first]]) / (steps.ends[at[first]] - steps.starts[at[first]]))
    )
