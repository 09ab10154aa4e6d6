"""Matrix products by size: the rates they reached, beside what the GPU can do. A roofline without counters.

FLOPs follow from the recorded shapes; bytes are the least that a product must move, so a point lies right of where
counters would put it, never left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmtop.analysis.work.operators import launching_operators
from llmtop.analysis.work.tensor_shapes import BYTES, Gemm, parse_gemm
from llmtop.hardware.gpu_specs import memory_bytes_per_s, peak
from llmtop.naming.kernel_names import kind_of, matrix_type
from llmtop.report.device_time import GemmTime, Roof
from llmtop.trace import model
from llmtop.trace.groups import distinct_combinations, distinct_values, grouped
from llmtop.trace.intervals import Ns

_MOST = 64
_TYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")


def gpu_roofs(trace: model.Trace) -> tuple[Roof, ...]:
    """Return the peak rates of each GPU with device work; none for a GPU that is in no table."""
    found: list[Roof] = []
    for roof in _find_roofs(trace):
        if roof is not None and roof not in found:
            found.append(roof)
    return tuple(found)


def _find_roofs(trace: model.Trace) -> list[Roof | None]:
    """Return one for each GPU that each process calls by a number: several processes may call different ones
    alike."""
    found = []
    for device, process in distinct_combinations(trace.ops.device, trace.ops.process):
        gpu = trace.gpu(process, device)
        found.append(_roof(gpu, device) if gpu is not None and gpu.name else None)
    return found


def _roof(gpu: model.TracedGpu, device: int) -> Roof | None:
    name = gpu.name or ""
    peaks = [peak(name, dtype) for dtype in _TYPES]
    moves = gpu.dram_bytes_per_s or memory_bytes_per_s(name)
    rates = {one.dtype: one.flops_per_s for one in peaks if one is not None}
    return Roof(device=device, name=name, bytes_per_s=moves, flops_per_s=rates) if moves or rates else None


@dataclass(frozen=True)
class _Group:
    """Calls of one operator with the same inputs on GPUs of one kind."""

    operator: str
    gemm: Gemm
    calls: Ns
    """Rows of `Trace.host`."""


def gemm_times(trace: model.Trace, known: tuple[Roof, ...]) -> tuple[GemmTime, ...]:
    """Return the matrix products of the whole file whose shapes were recorded, most time first.

    Args:
        trace: what was read of a capture.
        known: what its GPUs can do; rates are set against a roof only where all of them have the same.
    """
    # Of the kernels alone: some libraries set a few bytes of workspace before each product.
    row = np.where(trace.ops.kind == model.KERNEL, launching_operators(trace), -1)
    used = distinct_values(row[row >= 0])
    groups = _groups(trace, used[trace.host.inputs[used] > 0])
    if not groups:
        return ()
    alike = {(roof.bytes_per_s, tuple(roof.flops_per_s.items())) for roof in known}
    roof = known[0] if len(alike) == 1 and None not in _find_roofs(trace) else None
    rows = [
        _row(group, total, kernel, roof)
        for group, (total, kernel) in zip(groups, _kernel_times(trace, groups, row), strict=True)
    ]
    return tuple(sorted(rows, key=lambda one: -one.seconds)[:_MOST])


def _kernel_times(trace: model.Trace, groups: list[_Group], row: Ns) -> list[tuple[float, str]]:
    """For each group ns of kernel time, and the full name of the kernel with most of it."""
    group_of = np.full(len(trace.host) + 1, -1, dtype=np.int64)  # the last place is for the row -1
    for number, group in enumerate(groups):
        group_of[group.calls] = number
    ops = np.flatnonzero(group_of[row] >= 0)
    pairs, which = grouped(group_of[row[ops]], trace.ops.full_name[ops])
    sums = np.bincount(which, weights=trace.ops.end[ops] - trace.ops.start[ops])
    totals, most = [0.0] * len(groups), [(-1.0, "")] * len(groups)
    for (number, name), total in zip(pairs, sums.tolist(), strict=True):
        totals[number] += total
        most[number] = max(most[number], (total, trace.names[name]))
    return [(total, name) for total, (_, name) in zip(totals, most, strict=True)]


def _groups(trace: model.Trace, used: Ns) -> list[_Group]:
    host = trace.host
    pairs, which = grouped(host.name[used], host.inputs[used])
    order = np.argsort(which, kind="stable")
    calls = np.split(used[order], np.cumsum(np.bincount(which))[:-1]) if len(used) else []
    found = []
    for (name, inputs), own in zip(pairs, calls, strict=True):
        gemm = parse_gemm(trace.names[name], trace.names[inputs])
        if gemm is not None:
            found.append(_Group(trace.names[name], gemm, own))
    return found


def _row(group: _Group, total_ns: float, kernel: str, roof: Roof | None) -> GemmTime:
    gemm, calls = group.gemm, len(group.calls)
    dtype = _compute_type(gemm.dtype, kernel)
    value = BYTES.get(gemm.dtype or dtype or "")
    size = None if value is None else gemm.bytes(2 if value == 1 else value, value)
    flops_per_s = calls * gemm.flops / max(total_ns, 1.0) * 1e9
    bytes_per_s = None if size is None else calls * size / max(total_ns, 1.0) * 1e9
    intensity = None if size is None else gemm.flops / size
    most = roof.flops_per_s.get(dtype or "") if roof is not None else None
    moves = roof.bytes_per_s if roof is not None else None
    lower = min(most, intensity * moves) if most and moves and intensity else None
    return GemmTime(
        operator=group.operator,
        m=gemm.m,
        n=gemm.n,
        k=gemm.k,
        batch=gemm.batch,
        dtype=dtype,
        calls=calls,
        seconds=total_ns / 1e9,
        mean_us=total_ns / 1e3 / calls,
        flops=gemm.flops,
        bytes=size,
        tflops_per_s=flops_per_s / 1e12,
        tb_per_s=None if bytes_per_s is None else bytes_per_s / 1e12,
        peak_pct=100.0 * flops_per_s / most if most else None,
        bandwidth_pct=100.0 * bytes_per_s / moves if moves and bytes_per_s is not None else None,
        flops_per_byte=intensity,
        roof_pct=100.0 * flops_per_s / lower if lower else None,
        limit=None if lower is None else "compute" if lower == most else "memory",
        kernel=kernel,
    )


def _compute_type(dtype: str | None, kernel: str) -> str | None:
    """Return the type that it computes in: four-byte factors may go through the tensor cores as TF32, which the
    kernel's name shows; where it does not, it is unknown."""
    said = matrix_type(kernel) if kind_of(kernel) in ("GEMM", "convolution") else None
    if dtype == "fp32":
        return said if said in ("fp32", "tf32") else None
    return dtype or said
