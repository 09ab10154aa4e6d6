"""Tables on device time: by operator, matrix products beside their roofs, and what it is all made of."""

from __future__ import annotations

from llmtop.document.model import Column, Table, columns
from llmtop.format import DASH, count, duration, number, percent
from llmtop.report.device_time import DeviceTimePart, GemmTime
from llmtop.report.model import Report

_WORTH_PCT = 0.05
"""Less is shown as 0.0%."""
_MOST_KINDS = 12


def operator_table(report: Report) -> Table:
    """Operators by self device time, with the module or the line, and the shape, that most of it is of."""
    placed = any(row.module or row.source for row in report.operators)
    shaped = any(row.shapes for row in report.operators)
    moved = any(part.tb_per_s is not None for row in report.operators for part in row.shapes[:1])
    rows = []
    for row in report.operators:
        top = row.shapes[0] if row.shapes else None
        rows.append(
            (
                row.name,
                *((row.module or row.source or DASH,) if placed else ()),
                *((top.name if top is not None else DASH,) if shaped else ()),
                percent(row.share_pct, 1),
                count(row.calls),
                duration(row.mean_us / 1e6),
                *((number(top.tb_per_s if top is not None else None, 2),) if moved else ()),
                duration(row.seconds),
            )
        )
    heads = (
        Column("operator, whole capture", is_text=True, cut="middle"),
        *((Column("mostly in", is_text=True, cut="start"),) if placed else ()),
        *((Column("shape with most time", is_text=True, is_optional=True),) if shaped else ()),
        *columns((), ("of device", "calls", "mean", *(("TB/s",) if moved else ()), "total")),
    )
    return Table("Operators by the device time of what each launched itself", heads, rows, most=10)


def gemm_table(report: Report) -> Table:
    """Matrix products by size, with what they reach of the GPU's peaks."""
    rows = [_gemm(row) for row in report.gemms]
    heads = columns(
        ("matrix product", "M x N x K", "type"),
        ("calls", "mean", "TFLOP/s", "of peak", "TB/s", "FLOP/B", "of roof"),
    )
    return Table("Roofline of the matrix products, from their shapes", heads, rows, most=8)


def _gemm(row: GemmTime) -> tuple[str, ...]:
    size = f"{row.m} x {row.n} x {row.k}"
    roof = percent(row.roof_pct) + (f" {row.limit}" if row.limit else "")
    return (
        row.operator,
        f"{row.batch} of {size}" if row.batch > 1 else size,
        row.dtype or DASH,
        count(row.calls),
        duration(row.mean_us / 1e6),
        number(row.tflops_per_s, 1),
        percent(row.peak_pct),
        number(row.tb_per_s, 2),
        number(row.flops_per_byte, 0),
        roof,
    )


def makeup_table(report: Report) -> Table:
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
        title += f" ({made.workload}: {made.told_by})"
    return Table(title, columns(("part, whole capture",), ("of device", "total"), cut="never"), rows)


def _part(part: DeviceTimePart) -> tuple[str, ...]:
    name = part.name
    if part.passes is not None:
        name += f", {count(part.passes)} of {duration(part.pass_seconds)} each"
    return (name, percent(part.share_pct, 1), duration(part.seconds))
