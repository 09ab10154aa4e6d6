"""The longest gaps, one per line, so that a person can check their causes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmtop.analysis.idle import cuda_calls as cuda
from llmtop.analysis.idle.idle_causes import CAUSES, Gaps
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.step_finder import PhaseSpans
from llmtop.format import duration
from llmtop.report.model import LongGap
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.groups import distinct_values, is_among
from llmtop.trace.intervals import Ns, Spans

_MOST = 12
_MOST_HOST_LINES = 4
_PYTHON_LINE_NS = 100_000
_FINEST = 100
"""A function that takes less than this part of a gap counts for its caller."""
_MOST_EXAMINED = 100
"""Most gaps per cause that are examined for the host's activity in them: a share is then within some 10 points."""


def longest_gaps(
    timelines: list[DeviceTimeline], gaps: list[Gaps], phases: dict[int, list[PhaseSpans]]
) -> tuple[LongGap, ...]:
    """Return the longest gaps of all devices, longest first."""
    found: list[tuple[int, int, int]] = []
    for index, own in enumerate(gaps):
        lengths = own.spans.lengths
        found += [(int(lengths[gap]), index, gap) for gap in np.argsort(-lengths, kind="stable")[:_MOST].tolist()]
    found = sorted(found, key=lambda item: -item[0])[:_MOST]
    told = {index: [gap for _, other, gap in found if other == index] for _, index, _ in found}
    seen = {index: _launcher_rows(timelines[index], gaps[index], chosen) for index, chosen in told.items()}
    return tuple(
        _describe_gap(timelines[index], gaps[index], gap, phases[timelines[index].process], seen[index])
        for _, index, gap in found
    )


def deepest_during(timeline: DeviceTimeline, gaps: Gaps, causes: Collection[str]) -> tuple[str, float] | None:
    """Return the innermost operator or frame on the host for most of the idle time of these causes.

    Args:
        timeline: whose.
        gaps: its gaps.
        causes: keys of `CAUSES`.

    Returns:
        The operator or Python frame, with the percent of that idle time; None where the capture has neither.
    """
    weight = np.sum([gaps.by_cause[cause] for cause in causes], axis=0)
    chosen, share = _examined(weight)
    if not len(timeline.trace.host) or not len(chosen):
        return None
    own = timeline.trace.host.part(timeline.trace.rows_of("host", timeline.process))
    host = _rows_in_spans(own, timeline, _select_gaps(gaps, chosen.tolist()))
    if len(timeline.launchers) > 1:
        # One of them launches while the others wait for it in the C library.
        host = host.select(host.kind != model.OS_CALL)
    shares = dict[int, float]()
    for gap, part in zip(chosen.tolist(), share.tolist(), strict=True):
        start, end = int(gaps.spans.starts[gap]), int(gaps.spans.ends[gap])
        for name, took in _deepest_times(host, start, end).items():
            shares[name] = shares.get(name, 0.0) + part * took / (end - start)
    if not shares:
        return None
    name = max(shares, key=lambda number: shares[number])
    return timeline.trace.names[name], 100.0 * shares[name]


def _examined(weight: Ns) -> tuple[Ns, npt.NDArray[np.float64]]:
    """Return which gaps are examined, and which part of the whole idle time each stands for.

    All of them or, of many, those at even distances along the idle time: a long gap as often as it is long.
    """
    found = np.flatnonzero(weight > 0)
    along = np.cumsum(weight[found])
    if len(found) <= _MOST_EXAMINED:
        return found, weight[found] / along[-1:]
    places = (np.arange(_MOST_EXAMINED) + 0.5) / _MOST_EXAMINED * along[-1]
    chosen, times = np.unique(np.searchsorted(along, places), return_counts=True)
    return found[chosen], times / _MOST_EXAMINED


@dataclass(frozen=True)
class _LauncherRows:
    """Activity of the launching threads of a device timeline in some of its gaps."""

    calls: model.ApiCalls
    host: model.HostSpans


def _launcher_rows(timeline: DeviceTimeline, gaps: Gaps, chosen: list[int]) -> _LauncherRows:
    spans = _select_gaps(gaps, chosen)
    trace, process = timeline.trace, timeline.process
    calls, host = trace.rows_of("calls", process), trace.rows_of("host", process)
    return _LauncherRows(
        _rows_in_spans(trace.calls.part(calls), timeline, spans),
        _rows_in_spans(trace.host.part(host), timeline, spans),
    )


def _select_gaps(gaps: Gaps, chosen: list[int]) -> Spans:
    rows = np.sort(np.array(chosen, dtype=np.int64))
    return Spans(gaps.spans.starts[rows], gaps.spans.ends[rows])


def _describe_gap(
    timeline: DeviceTimeline, gaps: Gaps, gap: int, phases: list[PhaseSpans], seen: _LauncherRows
) -> LongGap:
    start, end = int(gaps.spans.starts[gap]), int(gaps.spans.ends[gap])
    ops, names = timeline.ops, timeline.trace.names
    before, after = _last_ended_row(ops, start), int(gaps.ending[gap])
    causes = {cause: int(gaps.by_cause[cause][gap]) / 1e9 for cause in CAUSES if gaps.by_cause[cause][gap]}
    step = int(np.searchsorted(timeline.bounds, start, side="right")) - 1
    return LongGap(
        device=timeline.device,
        pid=timeline.process,
        start_seconds=(start - timeline.trace.window[0]) / 1e9,
        seconds=(end - start) / 1e9,
        step=step if timeline.counted else None,
        phase=_main_phase(phases, start, end),
        causes=dict(sorted(causes.items(), key=lambda item: -item[1])),
        host=_host_lines(timeline, start, end, phases, seen),
        before=names[ops.name[before]] if before >= 0 else "",
        after=names[ops.name[after]] if after >= 0 else "",
    )


