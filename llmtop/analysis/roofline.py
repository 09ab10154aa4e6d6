"""The limit that the evidence points at: launches, memory or compute; and what only ncu can measure."""

from __future__ import annotations

from typing import Final

from llmtop.analysis.verdict import Judgement
from llmtop.analysis.work.kernels import seconds_by_kind
from llmtop.analysis.work.small_products import short_share
from llmtop.format import percent_text
from llmtop.hardware.gpu_specs import memory_bytes_per_s, peak
from llmtop.naming.kernel_names import KernelKind, kind_of, matrix_type
from llmtop.report.device_time import GemmTime, TimeBreakdown
from llmtop.report.model import KernelTime
from llmtop.trace import model

_MATH: tuple[KernelKind, ...] = ("GEMM", "convolution", "attention")
"""Kernel kinds that can use tensor cores."""


_UNKNOWN_PCT = 50.0
_FP32_PCT = 50.0
_MOSTLY_PCT = 60.0
_NEAR_PCT = 60.0
"""Share of the roof: large products of cuBLAS reach 60 to 80 % of the datasheet's dense peak."""


def roofline_text(
    trace: model.Trace,
    judgement: Judgement,
    kernels: tuple[KernelTime, ...],
    gemms: tuple[GemmTime, ...] = (),
    breakdown: TimeBreakdown | None = None,
) -> str:
    """Return a few sentences on how near the kernels come to the GPU's peaks; empty without kernels.

    Args:
        trace: what was read of a capture.
        judgement: which device is judged, and what was found.
        kernels: all kernels by name.
        gemms: its matrix products, where their shapes were recorded.
        breakdown: whose GPUs they are.
    """
    timeline = judgement.timeline
    if timeline is None or not kernels or not timeline.kernels_known:
        return ""
    by_kind = seconds_by_kind(kernels)
    by_kind.pop("NCCL", None)
    everything = sum(by_kind.values())
    if not everything:
        return ""
    math = 100.0 * sum(by_kind.get(kind, 0.0) for kind in _MATH) / everything
    shares = ", ".join(f"{kind} {percent_text(100 * s / everything)}" for kind, s in list(by_kind.items())[:4])
    fp32 = _full_fp32_pct(kernels) if short_share(kernels) < _MOSTLY_PCT / 100 else None
    unknown = 100.0 * by_kind.get("other", 0.0) / everything
    ceiling = _ceiling_text(judgement, math, fp32, unknown, _why_memory(breakdown, gemms))
    text = f"Kernel time without communication: {shares}. {ceiling}"
    text += _metrics_text(trace, timeline.device)
    text += _balance_text(trace.gpu(timeline.process, timeline.device), (gemms[0].dtype or "") if gemms else "")
    return text + _gemm_rates_text(gemms) + _counters_text(breakdown, bool(gemms))


def _gemm_rates_text(gemms: tuple[GemmTime, ...]) -> str:
    """Return how near the matrix products come to their roofs, by the recorded shapes."""
    known = [row for row in gemms if row.roof_pct is not None]
    total = sum(row.seconds for row in known)
    if not total:
        return ""
    near = sum(row.seconds for row in known if (row.roof_pct or 0.0) >= _NEAR_PCT)
    top = known[0]
    return (
        f" By their shapes, {percent_text(100 * near / total)} of the time of the matrix products reaches "
        f"{_NEAR_PCT:.0f} % of its roof or more; the one with the most time, {top.operator} of "
        f"{top.m}x{top.n}x{top.k} in {top.dtype}, does {top.tflops_per_s:.1f} TFLOP/s, "
        f"{percent_text(top.peak_pct)} of the peak."
    )


def _counters_text(breakdown: TimeBreakdown | None, shapes: bool) -> str:
    """Return what only hardware counters show, and the tool that reads them."""
    if breakdown is not None and breakdown.vendor in ("CPU", "Google"):
        return ""
    if breakdown is not None and breakdown.vendor == "AMD":
        tool = "rocprof-compute can tell: it counts its bytes and FLOPs (rocprof-compute profile --roof-only)"
    else:
        tool = "ncu can tell: it counts its bytes and FLOPs (llmtop kernel, given this capture, has the command)"
    capture = "llmtop capture --engine torch.profiler --option shapes"
    how = (
        ""
        if shapes or (breakdown is not None and (breakdown.framework or breakdown.plain_program))
        else f" Recorded with shapes ({capture}), matrix products show their rates here."
    )
    return f"{how} At which roof {'any other' if shapes else 'a'} kernel is, only {tool}."


def _full_fp32_pct(kernels: tuple[KernelTime, ...]) -> float:
    """Return the share of matrix work's time that is, by its name, in full fp32, which no tensor core computes."""
    variants = [variant for kernel in kernels for variant in kernel.variants if kind_of(variant.name) in _MATH]
    whole = sum(variant.seconds for variant in variants)
    plain = sum(variant.seconds for variant in variants if matrix_type(variant.name) == "fp32")
    return 100.0 * plain / whole if whole else 0.0


