"""The step: where its time goes, by both clocks, and how long it takes."""

from __future__ import annotations

from math import ceil
from textwrap import wrap
from typing import NamedTuple

from rich.style import Style

from llmtop import format as fmt
from llmtop.model import gpu_busy
from llmtop.model.run_window import is_of_run, window_label
from llmtop.model.snapshot import Rank, Window
from llmtop.naming.own_phases import phase_label
from llmtop.step_history.rare_steps import rare_steps_text
from tui.core.layout import NAMED_PHASES, phase_columns
from tui.paint import alert_style
from tui.paint.rows import CellTheme, Row, clip, elapsed, frame, pad, rule
from tui.paint.text_width import cell_len
from tui.panes import health_row
from tui.panes.phase_bars import Clock, Part, bar, block, letters, parts, step_seconds, with_untimed
from tui.panes.words import short_command
from tui.series.phase_history import BUCKET_SECONDS
from tui.state.history import key_of
from tui.state.stalled import stalled_seconds, still_pids
from tui.state.view import View

_HINT = (
    ("No training is attached. Attach one with three lines of its script:", False),
    ("    import llmtop", True),
    ("    for batch in llmtop.loader(batches):", True),
    ("        with llmtop.step(tokens=batch.numel()):", True),
    ("or change nothing:  llmtop run -- python train.py", False),
)
_HINT_LINES = (
    "no training attached: start it with  llmtop run -- python train.py",
    "start a training: llmtop run -- python train.py",
)
_UNKNOWN_LINES = ("waiting for the first sample …",)
_UNKNOWN = (("Waiting for the first sample …", False),)


class _Form(NamedTuple):
    """Layout of one column of the table of phases: cells, and whether changes against 5 minutes ago are in it."""

    width: int
    changes: bool


_WIDE, _SLIM = _Form(52, changes=True), _Form(37, changes=False)
_LEAST_REMARK = 30
_MEAN_APART = 0.02
"""Share of the p50. From it on the mean, which the bars show, is displayed beside the p50, so that no two
figures disagree."""
_CHANGE = 10
"""Cells of the change against the 5 minutes before."""


def paint(view: View, width: int, height: int, theme: CellTheme) -> list[Row]:
    """Paint the steps of the process that the view names, or how to attach one; exactly `height` rows.

    Args:
        view: its chosen rank, and the histories.
        width: cells.
        height: rows; below 3 everything is in one.
        theme: colours and glyphs of this terminal.
    """
    palette = theme.palette
    rank = view.rank()
    if rank is None:
        made_of = (view.snapshot is None, width, height, theme)
        return view.kept.get("hint", made_of, lambda: _hint(view, width, height, theme))
    shown = parts(rank)
    total = step_seconds(rank, shown)
    if height < 3 and shown and total > 0:
        return [
            _short(rank, shown, total, width, theme),
            *(Row(width).end(palette.text) for _ in range(height - 1)),
        ]
    rows = [_title(rank, view, width, theme)]
    inner = width - 2
    content = _content(rank, view, shown, total, inner, height - 1, theme)
    rows += [Row(width).add(" ", palette.text).join(row).end(palette.text) for row in content]
    return rows[:height]


def _short(rank: Rank, shown: list[Part], total: float, width: int, theme: CellTheme) -> Row:
    """Return all of it in one row: how long a step takes, and what of."""
    palette = theme.palette
    clock: Clock = "gpu" if any(part.phase.gpu_seconds is not None for part in shown) else "host"
    row = Row(width).add(f" step {fmt.number(rank.step)} ", palette.dim)
    row.add(f"{fmt.duration(rank.step_seconds_p50 or total)} ", palette.strong)
    row.add(_longest(shown, clock, step_seconds(rank, shown, clock), 1, row.free_cells) + " ", palette.text)
    bar(
        row,
        shown,
        clock,
        total,
        row.free_cells - 1,
        theme,
        outside=rank.outside_seconds if clock == "host" else None,
    )
    return row.end(palette.text)


