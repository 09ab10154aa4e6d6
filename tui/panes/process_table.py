"""The table of processes: columns as data, and how a line is painted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from rich.style import Style

from llmtop import config
from llmtop import format as fmt
from llmtop.model import ownership
from llmtop.model.snapshot import Process, Snapshot
from tui.core.columns import (
    Column,
    ColumnContext,
    Comparable,
    columns_titled,
    fitting,
    sorted_by,
    title_cells,
)
from tui.paint import gpu_names
from tui.paint.rows import CellTheme, Row, elapsed, frame, pad
from tui.state.view import View

Value = TypeVar("Value")


def _age_seconds(process: Process, now: float) -> str:
    return fmt.DASH if process.started_at is None else elapsed(now - process.started_at)


def _place(process: Process, around: ColumnContext) -> float | None:
    """Return where a process's GPU stands among all."""
    return gpu_names.sort_value(around.gpus.get(process.gpu_uuid or ""))


def _column(
    title: str,
    width: int,
    weight: int,
    value: Callable[[Process], Value],
    text: Callable[[Value], str],
    *,
    numeric: bool = True,
) -> Column[Process]:
    """Return a column that is sorted by what it shows."""
    return Column(
        title, width, weight, lambda p, _: text(value(p)), lambda p, _: cast(Comparable, value(p)), numeric
    )


def _words(text: str | None) -> str:
    return fmt.printable(text or fmt.DASH)


COLUMNS: tuple[Column[Process], ...] = (
    _column("pid", 8, 0, lambda p: p.pid, str),
    Column("GPU", 4, 1, lambda p, around: around.gpus.get(p.gpu_uuid or "", fmt.DASH), _place),
    _column("user", 10, 4, lambda p: p.user, _words, numeric=False),
    _column("GPU mem", 9, 2, lambda p: p.gpu_mem_bytes, fmt.size),
    _column("SM", 5, 3, lambda p: p.gpu_sm_pct, fmt.percent),
    _column("CPU", 6, 5, lambda p: p.cpu_pct, fmt.percent),
    _column("RSS", 9, 6, lambda p: p.rss_bytes, fmt.size),
    _column("threads", 7, 9, lambda p: p.threads, fmt.number),
    _column("read", 10, 8, lambda p: p.io_read_bytes_per_s, fmt.rate),
    _column("write", 10, 10, lambda p: p.io_write_bytes_per_s, fmt.rate),
    _column("state", 10, 7, lambda p: p.state, _words, numeric=False),
    Column(
        "age",
        7,
        11,
        lambda p, around: _age_seconds(p, around.now),
        lambda p, _: None if p.started_at is None else -p.started_at,
    ),
    _column("command", 12, 0, lambda p: p.command, _words, numeric=False),
)
BY_MEMORY = next(i for i, column in enumerate(COLUMNS) if column.title == "GPU mem")
_USER = next(column for column in COLUMNS if column.title == "user")
_COMMAND = COLUMNS[-1]
"""Takes the room that is left."""
_LEAST_COMMAND = 24


def column_context(snapshot: Snapshot) -> ColumnContext:
    """Return the data that the cells of all processes of a snapshot share."""
    return ColumnContext(gpu_names.labels(snapshot.gpus), snapshot.time)


def rows_of(snapshot: Snapshot, column: int, *, reverse: bool, wanted: str) -> list[Process]:
    """Return the processes whose pid, user or command contains a text, sorted; absent values come last either way.

    Args:
        snapshot: this machine.
        column: index into `COLUMNS` of the sort key.
        reverse: True: largest first.
        wanted: compared without case; "": all.
    """
    beside = column_context(snapshot)
    small = wanted.lower()
    found = [p for p in snapshot.processes if small in f"{p.pid} {p.user or ''} {p.command or ''}".lower()]
    order = COLUMNS[column].order
    found.sort(key=lambda process: process.pid, reverse=reverse)
    return sorted_by(found, lambda p: None if order is None else order(p, beside), reverse=reverse)


