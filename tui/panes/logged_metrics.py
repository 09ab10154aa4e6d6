"""What the training's script logged: loss, learning rate, …, each between its own lowest and highest value."""

from __future__ import annotations

from llmtop import format as fmt
from llmtop.snapshot import Rank
from tui.history import Series, level
from tui.paint.charts import area, finite, spark
from tui.paint.rows import Look, Row, pad
from tui.view import View

_NAME = 20
_VALUE = 9
LEAST_CHART = 4
"""Rows from which on the values are drawn as charts with an axis."""
MOST_CHART = 9
_CHART_WIDTH = 36


def paint(rank: Rank, view: View, width: int, height: int, look: Look) -> list[Row]:
    """One line of all of them, or charts side by side where there is room for an axis."""
    if height >= LEAST_CHART:
        return _charts(rank, view, width, height, look)
    return [_line(rank, view, width, look)]


def _line(rank: Rank, view: View, width: int, look: Look) -> Row:
    palette = look.palette
    row = Row(width)
    history = view.history.rank(rank).metrics
    for place, (name, value) in enumerate(rank.metrics.items()):
        clean = fmt.printable(name, _NAME)
        if len(clean) + _VALUE + 5 > row.left:
            more = len(rank.metrics) - place + rank.metrics_left_out
            row.add(f"+{more:,} {look.glyphs.more}", palette.dim)
            break
        row.add(clean + " ", palette.dim).add(fmt.figure(value).ljust(_VALUE), palette.strong)
        series = history.get(name)
        cells = min(24, row.left - 2)
        if series is not None and cells >= 8:
            row.add(_course(series, cells, look), palette.compute).add("  ", palette.text)
    return row


def _course(series: Series, width: int, look: Look) -> str:
    values = series.last(width)
    low, high = _span(series, width)
    if high <= low:
        return spark([2 if v == v else 0 for v in values], width, look.glyphs)  # noqa: PLR0124  (NaN)
    return spark([level(v - low, high - low) for v in values], width, look.glyphs)


def _span(series: Series, width: int) -> tuple[float, float]:
    known = finite(series.last(width))
    return (min(known), max(known)) if known else (0.0, 0.0)


def _charts(rank: Rank, view: View, width: int, height: int, look: Look) -> list[Row]:
    """As many charts as fit beside each other, then a count of the others."""
    palette = look.palette
    height = min(height, MOST_CHART)
    history = view.history.rank(rank).metrics
    shown = [(name, value) for name, value in rank.metrics.items() if name in history]
    fitting = shown[: max(width // _CHART_WIDTH, 1)]
    rows = [Row(width) for _ in range(height)]
    for place, (name, value) in enumerate(fitting):
        left, right = place * (width + 3) // len(fitting), (place + 1) * (width + 3) // len(fitting) - 3
        part = _chart(name, value, history[name], right - left, height, look)
        more = len(rank.metrics) - len(fitting) + rank.metrics_left_out
        if place == len(fitting) - 1 and more:
            part[0].right(f"+{more:,} {look.glyphs.more}", palette.dim, palette.text)
        for row, piece in zip(rows, part, strict=True):
            row.to(left, palette.text).join(piece)
    return rows


def _chart(name: str, value: float | None, series: Series, width: int, height: int, look: Look) -> list[Row]:
    palette = look.palette
    room = max(width - _VALUE - 1, 1)
    low, high = _span(series, room)
    values = [v - low for v in series.last(room)]
    title = Row(width).add(fmt.printable(name, _NAME) + " ", palette.dim).add(fmt.figure(value), palette.strong)
    rows = [title]
    drawn = area(values, room, height - 1, (high - low) or 1.0, look.glyphs)
    for index, line in enumerate(drawn):
        bottom = index == len(drawn) - 1
        text = fmt.figure(low) if bottom else fmt.figure(high) if index == 0 and high > low else ""
        row = Row(width).add(pad(text, _VALUE, right=True) + " ", palette.dim)
        rows.append(row.add(line, palette.compute_area))
    return rows
