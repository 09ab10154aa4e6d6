"""Where a kernel stands under its GPU's roofs, by FLOPs and bytes that were counted while it ran."""

from __future__ import annotations

import re

import msgspec

from llmtop.hardware import gpu_specs
from llmtop.ncu.profile import KernelProfile

_TENSOR = re.compile(r"sm__ops_path_tensor_op_(\w+?)_src_([a-z]+\d+)(\w*)\.sum")
"""Operations of the tensor cores by instruction and type: ncu's own roofline sections are made of these."""
_SCALAR = {
    "fp64": (("dadd", "dmul"), "dfma", "x2"),
    "fp32": (("fadd", "fmul"), "ffma", "x2"),
    "fp16": (("hadd", "hmul"), "hfma", "x4"),
}
"""Per type: instructions of one result, the fused one, and how ncu counts that: two FLOPs, in fp16 for two
values."""
_LEAST_SHARE = 0.01
"""Share of the peak of another type than fp32: the compiler writes constants with instructions of fp16
arithmetic."""


class RooflinePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel under the roofs, at the clocks that it ran at."""

    dtype: str
    """Type of the FLOPs and of the roof: the type nearest to its peak."""
    tensor: bool
    """True if the tensor cores did them."""
    flops: float
    bytes: float
    """Read from and written to device memory."""
    flops_per_s: float
    bytes_per_s: float
    flops_per_byte: float | None
    """None where nothing was moved."""
    peak_flops_per_s: float
    peak_bytes_per_s: float
    roof_pct: float
    """Percent of the roof at that many FLOPs per byte."""
    under: str
    """"compute" or "memory": which roof that is."""
    datasheet_pct: float | None = None
    """Percent of the datasheet's dense peak, at its highest clocks."""


def roofline_point(kernel: KernelProfile) -> RooflinePoint | None:
    """Return where a kernel stands; None where FLOPs or bytes were not counted, or it did none."""
    seconds, bandwidth = kernel.seconds, kernel.number("dram__bytes.sum.per_second")
    peak_bytes = _times(kernel, "dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second")
    rates = [*_tensor_rates(kernel), *_scalar_rates(kernel)]
    if not seconds or bandwidth is None or not peak_bytes or not rates:
        return None
    worth = [rate for rate in rates if rate[0] == "fp32" or rate[2] >= _LEAST_SHARE * rate[3]]
    dtype, tensor, rate, peak = max(worth, key=lambda one: one[2] / one[3], default=rates[0])
    if rate <= 0:
        return None
    balance = rate / bandwidth if bandwidth else None
    slope = peak if balance is None else balance * peak_bytes
    sheet = gpu_specs.peak(kernel.gpu, dtype)
    return RooflinePoint(
        dtype=dtype,
        tensor=tensor,
        flops=rate * seconds,
        bytes=bandwidth * seconds,
        flops_per_s=rate,
        bytes_per_s=bandwidth,
        flops_per_byte=balance,
        peak_flops_per_s=peak,
        peak_bytes_per_s=peak_bytes,
        roof_pct=100.0 * rate / min(peak, slope),
        under="compute" if slope >= peak else "memory",
        datasheet_pct=100.0 * rate / sheet.flops_per_s if sheet and (tensor or dtype == "fp32") else None,
    )


def _times(kernel: KernelProfile, *names: str) -> float | None:
    product = 1.0
    for name in names:
        value = kernel.number(name)
        if value is None:
            return None
        product *= value
    return product


def _tensor_rates(kernel: KernelProfile) -> list[tuple[str, bool, float, float]]:
    """Return, by type, FLOP/s of the tensor cores and their dense peak at the kernel's clock."""
    rates: dict[str, tuple[float, float]] = {}
    for name, done in kernel.numbers.items():
        match = _TENSOR.fullmatch(name)
        rate, peak = (
            kernel.number(f"{name}.per_second"),
            kernel.number(f"{name}.peak_sustained_elapsed.per_second"),
        )
        if match is None or not done or not rate or not peak or match[2].startswith("int"):
            continue
        dense = peak / 2 if match[3].endswith("sparsity_on") else peak
        before = rates.get(match[2], (0.0, 0.0))
        rates[match[2]] = (before[0] + rate, max(before[1], dense))
    return [(dtype, True, rate, peak) for dtype, (rate, peak) in rates.items()]


def _scalar_rates(kernel: KernelProfile) -> list[tuple[str, bool, float, float]]:
    """Return, by type, FLOP/s of the other pipes and their peak at the kernel's clock, as in ncu's roofline
    section."""
    rates = []
    clock = kernel.number("smsp__cycles_elapsed.avg.per_second")
    for dtype, (singles, fused, times) in _SCALAR.items():
        peak = _times(
            kernel,
            f"derived__sm__sass_thread_inst_executed_op_{fused}_pred_on_{times}",
            "sm__cycles_elapsed.avg.per_second",
        )
        both = kernel.number(f"derived__smsp__sass_thread_inst_executed_op_{fused}_pred_on_{times}")
        if clock is None or not peak or both is None:
            continue
        a_cycle = both
        for single in singles:
            twice = kernel.number(f"derived__smsp__sass_thread_inst_executed_op_{single}_pred_on_x2")
            plain = kernel.number(f"smsp__sass_thread_inst_executed_op_{single}_pred_on.sum.per_cycle_elapsed")
            a_cycle += (twice if dtype == "fp16" else plain) or 0.0
        rates.append((dtype, False, a_cycle * clock, peak))
    return rates
