"""The table of ranks: one line a training process, their phases on one time axis, so the odd one stands out."""

from __future__ import annotations

from msgspec import Struct

from llmtop import format as fmt
from llmtop.snapshot import Alert, Rank
from tui import alerts
from tui.layout import visible
from tui.rows import Look, Row, frame, pad
from tui.view import View
from tui.widgets.charts import nice_limit
from tui.widgets.phases import bar, parts


class Column(Struct, frozen=True):
    """One column; those of higher `weight` go first when the table is narrow."""

    title: str
    width: int
    weight: int


_COLUMNS = (
    Column("rank", 4, 0),
    Column("GPU", 4, 3),
    Column("step", 9, 4),
    Column("took", 8, 1),
    Column("p50", 8, 2),
    Column("idle", 5, 5),
    Column("tok/s", 6, 6),
    Column("pid", 8, 7),
)
_LEAST_BAR = 16
_WORD = 18
"""Cells kept for a state, an alert and its age, or a count of lost steps."""


def paint(view: View, width: int, height: int, look: Look, *, framed: bool, offset: int = 0) -> list[Row]:
    """Draw as many ranks as fit; those with something to say are never the ones left out.

    Args:
        framed: with a frame and a title, else column titles only.
        offset: how many to leave out at the top, in a table that scrolls.
    """
    palette = look.palette
    ranks = view.ranks()
    inner = width - 4 if framed else width
    room = height - 3 if framed else height - 1
    found = {} if view.snapshot is None else {r.pid: alerts.of_rank(view.snapshot, r) for r in ranks}
    shown = _shown(view, ranks, found, room, offset)
    hidden = len(ranks) - len(shown)
    columns, bar_width = _plan(inner)
    longest = nice_limit(max((r.step_seconds_p50 or r.step_seconds or 0.0 for r in ranks), default=0.0))
    content = [_titles(columns, bar_width, inner, longest, look)]
    for position in shown:
        rank = ranks[position]
        content.append(_line(rank, found.get(rank.pid), view, columns, bar_width, inner, longest, look))
    if hidden:
        content.append(Row(inner).add(f"  +{hidden} more ranks {look.glyphs.more}", palette.dim))
    content = content[: room + 1]
    content += [Row(inner) for _ in range(room + 1 - len(content))]
    if not framed:
        return [row.end(palette.text) for row in content]
    title = [("ranks", palette.strong), (f" {look.glyphs.dot} {len(ranks)}", palette.dim)]
    return frame(content, width, look, title=title)


def _shown(view: View, ranks: list[Rank], found: dict[int, Alert | None], room: int, offset: int) -> list[int]:
    if offset:
        return list(range(offset, len(ranks)))[: max(room, 0)]
    odd = [i for i, r in enumerate(ranks) if r.state != "running" or found.get(r.pid) is not None]
    chosen = view.rank()
    selected = None if chosen is None else ranks.index(chosen)
    return visible(len(ranks), room if len(ranks) <= room else max(room - 1, 0), odd, selected)


def _plan(width: int) -> tuple[list[Column], int]:
    """The columns that fit, and the cells of the bar."""
    chosen: list[Column] = []
    used = 2 + _WORD
    for column in sorted(_COLUMNS, key=lambda c: c.weight):
        least = _LEAST_BAR if column.weight > 1 else 0
        if used + column.width + 1 + least + 1 <= width:
            chosen.append(column)
            used += column.width + 1
    bar_width = width - used - 1
    return [c for c in _COLUMNS if c in chosen], bar_width if bar_width >= 8 else 0


def _titles(columns: list[Column], bar_width: int, width: int, longest: float, look: Look) -> Row:
    palette = look.palette
    row = Row(width).add("  ", palette.dim)
    for column in columns:
        row.add(pad(column.title, column.width, right=True) + " ", palette.dim)
    if bar_width:
        end = fmt.duration(longest)
        row.add(pad("phases, host clock", bar_width - len(end) - 1) + " " + end, palette.dim)
    return row


def _cell(column: Column, rank: Rank, view: View) -> str:
    gpus = {} if view.snapshot is None else {gpu.uuid: gpu.index for gpu in view.snapshot.gpus}
    index = gpus.get(rank.gpu_uuid or "")
    return {
        "rank": fmt.number(rank.rank),
        "GPU": fmt.number(index),
        "step": fmt.DASH if rank.step is None else f"{rank.step:,}",
        "took": fmt.duration(rank.step_seconds),
        "p50": fmt.duration(rank.step_seconds_p50),
        "idle": fmt.percent(rank.gpu_idle_pct),
        "tok/s": fmt.count(rank.tokens_per_s),
        "pid": str(rank.pid),
    }[column.title]


def _line(
    rank: Rank,
    alert: Alert | None,
    view: View,
    columns: list[Column],
    bar_width: int,
    width: int,
    longest: float,
    look: Look,
) -> Row:
    palette = look.palette
    row = Row(width)
    loud = alert is not None and alerts.weight(alert) > 0
    chosen = view.rank()
    if alert is not None and loud:
        row.add(alerts.mark(alert, look) + " ", alerts.ink(alert, look))
    else:
        row.add(
            (look.glyphs.selected if chosen is not None and chosen.pid == rank.pid else " ") + " ",
            palette.selected,
        )
    for column in columns:
        strong = column.weight <= 1
        row.add(
            pad(_cell(column, rank, view), column.width, right=True) + " ",
            palette.strong if strong else palette.text,
        )
    if bar_width:
        bar(row, parts(rank), "host", longest, bar_width, look, names=False)
        row.add(" ", palette.text)
    text = _word(rank, alert, view)
    if text:
        style = palette.critical if rank.state == "stalled" else palette.warning
        row.add(text, alerts.badge(alert, look) if alert is not None and loud else style)
    return row


def _word(rank: Rank, alert: Alert | None, view: View) -> str:
    if alert is not None and alerts.weight(alert) > 0 and view.snapshot is not None:
        return f" {alerts.word(alert)} {alerts.age(alert, view.snapshot.time)} "
    if rank.state != "running":
        return rank.state.upper()
    return f"lost {fmt.count(rank.lost)} steps" if rank.lost else ""
