"""The one table of GPUs and ranks: a line each, its history on the time line, its state in a column of its own.

A GPU and the training process on it share a line. Rows outside the shown job are there too, and marked: other
jobs, other users, free GPUs, MIG instances, processes without a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace
from rich.segment import Segment
from rich.style import Style

from llmtop import config
from llmtop import format as fmt
from llmtop.model import gpu_busy, ownership
from llmtop.model.signal_text import value_text
from llmtop.model.signals import CELLS, Cell, Signal
from llmtop.model.snapshot import Alert, Gpu, Rank, Snapshot
from tui.core.columns import Column, ColumnContext, Comparable, fitting, sorted_by, title_cells
from tui.core.layout import FULL_WIDTH
from tui.paint import alert_style, gpu_names
from tui.paint.gpu_metrics import BY_KEY, Hue, has_total_text, total_text
from tui.paint.past_strip import add_strip
from tui.paint.rows import CellTheme, Row, clip, pad
from tui.paint.text_width import cell_len
from tui.panes.words import short_command, standing_word
from tui.series.heights import FigureHistory
from tui.state.history import key_of
from tui.state.order import STATE, Order
from tui.state.stalled import open_collective, still_pids
from tui.state.view import View

LEAST_STATE = 18
"""Cells: the longest word of an alert, and before it the short word of its severity."""
_LEAST_STRIP = 10
_USED_UTIL_PCT, _USED_BYTES = 5.0, 1 << 30
"""Utilization and memory that no idle GPU shows: the driver itself keeps under 1 GiB, an idle H200 reads 0 %."""
_MOST_STATE = 34
_LEAST_WIDTH, _WIDE_GAPS = 60, 120
_HEAD = 2
"""Cells for the mark at the left."""


class Entry(Struct, frozen=True):
    """One line of the table."""

    gpu: Gpu | None
    rank: Rank | None
    again: bool = False
    """A further process on the GPU of the line above: the GPU's figures are not repeated."""


def entries(view: View) -> list[Entry]:
    """Return the lines: GPUs in the driver's order with the ranks on them, then the ranks without a GPU that is
    shown.

    In another order, if the person has chosen one; all ranks of one GPU stay together.
    """
    ranks = view.ranks()
    job = view.job()
    if job is not None:  # the job that is shown comes first where two share a GPU
        ranks.sort(key=lambda rank: rank.job != job.name)
    found: list[Entry] = []
    for gpu in view.gpus():
        on_it = [rank for rank in ranks if rank.gpu_uuid == gpu.uuid]
        found.append(Entry(gpu, on_it[0] if on_it else None))
        found += [Entry(gpu, rank, again=True) for rank in on_it[1:]]
    shown = {entry.rank.pid for entry in found if entry.rank is not None}
    rest = [rank for rank in ranks if rank.pid not in shown]
    found += [Entry(None, rank) for rank in sorted(rest, key=ranks.index)]
    return _in_order(found, view) if view.order.name else found


def _in_order(found: list[Entry], view: View) -> list[Entry]:
    """Return the lines sorted by the chosen column; by the state, those with the most severe alert first."""
    blocks: list[list[Entry]] = []
    for entry in found:
        if entry.again:
            blocks[-1].append(entry)
        else:
            blocks.append([entry])
    order, snapshot = view.order, view.snapshot
    places = {id(entry): place for place, entry in enumerate(found)}
    worst = {} if snapshot is None else alert_style.alerts_by_gpu(snapshot)
    of_pid = {} if snapshot is None else {one.pid: one for one in reversed(alert_style.ordered(snapshot.alerts))}

    def value(block: list[Entry]) -> Comparable:
        entry = block[0]
        if order.name == STATE:
            alerts = [worst.get(entry.gpu.uuid)] if entry.gpu is not None else []
            alerts += [of_pid.get(one.rank.pid) for one in block if one.rank is not None]
            return float(max((1 + alert_style.alert_rank(one) for one in alerts if one is not None), default=0))
        if order.name == "gpu":
            return float(places[id(entry)])
        return _sort_value(entry, order.name)

    return [entry for block in sorted_by(blocks, value, reverse=order.reverse) for entry in block]


