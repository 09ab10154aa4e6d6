"""A report of GPU memory as rows: the curve, the peak by phase, who holds what, what grows, what is free."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from rich.style import Style

from llmtop import format as fmt
from llmtop.memory import text as memory_text
from llmtop.memory.model import MemoryDevice, MemoryFinding, MemoryReport
from llmtop.report.render.text_table import TextTable
from tui.paint.rows import CellTheme, Row, clip

_CURVE_ROWS = 6
_LEAST_NAME = 14
"""Cells of the first column, below which another column goes first."""
_GAP = 2
_ALL = 1 << 30


def paint(report: MemoryReport, name: str, width: int, theme: CellTheme) -> list[Row]:
    """All of it, as many lines as it takes.

    Args:
        report: what was read.
        name: of the capture.
        width: of the screen.
        theme: how to draw.
    """
    palette = theme.palette
    rows = [_title(report, name, width, theme)]
    rows += _wrapped(report.summary, width, palette.strong)
    for finding in report.findings:
        rows += _finding(finding, width, theme)
    for device in report.devices:
        rows += _device(device, width, theme)
    for note in report.notes:
        rows += _wrapped(f"note: {note}", width, palette.dim)
    return rows


def _title(report: MemoryReport, name: str, width: int, theme: CellTheme) -> Row:
    row = Row(width).add(" memory", theme.palette.strong)
    parts = [fmt.printable(name)]
    if report.window_seconds is not None:
        parts.append(f"history of {fmt.duration(report.window_seconds)}")
    if report.steps is not None:
        parts.append(fmt.counted(report.steps, "step"))
    return row.add("".join(f" {theme.glyphs.dot} {part}" for part in parts), theme.palette.dim)


def _finding(finding: MemoryFinding, width: int, theme: CellTheme) -> list[Row]:
    palette = theme.palette
    style: dict[str, Style] = {"critical": palette.critical, "warning": palette.warning, "info": palette.info}
    saved = finding.saves_at_most_bytes
    saves = "" if saved is None else f" Saves at most {fmt.size(saved)}."
    rows = [Row(width), *_wrapped(finding.summary + saves, width, style.get(finding.severity, palette.text))]
    if finding.fix:
        rows += _wrapped(f"do: {finding.fix}", width, palette.text, 3)
    if finding.next:
        rows += _wrapped(f"next: {finding.next}", width, palette.code, 3)
    return rows


def _device(device: MemoryDevice, width: int, theme: CellTheme) -> list[Row]:
    palette = theme.palette
    rows = [Row(width), Row(width).add(f" GPU {device.device}", palette.strong)]
    for said in memory_text.figures(device):
        rows += _wrapped(said, width, palette.text, 3)
    if device.timeline is not None:
        rows += [Row(width), Row(width).add(" Allocated and reserved over the window", palette.strong)]
        curve = memory_text.draw_timeline(device.timeline, width - 2, _CURVE_ROWS)
        rows += [Row(width).add(line, theme.lines["compute"]) for line in curve]
    tables = [table for table in memory_text.tables(device, width) if table.rows]
    for table in sorted(tables, key=lambda one: not one.title.startswith("Peak")):
        rows += _table(table, width, theme)
    return rows


def _table(table: TextTable, width: int, theme: CellTheme) -> list[Row]:
    """The title, the columns that fit, and every row."""
    palette = theme.palette
    columns = fitting(table, width - 3)
    left = sum(place < table.text_columns for place in columns)
    header = tuple(table.header[place] for place in columns)
    cells = [tuple(row[place] for place in columns) for row in table.rows]
    others = sum(width + _GAP for width in _widths([header, *cells])[1:])
    room = max(width - 3 - others, 1)
    cells = [(clip(row[0], room), *row[1:]) for row in cells]
    first, *rest = TextTable(table.title, header, cells, left, _ALL).lines()
    rows = [Row(width), Row(width).add(f" {table.title}", palette.strong), _line(first, width, palette.dim)]
    return rows + [_line(row, width, palette.text) for row in rest]


def fitting(table: TextTable, room: int) -> list[int]:
    """The places of the columns that fit: the first one is cut down to `_LEAST_NAME`, then the last ones go."""
    widths = _widths([table.header, *table.rows])
    widths[0] = min(widths[0], _LEAST_NAME)
    columns = list(range(len(widths)))
    while len(columns) > 2 and sum(widths[place] + _GAP for place in columns) - _GAP > room:
        columns.pop()
    return columns


def _widths(rows: Sequence[tuple[str, ...]]) -> list[int]:
    """Of each column, that of its widest cell."""
    return [max(map(fmt.width_of, column)) for column in zip(*rows, strict=True)]


def _line(cells: Sequence[str], width: int, style: Style) -> Row:
    return Row(width).add("   " + (" " * _GAP).join(cells), style)


def _wrapped(text: str, width: int, style: Style, indent: int = 1) -> list[Row]:
    lines = wrap(fmt.printable(text), max(width - indent - 1, 20), break_on_hyphens=False)
    return [Row(width).add(" " * indent + line, style) for line in lines]
