"""Parts of the report: what the host did and what memory was used, where a capture recorded it."""

from __future__ import annotations

from typing import Literal

import msgspec

MOST_ROWS = 40
"""Most rows of one kind in a report: functions of one process, places of calls, callers that requested memory."""


class SampledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function or a frame that stack samples found innermost on the threads that launch, whole file."""

    pid: int
    kind: Literal["CPU", "Python"]
    """CPU: by the CPU's counters, of a thread on a CPU. Python: by the interpreter's stacks, on a CPU or not."""
    name: str
    caller: str = ""
    """Caller: in Python the innermost frame of the program's own code, in C the nearest frame of another
    module."""
    samples: int
    share_pct: float
    """Percent of the samples of this kind and process."""
    idle_samples: int | None = None
    """While the GPU was idle; None for a process without device work."""
    idle_pct: float | None = None
    """Percent of the samples of this kind and process while the GPU was idle."""
    call_samples: int | None = None
    """While a launching thread was inside a CUDA call."""


class CallPlace(msgspec.Struct, frozen=True, kw_only=True):
    """CUDA calls of one function made at one place of the program, by their recorded stacks, whole file."""

    pid: int
    call: str
    kind: str
    """launch, sync, copy, allocation or other."""
    place: str
    count: int
    seconds: float
    max_us: float


class HostOperatorTime(msgspec.Struct, frozen=True, kw_only=True):
    """Host time of one operator of the framework in a capture without device work, whole file, all threads."""

    name: str
    calls: int
    self_seconds: float
    """Time without the operators within it, as in torch's key_averages()."""
    total_seconds: float
    """Time with the operators within it."""
    share_pct: float
    """Self time in percent of that of all operators."""
    self_ms_per_step: float | None = None
    """None without whole steps."""
    shape: str = ""
    """The shapes of the inputs with the most self time; "" where they were not recorded."""
    module: str = ""
    """The modules around most of it, outermost first; "" where they were not recorded."""
    source: str = ""
    """The line of the program around most of it; "" where no Python stacks were recorded."""


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one process on one device, or on the host, over a capture."""

    pid: int
    device: int | None
    """None: memory of the host."""
    memory: str = ""
    """Its kind, as nsys has it: device, managed, pinned. "" for that of PyTorch's allocators."""
    absolute: bool
    """True: levels are all that the allocator had given out. False: they count from the capture's beginning."""
    start_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_seconds: float
    """When the peak was reached, in seconds since the beginning of the capture."""
    reserved_bytes: int | None = None
    """The most that the allocator held, used or not; None where the file does not say."""
    growth_bytes_per_step: float | None = None
    """Growth per step from the first whole step's start to the last one's end; None without two whole steps."""
    step_peak_bytes: tuple[int, ...] = ()
    """The peak of each whole step."""
    allocations: int
    releases: int
    largest_bytes: int
    largest_by: str = ""
    """Operator, range or place that made the largest allocation; "" where the file does not say."""


class MemoryOperator(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that one operator, range or place of the program asked for itself, whole file."""

    pid: int
    device: int | None
    name: str
    allocations: int
    bytes: int
    """Bytes of all its allocations."""
    net_bytes: int
    """Less what it released, as torch's key_averages() counts it (self memory usage)."""
    largest_bytes: int
