"""The table of ranks: one line a training process, their phases on one time axis, so the odd one stands out.

With several jobs there, each has a line of its own with what its ranks do together, and its ranks stand below it.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct
from rich.style import Style

from llmtop import format as fmt
from llmtop.model import gpu_busy
from llmtop.model.snapshot import Alert, Job, Rank
from tui.core.columns import Around, Column, fitting
from tui.core.layout import visible
from tui.paint import alert_style, gpu_names
from tui.paint.charts import nice_limit
from tui.paint.rows import Look, Row, clip, frame, pad
from tui.panes.phase_bars import bar, parts, step_seconds
from tui.state.view import View

_COLUMNS: tuple[Column[Rank], ...] = (
    Column("rank", 4, 0, lambda r, _: fmt.number(r.rank), strong=True),
    Column("GPU", 4, 3, lambda r, around: around.gpus.get(r.gpu_uuid or "", fmt.DASH)),
    Column("step", 9, 4, lambda r, _: fmt.DASH if r.step is None else f"{r.step:,}"),
    Column("took", 8, 1, lambda r, _: fmt.duration(r.step_seconds), strong=True),
    Column("p50", 8, 2, lambda r, _: fmt.duration(r.step_seconds_p50)),
    Column("idle", 6, 5, lambda r, _: gpu_busy.idle_text(r)),
    Column("tok/s", 6, 6, lambda r, _: fmt.count(r.tokens_per_s)),
    Column("pid", 8, 7, lambda r, _: str(r.pid)),
)
_LEAST_BAR = 16
_WORD = 18
"""Cells kept for a state, an alert and its age, or a count of lost steps."""


class _RankTableFrame(Struct, frozen=True):
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
    """Draw as many lines as fit; ranks with something to say are never the ones left out.

    Args:
        framed: with a frame and a title, else column titles only.
        top: in a table that scrolls, the first line to show; None keeps the odd ones in sight instead.
    """
    palette = look.palette
    entries = lines(view)
    ranks = [entry for entry in entries if isinstance(entry, Rank)]
    inner = width - 4 if framed else width
    room = max(height - 3 if framed else height - 1, 0)
    found = {} if view.snapshot is None else {r.pid: alert_style.of_rank(view.snapshot, r) for r in ranks}
    columns, bar_width = _plan(inner)
    chosen = view.rank()
    table = _RankTableFrame(
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
    shown = (
        _shown(entries, found, room, table.chosen) if top is None else range(top, min(top + room, len(entries)))
    )
    content = [
        _titles(table),
        *(
            _line(table, entry, found.get(entry.pid)) if isinstance(entry, Rank) else _job(table, entry)
            for entry in (entries[i] for i in shown)
        ),
    ]
    hidden = len(ranks) - sum(isinstance(entries[i], Rank) for i in shown)
    if hidden and top is None:
        content.append(Row(inner).add(f"  +{hidden} more ranks {look.glyphs.more} r shows all", palette.dim))
    content = content[: room + 1]
    content += [Row(inner) for _ in range(room + 1 - len(content))]
    if not framed:
        return [row.end(palette.text) for row in content]
    return frame(content, width, look, title=_title(view, len(ranks), look))


def lines(view: View) -> list[Job | Rank]:
    """What the table has a line for: the ranks, and before those of each job the job, where there are several."""
    ranks, jobs = view.ranks(), view.jobs()
    if len(jobs) < 2:
        return list(ranks)
    entries: list[Job | Rank] = []
    for job in jobs:
        entries += [job, *(rank for rank in ranks if rank.job == job.name)]
    named = {job.name for job in jobs}
    return entries + [rank for rank in ranks if rank.job not in named]


def _title(view: View, count: int, look: Look) -> list[tuple[str, Style]]:
    palette, dot = look.palette, f" {look.glyphs.dot} "
    jobs = view.jobs()
    if len(jobs) == 1:
        return [
            (_seen(jobs[0]), palette.strong),
            ("".join(dot + text for text in _together(jobs[0])), palette.dim),
        ]
    of = f"{dot}{len(jobs)} jobs" if jobs else ""
    return [("ranks", palette.strong), (f"{dot}{count}{of}", palette.dim)]


def _seen(job: Job) -> str:
    """How many ranks there are: "8 ranks", and "4 of 8 ranks seen" where the others are on other machines."""
    if job.world_size is None or job.ranks_seen >= job.world_size:
        return f"{job.ranks_seen} rank{'' if job.ranks_seen == 1 else 's'}"
    return f"{job.ranks_seen} of {job.world_size} ranks seen"


def _together(job: Job) -> list[str]:
    """What the ranks of a job do in a second, all together."""
    texts = []
    if job.tokens_per_s is not None:
        texts.append(f"{fmt.count(job.tokens_per_s)} tokens/s")
    elif job.samples_per_s is not None:
        texts.append(f"{fmt.count(job.samples_per_s)} samples/s")
    if job.steps_per_s is not None:
        texts.append(f"{fmt.count(job.steps_per_s)} {job.kind}s/s")
    return texts


def _job(table: _RankTableFrame, job: Job) -> Row:
    """The line of a job: its name, how many ranks of it are here, and what they do together."""
    look, palette = table.look, table.look.palette
    row = Row(table.width)
    dot = f" {look.glyphs.dot} "
    loud = job.state in ("stalled", "stopped")
    state = "" if job.state == "running" else f" {job.state.upper()} "
    said = dot + dot.join((_seen(job), *_together(job)))
    name = fmt.printable(job.name).replace(" · ", dot)
    row.add(clip(name, max(row.left - len(state) - len(said), row.left // 2)), palette.strong)
    row.add(clip(said, max(row.left - len(state), 0)), palette.dim)
    return row.add(state, palette.critical if job.state == "stalled" else palette.warning if loud else palette.dim)


def _shown(entries: list[Job | Rank], found: dict[int, Alert | None], room: int, chosen: int | None) -> list[int]:
    ranks = [(i, entry) for i, entry in enumerate(entries) if isinstance(entry, Rank)]
    odd = [i for i, rank in ranks if rank.state != "running" or found.get(rank.pid) is not None]
    jobs = [i for i, entry in enumerate(entries) if isinstance(entry, Job)]
    selected = next((i for i, rank in ranks if rank.pid == chosen), None)
    return visible(len(entries), room if len(entries) <= room else max(room - 1, 0), [*odd, *jobs], selected)


@lru_cache(maxsize=8)
def _plan(width: int) -> tuple[tuple[Column[Rank], ...], int]:
    """The columns that fit, and the cells of the bar."""
    room = width - 2 - _WORD - 1
    shown = fitting(_COLUMNS, room, 1, reserve=lambda column, _: _LEAST_BAR if column.weight > 1 else 0)
    bar_width = room - sum(column.width + 1 for column in shown)
    return tuple(shown), bar_width if bar_width >= 8 else 0


def _titles(table: _RankTableFrame) -> Row:
    palette = table.look.palette
    row = Row(table.width).add("  ", palette.dim)
    for column in table.columns:
        row.add(column.title.rjust(column.width) + " ", palette.dim)
    if table.bar_width:
        end = fmt.duration(table.longest)
        row.add(pad("phases by host", table.bar_width - len(end) - 1) + " " + end, palette.dim)
    return row


def _line(table: _RankTableFrame, rank: Rank, alert: Alert | None) -> Row:
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
