"""The longest gaps, line by line, so that a person can check what was said about them."""

from __future__ import annotations

import numpy as np

from llmtop.analysis import cuda_calls as cuda
from llmtop.analysis.device_timeline import Lane
from llmtop.analysis.idle_causes import CAUSES, Gaps
from llmtop.analysis.step_finder import PhaseSpans
from llmtop.format import duration
from llmtop.report.model import LongGap
from llmtop.trace import intervals as iv
from llmtop.trace import model

_MOST = 12
_MOST_HOST_LINES = 4
_PYTHON_LINE_NS = 100_000


def longest_gaps(lanes: list[Lane], gaps: list[Gaps], phases: dict[int, list[PhaseSpans]]) -> tuple[LongGap, ...]:
    """The longest gaps over all devices, longest first."""
    found: list[tuple[int, int, int]] = []
    for index, own in enumerate(gaps):
        lengths = own.spans.lengths
        found += [(int(lengths[gap]), index, gap) for gap in np.argsort(-lengths, kind="stable")[:_MOST].tolist()]
    found.sort(key=lambda item: -item[0])
    # Only what is told is described: that looks at all calls of the capture.
    return tuple(
        _describe(lanes[index], gaps[index], gap, phases[lanes[index].process]) for _, index, gap in found[:_MOST]
    )


def _describe(lane: Lane, gaps: Gaps, gap: int, phases: list[PhaseSpans]) -> LongGap:
    start, end = int(gaps.spans.starts[gap]), int(gaps.spans.ends[gap])
    ops, names = lane.ops, lane.trace.names
    before = int(np.searchsorted(ops.start, start)) - 1
    after = int(gaps.ending[gap])
    causes = {cause: int(gaps.by_cause[cause][gap]) / 1e9 for cause in CAUSES if gaps.by_cause[cause][gap]}
    step = int(np.searchsorted(lane.bounds, start, side="right")) - 1
    return LongGap(
        device=lane.device,
        pid=lane.process,
        start_seconds=(start - lane.trace.window[0]) / 1e9,
        seconds=(end - start) / 1e9,
        step=step if lane.counted else None,
        phase=_phase_at(phases, start),
        causes=dict(sorted(causes.items(), key=lambda item: -item[1])),
        host=_host_lines(lane, start, end, phases),
        before=names[ops.name[before]] if before >= 0 else "",
        after=names[ops.name[after]] if after >= 0 else "",
    )


def _phase_at(phases: list[PhaseSpans], instant: int) -> str:
    """The innermost phase that the host was in."""
    at = np.array([instant], dtype=np.int64)
    inside = [phase.path for phase in phases if iv.contains(phase.spans, at)[0]]
    return max(inside, key=lambda path: path.count("/"), default="")


def _host_lines(lane: Lane, start: int, end: int, phases: list[PhaseSpans]) -> tuple[str, ...]:
    """What the launching threads did between two instants: phases, calls, operators, frames, with their times."""
    times: dict[str, int] = {}
    for phase in phases:
        inside = iv.clip(phase.spans, start, end).total
        if inside:
            times[f"phase {phase.path}"] = inside
    trace = lane.trace
    calls = _inside(trace.calls, lane, start, end)
    for name, took in _sums(calls, start, end).items():
        call = f"in {cuda.plain_name(trace.names[name])}"
        times[call] = times.get(call, 0) + took
    for name, took in _sums(_inside(trace.host, lane, start, end), start, end).items():
        if took >= _PYTHON_LINE_NS:
            times[trace.names[name]] = took
    quiet = end - start - iv.clip(iv.union(calls.start, calls.end), start, end).total
    if quiet > 0:
        times["no CUDA call"] = quiet
    lines = sorted(times.items(), key=lambda item: -item[1])[:_MOST_HOST_LINES]
    return tuple(f"{what[:120]}: {duration(took / 1e9)}" for what, took in lines)


def _inside(table: model.TableT, lane: Lane, start: int, end: int) -> model.TableT:
    mine = (table.end > start) & (table.start < end)
    mine &= (table.process == lane.process) & np.isin(table.thread, lane.launchers)  # type: ignore[attr-defined]  # both tables of threads have them
    return table.where(mine)


def _sums(table: model.ApiCalls | model.HostSpans, start: int, end: int) -> dict[int, int]:
    """Time by name, each clipped to the gap."""
    took = np.minimum(table.end, end) - np.maximum(table.start, start)
    sums: dict[int, int] = {}
    for name, length in zip(table.name.tolist(), took.tolist(), strict=True):
        sums[name] = sums.get(name, 0) + length
    return sums