def _longest(shown: list[Part], clock: Clock, total: float, most: int, room: int) -> str:
    """Return the longest phases with their share and duration, as many as fit, each whole; the first one in any
    case."""
    ordered = sorted(shown, key=lambda part: -(part.seconds(clock) or 0.0))
    said = "GPU" if clock == "gpu" else "host"
    for place, part in enumerate(ordered[:most]):
        seconds = part.seconds(clock) or 0.0
        name = fmt.printable(phase_label(part.phase.name))
        text = f"{',' if place else ''} {name} {fmt.percent(100 * seconds / total)} {fmt.duration(seconds)}"
        if place and cell_len(said) + cell_len(text) > room:
            break
        said += text
    return clip(said, room)


def _remarks(rank: Rank) -> list[str]:
    """Return notes on the figures."""
    said = [rank.note or ""]
    if rank.rare is not None:
        said.append(rare_steps_text(rank.rare))
    if rank.warmup_steps:
        said.append(f"{_first_steps(rank)} not counted in rates")
    if rank.mfu_pct is None and rank.tokens_per_s is not None:
        said.append(rank.mfu_note or "")
    if rank.lost:
        said.append(f"{rank.lost:,} steps not received")
    return [fmt.printable(one) for one in said if one]


def _title(rank: Rank, view: View, width: int, theme: CellTheme) -> Row:
    """Return the title row: the process of the step, and as many whole figures as fit."""
    palette, dot = theme.palette, f" {theme.glyphs.dot} "
    job = view.job_of(rank)
    known = rank.world_size or len(view.ranks())
    count = known if job is None else job.world_size or job.ranks_seen
    title: list[tuple[str, Style]] = [
        (f"{rank.kind} {fmt.DASH if rank.step is None else f'{rank.step:,}'}", palette.strong)
    ]
    if rank.inference:
        title.append((f"{dot}inference", palette.text))
    if rank.rank is not None:
        of = f" of {count}" if count > 1 else ""
        title.append((f"{dot}rank {rank.rank}{of}{' (tab: next)' if of and width >= 100 else ''}", palette.text))
    alert = None if view.snapshot is None else alert_style.alert_of_rank(view.snapshot, rank)
    if alert is not None and alert_style.alert_rank(alert) > 0:
        title += [(" ", palette.text), (f" {alert_style.alert_word(alert)} ", alert_style.badge(alert, theme))]
    elif rank.state != "running":
        style = palette.critical_badge if rank.state == "stalled" else palette.mark
        title += [(" ", palette.text), (f" {rank.state.upper()} ", style)]
    silent = None if view.snapshot is None else stalled_seconds(rank, view.snapshot.time)
    if silent is not None:
        title += [(dot, palette.dim), (f"no step for {elapsed(silent)}", palette.warning)]
    used = sum(len(text) for text, _ in title)
    for label, text, after in _figures(rank, view):
        needed = len(dot) + len(label) + 1 + len(text) + len(after)
        if used + needed > width - 6:
            continue
        used += needed
        title += [
            (dot + (f"{label} " if label else ""), palette.dim),
            (text, palette.strong),
            (after, palette.dim),
        ]
    return rule(width, theme, title)


def _hint(view: View, width: int, height: int, theme: CellTheme) -> list[Row]:
    palette = theme.palette
    hint, lines = (_UNKNOWN, _UNKNOWN_LINES) if view.snapshot is None else (_HINT, _HINT_LINES)
    if height < len(_HINT) + 2:
        said = next((text for text in lines if len(text) < width), lines[-1])
        rows = [Row(width).add(f" {said}", palette.dim), *(Row(width) for _ in range(height - 1))]
        return [row.end(palette.text) for row in rows]
    content = [Row(width - 4).add(text, palette.code if code else palette.dim) for text, code in hint]
    content += [Row(width - 4) for _ in range(height - 2 - len(content))]
    return frame(content, width, theme, title=[("steps", palette.strong)])


