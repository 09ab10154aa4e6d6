"""Timeline of every device over all its whole steps: streams, idle time by cause, host calls, phases."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llmtop.analysis.idle import cuda_calls as cuda
from llmtop.analysis.idle.idle_causes import CAUSES, Gaps
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.step_finder import PhaseSpans
from llmtop.analysis.timeline.step_timeline import KINDS, LONGEST_TEXT, step_of_median_length
from llmtop.analysis.work.operators import launching_operators
from llmtop.document.timeline import DeviceRows, PieceRow, WholeTimeline
from llmtop.format import counted, pid_text, printable
from llmtop.naming.kernel_names import functor_of, kind_of
from llmtop.trace import model
from llmtop.trace.groups import distinct_values, is_among
from llmtop.trace.intervals import Ns

MOST_PIECES = 30_000
"""Limit for all rows together: a page with as many has 1 MB, and a screen fewer pixels."""
MOST_IN_MEDIAN_STEP = 1_500
"""More of each row of the judged device, in its step of median length."""
MOST_DEVICES = 64
_MOST_STREAMS = 4
"""Rows of a device; what runs on others is in one more."""
_MOST_THREADS = 4
_MOST_STEPS = 2000
_MOST_CHARACTERS = 400_000
"""Limit for all texts together; later ones are cut to a few words."""
_SHORT_TEXT = 40
_STEP = "step"


@dataclass(frozen=True)
class _Events:
    """Events that become one row, in order of their start."""

    label: str
    start: Ns
    end: Ns
    text: Ns
    """A number for each different text."""
    legend: Callable[[int], tuple[str, str]]
    """Kind and text of such a number."""


class _TextTable:
    """Texts and kinds, each once."""

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self.texts: dict[str, int] = {}
        self._characters = 0

    def kind(self, name: str) -> int:
        return self.kinds.setdefault(name, len(self.kinds))

    def text(self, text: str) -> int:
        width = LONGEST_TEXT if self._characters < _MOST_CHARACTERS else _SHORT_TEXT
        text = printable(text, width)
        if text not in self.texts:
            self._characters += len(text)
            self.texts[text] = len(self.texts)
        return self.texts[text]


def whole_timeline(
    timelines: list[DeviceTimeline],
    gaps: list[Gaps],
    phases: dict[int, list[PhaseSpans]],
    ranks: dict[int, int],
    judged: DeviceTimeline | None,
) -> WholeTimeline | None:
    """Return the timeline of all whole steps on all devices; None where nothing ran on any.

    Args:
        timelines: one for each process and GPU; beyond `MOST_DEVICES` they are left out.
        gaps: their idle time, in the same order.
        phases: by pid.
        ranks: rank by pid, where known.
        judged: the device whose steps can be gone through one by one; it is drawn in more detail.
    """
    shown = sorted(range(len(timelines)), key=lambda at: (timelines[at] is not judged, at))[:MOST_DEVICES]
    if not shown:
        return None
    low = min(int(timelines[at].bounds[0]) for at in shown)
    high = max(int(timelines[at].bounds[-1]) for at in shown)
    tables = [
        (_label(timelines[at], ranks), _device_rows(timelines[at], gaps[at], phases[timelines[at].process]))
        for at in sorted(shown)
    ]
    words = _TextTable()
    usual = _median_step(judged)
    most = _most_pieces_per_row([len(row.start) for _, rows in tables for row in rows])
    devices = [
        DeviceRows(
            label=label,
            rows=tuple(
                _pieces(row, (low, high), most, usual if timelines[at] is judged else None, words)
                for row in rows
                if len(row.start)
            ),
        )
        for at, (label, rows) in zip(sorted(shown), tables, strict=True)
    ]
    steps = sorted({timelines[at].counted for at in shown})
    left = len(timelines) - len(shown)
    return WholeTimeline(
        title=_title(len(shown), steps),
        length=max(high - low, 1),
        kinds=tuple(words.kinds),
        texts=tuple(words.texts),
        devices=tuple(devices),
        usual=None if usual is None else (usual[0] - low, usual[1] - usual[0]),
        steps=() if judged is None or not judged.counted else _starts_and_lengths(judged, low),
        left_out=f"{counted(left, 'more GPU')} of the capture: not in the timeline" if left else "",
    )


def _title(devices: int, steps: list[int]) -> str:
    """Title of the timeline: "2 GPUs, 15 steps each"."""
    gpus = counted(devices, "GPU")
    if not steps[-1]:
        return f"{gpus}, the whole capture"
    number = counted(steps[-1], "step") if len(steps) == 1 else f"{steps[0]} to {steps[-1]} steps"
    return f"{gpus}, {number}{' each' if devices > 1 else ''}"


def _median_step(timeline: DeviceTimeline | None) -> tuple[int, int] | None:
    """Return begin and end of the step of median length."""
    if timeline is None or not timeline.counted:
        return None
    step = step_of_median_length(timeline)
    return int(timeline.bounds[step]), int(timeline.bounds[step + 1])


def _starts_and_lengths(timeline: DeviceTimeline, low: int) -> tuple[tuple[int, int], ...]:
    bounds = (timeline.bounds - low).tolist()[: _MOST_STEPS + 1]
    return tuple((start, end - start) for start, end in itertools.pairwise(bounds))


def _label(timeline: DeviceTimeline, ranks: dict[int, int]) -> str:
    rank = ranks.get(timeline.process)
    return f"GPU {timeline.device}, " + (
        f"pid {pid_text(timeline.process)}" if rank is None else f"rank {rank} (pid {pid_text(timeline.process)})"
    )


def _device_rows(timeline: DeviceTimeline, gaps: Gaps, phases: list[PhaseSpans]) -> list[_Events]:
    low, high = int(timeline.bounds[0]), int(timeline.bounds[-1])
    rows = [
        _step_row(timeline),
        *_stream_rows(timeline),
        _idle_row(gaps),
        *_host_rows(timeline),
        _phase_rows(phases),
    ]
    return [_clip_row(row, low, high) for row in rows]


def _clip_row(row: _Events, low: int, high: int) -> _Events:
    chosen = np.flatnonzero((row.end > low) & (row.start < high))
    start, end = np.maximum(row.start[chosen], low), np.minimum(row.end[chosen], high)
    order = np.argsort(start, kind="stable")
    start, end, text = start[order], end[order], row.text[chosen][order]
    if len(start):
        # What runs beside another piece of the row is seen where it is alone.
        behind = np.maximum.accumulate(np.concatenate(([low], end[:-1])))
        start = np.maximum(start, behind)
    seen = end > start
    return _Events(row.label, start[seen], end[seen], text[seen], row.legend)


def _step_row(timeline: DeviceTimeline) -> _Events:
    number = np.arange(timeline.counted, dtype=np.int64)
    bounds = timeline.bounds if timeline.counted else timeline.bounds[:1]
    return _Events("steps", bounds[:-1], bounds[1:], number, lambda step: (_STEP, f"step {step}"))


def _stream_rows(timeline: DeviceTimeline) -> list[_Events]:
    """Return a row for each stream, the busiest first: work of one stream never runs at once."""
    ops, names = timeline.ops, timeline.trace.names
    by = launching_operators(timeline.trace)[timeline.rows]
    operator = np.where(by >= 0, timeline.trace.host.name[by], -1) if len(timeline.trace.host) else by
    key = np.stack([operator, ops.name, ops.full_name, ops.kind.astype(np.int64)], axis=1)
    different, which = np.unique(key, axis=0, return_inverse=True)
    which = which.reshape(-1).astype(np.int64)

    def describe_op(number: int) -> tuple[str, str]:
        own, name, full_name, kind = different[number].tolist()
        by_operator = f"{names[own]}: " if own >= 0 else ""
        if kind != model.KERNEL:
            return KINDS.get(kind, "other"), f"{by_operator}{names[name]}"
        functor = functor_of(names[full_name])
        of = f" of {functor}" if functor else ""
        return kind_of(names[full_name]), f"{by_operator}{names[name]}{of}"

    streams, place = np.unique(ops.stream, return_inverse=True)
    place = place.reshape(-1)
    busy = np.bincount(place, weights=ops.end - ops.start, minlength=len(streams))
    order = np.argsort(-busy, kind="stable")
    chosen = [(f"stream {streams[at]}", place == at) for at in order[:_MOST_STREAMS].tolist()]
    if len(order) > _MOST_STREAMS:
        rest = is_among(place, order[_MOST_STREAMS:])
        chosen.append((f"{len(order) - _MOST_STREAMS} more streams", rest))
    return [_Events(label, ops.start[rows], ops.end[rows], which[rows], describe_op) for label, rows in chosen]


def _idle_row(gaps: Gaps) -> _Events:
    causes = list(CAUSES)
    most = np.argmax(np.stack([gaps.by_cause[cause] for cause in causes], axis=1), axis=1).astype(np.int64)
    return _Events("idle", gaps.spans.starts, gaps.spans.ends, most, lambda at: (causes[at], CAUSES[causes[at]]))


def _host_rows(timeline: DeviceTimeline) -> list[_Events]:
    """Return the rows of the threads that launch, the main one first."""
    calls, names = timeline.trace.calls, timeline.trace.names
    kinds = cuda.call_kinds(timeline.trace)

    def describe_call(name: int) -> tuple[str, str]:
        return cuda.KIND_NAMES[kinds[name]], cuda.unversioned_name(names[name])

    threads = sorted(timeline.launchers.tolist(), key=lambda thread: thread != timeline.process)[:_MOST_THREADS]
    rows = []
    for thread in threads:
        mine = np.flatnonzero((calls.process == timeline.process) & (calls.thread == thread))
        label = "host (main)" if thread == timeline.process else f"host ({thread})"
        rows.append(
            _Events(label, calls.start[mine], calls.end[mine], calls.name[mine].astype(np.int64), describe_call)
        )
    return rows


def _phase_rows(phases: list[PhaseSpans]) -> _Events:
    top = [phase for phase in phases if "/" not in phase.path]
    empty = np.zeros(0, dtype=np.int64)
    return _Events(
        "phases (host)",
        np.concatenate([empty, *(phase.spans.starts for phase in top)]),
        np.concatenate([empty, *(phase.spans.ends for phase in top)]),
        np.concatenate([empty, *(np.full(len(phase.spans), at) for at, phase in enumerate(top))]).astype(np.int64),
        lambda at: (top[at].path, top[at].path),
    )


def _most_pieces_per_row(lengths: list[int]) -> int:
    """Return the most pieces of a row with which all rows together have no more than `MOST_PIECES`."""
    low, high = 1, MOST_PIECES
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(length, middle) for length in lengths) <= MOST_PIECES:
            low = middle
        else:
            high = middle - 1
    return low


def _pieces(
    row: _Events, window: tuple[int, int], most: int, usual: tuple[int, int] | None, words: _TextTable
) -> PieceRow:
    first = _first_of_each(row, window, most)
    if usual is not None and len(first) < len(row.start):
        within = np.flatnonzero((row.start >= usual[0]) & (row.end <= usual[1]))
        if len(within):
            a, b = int(within[0]), int(within[-1]) + 1
            closer = _Events(row.label, row.start[a:b], row.end[a:b], row.text[a:b], row.legend)
            fine = a + _first_of_each(closer, usual, MOST_IN_MEDIAN_STEP)
            first = np.concatenate([first[first < a], fine, [b] if b < len(row.start) else [], first[first > b]])
            first = first.astype(np.int64)
    count = np.diff(np.append(first, len(row.start)))
    start, end = row.start[first], np.maximum.reduceat(row.end, first)
    took = row.end - row.start
    filled = np.add.reduceat(took, first)
    text = _dominant_texts(row.text, took, np.repeat(np.arange(len(first)), count))
    said = {number: row.legend(number) for number in distinct_values(text).tolist()}
    kinds = {number: words.kind(printable(kind, 40)) for number, (kind, _) in said.items()}
    texts = {number: words.text(words_of) for number, (_, words_of) in said.items()}
    chosen = text.tolist()
    joined = len(first) < len(row.start)
    fill = np.minimum(100, np.maximum(1, np.round(100.0 * filled / (end - start)))).astype(np.int64)
    return PieceRow(
        label=row.label,
        starts=tuple(np.diff(start, prepend=window[0]).tolist()),
        lengths=tuple((end - start).tolist()),
        kinds=tuple(kinds[number] for number in chosen),
        texts=tuple(texts[number] for number in chosen),
        counts=tuple(count.tolist()) if joined else (),
        fills=tuple(fill.tolist()) if joined else (),
    )


def _first_of_each(row: _Events, window: tuple[int, int], most: int) -> Ns:
    """Return the first event of each piece; neighbours that begin in one cell of time are one, long ones stay
    alone."""
    number = len(row.start)
    if number <= most:
        return np.arange(number)
    (low, high), cells = window, most
    while True:
        cell = max(1, -(-(high - low) // cells))
        place = (row.start - low) // cell
        alone = row.end - row.start >= cell
        begins = np.ones(number, dtype=bool)
        begins[1:] = (place[1:] != place[:-1]) | alone[1:] | alone[:-1]
        first = np.flatnonzero(begins)
        if len(first) <= most or cells == 1:
            return first[:most]
        cells = max(1, cells * 3 // 4)


def _dominant_texts(text: Ns, took: Ns, piece: Ns) -> Ns:
    """For each piece the text that took the most of its time."""
    order = np.lexsort((text, piece))
    text, took, piece = text[order], took[order], piece[order]
    begins = np.flatnonzero(np.append(True, (text[1:] != text[:-1]) | (piece[1:] != piece[:-1])))
    sums = np.add.reduceat(took, begins)
    text, piece = text[begins], piece[begins]
    best = np.lexsort((-sums, piece))
    leads = np.append(True, np.diff(piece[best]) != 0)
    longest: Ns = text[best][leads]
    return longest
