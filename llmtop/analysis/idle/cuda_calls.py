"""Purpose of each CUDA call, and the cost of the calls of a capture."""

from __future__ import annotations

import re

import numpy as np

from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.report.model import ApiTime
from llmtop.trace import model
from llmtop.trace.groups import count_and_sum, least_and_most
from llmtop.trace.intervals import Ns, Numbers

LAUNCH, SYNC, COPY, ALLOCATION, OTHER = range(5)
KIND_NAMES = ("launch", "sync", "copy", "allocation", "other")

_VERSION = re.compile(r"_v\d+(_ptsz|_ptds)?$")
_SYNC = re.compile(
    r"^(cuda|cu|hip)(Stream|Device|Thread|Event|Ctx)Synchronize|^(cuda|hip)Memcpy(ToSymbol|FromSymbol|2D|3D)?$"
    r"|^hipMemcpyWithStream$|^cuMemcpy(DtoH|HtoD|DtoD)?$|^hipMemcpy(DtoH|HtoD|DtoD)$"
    r"|PjRt\w*::(Await|BlockHostUntilReady)$|^block_until_ready$"
)
_LAUNCH = re.compile(r"Launch(?!HostFunc)|Memset|^cudaGraphLaunch|^cuGraphLaunch|::ExecuteHelper", re.I)
_COPY = re.compile(r"Memcpy|MemPrefetch", re.I)
_ALLOCATION = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|HostRegister|HostUnregister|MemPool)|^cu(Mem(Alloc|Free|Create|Map|Unmap|"
    r"SetAccess|AddressReserve|AddressFree|Release|Host))"
)


def unversioned_name(name: str) -> str:
    """Return a function's name without the version that nsys keeps: cudaLaunchKernel_v7000 is cudaLaunchKernel."""
    return _VERSION.sub("", name)


def call_kind(name: str) -> int:
    """LAUNCH, SYNC, COPY, ALLOCATION or OTHER, by the function's name."""
    plain = unversioned_name(name)
    if _SYNC.match(plain):
        return SYNC
    if _ALLOCATION.match(plain):
        return ALLOCATION
    if _COPY.search(plain):
        return COPY
    if _LAUNCH.search(plain):
        return LAUNCH
    return OTHER


def call_kinds(trace: model.Trace) -> Ns:
    """Return the kind of each name of the trace; meaningful for names of API calls."""
    return trace.once("kinds", None, lambda: np.array([call_kind(name) for name in trace.names], dtype=np.int64))


def api_times(trace: model.Trace, timelines: list[DeviceTimeline]) -> tuple[ApiTime, ...]:
    """Return all calls by function, whole file, most time first."""
    calls = trace.calls
    if not len(calls):
        return ()
    plain: dict[str, int] = {}
    group = np.array(
        [plain.setdefault(unversioned_name(name), len(plain)) for name in trace.names], dtype=np.int64
    )
    of_call = model.change_values(calls.name, lambda names: group.astype(np.int32)[names])
    took = calls.end - calls.start
    counts, sums = count_and_sum(of_call, took, len(plain))
    longest = np.maximum(least_and_most(of_call, took, len(plain))[1], 0)
    in_steps, steps = _calls_in_steps(trace, timelines, of_call, len(plain))
    rows = [
        ApiTime(
            name=name,
            kind=KIND_NAMES[call_kind(name)],
            count=int(counts[number]),
            seconds=float(sums[number]) / 1e9,
            mean_us=float(sums[number]) / 1e3 / int(counts[number]),
            max_us=int(longest[number]) / 1e3,
            calls_per_step=float(in_steps[number]) / steps if steps else None,
        )
        for name, number in plain.items()
        if counts[number]
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _calls_in_steps(
    trace: model.Trace, timelines: list[DeviceTimeline], of_call: Numbers, groups: int
) -> tuple[Ns, int]:
    """(calls within whole host steps by group, number of such steps), over all processes."""
    total, steps = np.zeros(groups, dtype=np.int64), 0
    seen: set[int] = set()
    for timeline in timelines:
        if timeline.process in seen or not len(timeline.steps):
            continue
        seen.add(timeline.process)
        low, high = int(timeline.steps.starts[0]), int(timeline.steps.ends[-1])
        part = trace.rows_of("calls", timeline.process)
        calls = trace.calls.part(part)
        inside = (calls.process == timeline.process) & (calls.start >= low) & (calls.start < high)
        total += np.bincount(of_call[part][inside], minlength=groups)
        steps += len(timeline.steps)
    return total, steps