def _last_ended_row(ops: model.DeviceOps, instant: int) -> int:
    """Return the row of what ended last by an instant; -1 where nothing had. Work runs beside other work: what
    began last is not always what ended last."""
    begun = int(np.searchsorted(ops.start, instant))
    ended = np.where(ops.end[:begun] <= instant, ops.end[:begun], np.iinfo(np.int64).min)
    return int(np.argmax(ended)) if begun and ended.max() > np.iinfo(np.int64).min else -1


def _main_phase(phases: list[PhaseSpans], start: int, end: int) -> str:
    """Return the phase that the host was in for at least half of the time between two instants, the innermost;
    "" where it was in none for so long."""
    took = {phase.path: iv.clip(phase.spans, start, end).total for phase in phases}
    inside = [path for path, ns in took.items() if 2 * ns >= end - start]
    return max(inside, key=lambda path: (path.count("/"), took[path]), default="")


def _host_lines(
    timeline: DeviceTimeline, start: int, end: int, phases: list[PhaseSpans], seen: _LauncherRows
) -> tuple[str, ...]:
    """Work of the launching threads between two instants: phases, calls, operators, frames, with their times.

    No time is longer than the gap: what several threads did at once counts once.
    """
    times: dict[str, int] = {}
    inside = [(iv.clip(phase.spans, start, end).total, phase.path.count("/"), phase.path) for phase in phases]
    # Of nested phases the innermost is reported.
    took, _, path = max(inside, default=(0, 0, ""))
    if took:
        times[f"phase {path}"] = took
    names = timeline.trace.names
    calls = _rows_between(seen.calls, start, end)
    for name, took in _covered_by_name(calls, start, end).items():
        call = f"in {cuda.unversioned_name(names[name])}"
        times[call] = min(times.get(call, 0) + took, end - start)
    for name, took in _deepest_times(seen.host, start, end).items():
        if took >= _PYTHON_LINE_NS:
            times[names[name]] = max(took, times.get(names[name], 0))
    quiet = end - start - iv.clip(iv.union(calls.start, calls.end), start, end).total
    if quiet > 0:
        times["no CUDA call"] = quiet
    lines = sorted(times.items(), key=lambda item: -item[1])[:_MOST_HOST_LINES]
    return tuple(f"{what[:120]}: {duration(took / 1e9)}" for what, took in lines)


def _rows_in_spans(table: model.TableT, timeline: DeviceTimeline, spans: Spans) -> model.TableT:
    """Return the launching threads' calls and frames in any of these spans, by start, the outer first.

    A capture has millions of calls and frames, few of which lie in the examined gaps.
    """
    after = np.searchsorted(spans.ends, table.start, side="right")
    last = len(spans) - 1
    rows = np.flatnonzero((after <= last) & (spans.starts[np.minimum(after, last)] < table.end))
    near = table.select(rows)
    mine = (near.process == timeline.process) & is_among(near.thread, timeline.launchers)  # type: ignore[attr-defined]  # both tables of threads have them
    near = near.select(np.flatnonzero(mine))
    return near.select(np.lexsort((-near.end, near.start)))


def _rows_between(table: model.TableT, start: int, end: int) -> model.TableT:
    return table.select(np.flatnonzero((table.end > start) & (table.start < end)))


def _covered_by_name(table: model.ApiCalls, start: int, end: int) -> dict[int, int]:
    """For how long anything of each name lasted between two instants, in ns."""
    found = {}
    for name in distinct_values(table.name).tolist():
        mine = table.select(table.name == name)
        found[name] = iv.clip(iv.union(mine.start, mine.end), start, end).total
    return found


def _deepest_times(host: model.HostSpans, start: int, end: int) -> dict[int, int]:
    """Return how long each operator or frame was the deepest that was open on its thread, by name, in ns of the
    gap.

    Args:
        host: operators and frames in order of their start, the outer first.
        start: of the gap, in ns.
        end: of the gap, in ns.
    """
    rows = _rows_between(host, start, end)
    begin, stop = np.maximum(rows.start, start), np.minimum(rows.end, end)
    seen = np.flatnonzero((stop - begin) * _FINEST >= end - start)
    own: dict[int, list[tuple[int, int, int]]] = {}
    for row in seen.tolist():
        piece = (int(begin[row]), int(stop[row]), int(rows.name[row]))
        own.setdefault(int(rows.thread[row]), []).append(piece)
    times: dict[int, SpanPieces] = {}
    for pieces in own.values():
        _add_deepest(pieces, times)
    return {name: _total(spans) for name, spans in times.items()}


SpanPieces = list[tuple[int, int]]


def _add_deepest(pieces: list[tuple[int, int, int]], times: dict[int, SpanPieces]) -> None:
    """Assign each instant of one thread to the innermost of its pieces (begin, end, name), the outer first."""
    stack: list[tuple[int, int]] = []  # (end, name) of what is open
    at = 0
    for begin, stop, name in pieces:
        while stack and stack[-1][0] <= begin:
            at = _credit_time(times, stack.pop(), at)
        if stack:
            times.setdefault(stack[-1][1], []).append((at, begin))
        at = begin
        # One that outlasts what it began in, on a thread whose clock jumped, ends with it.
        stack.append((min(stop, stack[-1][0]) if stack else stop, name))
    while stack:
        at = _credit_time(times, stack.pop(), at)


def _credit_time(times: dict[int, SpanPieces], ended: tuple[int, int], at: int) -> int:
    end, name = ended
    times.setdefault(name, []).append((at, end))
    return max(at, end)


def _total(spans: SpanPieces) -> int:
    table: Ns = np.array(spans, dtype=np.int64)
    return iv.union(table[:, 0], table[:, 1]).total
