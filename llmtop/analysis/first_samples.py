"""First checks of an expert: the longest kernel, fp32 on tensor cores, time spent in copies."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any, Protocol

from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.verdict import Judgement
from llmtop.analysis.work.small_products import memory_share, short_share
from llmtop.format import count, duration, percent_text
from llmtop.hardware.gpu_specs import peak, tensor_core_types
from llmtop.model.severity import Severity
from llmtop.naming.kernel_names import is_from_a_library, kind_of, matrix_type
from llmtop.ncu.command import command_line, launches_a_step, launches_of
from llmtop.report.advice.table import FindingId
from llmtop.report.device_time import GemmTime, OperatorTime, TimeBreakdown
from llmtop.report.model import KernelTime

LEAST_REPORTED_PCT = 10.0
"""Share of device time. A change that gains less is in the noise of most comparisons, 3 % of a step."""
_WARNING_PCT = 30.0
_SMALL = 0.1
"""Share of the products in fp32 that gain little; below it, the text does not mention them."""
_SOFTMAX_PCT = 3.0
"""Share of device time. The softmax of a router or of a classifier takes less."""
_MOSTLY_PCT = 40.0
"""Share of device time. Above it, fusing these kernels gains more than anything done to the products."""
_SHORT_BACKWARD = 0.67
"""Backward over forward. A linear layer's backward has two products for one of forward's, so it is 2 where all
work is differentiated."""


class WorkMeasurements(Protocol):
    """Measurements that these findings need."""

    @property
    def judgement(self) -> Judgement:
        """Which device is judged."""

    @property
    def timelines(self) -> list[DeviceTimeline]:
        """All of the capture."""

    @property
    def kernels(self) -> tuple[KernelTime, ...]:
        """All kernels, most time first."""

    @property
    def gemms(self) -> tuple[GemmTime, ...]:
        """Matrix products with known shapes, most time first."""

    @property
    def operators(self) -> tuple[OperatorTime, ...]:
        """All operators, most time first."""

    @property
    def time_breakdown(self) -> TimeBreakdown | None:
        """Parts of the device time."""

    @property
    def command(self) -> str:
        """The training's."""


@dataclass(frozen=True)
class WorkFinding:
    """Finding on kernels and copies (time, number format, kind), without advice."""

    kind: FindingId
    severity: Severity
    share_pct: float | None
    summary: str
    evidence: dict[str, Any]
    saves_ms: float | None = None
    """Largest possible saving per step."""
    fills: dict[str, Any] = field(default_factory=dict)
    """Values for the templates of the advice."""


def work_findings(measured: WorkMeasurements) -> list[WorkFinding]:
    """Return the findings that apply to the capture."""
    timeline = measured.judgement.timeline
    if timeline is None:
        return []
    found = [
        _fp32_finding(measured, timeline),
        _attention_finding(measured, timeline),
        _elementwise_finding(measured, timeline),
        _copies_finding(measured),
        _forward_finding(measured),
        _hot_kernel_finding(measured, timeline),
    ]
    return [look for look in found if look is not None]


def _attention_finding(measured: WorkMeasurements, timeline: DeviceTimeline) -> WorkFinding | None:
    """Attention that writes its scores to memory: a softmax by itself, with the products around it."""
    made = measured.time_breakdown
    if made is None or (made.softmax_pct or 0.0) < _SOFTMAX_PCT:
        return None
    softmax, share = made.softmax_pct or 0.0, made.unfused_attention_pct or 0.0
    if share < LEAST_REPORTED_PCT:
        return None
    products = "" if share - softmax < 1.0 else f", {percent_text(share, 1)} with the batched products around it"
    summary = (
        f"{percent_text(softmax, 1)} of device time is a softmax of its own{products}: attention is not fused; "
        "its scores go through memory."
    )
    evidence: dict[str, Any] = {"softmax_pct": softmax, "unfused_attention_pct": share}
    severity: Severity = "warning" if share >= _WARNING_PCT else "info"
    return WorkFinding("unfused_attention", severity, share, summary, evidence, None)


