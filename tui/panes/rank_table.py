"""The table of ranks: one line a training process, their phases on one time axis, so the odd one stands out.

With several jobs there, each has a line of its own with what its ranks do together, and its ranks stand below it.
The same holds for groups of ranks with one coordinate of a parallel dimension, where ranks are grouped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from msgspec import Struct
from rich.style import Style

from llmtop import format as fmt
from llmtop.model import gpu_busy, role_groups
from llmtop.model.role_groups import RoleGroup
from llmtop.model.snapshot import Alert, Job, Rank
from tui.core.columns import Column, ColumnContext, fitting, sorted_by, title_cells
from tui.core.layout import visible
from tui.paint import alert_style, gpu_names
from tui.paint.charts import nice_limit
from tui.paint.rows import CellTheme, Row, clip, frame, pad
from tui.paint.text_width import cell_len
from tui.panes.phase_bars import bar, parts, step_seconds
from tui.panes.words import job_and_ranks, standing_word
from tui.state.order import STATE, Order
from tui.state.stalled import is_still, still_pids
from tui.state.view import View


def _of_now(write: Callable[[Rank], str]) -> Callable[[Rank, ColumnContext], str]:
    """Return what writes a cell on what a rank does now: a dash for one that stands still."""
    return lambda rank, around: fmt.DASH if rank.pid in around.still else write(rank)


COLUMNS: tuple[Column[Rank], ...] = (
    Column("rank", 4, 0, lambda r, _: fmt.number(r.rank), lambda r, _: r.rank, strong=True),
    Column(
        "GPU",
        4,
        3,
        lambda r, around: around.gpus.get(r.gpu_uuid or "", fmt.DASH),
        lambda r, around: gpu_names.sort_value(around.gpus.get(r.gpu_uuid or "")),
    ),
    Column("step", 9, 4, lambda r, _: fmt.DASH if r.step is None else f"{r.step:,}", lambda r, _: r.step),
    Column("took", 8, 1, lambda r, _: fmt.duration(r.step_seconds), lambda r, _: r.step_seconds, strong=True),
    Column("p50", 8, 2, lambda r, _: fmt.duration(r.step_seconds_p50), lambda r, _: r.step_seconds_p50),
    Column("idle", 6, 5, _of_now(gpu_busy.idle_cell), lambda r, _: gpu_busy.idle_pct(r)),
    Column("tok/s", 6, 6, _of_now(lambda r: fmt.count(r.tokens_per_s)), lambda r, _: r.tokens_per_s),
    Column("pid", 8, 7, lambda r, _: str(r.pid), lambda r, _: r.pid),
)
Line = Job | RoleGroup | Rank
_MOST_ROLE_CELLS = 24
_LEAST_BAR = 23
"""Cells: the title with the end of the axis."""
_WORD = 23
"""Cells kept for a state, an alert with its severity and its age, or a count of steps that did not arrive."""


class _RankTableFrame(Struct, frozen=True):
    """Data that all lines of the table share."""

    columns: tuple[Column[Rank], ...]
    bar_width: int
    width: int
    longest: float
    """Seconds at the end of the bars' axis."""
    context: ColumnContext
    chosen: int | None
    """pid of the process whose steps are shown."""
    cell_theme: CellTheme
    order: Order


