"""The list of captures as rows: columns as data, and what there is to say of the chosen one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.style import Style

from llmtop import config
from llmtop import format as fmt
from llmtop.capture.capture_list import StoredCapture, taken_at_text
from llmtop.model import bottlenecks
from tui.core.columns import Column, ColumnContext, columns_titled, fitting, sorted_by, title_cells
from tui.paint.rows import CellTheme, Row, clip, elapsed, pad
from tui.state.order import Order

_GAP = 2
_LEAST_COMMAND = 10


def _verdict(capture: StoredCapture) -> str:
    """Return the verdict, else the kind of capture, else why there is no verdict."""
    if capture.state != "done":
        return capture.state
    if capture.verdict:
        known = bottlenecks.find_bottleneck(capture.verdict)
        return known.badge.lower() if known else fmt.printable(capture.verdict)
    return capture.report_kind if capture.has_report else "no report"


COLUMNS: tuple[Column[StoredCapture], ...] = (
    Column("taken", 11, 0, lambda one, _: taken_at_text(one.taken_at), lambda one, _: one.taken_at, numeric=False),
    Column("ago", 8, 5, lambda one, around: elapsed(around.now - one.taken_at), lambda one, _: -one.taken_at),
    Column(
        "engine", 14, 2, lambda one, _: fmt.printable(one.engine, 14), lambda one, _: one.engine, numeric=False
    ),
    Column(
        "target",
        12,
        4,
        lambda one, _: fmt.printable(one.target_text, 12),
        lambda one, _: one.target_text or None,
        numeric=False,
    ),
    Column(
        "verdict", 12, 0, lambda one, _: _verdict(one), lambda one, _: _verdict(one), numeric=False, strong=True
    ),
    Column("step", 8, 1, lambda one, _: fmt.duration(one.step_seconds), lambda one, _: one.step_seconds),
    Column(
        "steps",
        5,
        6,
        lambda one, _: fmt.DASH if one.info is None else fmt.number(one.info.steps),
        lambda one, _: None if one.info is None else one.info.steps,
    ),
    Column("size", 8, 1, lambda one, _: fmt.size(one.bytes), lambda one, _: one.bytes),
)
USUAL_ORDER = Order("taken", reverse=True)
PROGRAM = Column[StoredCapture](
    "command",
    0,
    9,
    lambda one, _: fmt.printable((one.info.command if one.info else None) or one.name),
    lambda one, _: (one.info.command if one.info else None) or one.name,
    numeric=False,
)


def in_order(captures: Sequence[StoredCapture], order: Order) -> list[StoredCapture]:
    """Return the captures sorted by a column; by an unknown one, as they are.

    Args:
        captures: the newest first.
        order: by which column.
    """
    column = next((one for one in (*COLUMNS, PROGRAM) if one.name == order.name), None)
    if column is None or column.order is None or order == USUAL_ORDER:
        return list(captures)
    value, context = column.order, ColumnContext({}, 0.0)
    return sorted_by(captures, lambda one: value(one, context), reverse=order.reverse)


def title_at(columns: Sequence[Column[StoredCapture]], x: int) -> str:
    """Return the name of the column whose title is at a cell of the line of titles; "" before the first."""
    end, name = 4, ""
    for column in columns:
        if x < end:
            break
        name, end = column.name, end + column.width + _GAP
    return name


def plan(width: int) -> list[Column[StoredCapture]]:
    """Return the columns that fit, and the command where there is room for some of it."""
    room, titles_wanted = width - 4, config.current().columns.captures
    columns = fitting(columns_titled(COLUMNS, titles_wanted), room, _GAP)
    used = sum(column.width + _GAP for column in columns)
    shown = titles_wanted is None or PROGRAM.title in titles_wanted
    return [*columns, PROGRAM] if shown and room - used >= _LEAST_COMMAND else columns


def titles(columns: Sequence[Column[StoredCapture]], order: Order, width: int, theme: CellTheme) -> Row:
    """Return the titles of the columns; that of the order has the sign of its direction."""
    row = Row(width)
    for place, column in enumerate(columns):
        chosen, lead = column.name == order.name, " " * _GAP if place else "    "
        sign = "" if not chosen else theme.glyphs.more if order.reverse else theme.glyphs.less
        room = column.width or max(row.free_cells - len(lead), 0)
        said = title_cells(column.title, room, lead, sign, right=column.numeric)
        row.add(said, theme.palette.selected if chosen else theme.palette.dim)
    return row.end(theme.palette.text)


def line(
    capture: StoredCapture,
    columns: Sequence[Column[StoredCapture]],
    now: float,
    width: int,
    theme: CellTheme,
    *,
    chosen: bool,
    sign: str,
) -> Row:
    """Return one capture.

    Args:
        sign: "B" for the baseline, "1" for the one that the next is compared with; else a blank.
    """
    palette = theme.palette
    style: Style = palette.cursor if chosen else palette.text
    around = ColumnContext({}, now)
    ground = Style(bgcolor=style.bgcolor) if chosen else Style()
    row = Row(width).add(theme.glyphs.selected if chosen else " ", style).add(f" {sign} ", palette.info + ground)
    for column in columns:
        text = column.text(capture, around)
        row.add(pad(text, column.width or row.free_cells, right=column.numeric), style).add(" " * _GAP, style)
    return row.end(style)


def details(capture: StoredCapture, width: int, theme: CellTheme) -> list[Row]:
    """Return the chosen capture: its folder, how to get it to one's own machine, and what opens it there."""
    palette = theme.palette
    rows = []
    for label, text, style in (
        ("folder", str(capture.path), palette.text),
        ("copy", f"{capture.copy_command}   (y copies this line)", palette.code),
        ("open", capture.open_command, palette.code),
    ):
        row = Row(width).add(f"    {pad(label, 8)}", palette.dim)
        rows.append(row.add(clip(fmt.printable(text), row.free_cells), style).end(palette.text))
    return rows


def empty_list(parent: Path, width: int, theme: CellTheme) -> list[Row]:
    """Return the rows for an empty list of captures."""
    said = (
        f"No captures in {fmt.printable(str(parent))} yet.",
        "press c to capture a running training, or run: llmtop capture",
    )
    return [Row(width).add(f"    {text}", theme.palette.dim) for text in said]
