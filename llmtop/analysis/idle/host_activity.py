"""Activity of the threads that launch a device's work, as sets of spans: waits, copies, input, quiet time."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmtop.analysis.idle import cuda_calls as cuda
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.step_finder import PhaseSpans, input_ranges, own_ranges, rows_by_value
from llmtop.naming.phase_names import computes, role_of
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.groups import is_among
from llmtop.trace.intervals import Ns, Spans

BIG_COPY_BYTES = 1 << 20
"""A copy of at least this moves data; a smaller one from the device reads a value back (.item(), .cpu())."""
_READS_BACK = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero)$")
_FREES = re.compile(r"^(cuda|hip)Free(Host)?$|^cuMemFree(Host)?$")
_INPUT_BYTES = 256
_QUIET_SHORTEST_NS = 300_000
_QUIET_LONG_NS, _QUIET_IN_COMPUTE_NS = 2_000_000, 5_000_000
"""Time without a call after which the host does other work. In a phase that launches, Python and the framework
may take longer from one launch to the next."""


@dataclass(frozen=True)
class HostActivity:
    """Activity of the launching threads of a device timeline, as sets of spans."""

    input_ranges: Spans
    copy: Spans
    sync: Spans
    """When one was inside a call that waits, or an operator that reads a value back."""
    blocked: Spans
    """For how long such calls blocked: the operators around them do other things too."""
    allocation: Spans
    calls: Spans
    """When any of them was inside a CUDA call."""
    inferred_input: Spans
    long_quiet: Spans
    os_wait: Spans
    seen: bool
    """True if there are any calls of these threads."""


@dataclass(frozen=True)
class _Calls:
    """Calls of the launching threads of a device timeline; shared by all timelines of a process with these
    threads."""

    rows: Ns
    """Which rows of `Trace.calls` these are."""
    table: model.ApiCalls
    every: Spans
    reading_back: Spans
    input_ranges: Spans
    os_wait: Spans


def _launcher_calls(timeline: DeviceTimeline) -> _Calls:
    key = (timeline.process, tuple(timeline.launchers.tolist()))
    return timeline.trace.once("calls of threads", key, lambda: _find_launcher_calls(timeline))


def _find_launcher_calls(timeline: DeviceTimeline) -> _Calls:
    trace = timeline.trace
    part = trace.rows_of("calls", timeline.process)
    rows = np.flatnonzero(_rows_of_launchers(trace.calls.part(part), timeline)) + part.start
    table = trace.calls.select(rows)
    every = iv.union(table.start, table.end)
    host = trace.host.part(trace.rows_of("host", timeline.process))
    waits = host.select(_rows_of_launchers(host, timeline) & (host.kind == model.OS_CALL))
    return _Calls(
        rows=rows,
        table=table,
        every=every,
        reading_back=_readback_operators(timeline, every),
        input_ranges=_input_ranges(timeline),
        os_wait=iv.union(waits.start, waits.end),
    )


def host_activity(timeline: DeviceTimeline, phases: list[PhaseSpans]) -> HostActivity:
    """Return what the launching threads of a timeline did."""
    own = _launcher_calls(timeline)
    calls, every = own.table, own.every
    kinds = _host_call_kinds(timeline, own.rows)

    def spans_of_kind(kind: int) -> Spans:
        return iv.union(calls.start[kinds == kind], calls.end[kinds == kind])

    waits = spans_of_kind(cuda.SYNC)
    quiet = iv.complement(every, timeline.begin_ns, timeline.end_ns)
    compute = _compute_phases(phases)
    inferred, long_quiet = _quiet_spans(timeline, quiet, compute, own.rows)
    return HostActivity(
        input_ranges=own.input_ranges,
        copy=spans_of_kind(cuda.COPY),
        sync=iv.union_of(waits, own.reading_back),
        blocked=iv.union_of(waits, own.reading_back, _freeing_calls(timeline, calls)),
        allocation=spans_of_kind(cuda.ALLOCATION),
        calls=every,
        inferred_input=inferred,
        long_quiet=long_quiet,
        os_wait=own.os_wait,
        seen=len(calls) > 0,
    )


def _freeing_calls(timeline: DeviceTimeline, calls: model.ApiCalls) -> Spans:
    """Calls that free device memory: they wait until the device is done with all that was launched."""
    names = timeline.trace.names
    frees = timeline.trace.once(
        "frees", None, lambda: np.array([bool(_FREES.match(cuda.unversioned_name(name))) for name in names])
    )
    chosen = frees[calls.name]
    return iv.union(calls.start[chosen], calls.end[chosen])


def _readback_operators(timeline: DeviceTimeline, calls: Spans) -> Spans:
    """Operators that do nothing but wait for a value of the device, where the capture has operators."""
    named = np.array([bool(_READS_BACK.match(name)) for name in timeline.trace.names])
    host = timeline.trace.host.part(timeline.trace.rows_of("host", timeline.process))
    chosen = _rows_of_launchers(host, timeline) & (host.kind == model.OPERATOR) & named[host.name]
    # Only those that call into CUDA: .item() of a tensor on the host waits for nothing.
    spans = iv.union(host.start[chosen], host.end[chosen])
    used = iv.overlap_with(spans.starts, spans.ends, calls) > 0
    return Spans(spans.starts[used], spans.ends[used])


def _rows_of_launchers(
    table: model.ApiCalls | model.HostSpans | model.Ranges, timeline: DeviceTimeline
) -> npt.NDArray[np.bool_]:
    return np.asarray((table.process == timeline.process) & is_among(table.thread, timeline.launchers))


def _host_call_kinds(timeline: DeviceTimeline, rows: Ns) -> Ns:
    """Return the kind of each call; a call that copies is a big COPY, a SYNC (a value read back) or else a
    LAUNCH."""
    trace = timeline.trace
    kinds = cuda.call_kinds(trace)[trace.calls.name[rows]]
    kinds = np.where(kinds == cuda.COPY, cuda.LAUNCH, kinds)
    if not len(rows):
        return kinds
    copies = timeline.ops.kind == model.MEMCPY
    called = timeline.launched_by[copies]
    at = np.minimum(np.searchsorted(rows, called), len(rows) - 1)
    own = (called >= 0) & (rows[at] == called)
    size, direction, at = timeline.ops.bytes[copies][own], timeline.ops.direction[copies][own], at[own]
    between = is_among(direction, (model.HOST_TO_DEVICE, model.DEVICE_TO_HOST))
    kinds[at[between & (size >= BIG_COPY_BYTES)]] = cuda.COPY
    kinds[at[(direction == model.DEVICE_TO_HOST) & (size < BIG_COPY_BYTES)]] = cuda.SYNC
    return kinds


def _input_ranges(timeline: DeviceTimeline) -> Spans:
    """Return when the launching threads waited for input, by ranges that come in at least half of the steps."""
    ranges = own_ranges(timeline.trace, timeline.process)
    ranges = ranges.select(_rows_of_launchers(ranges, timeline) & (ranges.end != model.OPEN))
    waits = input_ranges(timeline.trace, timeline.process, ranges)
    once = [
        name for name, own in rows_by_value(waits.name) if not _repeats(timeline, waits.start[own], waits.end[own])
    ]
    waits = waits.select(~is_among(waits.name, once))
    return iv.union(waits.start, waits.end)


def _repeats(timeline: DeviceTimeline, starts: Ns, ends: Ns) -> bool:
    """Return True if stretches of host time come in at least half of the whole steps; without steps, more than
    once."""
    steps = timeline.steps
    if not len(steps):
        return len(starts) > 1
    within = iv.overlap_with(steps.starts, steps.ends, iv.union(starts, ends))
    return 2 * int((within > 0).sum()) >= len(steps)


def _compute_phases(phases: list[PhaseSpans]) -> Spans:
    own = [phase.spans for phase in phases if computes(role_of(phase.path.split("/")[0]))]
    return iv.union_of(*own) if own else iv.EMPTY


def _quiet_spans(timeline: DeviceTimeline, quiet: Spans, compute: Spans, rows: Ns) -> tuple[Spans, Spans]:
    """Return the stretches without a CUDA call that come before a copy of input, and the others that are long.

    A stretch inside a phase of the step's own work is neither, unless it is very long: there the host is preparing
    launches.
    """
    step = float(np.median(np.diff(timeline.bounds))) if timeline.counted else float(timeline.length)
    shortest = max(_QUIET_SHORTEST_NS, 0.02 * step)
    in_compute = iv.overlap_with(quiet.starts, quiet.ends, compute)
    free = (in_compute < 0.5 * quiet.lengths) | (quiet.lengths >= _QUIET_IN_COMPUTE_NS)
    inferred = free & (quiet.lengths >= shortest) & _precedes_input_copy(timeline, quiet, rows)
    if not _repeats(timeline, quiet.starts[inferred], quiet.ends[inferred]):
        inferred = np.zeros(len(quiet), dtype=bool)
    other = free & ~inferred & (quiet.lengths >= _QUIET_LONG_NS)
    return Spans(quiet.starts[inferred], quiet.ends[inferred]), Spans(quiet.starts[other], quiet.ends[other])


def _precedes_input_copy(timeline: DeviceTimeline, quiet: Spans, rows: Ns) -> npt.NDArray[np.bool_]:
    """Return True if the next thing that these threads send to the device is a copy from the host."""
    ops = timeline.ops
    from_host = (ops.kind == model.MEMCPY) & (ops.direction == model.HOST_TO_DEVICE) & (ops.bytes >= _INPUT_BYTES)
    called = timeline.launched_by
    if not from_host.any() or not (sends := is_among(called, rows)).any():
        return np.zeros(len(quiet), dtype=bool)
    launched_at = timeline.trace.calls.start[called[sends]]
    order = np.argsort(launched_at, kind="stable")
    launched_at = launched_at[order]
    from_host = from_host[sends][order]
    at = np.searchsorted(launched_at, quiet.ends)
    return np.asarray((at < len(launched_at)) & from_host[np.minimum(at, len(launched_at) - 1)])