def _content(
    rank: Rank, view: View, shown: list[Part], total: float, width: int, height: int, theme: CellTheme
) -> list[Row]:
    rows: list[Row] = []
    if shown and total > 0:
        clocks = clocks_of(shown)
        bars = max(min(len(clocks), height - _rows_of_phases(rank, shown, width)), 1)
        rows += [_bar_row(clock, rank, shown, total, width, theme) for clock in clocks[-bars:]]
    else:
        rows.append(Row(width).add(_why_no_phases(rank), theme.palette.dim))
    rows = rows[:height]
    health = health_row.paint(rank, view, width, theme)
    if health is not None and height - len(rows) <= _rows_of_phases(rank, shown, width):
        health = None  # phases come first
    left = height - len(rows) - (health is not None)
    if left == 1 and shown and total > 0:
        clock = clocks[-1]
        said = _longest(shown, clock, step_seconds(rank, shown, clock), NAMED_PHASES, width)
        rows.append(Row(width).add(said, theme.palette.text))
    elif left > 0 and shown and total > 0:
        rows += _details(rank, view, shown, width, left, theme)
    elif left > 0:
        rows += [Row(width).add(text, theme.palette.dim) for text in _remarks(rank)][:left]
    rows += [] if health is None else [health]
    return rows + [Row(width) for _ in range(height - len(rows))]


def clocks_of(shown: list[Part]) -> list[Clock]:
    """Return the clocks by which these phases were measured, the host's first."""
    return ["host", "gpu"] if any(part.phase.gpu_seconds is not None for part in shown) else ["host"]


def _rows_of_phases(rank: Rank, shown: list[Part], width: int) -> int:
    """Return the rows that the longest phases and the titles above them need."""
    return 1 + ceil(min(len(with_untimed(rank, shown)), NAMED_PHASES) / phase_columns(width + 2))


def _first_steps(rank: Rank) -> str:
    return f"first {rank.warmup_steps} step{'s' if rank.warmup_steps > 1 else ''}"


def _why_no_phases(rank: Rank) -> str:
    if rank.warmup_steps and rank.step_seconds_p50 is None:
        return f"phases after warm-up ({_first_steps(rank)})"
    if rank.step is None:
        return "phases after the first step"
    return 'no phases; name a part of a step: with llmtop.phase("forward"):'


def _figures(rank: Rank, view: View) -> list[tuple[str, str, str]]:
    """Label, value and suffix: parts of the title, in this order, as far as there is room."""
    window = "" if rank.window_seconds is None else f" over {fmt.duration(rank.window_seconds)}"
    figures = [("p50", fmt.duration(rank.step_seconds_p50), window)]
    mean = step_seconds(rank, parts(rank), "host")
    if rank.step_seconds_p50 and abs(mean - rank.step_seconds_p50) > _MEAN_APART * rank.step_seconds_p50:
        figures.append(("mean", fmt.duration(mean), ""))
    steps_now = view.snapshot is None or rank.pid not in still_pids(view.snapshot)
    if rank.ttft_seconds_p50 is not None:  # what a server is judged by comes before the mean of its requests
        figures.insert(1, ("TTFT", fmt.duration(rank.ttft_seconds_p50), ""))
        figures.insert(2, ("TPOT", fmt.duration(rank.tpot_seconds_p50), ""))
    rates = (
        (rank.tokens_out_per_s, " tokens/s out"),
        (rank.tokens_per_s, " tokens/s"),
        (rank.samples_per_s, " samples/s"),
    )
    figures += [("", fmt.count(rate), unit) for rate, unit in rates if rate is not None and steps_now][:1]
    figures.append(("p95", fmt.duration(rank.step_seconds_p95), ""))
    figures += _request_figures(rank)
    figures += [(_window_name(rank, one), fmt.duration(one.step_seconds_p50), "") for one in rank.windows[1:]]
    is_known = gpu_busy.idle_pct(rank) is not None
    if steps_now and (gpu_busy.idle_cell(rank) != fmt.DASH if is_known else view.gpus()):
        figures.append(("GPU", *_idle(rank)))
    if steps_now and rank.mfu_pct is not None:
        figures.append(("MFU", f"{'~' if rank.mfu_estimated else ''}{fmt.percent(rank.mfu_pct, 1)}", ""))
    if rank.overhead_seconds is not None:
        usual = rank.step_seconds_mean or rank.step_seconds_p50
        figures.append(("llmtop costs", fmt.overhead(rank.overhead_seconds, usual), ""))
    figures.append(("took", fmt.duration(rank.step_seconds), ""))
    if rank.memory_reserved_bytes is not None:
        memory = f"{fmt.size(rank.memory_allocated_bytes)} of {fmt.size(rank.memory_reserved_bytes)}"
        figures.append(("torch memory", memory, ""))
    figures.append(("p99", fmt.duration(rank.step_seconds_p99), ""))
    name = short_command(rank.command)
    figures.append(("pid", f"{rank.pid}" + (f" {name}" if name else ""), ""))
    return figures