def paint(
    view: View, width: int, height: int, theme: CellTheme, *, framed: bool, top: int | None = None
) -> list[Row]:
    """Draw as many lines as fit; ranks with something to say are never the ones left out.

    Args:
        framed: with a frame and a title, else column titles only.
        top: in a table that scrolls, the first line to show; None keeps the odd ones in sight instead.
    """
    palette = theme.palette
    role = "" if top is None or view.rank_group not in roles(view) else view.rank_group
    entries = lines(view, role)
    ranks = [entry for entry in entries if isinstance(entry, Rank)]
    inner = width - 4 if framed else width
    room = max(height - 3 if framed else height - 1, 0)
    found = {} if view.snapshot is None else {r.pid: alert_style.alert_of_rank(view.snapshot, r) for r in ranks}
    columns, bar_width = _plan(inner, _role_cells(view))
    chosen = view.rank()
    table = _RankTableFrame(
        columns=columns,
        bar_width=bar_width,
        width=inner,
        longest=nice_limit(max((step_seconds(r, parts(r)) for r in ranks), default=0.0)),
        context=(
            ColumnContext({}, 0.0)
            if view.snapshot is None
            else ColumnContext(gpu_names.labels(view.snapshot.gpus), view.snapshot.time, still_pids(view.snapshot))
        ),
        chosen=None if chosen is None else chosen.pid,
        cell_theme=theme,
        order=view.rank_order if view.rank_order.name else USUAL_ORDER,
    )
    shown = (
        _visible_entries(entries, found, room, table.chosen)
        if top is None
        else range(top, min(top + room, len(entries)))
    )
    content = [
        _titles(table),
        *(
            _line(table, entry, found.get(entry.pid))
            if isinstance(entry, Rank)
            else _job(table, entry)
            if isinstance(entry, Job)
            else _group(table, entry)
            for entry in (entries[i] for i in shown)
        ),
    ]
    hidden = len(ranks) - sum(isinstance(entries[i], Rank) for i in shown)
    if hidden and top is None:
        content.append(Row(inner).add(f"  +{hidden} more ranks {theme.glyphs.more} r shows all", palette.dim))
    content = content[: room + 1]
    content += [Row(inner) for _ in range(room + 1 - len(content))]
    if not framed:
        return [row.end(palette.text) for row in content]
    return frame(content, width, theme, title=_title(view, len(ranks), role, table.context.still, theme))


def lines(view: View, role: str = "") -> list[Line]:
    """Return the lines of the table: the ranks, with a line for each job before its ranks if there are several
    jobs.

    Args:
        view: the snapshot and the order.
        role: by which the ranks of each job are grouped; "": not grouped.
    """
    ranks, jobs = _sort_ranks(view.ranks(), view), view.jobs()
    if len(jobs) < 2:
        return _group_lines(ranks, role)
    entries: list[Line] = []
    for job in jobs:
        entries += [job, *_group_lines([rank for rank in ranks if rank.job == job.name], role)]
    named = {job.name for job in jobs}
    return entries + [rank for rank in ranks if rank.job not in named]


def _group_lines(ranks: list[Rank], role: str) -> list[Line]:
    """Return the lines of one job's ranks, in groups if any of them has that role."""
    if not any(role in rank.roles for rank in ranks):
        return list(ranks)
    found: list[Line] = []
    for group in role_groups.grouped(ranks, role):
        found += [group, *group.ranks]
    return found


def roles(view: View) -> list[str]:
    """Return the roles by which the ranks can be grouped."""
    return role_groups.roles_of(view.ranks())


def _roles_cell(rank: Rank) -> str:
    return " ".join(f"{fmt.printable(name, 12)}{at}" for name, at in rank.roles.items()) or fmt.DASH


def _roles_column(cells: int) -> Column[Rank]:
    return Column(
        "roles",
        cells,
        1,
        lambda r, _: clip(_roles_cell(r), cells),
        lambda r, _: " ".join(f"{at:9}" for at in r.roles.values()) or None,
    )


def _role_cells(view: View) -> int:
    """Return the width of the column of roles; 0 where no rank has any."""
    ranks = view.ranks()
    if not any(rank.roles for rank in ranks):
        return 0
    return max(5, min(max(cell_len(_roles_cell(rank)) for rank in ranks), _MOST_ROLE_CELLS))


USUAL_ORDER = Order("rank")


def _sort_ranks(ranks: list[Rank], view: View) -> list[Rank]:
    """Return the ranks in the chosen order; by the state, those with the most severe alert first."""
    order, snapshot = view.rank_order, view.snapshot
    column = next((one for one in (*COLUMNS, _roles_column(0)) if one.name == order.name), None)
    if snapshot is None or not order.name:
        return ranks
    if column is None or column.order is None:
        alerts = {one.pid: alert_style.alert_rank(one) for one in reversed(alert_style.ordered(snapshot.alerts))}
        return sorted_by(
            ranks, lambda r: float(alerts.get(r.pid, -1) + (r.state != "running") / 2), reverse=order.reverse
        )
    value, context = column.order, ColumnContext(gpu_names.labels(snapshot.gpus), snapshot.time)
    return sorted_by(ranks, lambda r: value(r, context), reverse=order.reverse)