def _sort_value(entry: Entry, key: str) -> float | None:
    """Return the sort value of a line in a column; None without a value."""
    if key in _RANK_VALUES:
        return None if entry.rank is None else _RANK_VALUES[key](entry.rank)
    if entry.gpu is None or key not in _CELLS:
        return None
    signal, cell = _CELLS[key]
    other = cell.beside or cell.plus
    value: float | None = getattr(entry.gpu, signal.field)
    return value if not other else _sum_or_none(value, getattr(entry.gpu, other))


USUAL_ORDER = Order("gpu")
"""Order of the driver's GPU numbers; without GPUs, of the ranks."""


def _sum_or_none(one: float | None, other: float | None) -> float | None:
    return None if one is None and other is None else (one or 0.0) + (other or 0.0)


def _pair_text(one: float | None, other: float | None) -> str:
    if one is None and other is None:
        return fmt.DASH
    return f"{fmt.short_rate(one)}/{fmt.short_rate(other)}"


def _power(gpu: Gpu) -> str:
    """Return the power and its share of the limit: "671W 96%"."""
    text = fmt.number(gpu.power_watts, 0, "W")
    if gpu.power_watts is None or text == fmt.DASH or not gpu.power_limit_watts:
        return text
    return f"{text} {fmt.percent(100 * gpu.power_watts / gpu.power_limit_watts)}"


def _writer(signal: Signal, cell: Cell, key: str) -> Callable[[Gpu], str]:
    """Return the function that writes the cells of a column. It is chosen once, because a frame has a hundred
    cells."""
    read = attrgetter(signal.field)
    if key == "power":
        return _power
    if has_total_text(signal):
        return partial(total_text, signal)
    if cell.beside:
        beside = attrgetter(cell.beside)
        return lambda gpu: _pair_text(read(gpu), beside(gpu))
    if cell.plus:
        plus = attrgetter(cell.plus)
        return lambda gpu: fmt.short_rate(_sum_or_none(read(gpu), plus(gpu)))
    short = {"°C": "°", "MHz": ""}.get(signal.unit)
    if short is not None:
        return lambda gpu: fmt.number(read(gpu), 0, short)
    return lambda gpu: value_text(signal.unit, read(gpu))


def _cell_key(signal: Signal, cell: Cell) -> str:
    return cell.key or (signal.chart.key if signal.chart else signal.field)


_CELLS = {_cell_key(signal, cell): (signal, cell) for signal, cell in CELLS}
"""The columns of signals by their key."""
_WRITERS = {key: _writer(signal, cell, key) for key, (signal, cell) in _CELLS.items()}


def _gpu_column(title: str, width: int, weight: int, key: str, *, strong: bool = False) -> Column[Entry]:
    write = _WRITERS[key]

    def text(entry: Entry, _around: ColumnContext) -> str:
        if entry.gpu is None and entry.rank is not None and entry.rank.rank is None and key == "power":
            return f"pid {entry.rank.pid}"  # it has neither the number of a GPU nor that of a rank
        return "" if entry.gpu is None or entry.again else write(entry.gpu)

    return Column(title, width, weight, text, strong=strong, key=key)


def _rank_column(
    title: str, width: int, weight: int, key: str, write: Callable[[Rank], str], *, strong: bool = False
) -> Column[Entry]:
    def text(entry: Entry, around: ColumnContext) -> str:
        rank = entry.rank
        if rank is None:
            return ""
        return fmt.DASH if key in _OF_NOW and rank.pid in around.still else write(rank)

    return Column(title, width, weight, text, strong=strong, key=key)


_RANK_VALUES: dict[str, Callable[[Rank], float | None]] = {
    "rank": lambda rank: rank.rank,
    "step": lambda rank: rank.step_seconds_p50 or rank.step_seconds,
    "waits": lambda rank: rank.waits_seconds,
    "idle": gpu_busy.idle_pct,
    "tokens": lambda rank: rank.tokens_per_s,
    "pid": lambda rank: rank.pid,
}
"""Sort values of the rank columns."""
_OF_NOW = ("waits", "idle", "tokens")
"""Columns of what a rank does now: of one that stands still they would say what it did before."""


