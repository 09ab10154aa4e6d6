"""One GPU's figures as charts with a y axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Literal

from llmtop import format as fmt
from llmtop.model.snapshot import Gpu
from tui.core.layout import Rect
from tui.paint.charts import braille
from tui.paint.gpu_metrics import METRICS, Metric
from tui.paint.past_strip import add_chart
from tui.paint.rows import CellTheme, Row, pad
from tui.panes.time_ruler import ruler
from tui.series.series_store import Spread
from tui.state.view import View

Marker = Literal["braille", "blocks"]
_AXIS = 10
_LEAST_WIDTH = 28


def shown_metrics(gpu: Gpu) -> list[Metric]:
    """Return every metric that this GPU reports, and those that a GPU is expected to report."""
    return [metric for metric in METRICS if not metric.optional or metric.value(gpu) is not None]


def grid(count: int, area_: Rect) -> tuple[list[Rect], int]:
    """Places for `count` charts, read across, and how many had no room.

    As few columns as leave each chart four rows, else as many as the width bears.
    """
    most = max(1, min(area_.width // _LEAST_WIDTH, 4))
    columns = next((c for c in range(1, most + 1) if area_.height // ceil(count / c) >= 4), most)
    rows = max(min(ceil(count / columns), area_.height // 2), 1)
    fitting = min(count, rows * columns)
    height = area_.height // rows
    extra = area_.height - height * rows
    places = []
    for index in range(fitting):
        row, column = divmod(index, columns)
        left, right = column * area_.width // columns, (column + 1) * area_.width // columns
        top = area_.y + row * height + min(row, extra)
        places.append(
            Rect(area_.x + left, top, right - left - (2 if column + 1 < columns else 0), height + (row < extra))
        )
    return places, count - fitting


def paint(metric: Metric, gpu: Gpu, view: View, rect: Rect, theme: CellTheme, marker: Marker) -> list[Row]:
    """Paint one chart: name and value above, the axis at the left.

    Args:
        metric: what is drawn; its limit for this GPU is the top of the axis.
        gpu: whose history.
        view: the history and its span.
        rect: width and height in cells, the title's row included.
        theme: colours and glyphs of this terminal.
        marker: "braille" draws two samples per cell, anything else blocks.
    """
    palette = theme.palette
    width, height = rect.width, rect.height
    limit = metric.limit(gpu)
    room = max(width - _AXIS - 1, 1)
    dense = _dense(theme, marker)
    samples = room * 2 if dense else room
    lines = height - 1
    name = (gpu.uuid, metric.key)
    spreads = view.history.spreads(name, samples)
    drawn = [Row(room) for _ in range(lines)]
    if dense:
        for row, text in zip(drawn, braille(spreads, room, lines, limit), strict=True):
            row.put(text, theme.lines[metric.hue], room)
    else:
        add_chart(drawn, view.history.heights_of(name, room, limit, lines), metric.hue, theme)
    rows = [_title(metric, gpu, [one for one in spreads if one is not None], width, theme)]
    for index, line in enumerate(drawn):
        row = Row(width).add(pad(_tick(metric, limit, index, lines), _AXIS - 1, right=True), palette.dim)
        ticked = index in (0, lines - 1) or (lines >= 5 and index == lines // 2)
        row.add(" " + (theme.glyphs.tick if ticked else theme.glyphs.axis), palette.faint)
        rows.append(row.join(line).end(palette.text))
    return rows


def _dense(theme: CellTheme, marker: Marker) -> bool:
    """Return True if a cell holds two samples."""
    return marker == "braille" and not theme.glyphs.ascii


def _title(metric: Metric, gpu: Gpu, known: Sequence[Spread], width: int, theme: CellTheme) -> Row:
    palette = theme.palette
    row = Row(width).add(pad(metric.label, _AXIS - 1, right=True) + " ", palette.dim)
    row.add(" " + pad(metric.text(gpu), 12), palette.strong)
    if known and width >= 56:
        mean = sum(one.mean for one in known) / len(known)
        low, high = min(one.low for one in known), max(one.high for one in known)
        ends = f"low {metric.axis(low)}", f"high {metric.axis(high)}"
        texts = "  ".join((ends[0], f"mean {metric.axis(mean)}", ends[1])), "  ".join(ends), ""
        text = next(one for one in texts if len(one) + 1 <= row.free_cells or not one)
        row.add_right(text, palette.dim, palette.text)
    elif len(metric.title) + 1 <= row.free_cells:
        row.add_right(metric.title, palette.dim, palette.text)
    return row.end(palette.text)


def _tick(metric: Metric, limit: float | None, index: int, lines: int) -> str:
    if limit is None:
        return fmt.DASH if index == 0 else ""
    if index == 0:
        return metric.axis(limit)
    if index == lines - 1:
        return "0"
    if lines >= 5 and index == lines // 2:
        return metric.axis(limit * (lines - 1 - index) / (lines - 1))
    return ""


def time_axis(view: View, width: int, theme: CellTheme) -> Row:
    """Below a column of charts: what they cover, the same as everywhere."""
    row = ruler(view.history, _AXIS - 1, max(width - _AXIS, 1), width, theme)
    return row.end(theme.palette.text)
