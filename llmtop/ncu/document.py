"""Document on the kernels that ncu measured."""

from __future__ import annotations

from collections.abc import Sequence

from llmtop.document.model import Block, Document, Finding, Heading, Paragraph, Table, columns
from llmtop.format import counted, duration, figure, flop_rate, percent_text, rate
from llmtop.ncu.judge import KernelJudgement, NcuReport
from llmtop.ncu.roofline import RooflinePoint


def kernels_document(reports: Sequence[NcuReport]) -> Document:
    """Return the kernels of several reports by what limits each."""
    return Document("Kernels under ncu", [block for report in reports for block in report_blocks(report)])


def report_blocks(report: NcuReport) -> list[Block]:
    """Return all of one report."""
    blocks: list[Block] = [Paragraph(report.note, "warning")] if report.note else []
    for kernel in report.kernels:
        blocks += _kernel(kernel)
    if report.left_out:
        blocks.append(Paragraph(f"and {counted(report.left_out, 'more kernel')} in the file.", "dim"))
    return blocks


def _kernel(kernel: KernelJudgement) -> list[Block]:
    """Return the limiter, the place under the roofs, what is poor with what to do, then what is not."""
    about = f"{kernel.gpu or 'a GPU'}, grid {_three(kernel.grid)}, block {_three(kernel.block)}"
    if kernel.seconds is not None:
        about += f", {duration(kernel.seconds)} with cold caches"
    point = kernel.roofline
    poor = [
        Finding(
            severity="warning",
            summary=reading.text,
            name=reading.name,
            evidence=f"healthy: {reading.threshold} ({reading.source})" if reading.threshold else "",
            todo=reading.todo,
        )
        for reading in kernel.readings
        if reading.poor
    ]
    limited_by = "Limit unknown" if kernel.limiter == "unknown" else f"Limited by {kernel.word}"
    rows = [(reading.name, reading.text) for reading in kernel.readings if not reading.poor]
    return [
        Heading(kernel.kernel),
        Paragraph(about, "dim"),
        Finding("warning", f"{limited_by}: {kernel.sentence}", todo=kernel.todo),
        Paragraph(_no_place(kernel) if point is None else _roofline(point), is_item=True),
        *poor,
        Table("", columns(("counter", "value"), cut="never"), rows, most=len(rows)),
    ]


def _three(numbers: tuple[int, int, int]) -> str:
    return " x ".join(map(str, numbers))


def _no_place(kernel: KernelJudgement) -> str:
    known = {reading.name: reading.text for reading in kernel.readings}
    dram = known.get("DRAM throughput")
    if dram is None:
        moved = [
            f"{name.removeprefix('DRAM ')} {known[name]}" for name in ("DRAM read", "DRAM write") if name in known
        ]
        if not moved:
            return "roofline: neither FLOPs nor bytes were counted."
        return f"roofline: no floating-point operations were counted; bytes of DRAM: {'; '.join(moved)}."
    return f"roofline: no floating-point operations were counted, so there are only its bytes: {dram} of DRAM."


def _roofline(point: RooflinePoint) -> str:
    pipe = "tensor cores" if point.tensor else "no tensor cores"
    moved = "moving no bytes" if point.flops_per_byte is None else f"at {figure(point.flops_per_byte)} FLOP a byte"
    sheet = (
        f"; {percent_text(point.datasheet_pct, 1)} of the datasheet's peak"
        if point.datasheet_pct is not None
        else ""
    )
    return (
        f"roofline: {flop_rate(point.flops_per_s)} in {point.dtype} ({pipe}) {moved}, "
        f"{rate(point.bytes_per_s)} of device memory: {percent_text(point.roof_pct, 1)} of the "
        f"{point.under} roof at the clocks it ran at ({point.peak_flops_per_s / 1e12:.0f} TFLOP/s, "
        f"{point.peak_bytes_per_s / 1e12:.2f} TB/s){sheet}."
    )