COLUMNS: tuple[Column[Entry], ...] = (
    Column(
        "GPU",
        3,
        0,
        lambda e, a: "" if e.gpu is None or e.again else a.gpus.get(e.gpu.uuid, fmt.DASH),
        strong=True,
        key="gpu",
    ),
    _rank_column("rank", 4, 1, "rank", lambda rank: fmt.number(rank.rank), strong=True),
    *(
        _gpu_column(cell.title, cell.width, cell.weight, key, strong=cell.strong)
        for key, (_, cell) in _CELLS.items()
    ),
    _rank_column(
        "step", 7, 4, "step", lambda rank: fmt.duration(rank.step_seconds_p50 or rank.step_seconds), strong=True
    ),
    _rank_column("waits", 7, 10, "waits", lambda rank: fmt.duration(rank.waits_seconds)),
    _rank_column("idle", 6, 9, "idle", gpu_busy.idle_cell),
    _rank_column("tok/s", 6, 16, "tokens", lambda rank: fmt.count(rank.tokens_per_s)),
    _rank_column("pid", 7, 17, "pid", lambda rank: str(rank.pid)),
)
_BEFORE_STRIP = ("gpu", "rank", "power", "util")
_CORE = frozenset({"gpu", "rank", "power", "util", "memory", "step"})
"""Columns that are shown at every width from 60 columns on."""
_CORE_OF_80 = _CORE | {"pcie"}
_BEFORE_A_STRIP = frozenset({"sm", "idle", "waits"})
"""Columns that are more useful than a strip of few cells."""
_TITLES_BEFORE = {"rk": "rank", "power W": "power", "PCIe/s": "PCIe rx/tx"}
"""Names that the configuration takes for columns beside their titles."""


class _Plan(Struct, frozen=True):
    """Which columns fit, and the cells of the strips and of the state."""

    columns: tuple[Column[Entry], ...]
    strip: int
    second: int
    state: int
    gap: int
    strip_at: int
    """Before which column the strip stands; the number of columns: after the last."""


