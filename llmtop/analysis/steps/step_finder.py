"""Where the steps of a process begin and end in a trace, and which phases lie in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from llmtop.analysis.steps.inferred_steps import FEWEST_MARKS, infer_steps
from llmtop.analysis.steps.repetition import (
    FEWEST_KERNELS,
    LaunchedKernels,
    group_marks,
    hold_the_work,
    is_loop_of,
    makes_the_operators,
    may_be_layers,
    period_of,
)
from llmtop.naming.phase_names import (
    is_model_part,
    is_numbered_step,
    is_optimizer_step,
    is_warm_up,
    role_of,
    without_number,
)
from llmtop.trace import model
from llmtop.trace.groups import distinct_values, is_among
from llmtop.trace.intervals import Ns, Numbers, Spans, union
from llmtop.trace.xla.host import STEP_MARK

LIBRARY_DOMAINS = re.compile(
    r"^(nccl|cccl|cub|thrust|cublas|cublaslt|cudnn|cufft|cusparse|cusolver|nvshmem)$", re.I
)
"""NVTX domains of libraries: their ranges are neither steps nor phases of a training."""


@dataclass(frozen=True)
class ProcessSteps:
    """The whole steps of one process, one after another, in host time."""

    process: int
    thread: int | None
    """The thread whose ranges mark them."""
    starts: Ns
    ends: Ns
    found_by: str
    marker: int = -1
    """The name that marks a step; -1 when none does."""
    inferred: bool = False
    """True if no range marks them: they were seen in what repeats."""
    closed: bool = False
    """True if the last step is whole though nothing follows it: its kernels are those of the others."""
    cut_before: int = 0
    cut_after: int = 0
    """How many whole steps before and after these were not asked for."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def why_none_on_device(self) -> str:
        """Why a device has no whole step: none was found, or what was found is not where the device worked."""
        return f"{self.found_by} covers too little of the device's activity" if len(self) else self.found_by

    @property
    def seconds(self) -> list[float]:
        """How long each step took by the host's clock, in seconds."""
        return [float(t) / 1e9 for t in (self.ends - self.starts).tolist()]


_FEWEST_REGULAR = 3
"""Fewest occurrences: for fewer, no distance can be regular."""
_UNEVEN = 0.5
"""How far, in parts of the mean, the starts of steps may spread."""
_VERY_END = 0.1
"""Part of a range that waits for input in which the first launch of the step may lie."""
_PROFILER_STEP = "ProfilerStep"
_NUMBER = re.compile(r"\d+")
_LONGEST_COUNT = 9
"""Digits of a number that counts steps."""
_LONGEST = 200
"""Characters of a name in which its numbers are searched."""
_STUB = 0.05
"""A last step shorter than this part of the others is none."""
_NONE = np.empty(0, dtype=np.int64)


def select_steps(steps: ProcessSteps, wanted: int | tuple[int, int] | None) -> ProcessSteps:
    """Return the first `wanted` whole steps, or steps a to b (b excluded); all steps for None."""
    if wanted is None:
        return steps
    first, last = (0, wanted) if isinstance(wanted, int) else wanted
    before, after = len(steps.starts[:first]), len(steps.starts[last:])
    starts, ends = steps.starts[first:last], steps.ends[first:last]
    closed = steps.closed and not after
    return replace(steps, starts=starts, ends=ends, closed=closed, cut_before=before, cut_after=after)


def own_ranges(trace: model.Trace, process: int) -> model.Ranges:
    """Return the ranges of a process that its training (not a library) made, in order of their start."""
    ranges = trace.ranges.select(trace.ranges.process == process)
    mine = ranges.select(~_library_names(trace.names, ranges.domain) & ~_library_names(trace.names, ranges.name))
    # A range that encloses another and starts with it comes first.
    return mine.select(np.lexsort((-mine.end, mine.start)))


def _library_names(names: list[str], rows: Numbers) -> npt.NDArray[np.bool_]:
    """Return which of these names (rows of `names`) are a library's."""
    used, at = np.unique(rows, return_inverse=True)
    library = [bool(LIBRARY_DOMAINS.match(names[n])) or names[n].startswith("nccl") for n in used.tolist()]
    return np.array(library, dtype=bool)[at.reshape(-1)]


