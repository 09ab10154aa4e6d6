"""Why a GPU lay idle: each gap divided among causes by what the launching threads did inside it.

A gap is time within whole steps in which this process had nothing running on the device. Its parts are given to
the first of these that holds there:

- another process ran on the device
- the work that ends the gap had been launched before the gap began: queued (the device's own time from one kernel
  to the next, or a wait for an event)
- the host was inside a big copy between host and device: copy
- a range that waits for input was open on a launching thread: input
- the host was inside a call that waits for the device, or reads a value back from it: sync
- the host was inside an allocation, a launch, or another CUDA call: allocation, launch
- the host made no CUDA call for a while and the next thing it sent to the device was a copy of input: input
- it made none for long, outside the phases of a step's own work: host (or os_wait, where the C library says so)
- it was between two launches: launch

A call that waits (or reads a value back) costs more than the idle time inside it. A gap that begins while the host
waits cannot be filled by anybody: what the host then needs to launch again counts as sync. While the host waits it
prepares nothing, so it loses its lead over the GPU, and later gaps would not be there had it run on: what waits
took and no gap has paid for yet is kept as a debt, and late work (launched only when the GPU was idle already)
counts as sync as long as there is debt, else as launch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmtop.analysis import cuda_calls as cuda
from llmtop.analysis.device_timeline import Lane
from llmtop.analysis.step_finder import LIBRARY_DOMAINS, PhaseSpans
from llmtop.phase_names import computes, role_of
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.intervals import Ns, Spans

CAUSES = {
    "other_process": "another process ran on the GPU",
    "queued": "between kernels that were launched in time",
    "copy": "the host was copying between host and device",
    "input": "waiting for input",
    "sync": "the host had waited for the GPU and had to catch up",
    "allocation": "allocating or freeing device memory",
    "launch": "the host was launching, too slowly for the GPU",
    "os_wait": "the host waited in the C library",
    "host": "the host did something else",
    "unknown": "the capture does not show what the host did",
}
"""Causes of idle time, in the order in which they are tried, and what each means."""

_ORDER = ("other_process", "queued", "latency", "copy", "input", "sync", "allocation", "os_wait", "host", "launch")

BIG_COPY_BYTES = 1 << 20
"""A copy of at least this moves data; a smaller one from the device reads a value back (.item(), .cpu())."""
_READS_BACK = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero)$")
_INPUT_BYTES = 256
_QUIET_SHORTEST_NS = 300_000
_QUIET_LONG_NS = 2_000_000


@dataclass(frozen=True)
class Gaps:
    """The gaps of one lane and how long each lay idle for each cause."""

    spans: Spans
    by_cause: dict[str, Ns]
    """For each cause, ns of each gap; they add up to the gaps' lengths."""
    ending: Ns
    """Row of the lane's ops that ended each gap; -1 for one at the end of the window."""

    def total(self, cause: str) -> int:
        """Idle time of one cause over all gaps, in ns."""
        return int(self.by_cause[cause].sum())


@dataclass(frozen=True)
class HostActivity:
    """What the launching threads of a lane did, as sets of instants."""

    input_ranges: Spans
    copy: Spans
    sync: Spans
    allocation: Spans
    calls: Spans
    """When any of them was inside a CUDA call."""
    inferred_input: Spans
    long_quiet: Spans
    os_wait: Spans
    seen: bool
    """Whether there are any calls of these threads."""


def attribute(lane: Lane, others: Spans, phases: list[PhaseSpans]) -> Gaps:
    """Divide the idle time of a lane.

    Args:
        lane: whose.
        others: when other processes ran on the same device.
        phases: of the lane's process.
    """
    idle = lane.idle
    ending = _ending(lane, idle)
    launched = _launched_at(lane, idle, ending)
    host = host_activity(lane, phases)
    late = launched > idle.starts
    left: Spans = idle
    sets: dict[str, Spans] = {
        "other_process": others,
        "queued": Spans(idle.starts[~late], idle.ends[~late]),
        # From the launch to the start of the work: whatever the host did by then, this is what launching takes.
        "latency": iv.union(launched[late], idle.ends[late]),
    }
    if host.seen:
        sets |= {
            "input": iv.either(host.input_ranges, host.inferred_input),
            "copy": host.copy,
            "sync": host.sync,
            "allocation": host.allocation,
            "os_wait": iv.both(host.os_wait, host.long_quiet),
            "host": host.long_quiet,
            "launch": idle,
        }
    by_cause = {cause: np.zeros(len(idle), dtype=np.int64) for cause in CAUSES}
    for cause in _ORDER:
        if cause not in sets:
            continue
        mine = iv.both(left, sets[cause])
        left = iv.without(left, mine)
        by_cause["launch" if cause == "latency" else cause] += iv.overlap(idle.starts, idle.ends, mine)
    by_cause["unknown"] += iv.overlap(idle.starts, idle.ends, left)
    _share_with_sync(lane, ending, host, by_cause, late)
    return Gaps(idle, by_cause, ending)