def _title(view: View, count: int, role: str, still: frozenset[int], theme: CellTheme) -> list[tuple[str, Style]]:
    palette, dot = theme.palette, f" {theme.glyphs.dot} "
    jobs = view.jobs()
    by = f"{dot}by {fmt.printable(role, 24)} (M)" if role else ""
    if len(jobs) == 1:
        return [
            (job_and_ranks(jobs[0])[1], palette.strong),
            ("".join(dot + text for text in _job_rate(jobs[0], still)) + by, palette.dim),
        ]
    of = f"{dot}{len(jobs)} jobs" if jobs else ""
    return [("ranks", palette.strong), (f"{dot}{count}{of}{by}", palette.dim)]


def _job_rate(job: Job, still: frozenset[int]) -> list[str]:
    """Return the rates of a job over all its ranks; nothing for one that stands still."""
    texts: list[str] = []
    if is_still(job, still):
        return texts
    if job.tokens_per_s is not None:
        texts.append(f"{fmt.count(job.tokens_per_s)} tokens/s")
    elif job.samples_per_s is not None:
        texts.append(f"{fmt.count(job.samples_per_s)} samples/s")
    if job.steps_per_s is not None:
        texts.append(f"{fmt.count(job.steps_per_s)} {job.kind}s/s")
    return texts


