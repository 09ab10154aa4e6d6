"""Tables of text on device time: by operator, matrix products beside their roofs, and what it is all made of."""

from __future__ import annotations

from llmtop.format import DASH, count, duration, number, percent, printable, shorten_middle
from llmtop.report.device_time import DeviceTimePart, GemmTime
from llmtop.report.model import Report
from llmtop.report.render.text_table import TextTable

_WORTH_PCT = 0.05
"""Less is shown as 0.0%."""
_MOST_KINDS = 12
_WIDE = 100
"""Characters of a name from which on there is room for shapes as well."""


def operator_table(report: Report, width: int) -> TextTable:
    """Operators by self device time, with the module or the line that most of it is of.

    Args:
        report: with the operators.
        width: the most characters of a name; from 100 on the shapes with the most time are shown too.
    """
    placed = any(row.module or row.source for row in report.operators)
    shaped = width >= _WIDE and any(row.shapes for row in report.operators)
    moved = any(part.tb_per_s is not None for row in report.operators for part in row.shapes[:1])
    rows = []
    for row in report.operators:
        top = row.shapes[0] if row.shapes else None
        rows.append(
            (
                shorten_middle(row.name, min(width, 60)),
                *((_end(printable(row.module or row.source or DASH, 400), width),) if placed else ()),
                *((printable(top.name if top is not None else DASH, width),) if shaped else ()),
                percent(row.share_pct, 1),
                count(row.calls),
                duration(row.mean_us / 1e6),
                *((number(top.tb_per_s if top is not None else None, 2),) if moved else ()),
                duration(row.seconds),
            )
        )
    words = (*(("mostly in",) if placed else ()), *(("shape with most time",) if shaped else ()))
    rate = ("TB/s",) if moved else ()
    header = ("operator, whole capture", *words, "of device", "calls", "mean", *rate, "total")
    title = "Operators by the device time of what each launched itself"
    return TextTable(title, header, rows, text_columns=1 + len(words), most=10)


def _end(text: str, width: int) -> str:
    """The end of a path, which is what tells it apart."""
    return text if len(text) <= width else "…" + text[-(width - 1) :]


def gemm_table(report: Report) -> TextTable:
    """Matrix products by size, with what they reach of the GPU's peaks."""
    rows = [_gemm(row) for row in report.gemms]
    header = (
        "matrix product",
        "M x N x K",
        "type",
        "calls",
        "mean",
        "TFLOP/s",
        "of peak",
        "TB/s",
        "FLOP/B",
        "of roof",
    )
    return TextTable("Roofline of the matrix products, from their shapes", header, rows, text_columns=3, most=8)


def _gemm(row: GemmTime) -> tuple[str, ...]:
    size = f"{row.m} x {row.n} x {row.k}"
    roof = percent(row.roof_pct) + (f" {row.limit}" if row.limit else "")
    return (
        printable(row.operator, 30),
        f"{row.batch} of {size}" if row.batch > 1 else size,
        printable(row.dtype or DASH, 10),
        count(row.calls),
        duration(row.mean_us / 1e6),
        number(row.tflops_per_s, 1),
        percent(row.peak_pct),
        number(row.tb_per_s, 2),
        number(row.flops_per_byte, 0),
        roof,
    )


def makeup_table(report: Report) -> TextTable:
    """Passes of a training or stages of inference, and shares that cut across them."""
    made = report.makeup
    rows: list[tuple[str, ...]] = []
    if made is not None:
        rows = [_part(part) for part in (*made.passes, *made.stages)]
        rows += [_part(part) for part in made.operations if part.share_pct >= _WORTH_PCT][:_MOST_KINDS]
        if made.backward_to_forward is not None:
            rows.append(("backward over forward", f"{made.backward_to_forward:.2f} x", DASH))
        if made.graph_launches:
            launched = f"replayed CUDA graphs ({count(made.graph_launches)} launches)"
            rows.append((launched, percent(made.graph_pct, 1), DASH))
        if made.copy_cast_pct and made.copy_cast_pct >= _WORTH_PCT:
            rows.append(("of all: copies and casts within the device", percent(made.copy_cast_pct, 1), DASH))
        if made.fp32_matrix_pct and made.fp32_matrix_pct >= _WORTH_PCT:
            rows.append(("of all: matrix products in full fp32", percent(made.fp32_matrix_pct, 1), DASH))
    title = "What the device time is made of"
    if made is not None and made.workload is not None:
        title += f" ({made.workload}: {printable(made.told_by, 80)})"
    return TextTable(title, ("part, whole capture", "of device", "total"), rows, text_columns=1)


def _part(part: DeviceTimePart) -> tuple[str, ...]:
    name = printable(part.name, 60)
    if part.passes is not None:
        name += f", {count(part.passes)} of {duration(part.pass_seconds)} each"
    return (name, percent(part.share_pct, 1), duration(part.seconds))
