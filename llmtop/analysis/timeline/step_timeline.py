"""One step as rows of coloured pieces: the GPU, why it lay idle, what the host called, the phases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llmtop.analysis.idle import cuda_calls as cuda
from llmtop.analysis.idle.idle_causes import CAUSES, Gaps
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.step_finder import PhaseSpans
from llmtop.format import percent_text
from llmtop.naming.kernel_names import kind_of
from llmtop.report.model import Span, Timeline, TimelineRow
from llmtop.trace import model
from llmtop.trace.intervals import Ns

_MOST_SPANS = 1500
"""Pieces per row: more than the pixels of a screen; denser events are joined, with their filled share."""
_MOST_EVENTS = 5000
"""Most pieces of device work in a timeline without steps, which shows the beginning of the capture."""
LONGEST_TEXT = 160
KINDS = {model.MEMCPY: "copy", model.MEMSET: "memset", model.GRAPH: "graph"}


def step_timeline(timeline: DeviceTimeline, gaps: Gaps, phases: list[PhaseSpans]) -> Timeline:
    """Return the step of median length on a device; the beginning of the capture when it has no steps."""
    step, low, high = _median_step(timeline)
    rows = [
        TimelineRow(label=f"GPU {timeline.device}", lane="gpu", spans=_gpu_row(timeline, low, high, nccl=False)),
        TimelineRow(label="comm", lane="gpu", spans=_gpu_row(timeline, low, high, nccl=True)),
        TimelineRow(label="idle", lane="gaps", spans=_gap_row(gaps, low, high)),
        *_host_rows(timeline, low, high),
        TimelineRow(label="phases (host)", lane="phases", spans=_phase_row(phases, low, high)),
    ]
    return Timeline(step=step, seconds=(high - low) / 1e9, rows=tuple(row for row in rows if row.spans))


def step_of_median_length(timeline: DeviceTimeline) -> int:
    """Return which step of a device is the one to draw: of the two in the middle, the shorter one."""
    lengths = np.diff(timeline.bounds)
    return int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])


def _median_step(timeline: DeviceTimeline) -> tuple[int | None, int, int]:
    if not timeline.counted:
        later = timeline.ops.start[_MOST_EVENTS:]
        return None, timeline.begin_ns, int(later[0]) if len(later) else timeline.end_ns
    step = step_of_median_length(timeline)
    return step, int(timeline.bounds[step]), int(timeline.bounds[step + 1])


def _gpu_row(timeline: DeviceTimeline, low: int, high: int, nccl: bool) -> tuple[Span, ...]:
    ops = timeline.ops
    chosen = (ops.end > low) & (ops.start < high) & (timeline.is_nccl == nccl)
    mine = ops.select(chosen)
    names = timeline.trace.names

    def describe(row: int) -> tuple[str, str]:
        if mine.kind[row] == model.KERNEL:
            return kind_of(names[mine.full_name[row]]), names[mine.name[row]]
        return KINDS.get(int(mine.kind[row]), "other"), names[mine.name[row]]

    return _spans(mine.start, mine.end, low, high, describe)


def _gap_row(gaps: Gaps, low: int, high: int) -> tuple[Span, ...]:
    spans = gaps.spans
    chosen = np.flatnonzero((spans.ends > low) & (spans.starts < high))
    causes = list(CAUSES)
    table = np.stack([gaps.by_cause[cause][chosen] for cause in causes], axis=1) if len(chosen) else None

    def describe(row: int) -> tuple[str, str]:
        assert table is not None
        cause = causes[int(np.argmax(table[row]))]
        return cause, CAUSES[cause]

    return _spans(spans.starts[chosen], spans.ends[chosen], low, high, describe)


def _host_rows(timeline: DeviceTimeline, low: int, high: int) -> list[TimelineRow]:
    """Return the rows of a step's timeline that show the launching threads, one each."""
    calls = timeline.trace.calls
    kinds = cuda.call_kinds(timeline.trace)
    names = timeline.trace.names
    rows = []
    for thread in timeline.launchers.tolist():
        mine = calls.select(
            (calls.process == timeline.process)
            & (calls.thread == thread)
            & (calls.end > low)
            & (calls.start < high)
        )
        mine = mine.select(np.argsort(mine.start, kind="stable"))

        def describe(row: int, mine: model.ApiCalls = mine) -> tuple[str, str]:
            return cuda.KIND_NAMES[kinds[mine.name[row]]], cuda.unversioned_name(names[mine.name[row]])

        label = "host (main)" if thread == timeline.process else f"host ({thread})"
        rows.append(TimelineRow(label=label, lane="host", spans=_spans(mine.start, mine.end, low, high, describe)))
    return rows


def _phase_row(phases: list[PhaseSpans], low: int, high: int) -> tuple[Span, ...]:
    found = []
    for phase in phases:
        if "/" in phase.path:
            continue
        for start, end in zip(phase.spans.starts.tolist(), phase.spans.ends.tolist(), strict=True):
            seen = min(end, high) - max(start, low)
            if seen > 0:
                found.append(Span((max(start, low) - low) / 1e9, seen / 1e9, phase.path, phase.path))
    return tuple(sorted(found, key=lambda span: span.start))[:_MOST_SPANS]


def _spans(
    starts: Ns, ends: Ns, low: int, high: int, describe: Callable[[int], tuple[str, str]]
) -> tuple[Span, ...]:
    """Pieces of a row, in order of their start; neighbours are joined when there are too many."""
    apart = 0 if len(starts) <= _MOST_SPANS else 2 * (high - low) // _MOST_SPANS
    joined: list[_JoinedSpan] = []
    for row in range(len(starts)):
        start, end = max(int(starts[row]), low), min(int(ends[row]), high)
        kind, text = describe(row)
        last = joined[-1] if joined else None
        if apart and last is not None and max(end, last.end) - last.start < apart:
            last.add(start, end, kind)
        else:
            joined.append(_JoinedSpan(start, end, text[:LONGEST_TEXT], {kind: end - start}))
    return tuple(piece.span(low) for piece in joined)


@dataclass
class _JoinedSpan:
    """Neighbouring pieces of a row that are drawn as one."""

    start: int
    end: int
    text: str
    kinds: dict[str, int]
    """How long each kind takes."""
    count: int = 1

    def add(self, start: int, end: int, kind: str) -> None:
        self.end = max(self.end, end)
        self.kinds[kind] = self.kinds.get(kind, 0) + end - start
        self.count += 1

    def span(self, low: int) -> Span:
        length = max(self.end - self.start, 1)
        fill = min(1.0, sum(self.kinds.values()) / length)
        kind = max(self.kinds, key=lambda key: self.kinds[key])
        text = self.text if self.count == 1 else f"{self.count} pieces, {percent_text(100 * fill)} of this time"
        return Span((self.start - low) / 1e9, (self.end - self.start) / 1e9, kind, text, round(fill, 3))