def deepest_nesting(ranges: model.Ranges) -> int:
    """Return how deep the ranges of any thread lie in each other; those without an end are not counted."""
    closed = ranges.select((ranges.end != model.OPEN) & (ranges.end > ranges.start))
    if not len(closed):
        return 0
    threads = np.unique(np.stack([closed.process, closed.thread], axis=1), axis=0, return_inverse=True)[1]
    owner = np.concatenate([threads.reshape(-1)] * 2)
    instant = np.concatenate([closed.start, closed.end])
    change = np.repeat(np.array([1, -1]), len(closed))
    # Thread by thread; at one instant a range ends before the next begins.
    return int(np.cumsum(change[np.lexsort((change, instant, owner))]).max())


def find_steps(trace: model.Trace, process: int) -> ProcessSteps:
    """Return the whole steps of a process.

    By the first of these that occurs: a range named like a step (step, train_step, ProfilerStep#7, iteration 12);
    torch_xla's own marks; the ends of the optimizer's range; the beginnings of the range that waits for input; the
    beginnings of the most regular of the outermost ranges; what repeats in the kernels that ran. Steps of a
    warm-up do not count.
    """
    ranges = own_ranges(trace, process)
    closed = ranges.select(ranges.end != model.OPEN)
    base = _base_names(trace.names, closed.name)
    for finder in (
        _steps_from_names,
        _steps_from_torch_xla,
        _steps_from_optimizer,
        _steps_from_input,
        _steps_from_regularity,
    ):
        found = finder(trace, process, closed, base)
        if found is not None:
            return found
    seen = infer_steps(trace, process)
    if seen is not None and len(seen.instants) > 1:
        return ProcessSteps(process, None, seen.instants[:-1], seen.instants[1:], seen.how, inferred=True)
    if (trace.ranges.process == process).any():
        reason = "none of the ranges repeats like a step"
    elif ((trace.host.process == process) & (trace.host.kind == model.OPERATOR)).any():
        reason = "the capture has no ranges besides PyTorch's own"
    else:
        reason = "the capture has no ranges"
    return ProcessSteps(process, None, _NONE, _NONE, reason)


BaseNames: TypeAlias = dict[int, str]
"""Names without the numbers at their ends, by their row in `Trace.names`."""


def _base_names(names: list[str], rows: Numbers) -> BaseNames:
    """Names, by their row in `names`, without the number at their end: ProfilerStep#7 is ProfilerStep."""
    return {row: without_number(names[row]) for row in distinct_values(rows).tolist()}


def _steps_from_names(
    trace: model.Trace, process: int, ranges: model.Ranges, base: BaseNames
) -> ProcessSteps | None:
    like_a_step = {number for number, name in base.items() if role_of(name) == "step"}
    if not like_a_step:
        like_a_step = {number for number in base if is_numbered_step(trace.names[number])}
    rows = ranges.select(is_among(ranges.name, list(like_a_step)))
    if not len(rows):
        return None
    # Several kinds (a user's step inside ProfilerStep): the outermost marks the step, so take the longest. But one
    # that comes once and encloses several of another is around all of them.
    kinds: dict[tuple[str, int], int] = {}
    counts: dict[tuple[str, int], int] = {}
    for name, thread, length in zip(
        rows.name.tolist(), rows.thread.tolist(), (rows.end - rows.start).tolist(), strict=True
    ):
        key = (base[name], thread)
        kinds[key] = kinds.get(key, 0) + length
        counts[key] = counts.get(key, 0) + 1
    several = {key for key, count in counts.items() if count >= _FEWEST_REGULAR}
    chosen = [key for key in kinds if counts[key] > 1 or key[0] == _PROFILER_STEP] if several else list(kinds)
    name, thread = max(chosen, key=lambda key: kinds[key])
    mine = rows.select(
        (rows.thread == thread) & is_among(rows.name, [n for n, text in base.items() if text == name])
    )
    starts, ends = _without_stub(mine.start, mine.end)
    between = starts[1:] - ends[:-1]
    if len(starts) > 1 and np.median(between) > 0.01 * np.median(np.diff(starts)):
        # Something (the loader, as a rule) lies between the ranges, and it is a part of what a step costs.
        starts, ends = starts[:-1], starts[1:]
        how = f"from the start of one range {name!r} to the next"
    else:
        how = f"the range {name!r}"
    return ProcessSteps(process, thread, starts, ends, how, int(mine.name[0]))


def _without_stub(starts: Ns, ends: Ns) -> tuple[Ns, Ns]:
    """Without a last range that was cut short: a profiler that stops at a step's begin leaves one of some µs."""
    if len(starts) > 1 and ends[-1] - starts[-1] < _STUB * np.median(ends[:-1] - starts[:-1]):
        return starts[:-1], ends[:-1]
    return starts, ends


