"""The report: what a capture (or a recording) shows, as plain typed data, from which every output is made.

The names of the fields are a contract (docs/contracts.md). Totals (`kernels`, `copies`, `api`, `ranges`, and the
counts of a device) cover the whole file; shares, `phases`, `gaps` and the verdict cover whole steps; `busy_pct`
divides by first to last device activity. Percent are of time unless the name says otherwise. Seconds are
lengths, on the time line that the tool which made the capture gives its events.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from llmtop.document.timeline import WholeTimeline
from llmtop.format import encode_json
from llmtop.model.bottlenecks import Verdict
from llmtop.model.severity import Severity
from llmtop.report.device_time import GemmTime, OperatorTime, Roof, TimeBreakdown
from llmtop.report.environment import Environment
from llmtop.report.host_work import CallPlace, HostOperatorTime, MemoryOperator, MemoryUse, SampledFunction
from llmtop.report.per_step import PerStep

SCHEMA = 1


class StepsJudged(msgspec.Struct, frozen=True, kw_only=True):
    """Which steps the shares are taken over."""

    found_by: str
    """Evidence for the steps, in words: the range that marks a step, or why none was found."""
    inferred: bool = False
    """True if no range marks them: they were seen in what repeats."""
    clock: Literal["device", "host"] = "host"
    """Clock of the lengths: on the device a step lasts from the start of its first work to that of the next
    step's. The host may run ahead, so its own steps can be far from the true step."""
    count: int = 0
    """Whole steps; 0 when the whole capture was taken instead."""
    seconds_p50: float | None = None
    seconds_min: float | None = None
    seconds_max: float | None = None
    spread_pct: float | None = None
    """Interquartile range of the steps' times over their median."""
    outliers: tuple[int, ...] = ()
    """Which steps (0 is the first whole one) took more than 1.5 times the median."""
    left_out: str = ""
    """Part of the capture that is in no whole step, in words."""


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """The shares of a step that no profiler slows down; means of the judged device."""

    reason: str = ""
    """Why the shares are those of the captured steps, profiler and all; "" where they are corrected."""
    undisturbed_seconds: float | None = None
    """A step before and after the capture, as the training reported it."""
    captured_seconds: float | None = None
    """A step within the capture, on the device, without one-off work."""
    device_seconds: float | None = None
    """Device time in it: kernels, copies and memsets, what ran at once counted once."""
    busy_pct: float | None = None
    """Device time over the undisturbed step."""
    apart_pct: float | None = None
    """How far the steps before and after the capture lie apart, in percent of the shorter; None: one is known."""
    lost_pct: dict[str, float] = {}
    """Losses as in `Device`, for the undisturbed step; the verdict is made from these."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One process on one GPU."""

    device: int
    """The number of the GPU, as the tool counts."""
    pid: int
    name: str | None = None
    uuid: str | None = None
    rank: int | None = None
    busy_pct: float | None = None
    """Union of kernels, copies, memsets and whole CUDA graphs over first to last device activity, whole file; with
    such graphs (`graphs`) an upper bound."""
    kernel_pct: float | None = None
    memcpy_pct: float | None = None
    nccl_pct: float | None = None
    nccl_exposed_pct: float | None = None
    """Share of whole steps in which NCCL ran and nothing else did. This share and the three before it are None
    where CUDA graphs were traced as a whole: what ran in them is not known."""
    kernels: int | None = 0
    """How many ran, in the whole file; None for a recording, which has no kernels."""
    kernels_under_10us_pct: float | None = None
    """How many of the kernels took less than 10 us, in percent of their number; None, as the median is, where most
    ran in CUDA graphs that were traced as a whole."""
    idle_pct: float | None = None
    copy_only_pct: float | None = None
    """Time in which only copies between host and device ran."""
    one_off_pct: float | None = None
    """Share of whole steps that lay idle for work which no later step repeats (loading, compiling, capturing a
    graph); it is in none of `lost_pct`, nor in the time that those are percent of."""
    lost_pct: dict[str, float] = {}
    """Share of whole steps by what it was lost to; the keys are verdicts, and kernel_gaps: between kernels that
    were launched in time. Their sum is what the 10 % border of the verdict is held against."""
    steps: int = 0
    window_seconds: float = 0.0
    """Base of the shares: the time of whole steps on this device."""
    step_seconds: float | None = None
    """The median length of a step on this device."""
    spread_pct: float | None = None
    """Spread as in `StepsJudged`, for the steps on this device."""
    kernel_seconds: float | None = 0.0
    """Time in kernels, those that ran beside each other added up, in the whole file."""
    kernel_median_us: float | None = None
    launch_api_seconds: float | None = 0.0
    """Host time in calls that launch kernels, whole file."""
    launches_per_step: float | None = None
    """Calls that launch something on this device, by the host's steps: the device may lag behind them."""
    graphs: int = 0
    """CUDA graphs that were traced as a whole, in the whole file; their kernels are in no figure on kernels."""
    judged: bool = False
    """True if the verdict is about this device."""


