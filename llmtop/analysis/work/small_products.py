"""Matrix products in fp32 that gain little from tensor cores: too short, or limited by the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmtop.naming.kernel_names import KernelKind, kind_of, matrix_type
from llmtop.ncu.limiter import SHORT_S
from llmtop.report.device_time import GemmTime
from llmtop.report.model import KernelTime, KernelVariant

_PRODUCTS: tuple[KernelKind, ...] = ("GEMM", "convolution")
_KNOWN = 0.5
"""Share of the products' time whose shapes must be known to tell what limits the rest."""


def short_share(kernels: Sequence[KernelTime]) -> float:
    """Return which share of the time of products in fp32 is in calls of under 10 µs on average; 0 to 1."""
    variants = list(_in_fp32(kernels))
    whole = sum(variant.seconds for variant in variants)
    short = sum(variant.seconds for variant in variants if variant.seconds < SHORT_S * variant.count)
    return short / whole if whole else 0.0


def memory_share(kernels: Sequence[KernelTime], gemms: Sequence[GemmTime]) -> float:
    """Return which share of the time of products in fp32 is limited by the memory, by their shapes; 0 to 1, and 0
    where most shapes are not known.

    Args:
        kernels: all of the capture.
        gemms: its matrix products with known shapes.
    """
    whole = sum(variant.seconds for variant in _in_fp32(kernels))
    known = [row for row in gemms if row.dtype == "fp32" and row.limit is not None]
    seconds = sum(row.seconds for row in known)
    if not whole or seconds < _KNOWN * whole:
        return 0.0
    return sum(row.seconds for row in known if row.limit == "memory") / seconds


def _in_fp32(kernels: Sequence[KernelTime]) -> Iterator[KernelVariant]:
    for kernel in kernels:
        for variant in kernel.variants:
            if kind_of(variant.name) in _PRODUCTS and matrix_type(variant.name) == "fp32":
                yield variant