def _steps_from_torch_xla(
    trace: model.Trace, process: int, ranges: model.Ranges, base: BaseNames
) -> ProcessSteps | None:
    if trace.framework != "torch_xla":
        return None
    found = _steps_from_marker(process, ranges, trace.names, lambda name: name == STEP_MARK, "end")
    if found is None:
        return None
    return replace(found, found_by="from one mark of torch_xla's (torch_xla.sync, mark_step) to the next")


def _steps_from_optimizer(
    trace: model.Trace, process: int, ranges: model.Ranges, base: BaseNames
) -> ProcessSteps | None:
    return _steps_from_marker(process, ranges, trace.names, is_optimizer_step, "end")


def _steps_from_input(
    trace: model.Trace, process: int, ranges: model.Ranges, base: BaseNames
) -> ProcessSteps | None:
    waits = input_ranges(trace, process, ranges)
    best: _Marks | None = None
    for thread, rows in rows_by_value(waits.thread):
        for name, own in rows_by_value(waits.name[rows]):
            starts = np.sort(waits.start[rows][own])
            if len(starts) >= _FEWEST_REGULAR and (best is None or len(starts) < len(best.starts) // 2):
                best = _Marks(name, thread, starts, hidden=False, numbered=False)
    if best is None:
        return None
    kernels = LaunchedKernels.of_thread(trace, process, best.thread)
    works = len(kernels.rows) > 0 or makes_the_operators(trace, process, best.thread, best.starts)
    period = period_of(kernels, best.starts) if works else None
    return None if period is None else _steps_between(trace, process, best, period, "")


def input_ranges(trace: model.Trace, process: int, ranges: model.Ranges) -> model.Ranges:
    """Return those of a process's ranges that wait for input: by their name, and by what is done in them.

    A range in which its thread launches matrix products or attention is the model's, whatever it is called.

    Args:
        trace: the capture.
        process: its pid.
        ranges: of this process, each with an end.
    """
    named = [number for number in distinct_values(ranges.name).tolist() if role_of(trace.names[number]) == "input"]
    waits = ranges.select(is_among(ranges.name, named))
    if not len(waits) or not len(trace.calls):
        return waits
    products = LaunchedKernels.from_trace(trace, process).products
    wrong = [
        name
        for name, own in rows_by_value(waits.name)
        if 2 * _around_launches(trace, products, waits.select(own)) > len(own)
    ]
    return waits.select(~is_among(waits.name, wrong))


def _around_launches(trace: model.Trace, calls: Ns, ranges: model.Ranges) -> int:
    """In how many ranges their own thread made one of these calls (rows of `Trace.calls`), before its very end: a
    thread that had to wait launches as soon as it need not."""
    found = 0
    for thread, own in rows_by_value(ranges.thread):
        at = np.sort(trace.calls.start[calls[trace.calls.thread[calls] == thread]])
        ends = ranges.end[own] - (_VERY_END * (ranges.end[own] - ranges.start[own])).astype(np.int64)
        inside = np.searchsorted(at, ends) > np.searchsorted(at, ranges.start[own])
        found += int(inside.sum())
    return found


def _steps_from_marker(
    process: int, ranges: model.Ranges, names: list[str], matches: Callable[[str], bool], edge: str
) -> ProcessSteps | None:
    """Steps between the same edge of consecutive ranges of one name."""
    best: tuple[int, int] | None = None
    wanted = [name for name in distinct_values(ranges.name).tolist() if matches(names[name])]
    marks = ranges.select(is_among(ranges.name, wanted))
    pairs, counts = np.unique(np.stack([marks.name, marks.thread], axis=1), axis=0, return_counts=True)
    for (name, thread), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        if count >= 2 and (best is None or count < best[1] // 2 or best[1] < 2):
            best, chosen = (name, count), thread
    if best is None:
        return None
    rows = ranges.select((ranges.name == best[0]) & (ranges.thread == chosen))
    edges = np.sort(rows.end if edge == "end" else rows.start)
    how = f"from the {edge} of one range {names[best[0]]!r} to the next"
    return ProcessSteps(process, chosen, edges[:-1], edges[1:], how, best[0])


def _steps_from_regularity(
    trace: model.Trace, process: int, ranges: model.Ranges, base: BaseNames
) -> ProcessSteps | None:
    """Return the outermost ranges of a thread whose starts are the most evenly spaced, of at least three.

    What comes once or twice (a range around everything, an evaluation) hides nothing that lies in it. Of layers
    and the like so many make a step as the kernels need to repeat.
    """
    found: list[tuple[float, _Marks, int]] = []
    for thread, rows in rows_by_value(ranges.thread):
        kernels = LaunchedKernels.of_thread(trace, process, thread)
        for marks in _regular_candidates(trace.names, ranges.select(rows), thread):
            period = period_of(kernels, marks.starts)
            name = trace.names[marks.name]
            if period is None or (period == 1 and (is_model_part(name) or may_be_layers(kernels, marks.starts))):
                continue
            # A function of a library (Executor::bindInputs) is no mark of a script's.
            as_steps = period > 1 or "::" in name
            in_doubt = as_steps or marks.hidden or (marks.numbered and len(kernels.launched) > 0)
            if in_doubt and not hold_the_work(kernels, marks.starts[::period], as_steps):
                continue
            longest = FEWEST_KERNELS - 1 if as_steps or marks.hidden else 0
            if is_loop_of(kernels, marks.starts[::period], longest):
                continue
            if not len(kernels.rows) and not makes_the_operators(trace, process, thread, marks.starts):
                continue
            unevenness = _unevenness(np.diff(marks.starts[::period]), marks.numbered or period > 1)
            # Where the kernels repeat with more marks, that is evidence enough: a first pass may take much longer.
            if unevenness < _UNEVEN or period > 1:
                found.append((unevenness, marks, period))
    if not found:
        return None
    _, best, period = min(found, key=lambda one: one[0])
    return _steps_between(trace, process, best, period, ", the most regular of the capture")


@dataclass(frozen=True)
class _Marks:
    """The starts of ranges of one kind, which may mark steps, in ns, in order."""

    name: int
    thread: int
    starts: Ns
    hidden: bool
    """True if they lie in ranges that come once or twice."""
    numbered: bool
    """True if their names differ in a number that counts up."""


def _unevenness(intervals: Ns, tolerant: bool) -> float:
    """Return how far intervals spread, in parts of what is usual; `tolerant`: a few may take much longer."""
    if not len(intervals):
        return np.inf
    if tolerant:
        low, usual, high = np.percentile(intervals, (25, 50, 75))
        return float((high - low) / max(usual, 1.0))
    return float(np.std(intervals) / max(float(np.mean(intervals)), 1.0))


def _regular_candidates(names: list[str], ranges: model.Ranges, thread: int) -> Iterator[_Marks]:
    """Ranges of one thread that lie in none that comes as often, kind by kind."""
    kind, kinds = _kinds_of_ranges(names, ranges.name)
    if not len(kinds):
        return
    counts = np.bincount(kind, minlength=len(kinds))
    exact = np.array([names[first] for first in kinds]) == np.array(list(kinds.values()))
    fewest = np.where(exact, _FEWEST_REGULAR, FEWEST_MARKS)
    first_names = list(kinds)
    outside = np.zeros(len(ranges), dtype=bool)
    outside[_outermost(ranges)] = True
    often = (counts >= fewest)[kind]
    kept, kind, outside = ranges.select(often), kind[often], outside[often]
    outer = _outermost(kept)
    for number, own in rows_by_value(kind[outer]):
        name = first_names[number]
        if len(own) < fewest[number] or is_warm_up(names[name]):
            continue
        hidden = not bool(outside[outer][own].all())
        yield _Marks(name, thread, np.sort(kept.start[outer][own]), hidden, not exact[number])


def _steps_between(trace: model.Trace, process: int, marks: _Marks, period: int, why: str) -> ProcessSteps:
    """Return the steps from one start of a range to the `period`-th after it."""
    label, starts = trace.names[marks.name], marks.starts
    if period == 1:
        how = f"from the start of one range {label!r} to the next{why}"
    else:
        starts = group_marks(LaunchedKernels.of_thread(trace, process, marks.thread), starts, period)
        how = f"from one range {label!r} to the {period}. after it, by the kernels that repeat{why}"
    marker = marks.name if period == 1 else -1
    closed = period > 1 and int(starts[-1]) > int(marks.starts[-1])
    return ProcessSteps(process, marks.thread, starts[:-1], starts[1:], how, marker, closed=closed)


def _kinds_of_ranges(names: list[str], rows: Numbers) -> tuple[Ns, dict[int, str]]:
    """Return the kind of each range as a number; and, for each kind in order, the first of its names and its
    title.

    Ranges of one name are of one kind; names that come less than three times are one that differ in one number
    only, which counts up (token_1_done, token_2_done).
    """
    different, first, which, counts = np.unique(rows, return_index=True, return_inverse=True, return_counts=True)
    kinds: dict[int, str] = {}
    by_text: dict[str, int] = {}
    last: dict[str, int] = {}
    kind_of_name = np.zeros(len(different), dtype=np.int64)
    for at in np.argsort(first, kind="stable").tolist():
        name = int(different[at])
        text = names[name]
        numbers = _NUMBER.findall(text[:_LONGEST]) if counts[at] < _FEWEST_REGULAR else []
        if len(numbers) == 1 and len(numbers[0]) <= _LONGEST_COUNT:
            pattern, value = _NUMBER.sub("#", text[:_LONGEST]), int(numbers[0])
            if value == last.get(pattern, value - 1) + 1:
                text, last[pattern] = pattern, value
        if text not in by_text:
            by_text[text] = len(kinds)
            kinds[name] = text
        kind_of_name[at] = by_text[text]
    return kind_of_name[which.reshape(-1)], kinds


def rows_by_value(values: Numbers) -> Iterator[tuple[int, Ns]]:
    """Yield each different value, in ascending order, with the rows that have it, in theirs."""
    if not len(values):
        return
    order = np.argsort(values, kind="stable")
    different, first = np.unique(values[order], return_index=True)
    yield from zip(different.tolist(), np.split(order, first[1:]), strict=True)


def _outermost(ranges: model.Ranges) -> Ns:
    """Return the rows of the ranges of one thread, in order of their start, that lie in no other range."""
    if not len(ranges):
        return np.empty(0, dtype=np.int64)
    reach = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(ranges.end)[:-1]])
    return np.flatnonzero(ranges.start >= reach)


