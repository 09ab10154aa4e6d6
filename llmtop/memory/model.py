"""Content of a snapshot of PyTorch's CUDA allocator, as plain typed data from which every output is made.

The names of the fields are a contract, as those of the report (docs/contracts.md). Bytes are device memory. What
tensors hold is told as they asked for it (`requested_bytes`); the allocator rounds up, which is `allocated_bytes`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from llmtop.format import encode_json
from llmtop.model.severity import Severity
from llmtop.report.environment import Environment

MEMORY_SCHEMA = 1

Holder = Literal[
    "parameters", "gradients", "optimizer", "activations", "autocast", "temporaries", "communication", "other",
    "unknown",
]  # fmt: skip
"""Holder of memory. "autocast" are the copies of weights that autocast keeps. "temporaries" are freed within
the backward pass or the optimizer's step that made them. "other" was allocated by code that is none of
these. "unknown" was allocated before the recording began, or without a stack."""
HOLDERS: tuple[Holder, ...] = get_args(Holder)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one holder, module or place in the code."""

    name: str
    """The holder, the module, or the line: "train.py:42 step"."""
    bytes: int
    blocks: int
    holder: Holder = "unknown"
    """Holder of the largest part of it."""
    module: str = ""
    """The module's forward pass that it was allocated in, with the line; "" outside of any."""
    stack: tuple[str, ...] = ()
    """The innermost frame first."""
    peak_bytes: int | None = None
    """Its memory when most was allocated; None without a history."""


class Fragmentation(msgspec.Struct, frozen=True, kw_only=True):
    """Reserved memory that no tensor uses."""

    free_bytes: int
    """Reserved - allocated, but for what another stream still uses."""
    largest_free_bytes: int
    """The largest allocation that fits without asking CUDA."""
    split_bytes: int
    """Free pieces of segments that are also used (inactive split): only allocations that fit can use them, and no
    cache that is emptied gives them back."""
    releasable_bytes: int
    """Bytes in segments that are all free."""
    rounding_bytes: int
    """Allocated beyond what was asked for."""


class PhasePeak(msgspec.Struct, frozen=True, kw_only=True):
    """The most that was allocated while a phase ran."""

    name: str
    peak_bytes: int
    median_growth_bytes: int
    """Allocated at its end less that at its beginning, the median of its times."""
    count: int


class MemoryPeak(msgspec.Struct, frozen=True, kw_only=True):
    """When most was allocated."""

    bytes: int
    reserved_bytes: int
    at_seconds: float | None
    """Time after the window's beginning."""
    phase: str | None


class MemoryTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The most that was allocated and reserved, in equal stretches of the window."""

    seconds: float | None
    """The length of a stretch; None where the snapshot has no times: then each has equally many events."""
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]


class LeakingLine(msgspec.Struct, frozen=True, kw_only=True):
    """Line that kept allocations in every step of the window."""

    line: str
    stack: tuple[str, ...]
    holder: Holder
    bytes_per_step: int
    blocks: int
    steps: int


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that failed."""

    wanted_bytes: int
    device_free_bytes: int | None
    """Memory that CUDA had left."""
    line: str
    stack: tuple[str, ...]
    at_seconds: float | None


class MemoryDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The allocator of one process on one device."""

    device: int
    source: str
    """The file it was read from."""
    reserved_bytes: int
    allocated_bytes: int
    requested_bytes: int
    awaiting_free_bytes: int
    """Freed by the script, still in use by another stream."""
    segments: int
    events: int
    """Events of the history; 0 where none was recorded."""
    expandable_segments: bool
    fragmentation: Fragmentation
    holders: tuple[Held, ...]
    lines: tuple[Held, ...]
    """Memory by the line of the script that allocated it, largest first."""
    modules: tuple[Held, ...]
    sizes: tuple[Held, ...]
    """Blocks without a stack, by the size they asked for."""
    peak: MemoryPeak | None = None
    loss_peak_bytes: int | None = None
    """Bytes at the peak within a cross entropy or a softmax over classes: mostly a vocabulary."""
    batch_peak_bytes: int | None = None
    """Bytes at the peak that grow with the batch: activations, and temporaries that are no copy of weights."""
    optimizer_temporary_peak_bytes: int | None = None
    """Bytes at the peak that the optimizer's step allocated and frees before it ends."""
    optimizer_temporary_saving_bytes: int | None = None
    """Bytes by which the peak falls without these: as far as the next one."""
    kept_by_forward: bool = True
    """True if most activations of the peak lie in lines that hold four blocks or more each, one a layer:
    without gradients a line holds one or two."""
    attention_peak_bytes: int | None = None
    """Bytes at the peak that the softmax of unfused attention allocated."""
    backward_seen: bool = False
    """True if a backward pass is in the history."""
    phases: tuple[PhasePeak, ...] = ()
    timeline: MemoryTimeline | None = None
    growing: tuple[LeakingLine, ...] = ()
    out_of_memory: tuple[OutOfMemory, ...] = ()


class MemoryFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to know about memory, and what to do about it."""

    id: str
    severity: Severity
    summary: str
    evidence: dict[str, Any] = {}
    fix: str = ""
    next: str = ""
    saves_at_most_bytes: int | None = None
    """Saving at the peak, if all of it went away and nothing came in its place."""


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of one snapshot, or of those of several ranks."""

    schema: int = MEMORY_SCHEMA
    kind: Literal["memory"] = "memory"
    source: str
    engine: Literal["memory"] = "memory"
    window_seconds: float | None
    """Length of the history; None where none was recorded."""
    steps: int | None
    """Whole steps in it; None where the snapshot does not tell."""
    devices: tuple[MemoryDevice, ...]
    summary: str
    findings: tuple[MemoryFinding, ...] = ()
    environment: Environment | None = None
    notes: tuple[str, ...] = ()


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that a line, or blocks of one size, hold in the second snapshot and not in the first."""

    name: str
    bytes: int
    blocks: int
    before_bytes: int
    after_bytes: int
    holder: Holder
    stack: tuple[str, ...] = ()
    by_size: bool = False
    """True if these blocks have no stack of their own and the line is that of the only ones of their size that
    stay allocated from step to step in the second window."""


class DeviceGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """One device before and after."""

    device: int
    source: str
    allocated_before_bytes: int
    allocated_after_bytes: int
    reserved_before_bytes: int
    reserved_after_bytes: int
    grown: tuple[Growth, ...]
    """Largest first."""
    shrunk: tuple[Growth, ...]


class LeakReport(msgspec.Struct, frozen=True, kw_only=True):
    """Growth between two snapshots of one program."""

    schema: int = MEMORY_SCHEMA
    kind: Literal["memory-growth"] = "memory-growth"
    before: str
    after: str
    verdict: Literal["leak", "grown", "unknown", "same"]
    """"leak": most of the growth is of lines that keep something in every step of the second window; "grown": it
    is known who, not whether it goes on; "unknown": most of it has neither a stack nor a size of its own."""
    summary: str
    devices: tuple[DeviceGrowth, ...]
    notes: tuple[str, ...] = ()


_encoder = msgspec.json.Encoder()


def to_json(report: MemoryReport | LeakReport) -> bytes:
    """Return the report as JSON, in one line."""
    return encode_json(report, _encoder.encode)
