"""Work that no later step needs again: a graph being captured, kernels being compiled, a module being loaded.

A capture of a run's first steps is full of it, and no advice on the steps that follow can be drawn from it. A call
is known by what it did: it took a hundred times what such a call takes while the GPU lay idle, and it does not
come again in the other steps. CUDA loads a kernel's code at its first launch (CUDA_MODULE_LOADING=LAZY), so for a
launch it is the kernel that has to come again.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from llmtop.analysis.idle import cuda_calls as cuda
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.repetition import LaunchedKernels
from llmtop.format import duration
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.groups import is_among
from llmtop.trace.intervals import Ns, Numbers, Spans

LONG_CALL_NS = 1_000_000
"""A launch takes 2 to 20 µs, an allocation from the driver 50 to 500."""
_SILENCE_NS = 2_000_000
_FEWEST_SENT = 2
"""Copies or broadcasts behind a silence: a batch may be one copy."""
_FEWEST_WEIGHTS = 10
"""Copies of the tensors of a model: a batch is a few."""
_PARTS = 10
"""Number of equal parts of a capture without two steps to compare. Work in more than half of the parts recurs."""
BEGINS_GRAPH = re.compile(r"^(cuda|cu|hip)StreamBeginCapture", re.I)
ENDS_GRAPH = re.compile(r"^(cuda|cu|hip)StreamEndCapture", re.I)
_GRAPH = re.compile(r"^(cuda|cu|hip)(Stream(Begin|End)Capture|GraphInstantiate)", re.I)
_REPLAYS = re.compile(r"GraphLaunch|HostFunc", re.I)
_LOADS = re.compile(r"^(cu|hip|cuda)(Module|Library)Load", re.I)
"""Calls that load code that the process has not had so far, however many there are."""
_COMPILES = re.compile(
    r"\(dynamo_timed\)$"
    r"|torch/_dynamo/convert_frame\.py\(\d+\): \w*compile"
    r"|torch/_inductor/compile_fx\.py\(\d+\): (compile_fx|_?fx_codegen_and_compile|_compile_fx_inner)"
    r"|triton/compiler/compiler\.py\(\d+\): compile"
    r"|torch/utils/cpp_extension\.py\(\d+\): load"
)
"""Ranges and frames that are open while PyTorch or Triton compiles."""


def setup_spans(timeline: DeviceTimeline) -> dict[str, Spans]:
    """Return when the launching threads captured graphs, compiled or set something up, by cause."""
    return {
        "capture": _capture_spans(timeline),
        "compile": _compile_spans(timeline),
        "one_off": _long_spans(timeline),
        "start_up": _start_up_spans(timeline),
    }


def longest_setup(timeline: DeviceTimeline) -> str:
    """Return the call that set something up and took longest: `hipLaunchKernel of gemm_kernel (6.54 ms)`; ""
    for none."""
    rows, calls, names = _long_calls(timeline), timeline.trace.calls, timeline.trace.names
    # A call before the first device activity is in no share.
    inside = np.minimum(calls.end[rows], timeline.end_ns) - np.maximum(calls.start[rows], timeline.begin_ns)
    if not len(rows) or inside.max() <= 0:
        return ""
    row = int(rows[np.argmax(inside)])
    kernel = _launched_kernels(timeline, rows).get(row)
    took = duration(int(calls.end[row] - calls.start[row]) / 1e9)
    what = cuda.unversioned_name(names[calls.name[row]])
    return f"{what} of {names[kernel[1]]} ({took})" if kernel is not None else f"{what} ({took})"


def _rows_of_launchers(
    table: model.ApiCalls | model.HostSpans | model.Ranges, timeline: DeviceTimeline
) -> npt.NDArray[np.bool_]:
    return np.asarray((table.process == timeline.process) & is_among(table.thread, timeline.launchers))


def _long_spans(timeline: DeviceTimeline) -> Spans:
    rows, calls = _long_calls(timeline), timeline.trace.calls
    return iv.union(calls.start[rows], calls.end[rows])


def _long_calls(timeline: DeviceTimeline) -> Ns:
    """Return the rows of the calls that set something up once."""
    key = (
        timeline.process,
        timeline.device,
        tuple(timeline.launchers.tolist()),
        timeline.begin_ns,
        timeline.end_ns,
    )
    return timeline.trace.once("one-off calls", key, lambda: _find_long_calls(timeline))


def _find_long_calls(timeline: DeviceTimeline) -> Ns:
    trace, calls = timeline.trace, timeline.trace.calls
    own = trace.rows_of("calls", timeline.process)
    rows: Ns = np.flatnonzero(calls.end[own] - calls.start[own] >= LONG_CALL_NS) + own.start
    rows = rows[_rows_of_launchers(calls.select(rows), timeline)]
    waits_or_copies = is_among(cuda.call_kinds(trace)[calls.name[rows]], (cuda.SYNC, cuda.COPY))
    rows = rows[~waits_or_copies & ~_matching_names(trace, calls.name[rows], _REPLAYS)]
    if not len(rows):
        return rows
    kernels = _launched_kernels(timeline, rows)
    edges = _part_bounds(timeline)
    part = np.searchsorted(edges, calls.start[rows], side="right")
    seen: dict[tuple[int, int], set[int]] = {}
    keys = [(int(calls.name[row]), kernels.get(int(row), (-1, -1))[0]) for row in rows.tolist()]
    for key, place in zip(keys, part.tolist(), strict=True):
        seen.setdefault(key, set()).add(place)
    parts = len(edges) - 1
    again = {key for key, places in seen.items() if len(places) >= 2 and 2 * len(places) > parts}
    once = np.array([key not in again for key in keys], dtype=bool)
    return np.asarray(rows[once | _matching_names(trace, calls.name[rows], _LOADS)])


def sends_weights(timeline: DeviceTimeline) -> bool:
    """Return True if most copies from pageable memory are a model's weights.

    They are many copies to the device before the first matrix product, unlike a batch.
    """
    products = LaunchedKernels.from_trace(timeline.trace, timeline.process).products
    if not len(products):
        return False
    ops = timeline.ops
    copies = (ops.kind == model.MEMCPY) & (ops.source_memory == model.PAGEABLE)
    before = copies & (ops.start < timeline.trace.calls.start[products].min())
    return bool(before.sum() >= _FEWEST_WEIGHTS and 2 * ops.bytes[before].sum() > ops.bytes[copies].sum())


def _start_up_spans(timeline: DeviceTimeline) -> Spans:
    """Return the silences of a program that has computed nothing yet, before it copies or broadcasts its weights.

    Only where the capture has no steps: in a step nothing starts. A silence is as long without a CUDA call of the
    launching threads, and ends before several copies to the device (or broadcasts), which the first matrix product
    follows.
    """
    if timeline.counted:
        return iv.EMPTY
    kernels = LaunchedKernels.from_trace(timeline.trace, timeline.process)
    if not len(kernels.products):
        return iv.EMPTY
    calls, trace = timeline.trace.calls, timeline.trace
    first = int(calls.start[kernels.products].min())
    ops, called = timeline.ops, timeline.launched_by
    broadcasts = np.array(["broadcast" in name.lower() for name in trace.names])[ops.name]
    to_device = (ops.kind == model.MEMCPY) & (ops.direction == model.HOST_TO_DEVICE)
    sent = np.sort(calls.start[called[(to_device | (broadcasts & timeline.is_nccl)) & (called >= 0)]])
    mine = calls.select(_rows_of_launchers(calls, timeline))
    quiet = iv.complement(iv.union(mine.start, mine.end), timeline.begin_ns, first)
    after = np.searchsorted(sent, first) - np.searchsorted(sent, quiet.ends)
    chosen = (quiet.lengths >= _SILENCE_NS) & (after >= _FEWEST_SENT) & (quiet.ends < first)
    return Spans(quiet.starts[chosen], quiet.ends[chosen])


def _part_bounds(timeline: DeviceTimeline) -> Ns:
    """Bounds that divide the capture into steps of the host or, with fewer than two steps, into equal parts."""
    if len(timeline.steps) >= 2:
        return np.append(timeline.steps.starts, timeline.steps.ends[-1])
    return np.linspace(timeline.begin_ns, timeline.end_ns, _PARTS + 1).astype(np.int64)


def _launched_kernels(timeline: DeviceTimeline, rows: Ns) -> dict[int, tuple[int, int]]:
    """(full name, short name) of the kernel that each of these calls launched, where it launched one."""
    launched = is_among(timeline.launched_by, rows) & (timeline.ops.kind == model.KERNEL)
    by = timeline.launched_by[launched].tolist()
    full, short = timeline.ops.full_name[launched].tolist(), timeline.ops.name[launched].tolist()
    return dict(zip(by, zip(full, short, strict=True), strict=True))


def _matching_names(trace: model.Trace, names: Numbers, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Return which of these names (rows of `Trace.names`) the pattern is found in."""
    what = f"named {pattern.pattern}"
    fits = trace.once(what, None, lambda: np.array([bool(pattern.search(name)) for name in trace.names]))
    return np.asarray(fits[names])


