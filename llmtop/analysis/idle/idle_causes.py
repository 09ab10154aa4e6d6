"""Causes of idle time: each gap is divided by what the launching threads did inside it.

A gap is time within whole steps in which this process had nothing running on the device. Its parts are given to
the first of these that holds there:

- another process ran on the device
- the work that ends the gap had been launched before: for as long as the device takes from one kernel to the next
  that is queued, beyond that the work waited for something else (an event, another stream, work that the capture
  does not show): dependency
- a CUDA graph was being captured, kernels were being compiled, or one call set something up that no later step
  needs again (a module loaded at a kernel's first launch, a stream, a first allocation): capture, compile, one_off
- in a file without steps, the program had not computed anything yet and did not call CUDA for long: start_up
- the host was inside a big copy between host and device: copy
- a range that waits for input was open on a launching thread: input
- the host was inside a call that waits for the device, or reads a value back from it: sync
- the host was inside an allocation, a launch, or another CUDA call: allocation, launch
- no launching thread had a CPU, where the capture shows that: preempted, sleeping, waiting, off_cpu
- the host made no CUDA call for a while and the next thing it sent to the device was a copy of input: input
- it made none for long, outside the phases of a step's own work: host (or os_wait, where the C library says so)
- it was between two launches: launch

A call that waits (or reads a value back) costs more than the idle time inside it: while the host waits it prepares
nothing, so it loses its lead over the GPU, and later gaps would not be there had it run on. It cannot cost more
than the time for which it blocks and one restart of the device: what waits took and no gap has paid for yet is
kept as a debt, and late work (launched only when the GPU was idle already) counts as sync as long as there is
debt, else as launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmtop.analysis.idle.cuda_calls import SYNC, call_kinds
from llmtop.analysis.idle.host_activity import HostActivity, host_activity
from llmtop.analysis.idle.nonrecurring_work import setup_spans
from llmtop.analysis.idle.off_cpu import OFF_CPU_CAUSES, off_cpu_spans
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.step_finder import PhaseSpans
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.intervals import Ns, Numbers, Spans

CAUSES = {
    "other_process": "another process ran on the GPU",
    "queued": "between kernels that were launched in time",
    "dependency": "launched work waited for an event, another stream, or work that the capture does not show",
    "capture": "a CUDA graph was being captured",
    "compile": "kernels were being compiled",
    "one_off": "a call ran that comes once: loading a module, creating a stream, a first allocation, stopping a "
    "profiler",
    "start_up": "the program was starting, before its first copies of weights and its first matrix product",
    "copy": "the host was copying between host and device",
    "input": "waiting for input",
    "sync": "the host had waited for the GPU and had to catch up",
    "allocation": "allocating or freeing device memory",
    "launch": "the host was launching, too slowly for the GPU",
    **OFF_CPU_CAUSES,
    "os_wait": "the host waited in the C library",
    "host": "the host did something else",
    "unknown": "the capture does not show what the host did",
}
"""Causes of idle time, in the order in which they are tried, and what each means."""

_ORDER = (
    *("other_process", "queued", "dependency", "latency", "capture", "compile", "one_off"),
    *("start_up", "copy", "input", "sync", "allocation", *OFF_CPU_CAUSES, "os_wait", "host", "launch"),
)

QUEUED_NS = 50_000
"""A kernel that was launched in time starts within some µs of the one before it (1 to 3 on NVIDIA, up to 30 on
AMD), one that is launched on an idle device within 5 to 30. What takes longer waited for something."""
RESTART_NS = 100_000
"""Longest cost of a wait beyond its own time. When the wait ends the device has no work until one operator is
dispatched and launched (20 to 100 µs under a profiler)."""


@dataclass(frozen=True)
class Gaps:
    """The gaps of one device timeline and the idle time of each by cause."""

    spans: Spans
    by_cause: dict[str, Ns]
    """For each cause, ns of each gap; they add up to the gaps' lengths."""
    ending: Numbers
    """Row of the timeline's ops that ended each gap; -1 for one at the end of the window."""

    def total(self, cause: str) -> int:
        """Idle time of one cause over all gaps, in ns."""
        return int(self.by_cause[cause].sum())


def attribute_idle_time(timeline: DeviceTimeline, others: Spans, phases: list[PhaseSpans]) -> Gaps:
    """Divide the idle time of a device timeline by cause.

    Args:
        timeline: whose.
        others: when other processes ran on the same device.
        phases: of the timeline's process.
    """
    idle = timeline.idle
    ending = _ending_ops(timeline, idle)
    launched = _launch_return_times(timeline, idle, ending)
    host = host_activity(timeline, phases)
    late = launched > idle.starts
    left: Spans = idle
    sets = {"other_process": others} | _queued_spans(idle, launched)
    if host.seen:
        sets |= setup_spans(timeline) | {
            "input": iv.union_of(host.input_ranges, host.inferred_input),
            "copy": host.copy,
            "sync": host.sync,
            "allocation": host.allocation,
            **off_cpu_spans(timeline),
            "os_wait": iv.intersection(host.os_wait, host.long_quiet),
            "host": host.long_quiet,
            "launch": idle,
        }
    # Most causes have no time in any gap: they share the memory of one zero.
    by_cause: dict[str, Ns] = dict.fromkeys(CAUSES, np.broadcast_to(np.int64(0), len(idle)))
    for cause in _ORDER:
        if cause not in sets:
            continue
        mine = left if sets[cause] is idle else iv.intersection(left, sets[cause])
        if len(mine):
            left = iv.EMPTY if mine is left else iv.difference(left, mine)
            charged = "launch" if cause == "latency" else cause
            by_cause[charged] = by_cause[charged] + iv.overlap_per_interval(idle, mine)
    if len(left):
        by_cause["unknown"] = iv.overlap_per_interval(idle, left)
    _divide_late_time(timeline, host, by_cause, late)
    return Gaps(idle, {cause: model.shared_if_constant(parts) for cause, parts in by_cause.items()}, ending)


