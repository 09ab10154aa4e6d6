"""What ncu measured, as lines of text with the role of each: for a shell and for the screen."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from llmtop.format import counted, duration, figure, percent, printable
from llmtop.ncu.judge import KernelJudgement, NcuReport
from llmtop.ncu.readings import CounterReading
from llmtop.ncu.roofline import RooflinePoint

Line = tuple[str, str]
"""A line and its role: "title", "warning", "dim" or "" for plain text."""
_LEAST, _MOST = 40, 140


def lines(report: NcuReport, width: int) -> list[Line]:
    """The whole report.

    Args:
        report: what was measured.
        width: of the terminal; lines are broken to it.
    """
    width = max(_LEAST, min(width, _MOST))
    found: list[Line] = []
    if report.note:
        found += [*_wrapped(printable(report.note), width, "warning"), ("", "")]
    for kernel in report.kernels:
        found += [*_kernel(kernel, width), ("", "")]
    if report.left_out:
        found += _wrapped(f"and {counted(report.left_out, 'more kernel')} in the file.", width, "dim")
    return found


def _kernel(kernel: KernelJudgement, width: int) -> Iterator[Line]:
    yield from _wrapped(printable(kernel.kernel), width, "title")
    about = f"{printable(kernel.gpu) or 'a GPU'}, grid {_three(kernel.grid)}, block {_three(kernel.block)}"
    if kernel.seconds is not None:
        about += f", {duration(kernel.seconds)} with cold caches"
    yield from _wrapped(about, width, "dim")
    yield "", ""
    yield from _wrapped(f"Limited by {kernel.word}: {kernel.sentence}", width, "warning")
    yield from _wrapped(f"do: {kernel.todo}", width, "", "  ", "      ")
    if kernel.roofline is not None:
        yield from _wrapped(_roofline(kernel.roofline), width, "", "  ", "      ")
    else:
        yield from _wrapped(_no_place(kernel), width, "", "  ", "      ")
    yield "", ""
    for reading in kernel.readings:
        yield from _reading(reading, width)


def _three(numbers: tuple[int, int, int]) -> str:
    return " x ".join(map(str, numbers))


def _no_place(kernel: KernelJudgement) -> str:
    dram = next((reading.text for reading in kernel.readings if reading.name == "DRAM throughput"), None)
    if dram is None:
        return "roofline: neither FLOPs nor bytes were counted."
    return f"roofline: no floating-point operations were counted, so there are only its bytes: {dram} of DRAM."


def _roofline(point: RooflinePoint) -> str:
    pipe = "tensor cores" if point.tensor else "no tensor cores"
    moved = "moving no bytes" if point.flops_per_byte is None else f"at {figure(point.flops_per_byte)} FLOP a byte"
    sheet = (
        f"; {percent(point.datasheet_pct, 1)} of the datasheet's peak" if point.datasheet_pct is not None else ""
    )
    return (
        f"roofline: {figure(point.flops_per_s / 1e12)} TFLOP/s in {point.dtype} ({pipe}) {moved}, "
        f"{figure(point.bytes_per_s / 1e12)} TB/s of device memory: {percent(point.roof_pct, 1)} of the "
        f"{point.under} roof at the clocks it ran at ({point.peak_flops_per_s / 1e12:.0f} TFLOP/s, "
        f"{point.peak_bytes_per_s / 1e12:.2f} TB/s){sheet}."
    )


def _reading(reading: CounterReading, width: int) -> Iterator[Line]:
    sign = "!" if reading.poor else " "
    role = "warning" if reading.poor else ""
    yield from _wrapped(f"{sign} {reading.name:<24} {reading.text}", width, role, "", " " * 27)
    if reading.threshold and reading.poor:
        yield from _wrapped(f"healthy: {reading.threshold} ({reading.source})", width, "dim", " " * 4, " " * 6)
    if reading.todo:
        yield from _wrapped(f"do: {reading.todo}", width, "", " " * 4, " " * 8)


def _wrapped(text: str, width: int, role: str, first: str = "", later: str = "") -> list[Line]:
    rows = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False, break_long_words=True
    )
    return [(row, role) for row in rows or [""]]