def _capture_spans(timeline: DeviceTimeline) -> Spans:
    """Return the time of each capture of a stream, from its begin to its end, and the time in which the graph
    is prepared."""
    calls = timeline.trace.calls
    fits = _matching_names(timeline.trace, calls.name, _GRAPH)
    mine = calls.select(fits)
    mine = mine.select(_rows_of_launchers(mine, timeline))
    if not len(mine):
        return iv.EMPTY
    begins, ends = (_matching_names(timeline.trace, mine.name, pattern) for pattern in (BEGINS_GRAPH, ENDS_GRAPH))
    opened, closed = np.sort(mine.start[begins]), np.sort(mine.end[ends])
    at = np.searchsorted(closed, opened)
    whole = at < len(closed)
    made = mine.select(~begins & ~ends)
    return iv.union_of(iv.union(opened[whole], closed[at[whole]]), iv.union(made.start, made.end))


def _compile_spans(timeline: DeviceTimeline) -> Spans:
    """While a range or a Python frame of a compiler is open on a launching thread."""
    parts = []
    for table in (timeline.trace.ranges, timeline.trace.host):
        chosen = _matching_names(timeline.trace, table.name, _COMPILES)
        if chosen.any():
            mine = table.select(chosen)
            mine = mine.select(_rows_of_launchers(mine, timeline) & (mine.end != model.OPEN))
            parts.append(iv.union(mine.start, mine.end))
    return iv.union_of(*parts) if parts else iv.EMPTY