@dataclass(frozen=True)
class PhaseSpans:
    """All ranges of one phase, by its path, on the thread that makes the steps."""

    path: str
    spans: Spans
    starts: Ns


def _encloses_steps(ranges: model.Ranges, steps: ProcessSteps) -> npt.NDArray[np.bool_]:
    """Return which ranges of one thread hold two whole steps or, where there are none, all other ranges: no
    phases."""
    if not len(ranges):
        return np.zeros(0, dtype=bool)
    if len(steps) > 1:
        first = np.searchsorted(steps.starts, ranges.start)
        return np.asarray(np.searchsorted(steps.ends, ranges.end, side="right") - first >= 2)
    around = (ranges.start <= ranges.start.min()) & (ranges.end >= ranges.end.max())
    once = np.bincount(ranges.name)[ranges.name] == 1
    return np.asarray(around & once & (not len(steps)) & (len(ranges) > 1))


_DEEPEST = 3
_MOST_PHASES = 40


def find_phases(trace: model.Trace, steps: ProcessSteps) -> list[PhaseSpans]:
    """Return the phases of a process, by the ranges on its steps' thread; the range that marks a whole step is
    none.

    Nested ones have their parents' names before theirs. At most 40, the longest.
    """
    ranges = own_ranges(trace, steps.process)
    ranges = ranges.select((ranges.end != model.OPEN) & (ranges.style == model.PUSH_POP))
    thread = steps.thread
    if thread is None:
        if not len(ranges):
            return []
        threads, counts = np.unique(ranges.thread, return_counts=True)
        thread = int(threads[np.argmax(counts)])
    ranges = ranges.select(ranges.thread == thread)
    ranges = ranges.select(~_encloses_steps(ranges, steps))
    base = _base_names(trace.names, ranges.name)
    marked = without_number(trace.names[steps.marker]) if steps.marker >= 0 else None
    numbered = marked is not None and is_numbered_step(trace.names[steps.marker])
    whole_step = {n for n, name in base.items() if role_of(name) == "step" or (numbered and name == marked)}
    paths: dict[str, list[tuple[int, int]]] = {}
    stack: list[tuple[int, str]] = []
    for start, end, name in zip(ranges.start.tolist(), ranges.end.tolist(), ranges.name.tolist(), strict=True):
        while stack and stack[-1][0] <= start:
            stack.pop()
        if name in whole_step:
            continue
        if len(stack) >= _DEEPEST:
            stack.append((end, ""))  # deeper ones are no phases: no name, which would grow with the depth
            continue
        path = f"{stack[-1][1]}/{base[name]}" if stack else base[name]
        stack.append((end, path))
        paths.setdefault(path, []).append((start, end))
    found = []
    for path, pieces in paths.items():
        table = np.array(pieces, dtype=np.int64)
        found.append(PhaseSpans(path, union(table[:, 0], table[:, 1]), table[:, 0]))
    found.sort(key=lambda phase: -phase.spans.total)
    return found[:_MOST_PHASES]
