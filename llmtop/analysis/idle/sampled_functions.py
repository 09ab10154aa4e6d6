"""Where the host was by its stack samples: while the GPU was idle, inside CUDA calls, and altogether."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from llmtop.analysis.idle.idle_causes import Gaps
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.report.host_work import MOST_ROWS, SampledFunction
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.groups import distinct_values, grouped, is_among
from llmtop.trace.intervals import Ns, Spans

FEWEST_SAMPLES = 20
"""Fewest samples for a sentence with a share: at 20 the standard error of a share of 50 % is 11 points."""


def sampled_functions(
    trace: model.Trace, timelines: list[DeviceTimeline], gaps: list[Gaps]
) -> tuple[SampledFunction, ...]:
    """Return the functions that samples found innermost, those while the GPU was idle first.

    Args:
        trace: with its samples.
        timelines: one for each process and GPU.
        gaps: their idle time.
    """
    samples = trace.samples
    found: list[SampledFunction] = []
    for pid in distinct_values(samples.process).tolist():
        own = [index for index, timeline in enumerate(timelines) if timeline.process == pid]
        index = max(own, key=lambda index: len(timelines[index].ops), default=None)
        mine = samples.process == pid
        if index is None:
            found += _functions(trace, pid, samples.select(mine & _of_working_threads(trace, pid)), None, iv.EMPTY)
            continue
        timeline = timelines[index]
        mine &= is_among(samples.thread, timeline.launchers)
        calls = trace.calls.select((trace.calls.process == pid) & is_among(trace.calls.thread, timeline.launchers))
        in_calls = iv.union(calls.start, calls.end)
        found += _functions(trace, pid, samples.select(mine), gaps[index].spans, in_calls)
    return tuple(found)


def _of_working_threads(trace: model.Trace, pid: int) -> npt.NDArray[np.bool_]:
    """Return which samples are of the threads with the ranges of a process without device work; all, if none
    is."""
    threads = distinct_values(trace.ranges.thread[trace.ranges.process == pid])
    chosen = is_among(trace.samples.thread, threads) & (trace.samples.process == pid)
    return chosen if chosen.any() else np.ones(len(chosen), dtype=bool)


def _functions(
    trace: model.Trace, pid: int, samples: model.StackSamples, idle: Spans | None, in_calls: Spans
) -> list[SampledFunction]:
    found: list[SampledFunction] = []
    for kind in (model.PYTHON_SAMPLE, model.CPU_SAMPLE):
        own = samples.select(samples.kind == kind)
        if not len(own):
            continue
        at_idle = None if idle is None else iv.contains(idle, own.start)
        at_call = iv.contains(in_calls, own.start)
        keys, which = grouped(own.name)
        total = np.bincount(which, minlength=len(keys))
        callers = _usual_callers(own)
        idle_of = None if at_idle is None else _counts(which, at_idle, len(keys))
        call_of = _counts(which, at_call, len(keys))
        every_idle = 0 if idle_of is None else int(idle_of.sum())
        order = np.lexsort((-total, -(total if idle_of is None else idle_of)))[:MOST_ROWS]
        found += [
            SampledFunction(
                pid=pid,
                kind="Python" if kind == model.PYTHON_SAMPLE else "CPU",
                name=trace.names[keys[row][0]],
                caller=_caller_text(trace, callers[keys[row][0]], keys[row][0]),
                samples=int(total[row]),
                share_pct=100.0 * int(total[row]) / len(own),
                idle_samples=None if idle_of is None else int(idle_of[row]),
                idle_pct=100.0 * int(idle_of[row]) / every_idle if idle_of is not None and every_idle else None,
                call_samples=None if idle is None else int(call_of[row]),
            )
            for row in order.tolist()
        ]
    return found


def _caller_text(trace: model.Trace, caller: int, name: int) -> str:
    """Return the name of a caller; "" for the function itself, and for what nsys writes in place of a caller."""
    text = trace.names[caller] if caller != name else ""
    return "" if text.startswith(("[Max depth]", "[Broken backtraces]")) else text


def _usual_callers(samples: model.StackSamples) -> dict[int, int]:
    """Return the caller that most samples of each function have."""
    keys, which = grouped(samples.name, samples.caller)
    order = np.argsort(np.bincount(which, minlength=len(keys)), kind="stable").tolist()
    return {keys[row][0]: keys[row][1] for row in order}


def _counts(which: Ns, chosen: npt.NDArray[np.bool_], groups: int) -> Ns:
    return np.bincount(which[chosen], minlength=groups).astype(np.int64)


def most_sampled_during(timeline: DeviceTimeline, gaps: Gaps, causes: Collection[str]) -> tuple[str, float] | None:
    """Return the function or frame that most samples of the launching threads found innermost in idle time.

    Args:
        timeline: whose.
        gaps: its gaps.
        causes: keys of `CAUSES`; gaps of which these take at least half are looked at.

    Returns:
        Python's frame, else the C function, with the percent of the samples there; None where fewer than
        `FEWEST_SAMPLES` of a kind lie there.
    """
    samples = timeline.trace.samples
    if not len(samples):
        return None
    weight = np.sum([gaps.by_cause[cause] for cause in causes], axis=0)
    chosen = 2 * weight >= gaps.spans.lengths
    spans = Spans(gaps.spans.starts[chosen], gaps.spans.ends[chosen])
    mine = (samples.process == timeline.process) & is_among(samples.thread, timeline.launchers)
    mine &= iv.contains(spans, samples.start)
    for kind in (model.PYTHON_SAMPLE, model.CPU_SAMPLE):
        own = samples.select(mine & (samples.kind == kind))
        if len(own) < FEWEST_SAMPLES:
            continue
        at = np.where((own.caller > 0) & (kind == model.PYTHON_SAMPLE), own.caller, own.name)
        names, counts = np.unique(at, return_counts=True)
        # A sample in a library without symbols has the library's name, in parentheses.
        is_named = np.array([not timeline.trace.names[name].startswith("(") for name in names.tolist()])
        if not is_named.any():
            continue
        top = int(np.argmax(np.where(is_named, counts, 0)))
        return timeline.trace.names[int(names[top])], 100.0 * int(counts[top]) / len(own)
    return None
