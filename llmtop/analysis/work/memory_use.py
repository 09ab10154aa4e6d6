"""How much memory a capture shows in use, when it was most, whether it grows, and who asked for it."""

from __future__ import annotations

import numpy as np

from llmtop.analysis.steps.step_finder import ProcessSteps
from llmtop.analysis.work.nesting import Nesting
from llmtop.report.host_work import MOST_ROWS, MemoryOperator, MemoryUse
from llmtop.trace import model
from llmtop.trace.groups import grouped
from llmtop.trace.intervals import Ns

_MOST_STEPS = 1000


def memory_use(
    trace: model.Trace, steps: dict[int, ProcessSteps]
) -> tuple[tuple[MemoryUse, ...], tuple[MemoryOperator, ...]]:
    """Return the memory of each process and device, and the operators, ranges or places that asked for most.

    Args:
        trace: with its memory events.
        steps: whole steps, by pid.
    """
    if not len(trace.memory):
        return (), ()
    events = trace.memory.select(np.argsort(trace.memory.start, kind="stable"))
    by = _requesters(trace, events)
    keys, which = grouped(events.process, events.device, events.memory.astype(np.int64))
    uses = tuple(
        _use(trace, events.select(np.flatnonzero(which == number)), by[which == number], steps.get(pid))
        for number, (pid, _, _) in enumerate(keys)
    )
    return tuple(sorted(uses, key=lambda use: -use.peak_bytes)), _operators(trace, events, by)


def _requesters(trace: model.Trace, events: model.MemoryEvents) -> Ns:
    """Return the name of who each event is of: the innermost operator, else the place, else the innermost
    range; or 0."""
    host, ranges = trace.host, trace.ranges
    operators = Nesting(host, np.flatnonzero(host.kind == model.OPERATOR))
    at = operators.innermost(events.process, events.thread, events.start)
    found = np.where(at >= 0, host.name[operators.rows[at]], 0) if len(operators) else np.zeros_like(at)
    found = np.where(found > 0, found, events.place)
    marked = Nesting(ranges, np.flatnonzero(ranges.end != model.OPEN))
    at = marked.innermost(events.process, events.thread, events.start)
    return np.where((found == 0) & (at >= 0), ranges.name[marked.rows[at]], found) if len(marked) else found


def _use(trace: model.Trace, events: model.MemoryEvents, by: Ns, steps: ProcessSteps | None) -> MemoryUse:
    absolute = bool((events.level >= 0).all())
    level = events.level if absolute else np.cumsum(events.bytes)
    begin = int(level[0] - events.bytes[0])
    every = np.concatenate([[begin], level])
    top = int(np.argmax(every))
    largest = int(np.argmax(events.bytes))
    when = int(events.start[max(top - 1, 0)])
    kind = int(events.memory[0])
    growth, peaks = _by_step(events.start, every, steps)
    return MemoryUse(
        pid=int(events.process[0]),
        device=None if events.device[0] == model.HOST_MEMORY else int(events.device[0]),
        memory="" if kind == model.MEMORY_UNKNOWN else model.MEMORIES[kind],
        absolute=absolute,
        start_bytes=begin,
        end_bytes=int(level[-1]),
        peak_bytes=int(every[top]),
        peak_seconds=max(when - trace.window[0], 0) / 1e9,
        reserved_bytes=int(events.reserved.max()) if (events.reserved > 0).any() else None,
        growth_bytes_per_step=growth,
        step_peak_bytes=peaks,
        allocations=int((events.bytes > 0).sum()),
        releases=int((events.bytes < 0).sum()),
        largest_bytes=max(int(events.bytes[largest]), 0),
        largest_by=trace.names[int(by[largest])],
    )


def _by_step(start: Ns, every: Ns, steps: ProcessSteps | None) -> tuple[float | None, tuple[int, ...]]:
    """Return how much the level rises a whole step, and the peak of each whole step.

    Args:
        start: of the events, ns, ascending.
        every: the level before the first event and after each, bytes.
        steps: of the process.
    """
    if steps is None or not len(steps):
        return None, ()
    low = np.searchsorted(start, steps.starts, side="right")
    high = np.searchsorted(start, steps.ends, side="right")
    many = min(len(steps), _MOST_STEPS)
    peaks = tuple(int(every[low[step] : high[step] + 1].max()) for step in range(many))
    if len(steps) < 2:
        return None, peaks
    return float(every[high[-1]] - every[low[0]]) / len(steps), peaks


def _operators(trace: model.Trace, events: model.MemoryEvents, by: Ns) -> tuple[MemoryOperator, ...]:
    keys, which = grouped(events.process, events.device, by)
    gained = np.maximum(events.bytes, 0)
    asked = np.bincount(which, weights=gained, minlength=len(keys))
    net = np.bincount(which, weights=events.bytes, minlength=len(keys))
    counts = np.bincount(which[events.bytes > 0], minlength=len(keys))
    largest = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(largest, which, gained)
    found = [
        MemoryOperator(
            pid=pid,
            device=None if device == model.HOST_MEMORY else device,
            name=trace.names[name],
            allocations=int(counts[row]),
            bytes=int(asked[row]),
            net_bytes=int(net[row]),
            largest_bytes=int(largest[row]),
        )
        for row, (pid, device, name) in enumerate(keys)
        if name and counts[row]
    ]
    return tuple(sorted(found, key=lambda one: -one.bytes)[:MOST_ROWS])