def _window_name(rank: Rank, window: Window) -> str:
    if is_of_run(rank, window):
        return "the run"
    return window_label(rank, window) if window.name == "run" else window.name


def _idle(rank: Rank) -> tuple[str, str]:
    """Return the GPU's idle share and its source."""
    source = "" if rank.gpu_busy_source is None else f" by {gpu_busy.source_name(rank.gpu_busy_source)}"
    return f"{gpu_busy.idle_text(rank)} idle", source


def _gpu_heading(rank: Rank) -> str:
    """Return the GPU's clock, and that it is a bound where the GPU may have paused within the phases."""
    return "GPU≤" if gpu_busy.has_phase_bounds(rank) else "GPU"


def _request_figures(rank: Rank) -> list[tuple[str, str, str]]:
    """Return the rest of what is known of requests to a language model; of other steps nothing."""
    figures: list[tuple[str, str, str]] = []
    for name, p95, p99 in (
        ("TTFT", rank.ttft_seconds_p95, rank.ttft_seconds_p99),
        ("TPOT", rank.tpot_seconds_p95, rank.tpot_seconds_p99),
    ):
        if p95 is not None:
            figures.append((f"{name} p95, p99", f"{fmt.duration(p95)}, {fmt.duration(p99)}", ""))
    if rank.tokens_in_per_s is not None:
        figures.append(("tokens/s in", fmt.count(rank.tokens_in_per_s), ""))
    if rank.inference and rank.batch is not None:
        figures.append(("batch", fmt.figure(rank.batch), ""))
    return figures


def _bar_row(clock: Clock, rank: Rank, shown: list[Part], total: float, width: int, theme: CellTheme) -> Row:
    palette = theme.palette
    row = Row(width).add(pad("host" if clock == "host" else _gpu_heading(rank), 5), palette.dim)
    length, whole = max(width - 5 - 9, 0), step_seconds(rank, shown, clock)
    outside = rank.outside_seconds if clock == "host" else None
    bar(row, shown, clock, total, length, theme, outside=outside, whole=whole)
    spent = whole if clock == "host" else sum(part.seconds(clock) or 0.0 for part in shown)
    return row.add(pad(fmt.duration(spent), 9, right=True), palette.strong)