def _queued_spans(idle: Spans, launched: Ns) -> dict[str, Spans]:
    """Return the end of each gap from the launch of the work that ends it: all of it, if that was launched
    before."""
    waits = idle.ends - launched
    late = launched > idle.starts
    short = waits <= QUEUED_NS

    def chosen(which: npt.NDArray[np.bool_]) -> Spans:
        return Spans(launched[which], idle.ends[which])

    return {
        "queued": chosen(~late & short),
        # From the launch to the start of the work: whatever the host did by then, this is what launching takes.
        "latency": chosen(late & short & (waits > 0)),
        "dependency": chosen(~short),
    }


def _ending_ops(timeline: DeviceTimeline, idle: Spans) -> Numbers:
    """Return the op that starts where each gap ends."""
    starts = timeline.ops.start
    found = np.minimum(np.searchsorted(starts, idle.ends), len(starts) - 1)
    return np.where(starts[found] == idle.ends, found, -1).astype(model.index_type(len(starts)))


def _launch_return_times(timeline: DeviceTimeline, idle: Spans, ending: Numbers) -> Ns:
    """Return when the call that launched the op at the end of each gap returned, within the gap; its end if
    unknown.

    Where the call was not recorded and the host waited for the GPU throughout the gap, it returned before the gap:
    what runs while the host waits had been launched.
    """
    call = np.where(ending >= 0, timeline.launched_by[np.maximum(ending, 0)], -1)
    if not len(timeline.trace.calls):
        return idle.ends
    returned = np.where(call >= 0, timeline.trace.calls.end[np.maximum(call, 0)], idle.ends)
    lost = (call < 0) & (ending >= 0)
    if lost.any():
        returned = np.where(lost & _is_waited_through(timeline, idle), idle.starts, returned)
    return np.clip(returned, idle.starts, idle.ends)


def _is_waited_through(timeline: DeviceTimeline, idle: Spans) -> npt.NDArray[np.bool_]:
    """Return which gaps lie within a call of the process that waits for the GPU."""
    trace = timeline.trace
    waiting = (call_kinds(trace) == SYNC)[trace.calls.name] & (trace.calls.process == timeline.process)
    spans = iv.union(trace.calls.start[waiting], trace.calls.end[waiting])
    if not len(spans):
        return np.zeros(len(idle), dtype=bool)
    at = np.searchsorted(spans.starts, idle.starts, side="right") - 1
    return np.asarray((at >= 0) & (spans.ends[np.maximum(at, 0)] >= idle.ends))


_LATE = ("sync", "launch", "allocation")


def _divide_late_time(
    timeline: DeviceTimeline, host: HostActivity, by_cause: dict[str, Ns], late: npt.NDArray[np.bool_]
) -> None:
    """Divide the cost of a late host between waiting calls and everything else.

    `late`: gaps that end in work launched inside them.
    """
    starts = timeline.idle.starts
    own = by_cause["sync"]
    idle = np.where(late, sum(by_cause[cause] for cause in _LATE), own)
    restart = np.where(late & iv.contains(host.sync, starts), RESTART_NS, 0)
    owed = _wait_debt(timeline, iv.clip(host.blocked, timeline.begin_ns, timeline.end_ns), starts, idle)
    sync = np.minimum(np.maximum(own + restart, owed), idle)
    others = np.maximum(idle - own, 1)
    # Of each gap: what is not sync's stays with its own causes, in proportion. The share is a float: the product
    # of two times in ns does not fit into 64 bits from 3 s on.
    kept_share = np.where(late, (idle - sync) / others, 1.0)
    for cause in _LATE[1:]:
        kept = np.minimum(np.rint(by_cause[cause] * kept_share).astype(np.int64), by_cause[cause])
        by_cause["sync"] = by_cause["sync"] + by_cause[cause] - kept
        by_cause[cause] = kept


def _wait_debt(timeline: DeviceTimeline, waits: Spans, starts: Ns, idle: Ns) -> Ns:
    """Return how much of each gap the debt of the waits before it covers."""
    owed = np.zeros(len(starts), dtype=np.int64)
    debt = 0
    for low, high in zip(timeline.bounds[:-1].tolist(), timeline.bounds[1:].tolist(), strict=True):
        gaps = slice(*np.searchsorted(starts, [low, high]))
        calls = slice(*np.searchsorted(waits.starts, [low, high]))
        # No host runs ahead by more than about a step: the launch queue ends there.
        debt = min(debt, high - low)
        when = np.concatenate([[low], waits.starts[calls], starts[gaps]])
        change = np.concatenate([[debt], waits.lengths[calls], -idle[gaps]])
        order = np.argsort(when, kind="stable")
        total = np.cumsum(change[order])
        # The debt after each event: it grows by waits, falls by gaps, and is never below zero.
        after = total - np.minimum(np.minimum.accumulate(total), 0)
        paid = np.empty(len(when), dtype=np.int64)
        paid[order] = np.concatenate([[0], after[:-1]]) - after
        owed[gaps] = np.maximum(paid[1 + len(waits.starts[calls]) :], 0)
        debt = int(after[-1])
    return owed