def _ending(lane: Lane, idle: Spans) -> Ns:
    """The op that starts where each gap ends."""
    starts = lane.ops.start
    found = np.minimum(np.searchsorted(starts, idle.ends), len(starts) - 1)
    return np.where(starts[found] == idle.ends, found, -1)


def _launched_at(lane: Lane, idle: Spans, ending: Ns) -> Ns:
    """When the call that launched the op at the end of each gap returned, within the gap; its end if unknown."""
    call = np.where(ending >= 0, lane.launched_by[np.maximum(ending, 0)], -1)
    if not len(lane.trace.calls):
        return idle.ends
    returned = np.where(call >= 0, lane.trace.calls.end[np.maximum(call, 0)], idle.ends)
    return np.clip(returned, idle.starts, idle.ends)


_LATE = ("sync", "launch", "allocation")


def _share_with_sync(
    lane: Lane, ending: Ns, host: HostActivity, by_cause: dict[str, Ns], late: npt.NDArray[np.bool_]
) -> None:
    """Divide what a late host cost between the calls that wait and everything else.

    `late` says which gaps end in work that was launched inside them.
    """
    starts = lane.idle.starts
    idle = np.where(late, sum(by_cause[cause] for cause in _LATE), by_cause["sync"])
    own = by_cause["sync"] + np.where(late & _held_up(lane, ending, host), idle - by_cause["sync"], 0)
    owed = _owed(lane, iv.clip(host.sync, lane.low, lane.high), starts, idle)
    sync = np.maximum(own, np.minimum(owed, idle))
    others = idle - by_cause["sync"]
    # Of each gap: what is not sync's stays with its own causes, in proportion.
    for cause in _LATE[1:]:
        kept = np.where(late, by_cause[cause] * (idle - sync) // np.maximum(others, 1), by_cause[cause])
        by_cause["sync"] = by_cause["sync"] + by_cause[cause] - kept
        by_cause[cause] = kept


def _held_up(lane: Lane, ending: Ns, host: HostActivity) -> npt.NDArray[np.bool_]:
    """Which gaps begin while the host waits, or end in a value being read back."""
    ops, row = lane.ops, np.maximum(ending, 0)
    back = (ops.kind[row] == model.MEMCPY) & (ops.direction[row] == model.DEVICE_TO_HOST)
    back &= (ending >= 0) & (ops.bytes[row] < BIG_COPY_BYTES)
    return np.asarray(iv.contains(host.sync, lane.idle.starts) | back)


def _owed(lane: Lane, waits: Spans, starts: Ns, idle: Ns) -> Ns:
    """How much of each gap the debt of the waits before it covers."""
    owed = np.zeros(len(starts), dtype=np.int64)
    debt = 0
    for low, high in zip(lane.bounds[:-1].tolist(), lane.bounds[1:].tolist(), strict=True):
        gaps = slice(*np.searchsorted(starts, [low, high]))
        calls = slice(*np.searchsorted(waits.starts, [low, high]))
        # Nobody runs ahead by more than about a step: the queue of launches ends there.
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


@dataclass(frozen=True)
class _Calls:
    """What the launching threads of a lane called: the same for all lanes of a process that share them."""

    rows: Ns
    """Which rows of `Trace.calls` these are."""
    table: model.ApiCalls
    every: Spans
    reading_back: Spans
    input_ranges: Spans
    os_wait: Spans


def _calls(lane: Lane) -> _Calls:
    key = (lane.process, tuple(lane.launchers.tolist()))
    return lane.trace.once("calls of threads", key, lambda: _calls_of(lane))


def _calls_of(lane: Lane) -> _Calls:
    trace = lane.trace
    rows = np.flatnonzero(_of_threads(trace.calls, lane))
    table = trace.calls.where(rows)
    every = iv.union(table.start, table.end)
    waits = trace.host.where(_of_threads(trace.host, lane) & (trace.host.kind == model.OS_CALL))
    return _Calls(
        rows=rows,
        table=table,
        every=every,
        reading_back=_reading_back(lane, every),
        input_ranges=_input_ranges(lane),
        os_wait=iv.union(waits.start, waits.end),
    )


def host_activity(lane: Lane, phases: list[PhaseSpans]) -> HostActivity:
    """What the launching threads of a lane did."""
    own = _calls(lane)
    calls, every = own.table, own.every
    kinds = _kinds_of_calls(lane, own.rows)

    def of(kind: int) -> Spans:
        return iv.union(calls.start[kinds == kind], calls.end[kinds == kind])

    quiet = iv.rest(every, lane.low, lane.high)
    compute = _compute_phases(phases)
    inferred, long_quiet = _quiet(lane, quiet, compute, own.rows)
    return HostActivity(
        input_ranges=own.input_ranges,
        copy=of(cuda.COPY),
        sync=iv.either(of(cuda.SYNC), own.reading_back),
        allocation=of(cuda.ALLOCATION),
        calls=every,
        inferred_input=inferred,
        long_quiet=long_quiet,
        os_wait=own.os_wait,
        seen=len(calls) > 0,
    )


def _reading_back(lane: Lane, calls: Spans) -> Spans:
    """Operators that do nothing but wait for a value of the device, where the capture has operators."""
    named = np.array([bool(_READS_BACK.match(name)) for name in lane.trace.names])
    host = lane.trace.host
    chosen = _of_threads(host, lane) & (host.kind == model.OPERATOR) & named[host.name]
    # Only those that call into CUDA: .item() of a tensor on the host waits for nothing.
    spans = iv.union(host.start[chosen], host.end[chosen])
    used = iv.overlap(spans.starts, spans.ends, calls) > 0
    return Spans(spans.starts[used], spans.ends[used])


def _of_threads(table: model.ApiCalls | model.HostSpans | model.Ranges, lane: Lane) -> npt.NDArray[np.bool_]:
    return np.asarray((table.process == lane.process) & np.isin(table.thread, lane.launchers))


def _kinds_of_calls(lane: Lane, rows: Ns) -> Ns:
    """The kind of each call; a call that copies is a big COPY, a SYNC (a value read back) or else a LAUNCH."""
    trace = lane.trace
    kinds = cuda.kinds(trace)[trace.calls.name[rows]]
    kinds = np.where(kinds == cuda.COPY, cuda.LAUNCH, kinds)
    if not len(rows):
        return kinds
    copies = lane.ops.kind == model.MEMCPY
    called = lane.launched_by[copies]
    at = np.minimum(np.searchsorted(rows, called), len(rows) - 1)
    own = (called >= 0) & (rows[at] == called)
    size, direction, at = lane.ops.bytes[copies][own], lane.ops.direction[copies][own], at[own]
    between = np.isin(direction, (model.HOST_TO_DEVICE, model.DEVICE_TO_HOST))
    kinds[at[between & (size >= BIG_COPY_BYTES)]] = cuda.COPY
    kinds[at[(direction == model.DEVICE_TO_HOST) & (size < BIG_COPY_BYTES)]] = cuda.SYNC
    return kinds


def _input_ranges(lane: Lane) -> Spans:
    ranges = lane.trace.ranges
    names = lane.trace.names
    named = np.array([role_of(name) == "input" for name in names])
    library = np.array([bool(LIBRARY_DOMAINS.match(name)) for name in names])
    chosen = _of_threads(ranges, lane) & named[ranges.name] & ~library[ranges.domain] & (ranges.end != model.OPEN)
    return iv.union(ranges.start[chosen], ranges.end[chosen])


def _compute_phases(phases: list[PhaseSpans]) -> Spans:
    own = [phase.spans for phase in phases if computes(role_of(phase.path.split("/")[0]))]
    return iv.either(*own) if own else iv.EMPTY


def _quiet(lane: Lane, quiet: Spans, compute: Spans, rows: Ns) -> tuple[Spans, Spans]:
    """The stretches without a CUDA call that come before a copy of input, and the others that are long.

    A stretch inside a phase of the step's own work is neither: there the host is preparing launches.
    """
    step = float(np.median(np.diff(lane.bounds))) if lane.counted else float(lane.length)
    shortest, long = max(_QUIET_SHORTEST_NS, 0.02 * step), max(_QUIET_LONG_NS, 0.04 * step)
    in_compute = iv.overlap(quiet.starts, quiet.ends, compute)
    free = in_compute < 0.5 * quiet.lengths
    inferred = free & (quiet.lengths >= shortest) & _before_input(lane, quiet, rows)
    other = free & ~inferred & (quiet.lengths >= long)
    return Spans(quiet.starts[inferred], quiet.ends[inferred]), Spans(quiet.starts[other], quiet.ends[other])


def _before_input(lane: Lane, quiet: Spans, rows: Ns) -> npt.NDArray[np.bool_]:
    """Whether the next thing that these threads send to the device is a copy from the host."""
    called = lane.launched_by
    sends = np.isin(called, rows)
    if not sends.any():
        return np.zeros(len(quiet), dtype=bool)
    launched_at = lane.trace.calls.start[called[sends]]
    order = np.argsort(launched_at, kind="stable")
    launched_at = launched_at[order]
    ops = lane.ops
    from_host = (ops.kind == model.MEMCPY) & (ops.direction == model.HOST_TO_DEVICE) & (ops.bytes >= _INPUT_BYTES)
    from_host = from_host[sends][order]
    at = np.searchsorted(launched_at, quiet.ends)
    return np.asarray((at < len(launched_at)) & from_host[np.minimum(at, len(launched_at) - 1)])
