"""Which ceiling the evidence points at: launching, memory or compute; and what only ncu can tell."""

from __future__ import annotations

from llmtop.diagnosis.kernels import ATTENTION, GEMM, NCCL, seconds_by_kind
from llmtop.diagnosis.report import KernelTime
from llmtop.diagnosis.verdict import Judgement
from llmtop.format import percent, rate
from llmtop.trace import model

_MATH = (GEMM, ATTENTION)


def roofline(trace: model.Trace, judgement: Judgement, kernels: tuple[KernelTime, ...]) -> str:
    """A few sentences; empty without kernels."""
    lane = judgement.lane
    if lane is None or not kernels:
        return ""
    by_kind = seconds_by_kind(kernels)
    by_kind.pop(NCCL, None)
    everything = sum(by_kind.values())
    if not everything:
        return ""
    math = 100.0 * sum(by_kind.get(kind, 0.0) for kind in _MATH) / everything
    shares = ", ".join(f"{kind} {percent(100 * s / everything)}" for kind, s in list(by_kind.items())[:4])
    text = f"Kernel time without NCCL: {shares}. {_ceiling(judgement, math)}"
    text += _measured(trace, lane.device)
    text += _balance(trace, lane.device)
    return text + (
        " Whether a kernel itself is at the memory or the compute roof only ncu can tell: it counts its bytes and "
        "FLOPs (ncu --set full, section GPU Speed Of Light Roofline)."
    )


def _ceiling(judgement: Judgement, math: float) -> str:
    if judgement.verdict != "gpu_bound":
        idle = judgement.total
        return f"The ceiling here is not a kernel's: {percent(idle)} of the step is lost before one runs."
    if math >= 60.0:
        return f"{percent(math)} is matrix work, so the ceiling is compute (tensor cores): precision and shapes."
    if math <= 35.0:
        return f"Only {percent(math)} is matrix work, so the ceiling is memory bandwidth: fuse what moves data."
    return f"{percent(math)} is matrix work, the rest moves data: compute and memory bandwidth share the time."


def _measured(trace: model.Trace, device: int) -> str:
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
    said = ", ".join(f"{text} {percent(means[name], 1)}" for name, text in words.items() if name in means)
    return f" Measured over the capture: {said} of peak." if said else ""


def _balance(trace: model.Trace, device: int) -> str:
    gpu = trace.gpus.get(device)
    if gpu is None or gpu.dram_bytes_per_s is None:
        return ""
    return f" {gpu.name or 'This GPU'} moves {rate(gpu.dram_bytes_per_s)} at most."