class PhaseMean(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of a step, mean over whole steps. Nested phases carry their parent's name: forward/attention."""

    name: str
    pid: int
    host_seconds: float
    """Time by the host clock, over the host's whole steps, without a first one that the device's shares leave
    out. CUDA is asynchronous: this may be time spent waiting."""
    gpu_seconds: float | None = None
    """Device time of what was launched in this phase, whenever it ran, over the device's whole steps."""
    share_pct: float | None = None
    """Host time over the step's time by the host's clock."""
    gpu_share_pct: float | None = None
    """Device time over the step's time on the device, whose steps may be longer than those of a host that runs
    ahead."""
    gpu_idle_seconds: float | None = None
    """How long the device had nothing to do while the host was in this phase, over the host's whole steps."""
    count_per_step: float = 0.0
    device: int | None = None
    """Device of these times: a process that works on several GPUs has a row for each."""


class KernelVariant(msgspec.Struct, frozen=True, kw_only=True):
    """One full name behind a short one."""

    name: str
    count: int
    seconds: float


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """How a kernel's launches lie in the steps of one process, for a tool that counts launches by name."""

    per_step: int
    """Launches a step of all kernels of the same function, whatever the arguments of their template."""
    in_a_row: int
    """Among so many of those in a row there is always one of this kernel that takes half its mean time or
    longer."""
    own_in_a_row: int
    """The same among launches of this kernel alone."""


class KernelTime(msgspec.Struct, frozen=True, kw_only=True):
    """All launches of kernels with one short name; of PyTorch's templates, which share a few, with one functor."""

    name: str
    """The short name, and the functor after a colon: vectorized_elementwise_kernel: CUDAFunctor_add<float>."""
    short_name: str = ""
    """Name without the functor, as in nsys and ncu; for hipBLASLt and MIOpen the beginning of it."""
    functor: str = ""
    pattern: str = ""
    """Fits this kernel's demangled name alone, where others share the short name; empty elsewhere."""
    operator: str = ""
    """The framework's operator that launched most of them, where the capture has operators."""
    kind: str
    """GEMM, attention, normalisation, elementwise, reduction, NCCL, optimizer, embedding, sort or other."""
    count: int
    seconds: float
    share_pct: float
    """Percent of the time of all kernels."""
    mean_us: float
    min_us: float
    max_us: float
    variants: tuple[KernelVariant, ...] = ()
    per_step: tuple[PerStep, ...] = ()
    """Time per step by device."""
    launches: LaunchOrder | None = None
    """Launch order of the hottest kernels, in captures with whole steps."""


class CopyTime(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of one direction between two kinds of memory, or memsets."""

    direction: str
    source_memory: str
    target_memory: str
    count: int
    bytes: int
    seconds: float
    gb_per_s: float | None = None
    """10^9 bytes a second, over the time in which these copies ran."""
    largest_bytes: int = 0


class ApiTime(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one function of the CUDA runtime or driver."""

    name: str
    kind: str
    """launch, sync, copy, allocation or other."""
    count: int
    seconds: float
    mean_us: float
    max_us: float
    calls_per_step: float | None = None


class RangeTime(msgspec.Struct, frozen=True, kw_only=True):
    """All NVTX ranges or annotations of one name, whole file."""

    name: str
    domain: str
    style: str
    count: int
    seconds: float


class GapTime(msgspec.Struct, frozen=True, kw_only=True):
    """Idle time of one device with one cause, over whole steps."""

    device: int
    pid: int
    cause: str
    summary: str
    seconds: float
    share_pct: float
    ms_per_step: float | None = None
    gaps: int = 0
    """How many gaps the cause has a part in."""
    longest_us: float = 0.0


class LongGap(msgspec.Struct, frozen=True, kw_only=True):
    """One of the longest gaps: where it lies, what caused it, and what ran before and after it."""

    device: int
    pid: int
    start_seconds: float
    """Since the beginning of the capture."""
    seconds: float
    step: int | None = None
    phase: str = ""
    """The host's phase when it began."""
    causes: dict[str, float] = {}
    """Seconds by cause."""
    host: tuple[str, ...] = ()
    """Activities of the launching threads in it, longest first, with times."""
    before: str = ""
    """Work that ran on the device before it."""
    after: str = ""


class WaitPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one kind that wait for the GPU, at one place of the step."""

    pid: int
    call: str
    phase: str = ""
    """The innermost phase that the calls are in."""
    operator: str = ""
    """The framework's operator around it, where the capture has them: aten::_local_scalar_dense is .item()."""
    calls_per_step: float
    host_ms_per_step: float
    """How long the host was inside these calls, by its own clock."""


class CollectiveTime(msgspec.Struct, frozen=True, kw_only=True):
    """NCCL kernels of one collective on one device, whole steps."""

    device: int
    pid: int
    name: str
    count_per_step: float | None
    ms_per_step: float | None
    exposed_ms_per_step: float | None
    """Figures a step are None for a capture without whole steps."""
    ms_deviation: float | None = None
    """How far the time in single steps lies from the mean: the standard deviation."""
    share_pct: float
    exposed_pct: float = 0.0
    """Percent of the same time as `share_pct` in which it ran alone."""
    message_bytes: float | None = None
    """Mean size of a message: the larger of what goes in and out of a rank; None where the file does not say."""
    ranks: int | None = None
    """Size of the process group; None where it is not known, or differs."""
    algorithm_gb_per_s: float | None = None
    """10^9 bytes of messages a second of the kernels' time, waiting for other ranks included."""
    bus_gb_per_s: float | None = None
    """The same times what the collective makes of each byte on the wire, as nccl-tests counts it
    (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): comparable with the link's rate, whatever the ranks."""
    fastest_bus_gb_per_s: float | None = None
    """Bandwidth of the fastest single collective of at least a tenth of the largest message: with the least
    waiting."""


class MetricOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """A hardware counter that was recorded, in percent of its peak."""

    device: int
    name: str
    mean_pct: float
    p95_pct: float
    start_seconds: float
    """Where the first bucket begins: seconds since the beginning of the capture."""
    bucket_seconds: float
    values_pct: tuple[float | None, ...] = ()
    """The mean of each bucket; None where it has no sample."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a timeline row: [start, seconds, kind, text, fill]; start is in seconds since the step began."""

    start: float
    seconds: float
    kind: str
    text: str
    fill: float = 1.0
    """Which part of the piece is really filled, where many short ones were joined."""


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a timeline."""

    label: str
    lane: Literal["gpu", "gaps", "host", "phases"]
    spans: tuple[Span, ...] = ()


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """One step, of median length. Pieces too short to be seen at full width are joined."""

    step: int | None
    seconds: float
    rows: tuple[TimelineRow, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to know, what shows it, and what to do about it."""

    id: str
    severity: Severity
    share_pct: float | None = None
    """Cost in percent of whole steps. A straggler's cost is that of the other ranks; every other finding's is
    that of the judged GPU. None if the finding has no cost of its own: the loss to pageable copies is part
    of h2d_bound."""
    summary: str
    evidence: dict[str, Any] = {}
    fix: str = ""
    next: str = ""
    """The exact next command, or what to do."""
    confirm: str = ""
    """How to confirm that the fix worked."""
    saves_at_most_ms: float | None = None
    """Milliseconds a step, by Amdahl: if all of it went away and nothing else came in its place."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a capture or a recording, in figures, findings and words."""

    schema: int = SCHEMA
    source: str
    engine: str
    window_seconds: float
    """Time from the first event of the capture to the last."""
    devices: tuple[Device, ...] = ()
    phases: tuple[PhaseMean, ...] = ()
    kernels: tuple[KernelTime, ...] = ()
    copies: tuple[CopyTime, ...] = ()
    api: tuple[ApiTime, ...] = ()
    gaps: tuple[GapTime, ...] = ()
    verdict: Verdict = "unknown"
    findings: tuple[Finding, ...] = ()
    summary: str = ""
    """The verdict in a sentence, with its numbers."""
    second: str | None = None
    """The next cause, when it is close to the first."""
    at_border: bool = False
    """True if the verdict would be another with two points more or less lost."""
    steps: StepsJudged = StepsJudged(found_by="")
    environment: Environment | None = None
    correction: Correction | None = None
    """Correction of the shares and the verdict by the undisturbed run; None for a recording, which no profiler
    disturbs."""
    longest_gaps: tuple[LongGap, ...] = ()
    collectives: tuple[CollectiveTime, ...] = ()
    waits: tuple[WaitPlace, ...] = ()
    ranges: tuple[RangeTime, ...] = ()
    metrics: tuple[MetricOverTime, ...] = ()
    roofline: str = ""
    operators: tuple[OperatorTime, ...] = ()
    gemms: tuple[GemmTime, ...] = ()
    roofs: tuple[Roof, ...] = ()
    makeup: TimeBreakdown | None = None
    host_operators: tuple[HostOperatorTime, ...] = ()
    """Operators of a capture without device work."""
    operator_free_pct: float | None = None
    """Percent of the whole steps in which no operator was open; for a capture without device work."""
    sampled: tuple[SampledFunction, ...] = ()
    call_places: tuple[CallPlace, ...] = ()
    memory: tuple[MemoryUse, ...] = ()
    memory_operators: tuple[MemoryOperator, ...] = ()
    timeline: Timeline | None = None
    whole_timeline: WholeTimeline | None = None
    """Made for a page alone."""
    tool_version: str = ""
    notes: tuple[str, ...] = ()
    """Left-out parts, with the reason."""
    which_run: str | None = None
    """Which run this report is of, and which it leaves out, in one sentence, where a folder holds several."""
    stopped_early: str | None = None
    """If the capture recorded less than was asked for: how much, and why, in one sentence, from capture.json."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Report)


def to_json(report: Report) -> bytes:
    """Return the report as one line of JSON; a float that is not finite becomes null."""
    return encode_json(report, _encoder.encode)


def from_json(data: bytes | str) -> Report:
    """Read a report that was written as JSON; fields that this version does not know are ignored.

    Raises:
        msgspec.DecodeError: not JSON, or not a report (`msgspec.ValidationError`, a subclass).
    """
    return _decoder.decode(data)