@lru_cache(maxsize=16)
def _plan(width: int, absent: frozenset[str], number: int) -> _Plan:
    """Return the columns that fit beside a strip and the state; those without a value anywhere are left out.

    Args:
        width: cells of a line.
        absent: keys of columns without a value.
        number: cells of the longest number of a GPU; "10:1" is that of a MIG instance.
    """
    titles = config.current().columns.gpus
    named = None if titles is None else {_TITLES_BEFORE.get(title, title) for title in titles}
    wanted = [
        replace(column, width=max(column.width, number)) if column.key == "gpu" else column
        for column in COLUMNS
        if column.key not in absent and (named is None or column.key == "gpu" or column.title in named)
    ]
    gap = 1 if width < _WIDE_GAPS else 2
    room = width - _HEAD - LEAST_STATE
    core = _CORE_OF_80 if width >= FULL_WIDTH else _CORE
    first = [column for column in wanted if column.key in core | _BEFORE_A_STRIP]
    always = [column for column in wanted if column.key in core] if width >= _LEAST_WIDTH else []
    chosen = fitting(first, room, gap, always=always)
    left = room - sum(column.width + gap for column in chosen)
    second = 20 if width >= 180 and "sm" not in absent else 0
    strip = min(max(_LEAST_STRIP, width * 15 // 100), 70, left - gap)
    if strip < _LEAST_STRIP:
        strip = 0
    strips = sum(cells + gap for cells in (strip, second) if cells)
    chosen = fitting(wanted, room - strips, gap, always=chosen)
    spare = room - strips - sum(column.width + gap for column in chosen)
    state = LEAST_STATE + (min(spare // 2, _MOST_STATE - LEAST_STATE) if strip else spare)
    strip = strip + LEAST_STATE + spare - state if strip else 0
    at = next((n for n, column in enumerate(chosen) if column.key not in _BEFORE_STRIP), len(chosen))
    return _Plan(tuple(chosen), strip, second, state, gap, at if strip else -1)


def _absent(shown: Sequence[Entry]) -> frozenset[str]:
    """Return the columns in which no line has a value, which are hidden. Essential columns stay."""
    found: set[str] = set()
    gpus = [entry.gpu for entry in shown if entry.gpu is not None]
    if all(gpu.nvlink_rx_bytes_per_s is None and gpu.nvlink_tx_bytes_per_s is None for gpu in gpus):
        found.add("nvlink")
    if all(gpu.xgmi_rx_bytes_per_s is None and gpu.xgmi_tx_bytes_per_s is None for gpu in gpus):
        found.add("xgmi")
    if all(gpu.sm_active_pct is None for gpu in gpus):
        found |= {"sm", "tensor", "dram"}
    if not gpus:
        found |= {"gpu", "power", "util", "sm", "memory", "temperature", "clock", "pcie"}
    if all(entry.rank is None for entry in shown):
        found |= {"rank", "step", "idle", "tokens", "pid"}
    elif all(entry.rank is None or entry.rank.rank is None for entry in shown):
        found.add("rank")
    if all(entry.rank is None or entry.rank.waits_seconds is None for entry in shown):
        found.add("waits")
    if all(entry.rank is None or entry.rank.tokens_per_s is None for entry in shown):
        found.add("tokens")
    if not gpus and all(entry.rank is None or gpu_busy.idle_cell(entry.rank) == fmt.DASH for entry in shown):
        found.add("idle")
    return frozenset(found)


def _figure(shown: Sequence[Entry]) -> tuple[str, str, Hue]:
    """Return the signal of the strip: power against its limit, else the share of time with a kernel, else the
    steps."""
    gpus = [entry.gpu for entry in shown if entry.gpu is not None]
    limits = {gpu.power_limit_watts for gpu in gpus if gpu.power_limit_watts}
    if limits:
        suffix = f" of {limits.pop():.0f} W" if len(limits) == 1 else " of its limit"
        return "power", "power" + suffix, "energy"
    if gpus:
        return "util", "util", "compute"
    return "step", "step", "compute"


class NodeTableFrame(Struct, frozen=True):
    """Data that all lines share; made once per frame."""

    plan: _Plan
    figure: tuple[str, str, Hue]
    context: ColumnContext
    snapshot: Snapshot
    worst: dict[str, Alert]
    """Worst alert by GPU; without those of processes that have a line of their own."""
    of_pid: dict[int, Alert]
    alerts: Counter[str]
    """How many there are, by GPU and by pid in words."""
    job: str | None
    several: bool
    chosen: int | None
    selected: str | None


def table(view: View, shown: Sequence[Entry], width: int) -> NodeTableFrame | None:
    """Prepare the table for this width; None before the first snapshot."""
    snapshot = view.snapshot
    if snapshot is None:
        return None
    gpu_of = {rank.pid: rank.gpu_uuid for rank in snapshot.ranks}
    further = {entry.rank.pid for entry in shown if entry.again and entry.rank is not None}
    count: Counter[str] = Counter()
    of_pid: dict[int, Alert] = {}
    worst: dict[str, Alert] = {}
    for alert in alert_style.ordered(snapshot.alerts):
        uuid = alert.gpu or (gpu_of.get(alert.pid) if alert.pid is not None else None)
        uuid = None if alert.pid in further else uuid  # that process has a line of its own
        count[uuid or f"pid {alert.pid}"] += 1
        if uuid is not None:
            worst.setdefault(uuid, alert)
        if alert.pid is not None:
            of_pid.setdefault(alert.pid, alert)
    rank, job = view.rank(), view.job()
    labels = gpu_names.labels(snapshot.gpus)
    return NodeTableFrame(
        plan=_plan(width, _absent(shown), max(map(len, labels.values()), default=0)),
        figure=_figure(shown),
        context=ColumnContext(labels, snapshot.time, still_pids(snapshot)),
        snapshot=snapshot,
        worst=worst,
        of_pid=of_pid,
        alerts=count,
        job=None if job is None else job.name,
        several=len(snapshot.jobs) > 1,
        chosen=None if rank is None else rank.pid,
        selected=view.selected,
    )


def titles(frame: NodeTableFrame, width: int, span: str, order: Order, theme: CellTheme) -> Row:
    """Return the line above the table.

    Args:
        frame: what `table` made.
        width: of the line.
        span: what the strips cover, in words.
        order: which title has the sign of the order.
        theme: how to draw.
    """
    plan, dim = frame.plan, theme.palette.dim
    row = Row(width)
    for name, title, cells, lead in _title_cells(frame, span):
        chosen = name == order.name
        sign = "" if not chosen else theme.glyphs.more if order.reverse else theme.glyphs.less
        right = name != STATE and bool(name)
        said = title_cells(title, min(cells, plan.state if name == STATE else cells), lead, sign, right=right)
        row.add(said, theme.palette.selected if chosen else dim)
    return row.end(theme.palette.text)


def title_at(frame: NodeTableFrame, x: int) -> str:
    """Return the name of the column whose title is at a cell of the line above the table; "" beside them."""
    end = 0
    for name, _, cells, lead in _title_cells(frame, ""):
        end += len(lead) + cells
        if x < end:
            return name
    return ""


def _title_cells(frame: NodeTableFrame, span: str) -> list[tuple[str, str, int, str]]:
    """Name, title, cells and the blanks before them of each column, strips among them (their name is "")."""
    plan, gap = frame.plan, " " * frame.plan.gap
    found: list[tuple[str, str, int]] = []
    for place, column in enumerate(plan.columns):
        if place == plan.strip_at:
            found.append(("", _strip_title(frame, plan.strip, span), plan.strip))
        if plan.second and column.key == "sm":
            found.append(("", "SM", plan.second))
        found.append((column.key, column.title, column.width))
    if plan.strip_at == len(plan.columns):
        found.append(("", _strip_title(frame, plan.strip, span), plan.strip))
    found.append((STATE, STATE, plan.state))
    return [(*one, gap if place else " " * _HEAD) for place, one in enumerate(found)]


def _strip_title(frame: NodeTableFrame, room: int, span: str) -> str:
    name = frame.figure[1]
    forms = (f"{name}, {span}", name, name.partition(" ")[0])
    return next((text for text in forms if len(text) <= room), "")


class _LineContent(Struct, frozen=True):
    """All that a line is painted from, but for its histories."""

    plan: _Plan
    cell_theme: CellTheme
    width: int
    texts: tuple[str, ...]
    """Texts of the columns."""
    loud: Alert | None
    picked: bool
    chosen: bool
    foreign: bool
    state: tuple[str, Style]


def line(frame: NodeTableFrame, entry: Entry, view: View, width: int, theme: CellTheme) -> Row:
    """Paint the row of one GPU and the rank on it.

    Args:
        frame: columns, alerts and choice of this frame.
        entry: the GPU or the rank may be None; `again` marks a further rank on the same GPU.
        view: the history for the strip; also caches the row until its content changes.
        width: cells.
        theme: colours and glyphs of this terminal.
    """
    plan, rank = frame.plan, entry.rank
    alert = _alert(frame, entry)
    loud = alert if alert is not None and alert_style.alert_rank(alert) > 0 else None
    strip, hue = _strip(frame, entry, view) if plan.strip_at >= 0 else ("", frame.figure[2])
    content = _LineContent(
        plan=plan,
        cell_theme=theme,
        width=width,
        texts=tuple([column.text(entry, frame.context) for column in plan.columns]),
        loud=loud,
        picked=entry.gpu is not None and entry.gpu.uuid == frame.selected and not entry.again,
        chosen=rank is not None and rank.pid == frame.chosen,
        foreign=rank is None or (frame.several and rank.job != frame.job),
        state=_state(frame, entry, loud, theme),
    )
    place = None if entry.gpu is None else entry.gpu.uuid, None if rank is None else rank.pid, entry.again
    second = _second(entry, view, plan.second) if plan.second else None
    cells = view.kept.get((place, "cells"), content, lambda: _paint_cells(content))
    made_of = cells, strip, hue, second
    return view.kept.get(place, made_of, lambda: _paint_line(cells, strip, hue, second, content))


_STRIP, _SECOND = Segment("strip"), Segment("second")
"""Where the histories of a line go."""


def _paint_line(
    cells: Row, strip: FigureHistory | str, hue: Hue, second: FigureHistory | None, content: _LineContent
) -> Row:
    """Paint the histories between the cells: the newest part of a history changes more often than a value."""
    theme, plan = content.cell_theme, content.plan
    row = Row(content.width)
    for segment in cells.segments:
        if segment is _STRIP and isinstance(strip, str):
            row.add(pad(strip, plan.strip), theme.palette.dim)
        elif segment is _STRIP and isinstance(strip, FigureHistory):
            add_strip(row, strip, hue, theme)
        elif segment is _SECOND and second is None:
            row.add(" " * plan.second, theme.palette.text)
        elif segment is _SECOND and second is not None:
            add_strip(row, second, "compute", theme)
        else:
            row.segments.append(segment)
    row.used = cells.used
    return row


def _paint_cells(content: _LineContent) -> Row:
    """Paint the mark, the columns and the state, with `_STRIP` and `_SECOND` where the histories go."""
    theme, plan, loud, picked = content.cell_theme, content.plan, content.loud, content.picked
    palette = theme.palette
    plain = palette.dim if content.foreign and loud is None else palette.text
    strong = palette.dim if content.foreign and loud is None else palette.strong
    row = Row(content.width)
    if loud is not None:
        row.add(alert_style.mark(loud, theme), alert_style.badge(loud, theme))
    else:
        mark = theme.glyphs.selected if picked or content.chosen else " "
        row.add(mark, palette.selected if picked else palette.dim)
    gap = " " * plan.gap
    waiting, style_of = [" "], palette.text  # cells of one style are put into the row together

    def flush() -> None:
        if waiting:
            row.add("".join(waiting), style_of)
            waiting.clear()

    for place, column in enumerate(plan.columns):
        if place == plan.strip_at:
            flush()
            _leave_strip(row, plan, palette.text)
        if plan.second and column.key == "sm":
            flush()
            row.segments.append(_SECOND)
            row.used += plan.second
            waiting.append(gap)
        wanted = strong if column.strong else plain
        if column.key == "gpu" and (picked or loud is not None):
            wanted = palette.selected if loud is None else alert_style.ink(loud, theme)
        if wanted is not style_of:
            flush()
            style_of = wanted
        waiting.append(pad(content.texts[place], column.width, right=True) + gap)
    flush()
    if plan.strip_at == len(plan.columns):
        _leave_strip(row, plan, palette.text)
    text, style = content.state
    said = fitting_parts(text, min(plan.state, row.free_cells), f" {theme.glyphs.dot} ")
    return row.add(said, style).end(palette.text)


def fitting_parts(text: str, room: int, between: str) -> str:
    """Return as many of the parts of a text as fit, each whole; of the first, its beginning where not even that
    fits."""
    first, *others = text.split(between)
    said = clip(first, room)
    for part in others:
        if cell_len(said) + len(between) + cell_len(part) > room:
            break
        said += between + part
    return said


def _strip(frame: NodeTableFrame, entry: Entry, view: View) -> tuple[FigureHistory | str, Hue]:
    """Return the history of the figure that the table shows, or why there is none; and in which colours."""
    key, _, hue = frame.figure
    room = frame.plan.strip
    if entry.gpu is None and entry.rank is not None:
        return view.history.heights_from_zero((key_of(entry.rank), "step"), room), "compute"
    if entry.gpu is None or entry.again:
        return (
            "  the same GPU" if entry.gpu is None or entry.gpu.mig_parent_uuid is None else "  same instance",
            hue,
        )
    past = view.history.heights_of((entry.gpu.uuid, key), room, BY_KEY[key].limit(entry.gpu))
    if entry.gpu.mig_parent_uuid is not None and not any(past.heights):
        index = entry.gpu.index
        forms = (f"part of GPU {index}; only the whole GPU has a power value", f"part of GPU {index}", "")
        return next(f"  {text}" for text in forms if len(text) + 2 <= room), hue
    return past, hue


def _leave_strip(row: Row, plan: _Plan, ground: Style) -> None:
    """Leave the cells of the history free, and the gap after it."""
    row.segments.append(_STRIP)
    row.used += plan.strip
    row.add(" " * plan.gap, ground)


def _second(entry: Entry, view: View, room: int) -> FigureHistory | None:
    if entry.gpu is None or entry.again:
        return None
    return view.history.heights_of((entry.gpu.uuid, "sm"), room, 100.0)


def _alert(frame: NodeTableFrame, entry: Entry) -> Alert | None:
    """Return the most severe alert of a line: of its rank, or of its GPU where this line shows it."""
    own = None if entry.rank is None else frame.of_pid.get(entry.rank.pid)
    if entry.gpu is None or entry.again:
        return own
    return frame.worst.get(entry.gpu.uuid, own)


def _state(frame: NodeTableFrame, entry: Entry, loud: Alert | None, theme: CellTheme) -> tuple[str, Style]:
    """Return the word for how it goes, and why: an alert, a rank's state, whose GPU it is."""
    palette, rank, gpu = theme.palette, entry.rank, entry.gpu
    if loud is not None:
        count = _count(frame, entry) - 1
        return alert_style.badge_text(loud, count, frame.plan.state, theme), alert_style.badge(loud, theme)
    if gpu is not None and gpu.error and not entry.again:
        return f"ERROR {theme.glyphs.dot} {fmt.printable(gpu.error)}", palette.critical
    if rank is None:
        return _unattached_users(frame, gpu, theme), palette.dim
    if rank.state != "running":
        inks = {"stalled": palette.critical, "paused": palette.dim, "gone": palette.dim}
        return rank.state.upper(), inks.get(rank.state, palette.warning)
    word = standing_word(rank, frame.snapshot.time, theme)
    whose = "" if gpu is None else fmt.printable(ownership.owner_text(gpu.uuid, frame.snapshot))
    if open_collective(rank) is not None or whose:
        # Whose the GPU is has room only beside a short word.
        said = word if open_collective(rank) is not None else f"{word or 'ok'} {theme.glyphs.dot} {whose}"
        return said, palette.warning
    return _running(frame, rank, word, theme), palette.dim


def _running(frame: NodeTableFrame, rank: Rank, word: str, theme: CellTheme) -> str:
    """Return the state of a running rank that no alert names; `word` is why it makes no steps, else ""."""
    if rank.lost:
        forms = (
            f"ok {theme.glyphs.dot} {fmt.count(rank.lost)} steps not received",
            f"{fmt.count(rank.lost)} not received",
        )
        return forms[len(forms[0]) > frame.plan.state]
    if frame.several and rank.job != frame.job:
        return f"another job: {fmt.printable(rank.job).replace(' · ', ' ')}"
    return word or "ok"


def _count(frame: NodeTableFrame, entry: Entry) -> int:
    if entry.gpu is not None and not entry.again:
        return frame.alerts[entry.gpu.uuid]
    return 0 if entry.rank is None else frame.alerts[f"pid {entry.rank.pid}"]


def _is_used(gpu: Gpu) -> bool:
    """Return True if some process must use the GPU, even if none is listed: those of other containers are not."""
    return (gpu.util_pct or 0.0) >= _USED_UTIL_PCT or (gpu.mem_used_bytes or 0) >= _USED_BYTES


def _unattached_users(frame: NodeTableFrame, gpu: Gpu | None, theme: CellTheme) -> str:
    """Return the users of a GPU on which no training is attached."""
    if gpu is None:
        return ""
    parts = sum(one.mig_parent_uuid == gpu.uuid for one in frame.snapshot.gpus)
    if parts:
        return fmt.counted(parts, "MIG instance")
    dot = f" {theme.glyphs.dot} "
    processes = [one for one in frame.snapshot.processes if one.gpu_uuid == gpu.uuid]
    kind = f"MIG{dot}" if gpu.mig_parent_uuid is not None else ""
    if not processes:
        return f"{kind}{'hidden process' if _is_used(gpu) else 'no process'}"
    named = short_command(processes[0].command) or f"pid {processes[0].pid}"
    named += f" +{len(processes) - 1} more" if len(processes) > 1 else ""
    whose = fmt.printable(ownership.owner_text(gpu.uuid, frame.snapshot))
    return kind + (whose or "not attached") + dot + named
