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
from llmtop.analysis.steps.device_timeline import Lane
from llmtop.format import duration
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.intervals import Ns, Spans

LONG_CALL_NS = 1_000_000
"""A launch takes 2 to 20 µs, an allocation from the driver 50 to 500."""
_PARTS = 10
"""Without two steps to compare, what comes in more than half of so many equal parts of the capture comes again."""
_BEGINS_GRAPH = re.compile(r"^(cuda|cu|hip)StreamBeginCapture", re.I)
_ENDS_GRAPH = re.compile(r"^(cuda|cu|hip)StreamEndCapture", re.I)
_GRAPH = re.compile(r"^(cuda|cu|hip)(Stream(Begin|End)Capture|GraphInstantiate)", re.I)
_REPLAYS = re.compile(r"GraphLaunch|HostFunc", re.I)
_COMPILES = re.compile(
    r"\(dynamo_timed\)$"
    r"|torch/_dynamo/convert_frame\.py\(\d+\): \w*compile"
    r"|torch/_inductor/compile_fx\.py\(\d+\): (compile_fx|_?fx_codegen_and_compile|_compile_fx_inner)"
    r"|triton/compiler/compiler\.py\(\d+\): compile"
    r"|torch/utils/cpp_extension\.py\(\d+\): load"
)
"""Ranges and frames that are open while PyTorch or Triton compiles."""


def setup_spans(lane: Lane) -> dict[str, Spans]:
    """When the launching threads of a lane captured a graph, compiled, or set something up once; by cause."""
    return {"capture": _captures(lane), "compile": _compiles(lane), "one_off": _long_spans(lane)}


def longest_setup(lane: Lane) -> str:
    """The call that set something up and took longest: `hipLaunchKernel of gemm_kernel (6.54 ms)`; "" for none."""
    rows = _long_calls(lane)
    if not len(rows):
        return ""
    calls, names = lane.trace.calls, lane.trace.names
    row = int(rows[np.argmax(calls.end[rows] - calls.start[rows])])
    kernel = _kernel_of(lane, rows).get(row)
    took = duration(int(calls.end[row] - calls.start[row]) / 1e9)
    what = cuda.plain_name(names[calls.name[row]])
    return f"{what} of {names[kernel[1]]} ({took})" if kernel is not None else f"{what} ({took})"


def _of_threads(table: model.ApiCalls | model.HostSpans | model.Ranges, lane: Lane) -> npt.NDArray[np.bool_]:
    return np.asarray((table.process == lane.process) & np.isin(table.thread, lane.launchers))


def _long_spans(lane: Lane) -> Spans:
    rows, calls = _long_calls(lane), lane.trace.calls
    return iv.union(calls.start[rows], calls.end[rows])


def _long_calls(lane: Lane) -> Ns:
    """The rows of the calls that set something up once."""
    key = (lane.process, lane.device, tuple(lane.launchers.tolist()), lane.low, lane.high)
    return lane.trace.once("one-off calls", key, lambda: _find_long_calls(lane))


def _find_long_calls(lane: Lane) -> Ns:
    trace, calls = lane.trace, lane.trace.calls
    rows = np.flatnonzero(calls.end - calls.start >= LONG_CALL_NS)
    rows = rows[_of_threads(calls.where(rows), lane)]
    waits_or_copies = np.isin(cuda.kinds(trace)[calls.name[rows]], (cuda.SYNC, cuda.COPY))
    rows = rows[~waits_or_copies & ~_named(trace, calls.name[rows], _REPLAYS)]
    if not len(rows):
        return rows
    kernels = _kernel_of(lane, rows)
    edges = _edges(lane)
    part = np.searchsorted(edges, calls.start[rows], side="right")
    seen: dict[tuple[int, int], set[int]] = {}
    keys = [(int(calls.name[row]), kernels.get(int(row), (-1, -1))[0]) for row in rows.tolist()]
    for key, place in zip(keys, part.tolist(), strict=True):
        seen.setdefault(key, set()).add(place)
    parts = len(edges) - 1
    again = {key for key, places in seen.items() if len(places) >= 2 and 2 * len(places) > parts}
    once = np.array([key not in again for key in keys], dtype=bool)
    return np.asarray(rows[once])


def _edges(lane: Lane) -> Ns:
    """What divides the capture into steps of the host or, with fewer than two, into equal parts."""
    if len(lane.steps) >= 2:
        return np.append(lane.steps.starts, lane.steps.ends[-1])
    return np.linspace(lane.low, lane.high, _PARTS + 1).astype(np.int64)


def _kernel_of(lane: Lane, rows: Ns) -> dict[int, tuple[int, int]]:
    """(full name, short name) of the kernel that each of these calls launched, where it launched one."""
    launched = np.isin(lane.launched_by, rows) & (lane.ops.kind == model.KERNEL)
    by = lane.launched_by[launched].tolist()
    full, short = lane.ops.full_name[launched].tolist(), lane.ops.name[launched].tolist()
    return dict(zip(by, zip(full, short, strict=True), strict=True))


def _named(trace: model.Trace, names: Ns, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Which of these names (rows of `Trace.names`) the pattern is found in."""
    what = f"named {pattern.pattern}"
    fits = trace.once(what, None, lambda: np.array([bool(pattern.search(name)) for name in trace.names]))
    return np.asarray(fits[names])


def _captures(lane: Lane) -> Spans:
    """From the begin of each capture of a stream to its end, and while the graph is made ready."""
    calls = lane.trace.calls
    fits = _named(lane.trace, calls.name, _GRAPH)
    mine = calls.where(fits)
    mine = mine.where(_of_threads(mine, lane))
    if not len(mine):
        return iv.EMPTY
    begins, ends = (_named(lane.trace, mine.name, pattern) for pattern in (_BEGINS_GRAPH, _ENDS_GRAPH))
    opened, closed = np.sort(mine.start[begins]), np.sort(mine.end[ends])
    at = np.searchsorted(closed, opened)
    whole = at < len(closed)
    made = mine.where(~begins & ~ends)
    return iv.either(iv.union(opened[whole], closed[at[whole]]), iv.union(made.start, made.end))


def _compiles(lane: Lane) -> Spans:
    """While a range or a Python frame of a compiler is open on a launching thread."""
    parts = []
    for table in (lane.trace.ranges, lane.trace.host):
        chosen = _named(lane.trace, table.name, _COMPILES)
        if chosen.any():
            mine = table.where(chosen)
            mine = mine.where(_of_threads(mine, lane) & (mine.end != model.OPEN))
            parts.append(iv.union(mine.start, mine.end))
    return iv.either(*parts) if parts else iv.EMPTY