def plan(width: int, by: int, snapshot: Snapshot | None = None) -> list[Column[Process]]:
    """Return the columns that fit; the one sorted by and the command always do, and the user where there are
    others."""
    chosen = columns_titled(COLUMNS, config.current().columns.processes)
    if len(chosen) < len(COLUMNS):
        ends = [column for column in chosen if column is _COMMAND]
        columns = [*(column for column in chosen if column is not _COMMAND), *ends]
        room = width - 1 - _LEAST_COMMAND * len(ends) + sum(column.width + 2 for column in ends)
        return fitting(columns, room, 2, always=ends)
    always = list(dict.fromkeys([COLUMNS[-1], COLUMNS[by]]))
    if snapshot is not None and any(ownership.other_user(one, snapshot) for one in snapshot.processes):
        always = list(dict.fromkeys([*always, _USER]))
    room = width - _LEAST_COMMAND - 1 + always[0].width + 2
    return fitting(COLUMNS, room, 2, always=always)


def titles(columns: Sequence[Column[Process]], by: int, width: int, theme: CellTheme, *, reverse: bool) -> Row:
    """Paint the titles; the sort column has an arrow for its direction.

    Args:
        columns: that fit, from `plan`.
        by: index into `COLUMNS`, not into `columns`.
        width: cells.
        theme: colours and glyphs of this terminal.
        reverse: True: largest first.
    """
    palette = theme.palette
    row = Row(width)
    for place, column in enumerate(columns):
        chosen = column is COLUMNS[by]
        sign = "" if not chosen else theme.glyphs.more if reverse else theme.glyphs.less
        style, lead = palette.selected if chosen else palette.dim, "  " if place else " "
        room = row.free_cells - len(lead) if column is _COMMAND else column.width
        row.add(title_cells(column.title, room, lead, sign, right=column.numeric), style)
    return row.end(palette.text)


def title_ends(columns: Sequence[Column[Process]], width: int) -> list[tuple[int, int]]:
    """Return for each title its last cell and its index into `COLUMNS`: a click there sorts by it."""
    ends, cell = [], 1
    for column in columns:
        cell += width if column is _COMMAND else column.width + 2
        ends.append((min(cell, width) - 1, COLUMNS.index(column)))
    return ends


def line(
    process: Process,
    columns: Sequence[Column[Process]],
    beside: ColumnContext,
    width: int,
    theme: CellTheme,
    chosen: bool,
) -> Row:
    """Paint the row of one process.

    Args:
        process: one per GPU that it uses.
        columns: that fit, from `plan`.
        beside: facts of the snapshot that a column needs: names of GPUs and the time.
        width: cells; the command takes what is left.
        theme: colours and glyphs of this terminal.
        chosen: True: the cursor is here.
    """
    palette = theme.palette
    style: Style = palette.cursor if chosen else palette.text
    cells: list[str] = []
    left = width - 1
    for column in columns:
        room = left if column is _COMMAND else column.width
        cells.append(pad(column.text(process, beside), room, right=column.numeric))
        left -= room + 2
    row = Row(width).add(theme.glyphs.selected if chosen else " ", style)
    return row.add("  ".join(cells), style).end(style)


def paint(view: View, width: int, height: int, theme: CellTheme) -> list[Row]:
    """Paint the processes that hold most GPU memory in a frame, exactly `height` rows.

    Args:
        view: the snapshot; None: not sampled yet, and the rows are empty.
        width: cells, the frame included.
        height: rows, the frame and the titles included; what does not fit is counted in the last one.
        theme: colours and glyphs of this terminal.
    """
    palette, snapshot = theme.palette, view.snapshot
    if snapshot is None:
        return [Row(width).end(palette.text) for _ in range(height)]
    inner, room = width - 4, height - 3
    found = rows_of(snapshot, BY_MEMORY, reverse=True, wanted="")
    columns = plan(inner, BY_MEMORY, snapshot)
    beside = column_context(snapshot)
    rows = [titles(columns, BY_MEMORY, inner, theme, reverse=True)]
    shown = found if len(found) <= room else found[: room - 1]
    rows += [line(process, columns, beside, inner, theme, chosen=False) for process in shown]
    if len(shown) < len(found):
        rows.append(
            Row(inner).add(f" +{len(found) - len(shown)} more {theme.glyphs.more} p shows all", palette.dim)
        )
    rows += [Row(inner) for _ in range(room + 1 - len(rows))]
    title = [("processes", palette.strong), (f" {theme.glyphs.dot} {len(found)}", palette.dim)]
    return frame(rows, width, theme, title=title)
