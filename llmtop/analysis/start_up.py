"""Start-up of a capture without steps: work that comes once at the beginning is left out where it says nothing of
the rest.

A capture of a whole program begins with calls that come once. Where the rest of it is passes that repeat, with a
range around each, the rest is judged by itself. A capture of a running program may begin while the GPU does work
that was launched before: that work is not in the file, and the wait for it is no idle time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmtop.analysis.idle.idle_causes import Gaps
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.repetition import LaunchedKernels, repeating_ns
from llmtop.analysis.steps.step_finder import own_ranges, rows_by_value
from llmtop.analysis.verdict import BORDER_PCT, CAUSE_OF, ONE_OFF
from llmtop.format import duration
from llmtop.trace import intervals as iv
from llmtop.trace import model

_LEFT = 0.01
"""Part of the rest that may be one-off work: a stray call is no start-up."""
_LEAST_REST = 0.5
"""Part of the device's work that the rest must have, and part of the rest that must repeat."""
_WORK_BEFORE = 0.01
"""Part of the device's work that may lie before a wait for work from before the capture."""


def without_start_up(timelines: Sequence[DeviceTimeline], gaps: Sequence[Gaps]) -> list[DeviceTimeline]:
    """Return the timelines, without what comes once at the beginning of those that have no steps.

    Args:
        timelines: one for each process and GPU.
        gaps: idle time of each, in the same order.
    """
    return [_without_start_up(*pair) for pair in zip(timelines, gaps, strict=True)]


def _without_start_up(timeline: DeviceTimeline, gaps: Gaps) -> DeviceTimeline:
    if timeline.counted or not len(gaps.spans):
        return timeline
    begin = _end_of_wait(timeline, gaps)
    if begin is not None:
        return _shorten_timeline(timeline, begin, "a wait of {} for work from before the capture")
    begin = _end_of_start_up(timeline, gaps)
    if begin is None:
        return timeline
    shorter = _shorten_timeline(timeline, begin, "a start-up of {}")
    enough = shorter.ns_in_steps(timeline.busy) >= _LEAST_REST * timeline.busy.total
    return shorter if enough and _repeats(shorter) else timeline


def _shorten_timeline(timeline: DeviceTimeline, begin: int, words: str) -> DeviceTimeline:
    took = duration((begin - timeline.begin_ns) / 1e9)
    return replace(timeline, bounds=np.array([begin, timeline.end_ns]), begins_after=words.format(took))


def _end_of_wait(timeline: DeviceTimeline, gaps: Gaps) -> int | None:
    """Return when work had ended that was launched before the capture; None where the capture begins with none.

    What was launched in time waited for something that the capture does not show, before nearly all other work.
    """
    waited, lengths = gaps.by_cause["dependency"], gaps.spans.lengths
    long = np.flatnonzero((2 * waited > lengths) & (100 * lengths >= BORDER_PCT * timeline.length))
    if not len(long):
        return None
    gap = int(long[0])
    before = iv.clip(timeline.busy, timeline.begin_ns, int(gaps.spans.starts[gap])).total
    return int(gaps.spans.ends[gap]) if before <= _WORK_BEFORE * timeline.busy.total else None


def _end_of_start_up(timeline: DeviceTimeline, gaps: Gaps) -> int | None:
    """Return when the last of the calls that set up had returned, but for stray ones; None without enough of
    them."""
    setup = np.sum([gaps.by_cause[cause] for cause, kind in CAUSE_OF.items() if kind == ONE_OFF], axis=0)
    if timeline.share(float(setup.sum())) < BORDER_PCT:
        return None
    ends = gaps.spans.ends
    left = np.append(np.cumsum(setup[::-1])[::-1][1:], 0)
    begins = np.flatnonzero((left <= _LEFT * (timeline.end_ns - ends)) & (setup > 0))
    return int(ends[begins[0]]) if len(begins) else None


def _repeats(timeline: DeviceTimeline) -> bool:
    """Return True if ranges of one name divide most of the time into passes with the same kernels."""
    ranges = own_ranges(timeline.trace, timeline.process)
    ranges = ranges.select((ranges.end != model.OPEN) & (ranges.start >= timeline.begin_ns))
    kernels = LaunchedKernels.from_trace(timeline.trace, timeline.process)
    return any(
        repeating_ns(kernels, ranges.start[rows]) >= _LEAST_REST * timeline.length
        for _, rows in rows_by_value(ranges.name)
    )