def _why_memory(breakdown: TimeBreakdown | None, gemms: tuple[GemmTime, ...]) -> str:
    """Return why memory limits most matrix work, as the end of a sentence; "" where nothing shows that it does."""
    decode = (
        next((one for one in breakdown.stages if one.name == "decode"), None) if breakdown is not None else None
    )
    if decode is not None and decode.share_pct >= _MOSTLY_PCT:
        return "decode, in which a product reads its weights for few tokens"
    known = sum(row.seconds for row in gemms if row.limit is not None)
    if known and 100 * sum(row.seconds for row in gemms if row.limit == "memory") >= _MOSTLY_PCT * known:
        return "products of so few rows or columns that reading them takes longer than computing"
    return ""


def _ceiling_text(judgement: Judgement, math: float, fp32: float | None, unknown: float, why_memory: str) -> str:
    """Return which roof limits the kernels, by what they compute.

    Args:
        judgement: of the capture.
        math: percent of kernel time that is matrix work.
        fp32: percent of the matrix work that is in full fp32; None where most of it is in calls of under 10 µs.
        unknown: percent of kernel time in kernels of unknown kind.
        why_memory: why memory limits most of the matrix work; "" where nothing shows that it does.
    """
    if judgement.verdict != "gpu_bound":
        of = "of the step" if judgement.timeline is None or judgement.timeline.counted else "of the time"
        lost = (
            f"{percent_text(judgement.total)} {of} is lost to idle time, unoverlapped copies and exposed "
            "communication"
        )
        return f"The ceiling here is not a kernel's: {lost}."
    if unknown >= _UNKNOWN_PCT:
        return f"{percent_text(unknown)} is kernels of unknown kind, so their ceiling is unknown."
    if math >= 60.0:
        return f"{percent_text(math)} is matrix work{_matrix_ceiling_text(fp32, why_memory)}"
    if math <= 35.0:
        return (
            f"Only {percent_text(math)} is matrix work, so the ceiling is memory bandwidth: fuse what moves data."
        )
    return f"{percent_text(math)} is matrix work, the rest moves data: both compute and memory bandwidth matter."


def _matrix_ceiling_text(fp32: float | None, why_memory: str) -> str:
    if why_memory:
        return f", most of it {why_memory}: the ceiling is memory bandwidth."
    if fp32 is None:
        return ", most of it in calls of under 10 µs, which mostly start and end: larger products come first."
    if fp32 >= _FP32_PCT:
        return (
            f" and {percent_text(fp32)} of that in full fp32, so the ceiling is compute without tensor cores: "
            "TF32 or bf16 (fp16 before Ampere) raises it where the GPU has them."
        )
    return ", so the ceiling is compute (tensor cores): precision and shapes."


def _metrics_text(trace: model.Trace, device: int) -> str:
    """GPU metrics over the capture, where they were recorded."""
    means = {
        metric.name: float(metric.values[metric.values == metric.values].mean())
        for metric in trace.metrics
        if metric.device == device and (metric.values == metric.values).any()
    }
    if not means:
        return ""
    words = {
        "sm_active": "SM active",
        "tensor_active": "tensor active",
        "dram_read": "DRAM read",
        "dram_write": "DRAM write",
    }
    said = ", ".join(f"{text} {percent_text(means[name], 1)}" for name, text in words.items() if name in means)
    return f" Measured over the capture: {said} of peak." if said else ""


_VALUE_BYTES: Final = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


def _balance_text(gpu: model.TracedGpu | None, dtype: str) -> str:
    """Return the machine balance: how many FLOPs a kernel must do for each byte that it moves before arithmetic
    and not the memory limit it (Williams, Waterman, Patterson, Roofline, 2009).

    Args:
        gpu: whose; None where the capture does not name it.
        dtype: of the matrix products with the most time; "" where not recorded, then that of large models.
    """
    if gpu is None or gpu.name is None:
        return ""
    bandwidth = gpu.dram_bytes_per_s or memory_bytes_per_s(gpu.name)
    compute = peak(gpu.name, dtype) or peak(gpu.name, "bf16") or peak(gpu.name, "fp16")
    if bandwidth is None:
        return ""
    moves = f" {gpu.name} moves {bandwidth / 1e12:.1f} TB/s at most"
    if compute is None:
        return f"{moves}."
    balance = compute.flops_per_s / bandwidth
    # A square GEMM of n does 2 n^3 FLOPs on 3 n^2 values: with two bytes a value n / 3 a byte.
    per_n = 2 / (3 * _VALUE_BYTES[compute.dtype])
    unit = "arithmetic" if compute.dtype == "fp32" else "the tensor cores"
    share = "2n/3" if per_n > 0.5 else f"n/{1 / per_n:.0f}"
    return (
        f"{moves} and does {compute.flops_per_s / 1e12:.0f} TFLOP/s in {compute.dtype}: its balance is "
        f"{balance:.0f} FLOP a byte. An elementwise kernel does under 1, a square GEMM of n about {share}, so one "
        f"of {balance / per_n:.0f} and more can be limited by {unit}."
    )
