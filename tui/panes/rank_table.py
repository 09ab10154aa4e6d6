"""The table of ranks: one line a training process, their phases on one time axis, so the odd one stands out."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from llmtop import format as fmt
from llmtop.snapshot import Alert, Rank
from tui import gpu_names
from tui.columns import Around, Column, fitting
from tui.layout import visible
from tui.paint import alert_style
from tui.paint.charts import nice_limit
from tui.paint.rows import Look, Row, frame, pad
from tui.panes.phase_bars import bar, parts, step_seconds
from tui.view import View

_COLUMNS: tuple[Column[Rank], ...] = (
    Column("rank", 4, 0, lambda r, _: fmt.number(r.rank), strong=True),
    Column("GPU", 4, 3, lambda r, around: around.gpus.get(r.gpu_uuid or "", fmt.DASH)),
    Column("step", 9, 4, lambda r, _: fmt.DASH if r.step is None else f"{r.step:,}"),
    Column("took", 8, 1, lambda r, _: fmt.duration(r.step_seconds), strong=True),
    Column("p50", 8, 2, lambda r, _: fmt.duration(r.step_seconds_p50)),
    Column("idle", 5, 5, lambda r, _: fmt.percent(r.gpu_idle_pct)),
    Column("tok/s", 6, 6, lambda r, _: fmt.count(r.tokens_per_s)),
    Column("pid", 8, 7, lambda r, _: str(r.pid)),
)
_LEAST_BAR = 16
_WORD = 18
"""Cells kept for a state, an alert and its age, or a count of lost steps."""


class _Table(Struct, frozen=True):
    """What all lines of the table have in common."""

    columns: tuple[Column[Rank], ...]
    bar_width: int
    width: int
    longest: float
    """Seconds at the end of the bars' axis."""
    around: Around
    chosen: int | None
    """pid of the process whose steps are shown."""
    look: Look


def paint(view: View, width: int, height: int, look: Look, *, framed: bool, top: int | None = None) -> list[Row]:
    """Draw as many ranks as fit; those with something to say are never the ones left out.

    Args:
        framed: with a frame and a title, else column titles only.
        top: in a table that scrolls, the first rank to show; None keeps the odd ones in sight instead.
    """
    palette = look.palette
    ranks = view.ranks()
    inner = width - 4 if framed else width
    room = max(height - 3 if framed else height - 1, 0)
    found = {} if view.snapshot is None else {r.pid: alert_style.of_rank(view.snapshot, r) for r in ranks}
    columns, bar_width = _plan(inner)
    chosen = view.rank()
    table = _Table(
        columns=columns,
        bar_width=bar_width,
        width=inner,
        longest=nice_limit(max((step_seconds(r, parts(r)) for r in ranks), default=0.0)),
        around=(
            Around({}, 0.0)
            if view.snapshot is None
            else Around(gpu_names.labels(view.snapshot.gpus), view.snapshot.time)
        ),
        chosen=None if chosen is None else chosen.pid,
        look=look,
    )
    shown = _shown(ranks, found, room, table.chosen) if top is None else range(top, min(top + room, len(ranks)))
    content = [_titles(table), *(_line(table, ranks[i], found.get(ranks[i].pid)) for i in shown)]
    hidden = len(ranks) - len(shown)
    if hidden and top is None:
        content.append(Row(inner).add(f"  +{hidden} more ranks {look.glyphs.more} r shows all", palette.dim))
    content = content[: room + 1]
    content += [Row(inner) for _ in range(room + 1 - len(content))]
    if not framed:
        return [row.end(palette.text) for row in content]
    title = [("ranks", palette.strong), (f" {look.glyphs.dot} {len(ranks)}", palette.dim)]
    return frame(content, width, look, title=title)


def _shown(ranks: list[Rank], found: dict[int, Alert | None], room: int, chosen: int | None) -> list[int]:
    odd = [i for i, r in enumerate(ranks) if r.state != "running" or found.get(r.pid) is not None]
    selected = next((i for i, r in enumerate(ranks) if r.pid == chosen), None)
    return visible(len(ranks), room if len(ranks) <= room else max(room - 1, 0), odd, selected)


@lru_cache(maxsize=8)
def _plan(width: int) -> tuple[tuple[Column[Rank], ...], int]:
    """The columns that fit, and the cells of the bar."""
    room = width - 2 - _WORD - 1
    shown = fitting(_COLUMNS, room, 1, reserve=lambda column, _: _LEAST_BAR if column.weight > 1 else 0)
    bar_width = room - sum(column.width + 1 for column in shown)
    return tuple(shown), bar_width if bar_width >= 8 else 0


def _titles(table: _Table) -> Row:
    palette = table.look.palette
    row = Row(table.width).add("  ", palette.dim)
    for column in table.columns:
        row.add(column.title.rjust(column.width) + " ", palette.dim)
    if table.bar_width:
        end = fmt.duration(table.longest)
        row.add(pad("phases by host", table.bar_width - len(end) - 1) + " " + end, palette.dim)
    return row


def _line(table: _Table, rank: Rank, alert: Alert | None) -> Row:
    look, palette = table.look, table.look.palette
    row = Row(table.width)
    loud = alert if alert is not None and alert_style.weight(alert) > 0 else None
    if loud is not None:
        row.add(alert_style.mark(loud, look) + " ", alert_style.ink(loud, look))
    else:
        row.add((look.glyphs.selected if rank.pid == table.chosen else " ") + " ", palette.selected)
    for column in table.columns:
        text = column.text(rank, table.around).rjust(column.width) + " "
        row.add(text, palette.strong if column.strong else palette.text)
    if table.bar_width:
        bar(row, parts(rank), "host", table.longest, table.bar_width, look, names=False)
        row.add(" ", palette.text)
    if loud is not None:
        row.add(
            f" {alert_style.word(loud)} {alert_style.age(loud, table.around.now)} ", alert_style.badge(loud, look)
        )
    elif rank.state != "running":
        inks = {"stalled": palette.critical, "paused": palette.dim}
        row.add(rank.state.upper(), inks.get(rank.state, palette.warning))
    elif rank.lost:
        row.add(f"lost {fmt.count(rank.lost)} steps", palette.dim)
    return row