def _elementwise_finding(measured: WorkMeasurements, timeline: DeviceTimeline) -> WorkFinding | None:
    """Kernels that only move data take most of the time of a GPU that is busy."""
    made = measured.time_breakdown
    share = made.elementwise_pct if made is not None else None
    if share is None or share < _MOSTLY_PCT or measured.judgement.verdict not in ("gpu_bound", "unknown"):
        return None
    summary = (
        f"{percent_text(share, 1)} of device time is elementwise kernels and normalisations, which read and write "
        "memory and compute little."
    )
    return WorkFinding("elementwise", "info", share, summary, {"elementwise_pct": share}, None, _fills(measured))


def _fills(measured: WorkMeasurements) -> dict[str, Any]:
    return {"command": measured.command}


def _forward_finding(measured: WorkMeasurements) -> WorkFinding | None:
    """Forward takes much longer than backward, which has about twice its work."""
    made = measured.time_breakdown
    if made is None or "operators of autograd" not in made.told_by:
        return None
    parts = {part.name: part.share_pct for part in made.passes}
    forward, backward = parts.get("forward", 0.0), parts.get("backward", 0.0)
    if min(forward, backward) < LEAST_REPORTED_PCT or backward > _SHORT_BACKWARD * forward:
        return None
    ratio = backward / forward
    summary = (
        f"Forward takes {percent_text(forward, 1)} of device time and backward {percent_text(backward, 1)}; "
        "backward usually takes about twice as long as forward."
    )
    evidence: dict[str, Any] = {"forward_pct": forward, "backward_pct": backward, "backward_to_forward": ratio}
    return WorkFinding("slow_forward", "info", forward, summary, evidence)


def _fp32_finding(measured: WorkMeasurements, timeline: DeviceTimeline) -> WorkFinding | None:
    """Matrix products in full fp32 on a GPU whose tensor cores do TF32 or half precision several times as fast."""
    made = measured.time_breakdown
    share = made.fp32_matrix_pct if made is not None else None
    gpu = timeline.trace.gpu(timeline.process, timeline.device)
    if share is None or gpu is None or not gpu.name:
        return None
    small = max(short_share(measured.kernels), memory_share(measured.kernels, measured.gemms))
    gains = share * (1 - small)
    if gains < LEAST_REPORTED_PCT:
        return None
    rows = [row for row in measured.kernels if kind_of(_uses_full_fp32(row)) in ("GEMM", "convolution")]
    top = next((row for row in rows if matrix_type(_uses_full_fp32(row)) == "fp32"), None)
    evidence = {"fp32_matrix_pct": share, "kernel": top.name if top is not None else None}
    summary = (
        f"{percent_text(share, 1)} of device time is matrix products and convolutions in full fp32, which use no "
        "tensor cores: "
    )
    plain, types = peak(gpu.name, "fp32"), tensor_core_types(gpu.name)
    faster = [one for one in (peak(gpu.name, "tf32"), peak(gpu.name, "bf16") or peak(gpu.name, "fp16")) if one]
    saves = None
    if plain is not None and faster:
        times = " and ".join(f"{one.flops_per_s / plain.flops_per_s:.1f} times in {one.dtype}" for one in faster)
        summary += f"by its datasheet {gpu.name} does {times} as many FLOP/s as in fp32."
        evidence["fp32_peak_tflops"] = plain.flops_per_s / 1e12
        evidence |= {f"{one.dtype}_peak_tflops": one.flops_per_s / 1e12 for one in faster}
        best = max(one.flops_per_s for one in faster)
        saves = _saved_ms_per_step(timeline, gains * (1 - plain.flops_per_s / best))
    elif types:
        summary += f"{gpu.name} has them for {' and '.join(types)}."
    else:
        return None
    if small >= _SMALL:
        evidence["small_products_pct"] = 100 * small
        summary += (
            f" {percent_text(100 * small)} of these products gain little: their calls take under 10 µs, or the "
            "memory limits them."
        )
    severity: Severity = "warning" if gains >= _WARNING_PCT else "info"
    tf32 = "tf32" in types or peak(gpu.name, "tf32") is not None
    try_it = f"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 {measured.command}   # TF32 without a change to the script"
    fills = {"try_it": try_it if tf32 else ""}
    return WorkFinding("fp32_matrix", severity, share, summary, evidence, saves, fills)


