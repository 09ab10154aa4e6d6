"""Differences between two captures before any step: other GPUs, another precision, other work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from llmtop.naming.kernel_names import kind_of, matrix_type
from llmtop.report.model import Report

_MOST = 0.5
"""Share of the time of all matrix products: the type that has more is the precision of a capture."""


def unlike_conditions(before: Report, after: Report, on_work: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the differences between two captures before any speed: hardware, precision, then work.

    Args:
        before: the first report.
        after: the second report.
        on_work: in what their work differs; empty where it does not.

    Returns:
        A clause for each; none where both ran the same on the same.
    """
    return (*_unlike_gpus(before, after), *_unlike_precision(before, after), *(text for text in on_work if text))


def _unlike_gpus(before: Report, after: Report) -> list[str]:
    names = [{device.name for device in report.devices if device.name} for report in (before, after)]
    # Of AMD's GPUs a trace has no name.
    makers = [None if report.makeup is None else report.makeup.vendor for report in (before, after)]
    if names[0] == names[1] or not (all(names) or (all(makers) and makers[0] != makers[1])):
        return []
    one, two = (", ".join(sorted(side)) or f"one of {maker}'s" for side, maker in zip(names, makers, strict=True))
    return [f"GPU {one} before, {two} after"]


def _unlike_precision(before: Report, after: Report) -> list[str]:
    one, two = matrix_precision(before), matrix_precision(after)
    return [f"matrix products in {one} before, {two} after"] if one and two and one != two else []


def matrix_precision(report: Report) -> str | None:
    """Return the type in which most of the time of matrix products and convolutions is computed; None without
    one."""
    seconds: Counter[str | None] = Counter()
    for kernel in report.kernels:
        for variant in kernel.variants:
            if kind_of(variant.name) in ("GEMM", "convolution"):
                seconds[matrix_type(variant.name)] += variant.seconds  # type: ignore[assignment]
    if not seconds:
        return None
    dtype, most = seconds.most_common(1)[0]
    return dtype if most > _MOST * sum(seconds.values()) else None
