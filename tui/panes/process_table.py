"""The table of processes: columns as data, and how a line is painted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from rich.style import Style

from llmtop import format as fmt
from llmtop.snapshot import Process, Snapshot
from tui import gpu_names
from tui.paint.rows import Look, Row, elapsed, frame, pad
from tui.view import View

GpuNumbers = dict[str, str]


class Column(Struct, frozen=True):
    """One column; those of higher `weight` go first when the screen is narrow."""

    title: str
    width: int
    weight: int
    text: Callable[[Process, GpuNumbers, float], str]
    order: Callable[[Process, GpuNumbers], float | str | None]
    """What to sort by; absent values come last."""
    numeric: bool = True


def _age(process: Process, now: float) -> str:
    return fmt.DASH if process.started_at is None else elapsed(now - process.started_at)


def _place(process: Process, numbers: GpuNumbers) -> float | None:
    """Where its GPU stands among all; "0:1", a MIG instance, after "0"."""
    index, _, part = numbers.get(process.gpu_uuid or "", "").partition(":")
    return None if not index else int(index) + (int(part) + 1) / 1000 if part.isdecimal() else int(index)


def _pid(process: Process) -> str:
    return str(process.pid)


COLUMNS: tuple[Column, ...] = (
    Column("pid", 8, 0, lambda p, _g, _t: _pid(p), lambda p, _g: p.pid),
    Column("GPU", 4, 1, lambda p, g, _t: g.get(p.gpu_uuid or "", fmt.DASH), _place),
    Column(
        "user", 10, 4, lambda p, _g, _t: fmt.printable(p.user or fmt.DASH), lambda p, _g: p.user, numeric=False
    ),
    Column("GPU mem", 9, 2, lambda p, _g, _t: fmt.size(p.gpu_mem_bytes), lambda p, _g: p.gpu_mem_bytes),
    Column("SM", 5, 3, lambda p, _g, _t: fmt.percent(p.gpu_sm_pct), lambda p, _g: p.gpu_sm_pct),
    Column("CPU", 6, 5, lambda p, _g, _t: fmt.percent(p.cpu_pct), lambda p, _g: p.cpu_pct),
    Column("RSS", 9, 6, lambda p, _g, _t: fmt.size(p.rss_bytes), lambda p, _g: p.rss_bytes),
    Column("threads", 7, 9, lambda p, _g, _t: fmt.number(p.threads), lambda p, _g: p.threads),
    Column("read", 10, 8, lambda p, _g, _t: fmt.rate(p.io_read_bytes_per_s), lambda p, _g: p.io_read_bytes_per_s),
    Column(
        "write", 10, 10, lambda p, _g, _t: fmt.rate(p.io_write_bytes_per_s), lambda p, _g: p.io_write_bytes_per_s
    ),
    Column(
        "state", 10, 7, lambda p, _g, _t: fmt.printable(p.state or fmt.DASH), lambda p, _g: p.state, numeric=False
    ),
    Column(
        "age",
        7,
        11,
        lambda p, _g, now: _age(p, now),
        lambda p, _g: None if p.started_at is None else -p.started_at,
    ),
    Column(
        "command",
        12,
        0,
        lambda p, _g, _t: fmt.printable(p.command or fmt.DASH),
        lambda p, _g: p.command,
        numeric=False,
    ),
)
BY_MEMORY = next(i for i, column in enumerate(COLUMNS) if column.title == "GPU mem")
_LEAST_COMMAND = 24


def gpu_numbers(snapshot: Snapshot) -> GpuNumbers:
    """Each GPU's number as it is written, by uuid."""
    return gpu_names.labels(snapshot.gpus)


def rows_of(snapshot: Snapshot, column: int, *, reverse: bool, wanted: str) -> list[Process]:
    """The processes whose pid, user or command contains `wanted`, sorted; those without the value come last."""
    numbers = gpu_numbers(snapshot)
    small = wanted.lower()
    found = [p for p in snapshot.processes if small in f"{p.pid} {p.user or ''} {p.command or ''}".lower()]
    order = COLUMNS[column].order
    known = [p for p in found if order(p, numbers) is not None]
    absent = [p for p in found if order(p, numbers) is None]

    def key(process: Process) -> tuple[str, float, int]:
        value = order(process, numbers)
        return (value.lower(), 0.0, process.pid) if isinstance(value, str) else ("", value or 0.0, process.pid)

    return sorted(known, key=key, reverse=reverse) + absent


def plan(width: int, sorted_by: int) -> list[Column]:
    """The columns that fit; the one sorted by always does."""
    chosen = [COLUMNS[-1], COLUMNS[sorted_by]] if sorted_by != len(COLUMNS) - 1 else [COLUMNS[-1]]
    used = _LEAST_COMMAND + 1 + sum(column.width + 2 for column in chosen[1:])
    for column in sorted(COLUMNS[:-1], key=lambda c: c.weight):
        if column not in chosen and used + column.width + 2 <= width:
            chosen.append(column)
            used += column.width + 2
    return [column for column in COLUMNS if column in chosen]


def titles(columns: Sequence[Column], sorted_by: int, width: int, look: Look, *, reverse: bool) -> Row:
    """The titles; the column sorted by is marked with the direction."""
    palette = look.palette
    row = Row(width).add(" ", palette.dim)
    for column in columns:
        chosen = column is COLUMNS[sorted_by]
        sign = "" if not chosen else look.glyphs.more if reverse else look.glyphs.less
        style = palette.selected if chosen else palette.dim
        last = column is columns[-1]
        row.add(pad(f"{sign}{column.title}", row.left if last else column.width, right=column.numeric), style)
        row.add("  ", palette.dim)
    return row.end(palette.text)


def line(
    process: Process,
    columns: Sequence[Column],
    numbers: GpuNumbers,
    now: float,
    width: int,
    look: Look,
    chosen: bool,
) -> Row:
    """One process."""
    palette = look.palette
    style: Style = palette.cursor if chosen else palette.text
    row = Row(width).add(look.glyphs.selected if chosen else " ", style)
    for column in columns:
        last = column is columns[-1]
        text = column.text(process, numbers, now)
        row.add(pad(text, row.left if last else column.width, right=column.numeric), style).add("  ", style)
    return row.end(style)


def paint(view: View, width: int, height: int, look: Look) -> list[Row]:
    """The processes that hold most GPU memory, in a frame, as many as fit."""
    palette, snapshot = look.palette, view.snapshot
    if snapshot is None:
        return [Row(width).end(palette.text) for _ in range(height)]
    inner, room = width - 4, height - 3
    found = rows_of(snapshot, BY_MEMORY, reverse=True, wanted="")
    columns = plan(inner, BY_MEMORY)
    numbers = gpu_numbers(snapshot)
    rows = [titles(columns, BY_MEMORY, inner, look, reverse=True)]
    shown = found if len(found) <= room else found[: room - 1]
    rows += [line(process, columns, numbers, snapshot.time, inner, look, chosen=False) for process in shown]
    if len(shown) < len(found):
        rows.append(
            Row(inner).add(f" +{len(found) - len(shown)} more {look.glyphs.more} p shows all", palette.dim)
        )
    rows += [Row(inner) for _ in range(room + 1 - len(rows))]
    title = [("processes", palette.strong), (f" {look.glyphs.dot} {len(found)}", palette.dim)]
    return frame(rows, width, look, title=title)