def _job(table: _RankTableFrame, job: Job) -> Row:
    """Return the line of a job: its name, how many ranks of it are here, and what they do together."""
    theme, palette = table.cell_theme, table.cell_theme.palette
    row = Row(table.width)
    dot = f" {theme.glyphs.dot} "
    loud = job.state in ("stalled", "stopped")
    state = "" if job.state == "running" else f" {job.state.upper()} "
    named, seen = job_and_ranks(job)
    said, name = dot + dot.join((seen, *_job_rate(job, table.context.still))), named.replace(" · ", dot)
    row.add(clip(name, max(row.free_cells - len(state) - len(said), row.free_cells // 2)), palette.strong)
    row.add(clip(said, max(row.free_cells - len(state), 0)), palette.dim)
    return row.add(state, palette.critical if job.state == "stalled" else palette.warning if loud else palette.dim)


def _group(table: _RankTableFrame, group: RoleGroup) -> Row:
    """Return the line of a group: its name, and the median and the spread of its ranks."""
    theme, palette = table.cell_theme, table.cell_theme.palette
    texts = [fmt.counted(len(group.ranks), "rank")]
    clock = f"by {group.work_clock} clock"
    for name, figure in (("p50", group.step_seconds), (f"own work {clock}", group.work_seconds)):
        if figure is not None:
            spread = "" if figure.spread_pct is None else f" (spread {fmt.percent_text(figure.spread_pct, 1)})"
            texts.append(f"{name} {fmt.duration(figure.median)}{spread}")
    row = Row(table.width).add(group.name, palette.strong)
    for text in texts:
        said = f" {theme.glyphs.dot} {text}"
        if cell_len(said) > row.free_cells:
            break
        row.add(said, palette.text)
    return row


def _visible_entries(
    entries: Sequence[Line], found: dict[int, Alert | None], room: int, chosen: int | None
) -> list[int]:
    ranks = [(i, entry) for i, entry in enumerate(entries) if isinstance(entry, Rank)]
    odd = [i for i, rank in ranks if rank.state != "running" or found.get(rank.pid) is not None]
    jobs = [i for i, entry in enumerate(entries) if isinstance(entry, Job)]
    selected = next((i for i, rank in ranks if rank.pid == chosen), None)
    return visible(len(entries), room if len(entries) <= room else max(room - 1, 0), [*odd, *jobs], selected)


@lru_cache(maxsize=8)
def _plan(width: int, role_cells: int) -> tuple[tuple[Column[Rank], ...], int]:
    """Return the columns that fit, and the cells of the bar.

    Args:
        width: cells of a line.
        role_cells: of the column of roles; 0: without it.
    """
    room = width - 2 - _WORD - 1
    columns = COLUMNS
    if role_cells:
        columns = (COLUMNS[0], _roles_column(role_cells), *COLUMNS[1:])
    shown = fitting(columns, room, 1, reserve=lambda column, _: _LEAST_BAR if column.weight > 1 else 0)
    bar_width = room - sum(column.width + 1 for column in shown)
    return tuple(shown), bar_width if bar_width >= 8 else 0


def _titles(table: _RankTableFrame) -> Row:
    theme, order = table.cell_theme, table.order
    row = Row(table.width)
    for place, (name, title, cells) in enumerate(_title_cells(table.columns, table.bar_width)):
        chosen = name == order.name
        sign = "" if not chosen else theme.glyphs.more if order.reverse else theme.glyphs.less
        lead = " " if place else "  "
        end = "" if name else f" {fmt.duration(table.longest)}"
        words = "phases by host" if cells >= _LEAST_BAR else "phases"
        whole = title if name else pad(words, cells - len(end)) + end
        said = title_cells(whole, min(cells, row.free_cells - len(lead)), lead, sign, right=name != STATE)
        row.add(said, theme.palette.selected if chosen else theme.palette.dim)
    return row


def _title_cells(columns: tuple[Column[Rank], ...], bar_width: int) -> list[tuple[str, str, int]]:
    """Name, title and cells of each column; the bars have no name."""
    found = [(column.name, column.title, column.width) for column in columns]
    return [*found, *([("", "", bar_width)] if bar_width else []), (STATE, STATE, _WORD)]


def sortable(view: View, width: int, *, framed: bool) -> list[str]:
    """Return the names of the columns shown at a width, as `Order` calls them.

    Args:
        view: its ranks may have roles.
        width: cells of the table, its frame included.
        framed: whether it has one.
    """
    plan = _plan(width - 4 if framed else width, _role_cells(view))
    return [name for name, _, _ in _title_cells(*plan) if name]


def title_at(view: View, x: int, width: int, *, framed: bool) -> str:
    """Return the name of the column whose title is at a cell of the line of titles; "" beside them.

    Args:
        view: its ranks may have roles.
        x: cell of the screen.
        width: cells of the table, its frame included.
        framed: whether it has one.
    """
    end = 3 if framed else 1  # the frame, and the mark before the first column
    for name, _, cells in _title_cells(*_plan(width - 4 if framed else width, _role_cells(view))):
        end += 1 + cells
        if x < end:
            return name
    return ""


def _line(table: _RankTableFrame, rank: Rank, alert: Alert | None) -> Row:
    theme, palette = table.cell_theme, table.cell_theme.palette
    row = Row(table.width)
    loud = alert if alert is not None and alert_style.alert_rank(alert) > 0 else None
    if loud is not None:
        row.add(alert_style.mark(loud, theme) + " ", alert_style.ink(loud, theme))
    else:
        row.add((theme.glyphs.selected if rank.pid == table.chosen else " ") + " ", palette.selected)
    for column in table.columns:
        text = column.text(rank, table.context).rjust(column.width) + " "
        row.add(text, palette.strong if column.strong else palette.text)
    if table.bar_width:
        bar(row, parts(rank), "host", table.longest, table.bar_width, theme, names=False)
        row.add(" ", palette.text)
    if loud is not None:
        badge = alert_style.badge_text(loud, 0, row.free_cells, theme).strip()
        age = f" {alert_style.age(loud, table.context.now)}"
        row.add(badge + (age if len(badge) + len(age) <= row.free_cells else ""), alert_style.badge(loud, theme))
    elif rank.state != "running":
        inks = {"stalled": palette.critical, "paused": palette.dim}
        row.add(rank.state.upper(), inks.get(rank.state, palette.warning))
    elif word := standing_word(rank, table.context.now, theme):
        row.add(word, palette.dim if rank.step is None else palette.warning)
    elif rank.lost:
        row.add(f"{fmt.count(rank.lost)} steps not received", palette.dim)
    return row