def _uses_full_fp32(row: KernelTime) -> str:
    return row.variants[0].name if row.variants else row.name


def _saved_ms_per_step(timeline: DeviceTimeline, device_pct: float) -> float | None:
    """Return that share of the device time of a step, in ms: the time saved when that work is removed."""
    if not timeline.counted:
        return None
    return device_pct / 100 * timeline.ns_in_steps(timeline.busy) / 1e6 / timeline.counted


def _copies_finding(measured: WorkMeasurements) -> WorkFinding | None:
    """Copies and conversions within the device, which compute nothing."""
    made, timeline = measured.time_breakdown, measured.judgement.timeline
    share = made.copy_cast_pct if made is not None else None
    if share is None or share < LEAST_REPORTED_PCT or timeline is None:
        return None
    row = next((row for row in measured.operators if row.name == "aten::copy_"), None)
    where = f", mostly in {row.module}" if row is not None and row.module else ""
    summary = (
        f"{percent_text(share, 1)} of device time copies or converts tensors within the device (what .to(), "
        f".contiguous(), .clone() and autocast's casts come down to){where}."
    )
    evidence: dict[str, Any] = {"copy_cast_pct": share}
    if row is not None:
        evidence |= {
            "operator": row.name,
            "calls": row.calls,
            "mean_us": row.mean_us,
            "source": row.source or None,
        }
        if row.shapes:
            evidence["most_time_with"] = row.shapes[0].name
    return WorkFinding("copies_casts", "info", share, summary, evidence, _saved_ms_per_step(timeline, share))


_LEAST_HOT_PCT = 5.0
"""Share of kernel time: at twice the speed a kernel with less saves under 2.5 %."""


def _hot_kernel_finding(measured: WorkMeasurements, timeline: DeviceTimeline) -> WorkFinding | None:
    """Return the kernel with the most time, with the command that profiles some of its launches in a later
    step."""
    compute = [row for row in measured.kernels if row.kind != "NCCL"]
    if not compute or not timeline.kernels_known:
        return None
    top = compute[0]
    if top.share_pct is not None and top.share_pct < _LEAST_HOT_PCT:
        return None
    by = f" by {top.operator}" if top.operator else ""
    summary = (
        f"{top.name} ({top.kind}){by} takes {percent_text(top.share_pct, 1)} of kernel time: "
        f"{count(top.count)} {'launch' if top.count == 1 else 'launches'} of {duration(top.mean_us / 1e6)}"
        f"{'' if top.count == 1 else ' on average'}."
    )
    evidence: dict[str, Any] = {"kernel": top.name, "kind": top.kind, "operator": top.operator or None}
    evidence |= {"kernel_time_pct": top.share_pct, "count": top.count, "mean_us": top.mean_us}
    evidence |= {"launches_per_step": round(launches_a_step(top)) or None}
    fills = {
        "ncu": command_line(launches_of(top), "llmtop-kernel", measured.command),
        "kernel": shlex.quote(top.short_name),
        "command": measured.command,
    }
    made = measured.time_breakdown
    compiled = made is not None and made.framework is not None
    if top.kind == "GEMM" and not compiled and not is_from_a_library(_uses_full_fp32(top)):
        library = "hipBLASLt" if made is not None and made.vendor == "AMD" else "cuBLAS"
        # A name with a narrower type is of a kernel that may well use them (Triton's tl.dot, CUTLASS).
        unknown = matrix_type(_uses_full_fp32(top)) in (None, "fp32")
        cores = ", which uses the matrix cores" if library == "hipBLASLt" else ", which uses the tensor cores"
        summary += f" It is a product of the program's own: compare it with {library}{cores if unknown else ''}."
    return WorkFinding("hot_kernel", "info", None, summary, evidence, None, fills)