def _details(rank: Rank, view: View, measured: list[Part], width: int, height: int, theme: CellTheme) -> list[Row]:
    """Return the table of phases, in columns as it needs, and beside it what has to be known about the figures."""
    before = _earlier_phases(rank, view)
    shown, total = with_untimed(rank, measured), step_seconds(rank, measured, "host")
    needed = next((n for n in (1, 2, 3) if 1 + ceil(len(shown) / n) <= height), 3)
    form = _WIDE if needed * (_WIDE.width + 3) <= width + 3 else _SLIM
    columns = max(min(needed, (width + 3) // (form.width + 3)), 1)
    legend = _legend(
        shown, total, width, height, columns, form, before, theme, rank.phases_left_out, _gpu_heading(rank)
    )
    side = (form.width + 3) * columns
    remarks = _remarks(rank)
    if remarks and width - side >= _LEAST_REMARK:
        said = [line for text in remarks for line in wrap(text, width - side)][:height]
        for row, text in zip(legend, said, strict=False):
            row.fill_to(side, theme.palette.text).add(text, theme.palette.dim)
    return legend


def _earlier_phases(rank: Rank, view: View) -> dict[str, float]:
    """Mean seconds of each phase over the 5 minutes before the recent steps."""
    known = view.history.phases.get(key_of(rank))
    if known is None:
        return {}
    end = view.history.end - (rank.window_seconds or 15.0) - BUCKET_SECONDS
    return known.mean_phases(end - 300.0, end) or {}


def _legend(
    shown: list[Part],
    total: float,
    width: int,
    height: int,
    columns: int,
    form: _Form,
    before: dict[str, float],
    theme: CellTheme,
    unknown: int,
    gpu: str,
) -> list[Row]:
    """Phase by phase: time by both clocks, share, change. What has no room is counted, with `unknown` others."""
    palette = theme.palette
    room = height - 1
    fitting = shown
    if len(shown) > room * columns:
        largest = sorted(shown, key=lambda p: -max(p.phase.host_seconds, p.phase.gpu_seconds or 0.0))
        kept = {part.phase.name for part in largest[: max(room * columns, 0)]}
        fitting = [part for part in shown if part.phase.name in kept]
    rows = [Row(width) for _ in range(min(1 + ceil(len(fitting) / columns), height))]
    timed = len(clocks_of(shown)) > 1
    known = letters([part.phase.name for part in shown])
    name = form.width - 2 - 9 - 6 - (9 if timed else 0) - (_CHANGE if form.changes else 0)
    change_title = "vs 5 min".rjust(_CHANGE) if form.changes else ""
    hidden = len(shown) - len(fitting) + unknown
    for column in range(columns):
        title = f"phase (+{hidden:,} more)" if hidden and not column else "phase"
        rows[0].fill_to(column * (form.width + 3), palette.dim)
        rows[0].add(
            pad(title if len(title) <= name + 2 else title.replace(" more", ""), name + 2)
            + f"{'host':>9}{'share':>6}{gpu.rjust(9) if timed else ''}{change_title}",
            palette.dim,
        )
    for place, part in enumerate(fitting):
        column, line = divmod(place, max(len(rows) - 1, 1))
        row = rows[min(1 + line, len(rows) - 1)].fill_to(column * (form.width + 3), palette.text)
        block(row, known[part.phase.name], 1, part.color, theme)
        row.add(" " + pad(fmt.printable(phase_label(part.phase.name)), name), palette.text)
        row.add(pad(fmt.duration(part.phase.host_seconds), 9, right=True), palette.text)
        share = 100 * part.phase.host_seconds / total
        row.add(pad(fmt.percent(share), 6, right=True), palette.dim)
        if timed:
            row.add(pad(fmt.duration(part.phase.gpu_seconds), 9, right=True), palette.text)
        if form.changes:
            grown, loud = _change(part.phase.host_seconds, before.get(part.phase.name), total)
            row.add(pad(grown, _CHANGE, right=True), palette.strong if loud else palette.dim)
    return rows


def _change(now: float, before: float | None, total: float) -> tuple[str, bool]:
    """Return the growth of a phase in ms or s; and True if that is much of a step."""
    if before is None:
        return fmt.DASH, False
    grown = now - before
    if abs(grown) < 0.002 * total:
        return "=", False
    sign = "+" if grown > 0 else "-"
    return sign + fmt.duration(abs(grown)), abs(grown) >= 0.05 * total
