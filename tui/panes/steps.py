"""The steps pane: where a step's time goes, by both clocks, and how fast the training runs."""

from __future__ import annotations

from math import ceil

from rich.style import Style

from llmtop import format as fmt
from llmtop import gpu_busy
from llmtop.snapshot import Rank, RareSteps
from tui.layout import FRAMED_STEPS
from tui.paint import alert_style
from tui.paint.charts import area, finite, nice_limit
from tui.paint.rows import Look, Row, frame, pad, rule
from tui.panes import logged_metrics
from tui.panes.gpu_card import short_command
from tui.panes.phase_bars import REST, Clock, Part, bar, listed, parts, step_seconds
from tui.view import View

_HINT = (
    ("No training is attached. Attach one with three lines of its script:", False),
    ("    import llmtop", True),
    ("    for batch in llmtop.loader(batches):", True),
    ("        with llmtop.step(tokens=batch.numel()):", True),
    ("or with none:  llmtop run -- python train.py", False),
)
_HINT_LINE = "no training attached: start it with  llmtop run -- python train.py"
LEGEND = 48
"""Cells of the table of phases."""
_NARROW = 32
"""Cells of that table without the column of shares."""
_MOST_DETAILS = 10
"""Rows of the table of phases and the chart of step times at most."""


def paint(view: View, width: int, height: int, look: Look) -> list[Row]:
    """Draw the pane for the process that the view names, or how to attach one."""
    palette = look.palette
    rank = view.rank()
    if rank is None:
        return _hint(width, height, look)
    right: list[tuple[str, Style]] = []
    if rank.total_steps:
        done = 0 if rank.step is None else min(rank.step + 1, rank.total_steps)
        eta = f" {look.glyphs.dot} {fmt.duration(rank.eta_seconds)} left" if rank.eta_seconds is not None else ""
        right = [(_gauge(done / rank.total_steps, 12, look), palette.compute)]
        right.append((f" {fmt.percent(100 * done / rank.total_steps)} of {rank.total_steps:,}{eta}", palette.text))
    title = _title(rank, view, look)
    if height >= FRAMED_STEPS:
        content = _content(rank, view, width - 4, height - 2, look)
        return frame(content, width, look, title=title, right=right, foot=_foot(rank, look))
    ruled = height >= 3
    content = [
        Row(width).add(" ", palette.text).join(row).end(palette.text)
        for row in _content(rank, view, width - 2, height - ruled, look)
    ]
    return [rule(width, look, title, right), *content] if ruled else content


def _foot(rank: Rank, look: Look) -> list[tuple[str, Style]]:
    """A line on what has to be known about the figures above it."""
    said = [rank.note or "", _idle_note(rank)]
    if rank.warmup_steps:
        said.append(f"{_first_steps(rank)} left out of rates")
    if rank.mfu_pct is None and rank.tokens_per_s is not None:
        said.append(rank.mfu_note or "")
    if rank.rare is not None:
        said.append(_rare(rank.rare))
    if rank.lost:
        said.append(f"{rank.lost:,} steps not received")
    text = f" {look.glyphs.dot} ".join(fmt.printable(one) for one in said if one)
    return [(text, look.palette.dim)] if text else []


def _idle_note(rank: Rank) -> str:
    """By which witness the GPU is so idle, where that is not plain from the phases beside it."""
    if rank.gpu_busy_pct is None or not gpu_busy.phases_are_bounds(rank):
        return ""
    return f"GPU idle by {gpu_busy.witness(rank.gpu_busy_source)}"


def _rare(rare: RareSteps) -> str:
    """What long steps that come now and then cost: "every 20 steps one takes 1.2 s (outside): 3 min an hour"."""
    often = "now and then a step" if rare.every is None else f"every {fmt.number(rare.every)} steps one"
    where = f" ({rare.part})" if rare.part else ""
    lost = fmt.duration(rare.seconds_per_hour)
    return f"{often} takes {fmt.duration(rare.seconds)}{where}: {lost} lost an hour"


def _gauge(share: float, width: int, look: Look) -> str:
    full = min(round(share * width), width)
    return look.glyphs.gauge_full * full + look.glyphs.gauge_empty * (width - full)


def _title(rank: Rank, view: View, look: Look) -> list[tuple[str, Style]]:
    palette, dot = look.palette, look.glyphs.dot
    job = view.job_of(rank)
    known = rank.world_size or len(view.ranks())
    count = known if job is None else job.world_size or job.ranks_seen
    title = [("requests" if rank.kind == "request" else "steps", palette.strong)]
    if rank.inference:
        title.append((f" {dot} inference", palette.text))
    if rank.rank is not None:
        of = f" of {count}" if count > 1 else ""
        title.append((f" {dot} rank {rank.rank}{of}", palette.text))
    name = short_command(rank.command)
    if rank.window_seconds is not None:
        title.append((f" {dot} last {fmt.duration(rank.window_seconds)}", palette.text))
    title.append((f" {dot} pid {rank.pid}" + (f" {dot} {name}" if name else ""), palette.dim))
    return title


def _hint(width: int, height: int, look: Look) -> list[Row]:
    palette = look.palette
    if height < len(_HINT) + 2:
        rows = [Row(width).add(" " + _HINT_LINE, palette.dim), *(Row(width) for _ in range(height - 1))]
        return [row.end(palette.text) for row in rows]
    content = [Row(width - 4).add(text, palette.code if code else palette.dim) for text, code in _HINT]
    content += [Row(width - 4) for _ in range(height - 2 - len(content))]
    return frame(content, width, look, title=[("steps", palette.strong)])


def _content(rank: Rank, view: View, width: int, height: int, look: Look) -> list[Row]:
    shown = parts(rank)
    total = step_seconds(rank, shown)
    rows = [_headline(rank, view, width, look)]
    if shown and total > 0:
        both = any(part.phase.gpu_seconds is not None for part in shown)
        clocks: list[Clock] = ["host", "gpu"] if both else ["host"]
        # The host's clock alone misleads (a wait for the GPU looks like slow input), so it is the first to go.
        outside = rank.outside_seconds
        gpu = _gpu_heading(rank)
        rows += [_bar_row(clock, shown, outside, total, width, look, gpu) for clock in clocks[-(height - 1) :]]
    elif height > 2:
        rows.append(Row(width).add(_why_no_phases(rank), look.palette.dim))
    rows = rows[:height]
    left = height - len(rows)
    logged_rows = 0
    if rank.metrics and left:
        spare = left - _MOST_DETAILS - 1
        logged_rows = (
            min(spare, logged_metrics.MOST_CHART) if spare >= logged_metrics.LEAST_CHART else 1 if left >= 3 else 0
        )
    details = min(left - logged_rows, _MOST_DETAILS)
    rows += _details(rank, view, listed(rank, shown), total, width, details, look)
    if logged_rows > 1:
        rows.append(Row(width))
    if logged_rows:
        rows += logged_metrics.paint(rank, view, width, logged_rows, look)
    return rows + [Row(width) for _ in range(height - len(rows))]


def _first_steps(rank: Rank) -> str:
    return f"first {rank.warmup_steps} step{'s' if rank.warmup_steps > 1 else ''}"


def _why_no_phases(rank: Rank) -> str:
    if rank.warmup_steps and rank.step_seconds_p50 is None:
        return f"phases after warm-up ({_first_steps(rank)})"
    if rank.step is None:
        return "phases after the first step"
    return 'no phases: with llmtop.phase("forward"): names a part of a step'


def _headline(rank: Rank, view: View, width: int, look: Look) -> Row:
    palette = look.palette
    row = Row(width)
    alert = None if view.snapshot is None else alert_style.of_rank(view.snapshot, rank)
    if rank.state != "running":
        row.add(f" {rank.state.upper()} ", palette.critical_badge if rank.state == "stalled" else palette.mark)
        row.add("  ", palette.text)
    elif alert is not None and alert_style.weight(alert) > 0:
        row.add(f" {alert_style.word(alert)} ", alert_style.badge(alert, look)).add("  ", palette.text)
    for label, text, value_width in _figures(rank):
        if len(label) + 1 + max(len(text), value_width) > row.left:
            continue
        row.add(label + " ", palette.dim).add(text.ljust(value_width), palette.strong).add("  ", palette.text)
    return row


def _figures(rank: Rank) -> list[tuple[str, str, int]]:
    """Label, text, width: what the headline says, as far as there is room, in this order."""
    figures = [
        (rank.kind, fmt.DASH if rank.step is None else f"{rank.step:,}", 7),
        ("took", fmt.duration(rank.step_seconds), 8),
        ("p50", fmt.duration(rank.step_seconds_p50), 8),
    ]
    if rank.ttft_seconds_p50 is not None:
        figures.append(("TTFT", fmt.duration(rank.ttft_seconds_p50), 8))
        figures.append(("TPOT", fmt.duration(rank.tpot_seconds_p50), 8))
    if rank.tokens_out_per_s is not None:
        figures.append(("tokens/s out", fmt.count(rank.tokens_out_per_s), 6))
    elif rank.tokens_per_s is not None:
        figures.append(("tokens/s", fmt.count(rank.tokens_per_s), 6))
    elif rank.samples_per_s is not None:
        figures.append(("samples/s", fmt.count(rank.samples_per_s), 6))
    figures.append(("GPU idle", gpu_busy.idle_text(rank), 4))
    figures.append(("p95", fmt.duration(rank.step_seconds_p95), 8))
    figures += _of_requests(rank)
    figures += [
        (f"p50 of {'the run' if window.name == 'run' else window.name}", fmt.duration(window.step_seconds_p50), 8)
        for window in rank.windows[1:]
    ]
    figures.append(("p99", fmt.duration(rank.step_seconds_p99), 8))
    if rank.mfu_pct is not None:
        figures.append(("MFU", f"{'~' if rank.mfu_estimated else ''}{fmt.percent(rank.mfu_pct, 1)}", 6))
    figures.append((f"{rank.kind}s/s", fmt.count(rank.steps_per_s), 6))
    if rank.memory_reserved_bytes is not None:
        figures.append(
            (
                "torch memory",
                f"{fmt.size(rank.memory_allocated_bytes)} of {fmt.size(rank.memory_reserved_bytes)}",
                20,
            )
        )
    return figures


def _gpu_heading(rank: Rank) -> str:
    """The GPU's clock, and that it is a bound where the GPU may have paused within the phases."""
    return "GPU≤" if gpu_busy.phases_are_bounds(rank) else "GPU"


def _of_requests(rank: Rank) -> list[tuple[str, str, int]]:
    """The rest of what is known of requests to a language model; of other steps nothing."""
    figures: list[tuple[str, str, int]] = []
    for name, p95, p99 in (
        ("TTFT", rank.ttft_seconds_p95, rank.ttft_seconds_p99),
        ("TPOT", rank.tpot_seconds_p95, rank.tpot_seconds_p99),
    ):
        if p95 is not None:
            figures.append((f"{name} p95, p99", f"{fmt.duration(p95)}, {fmt.duration(p99)}", 18))
    if rank.tokens_in_per_s is not None:
        figures.append(("tokens/s in", fmt.count(rank.tokens_in_per_s), 6))
    if rank.inference and rank.batch is not None:
        figures.append(("batch", fmt.figure(rank.batch), 4))
    return figures


def _bar_row(
    clock: Clock, shown: list[Part], outside: float | None, total: float, width: int, look: Look, gpu: str
) -> Row:
    palette = look.palette
    row = Row(width).add(pad("host" if clock == "host" else gpu, 5), palette.dim)
    length = max(width - 5 - 9, 0)
    bar(row, shown, clock, total, length, look, outside=outside if clock == "host" else None)
    if clock == "host":
        return row.add(pad(fmt.duration(total), 9, right=True), palette.strong)
    spent = sum(part.seconds(clock) or 0.0 for part in shown)
    return row.add(pad(fmt.duration(spent), 9, right=True), palette.strong)


def _details(
    rank: Rank, view: View, shown: list[Part], total: float, width: int, height: int, look: Look
) -> list[Row]:
    """The table of phases and the history of step times: beside each other, or one below the other."""
    if height <= 0:
        return []
    if shown and total > 0 and width >= 2 * LEGEND and height >= min(len(shown) + 1, 4):
        legend = _legend(shown, total, height, look, rank.phases_left_out, _gpu_heading(rank))
        if len(shown) + 1 > height >= 1 + ceil(len(shown) / 2) and width >= 2 * _NARROW + 30:
            legend = _short_legend(shown, 2 * _NARROW + 3, 2, look, _gpu_heading(rank))
        side = max(row.limit for row in legend)
        chart = _chart(rank, view, width - side - 3, height, look)
        joined = []
        for left, right in zip(legend + [Row(side) for _ in range(height - len(legend))], chart, strict=True):
            row = Row(width).join(left.to(side, look.palette.text)).add("   ", look.palette.text)
            joined.append(row.join(right))
        return joined
    columns = 2 if width >= 2 * _NARROW + 3 else 1
    needed = 1 + ceil(len(shown) / columns)
    if height < needed + 1 or not shown:
        return _chart(rank, view, width, height, look)
    legend = _short_legend(shown, width, columns, look, _gpu_heading(rank))
    return legend + _chart(rank, view, width, height - len(legend), look)


def _short_legend(shown: list[Part], width: int, columns: int, look: Look, gpu: str) -> list[Row]:
    """Phase by phase, times alone, in one or two columns; the shares can be read off the bars above."""
    palette = look.palette
    each = min((width - 3 * (columns - 1)) // columns, LEGEND)
    name = each - 2 - 9 - 10
    rows = [Row(width) for _ in range(1 + ceil(len(shown) / columns))]
    for column in range(columns):
        rows[0].to(column * (each + 3), palette.dim)
        rows[0].add(pad("phase", name + 2) + f"{'host':>9}{gpu:>10}", palette.dim)
    for place, part in enumerate(shown):
        column, line = divmod(place, len(rows) - 1)
        row = rows[1 + line].to(column * (each + 3), palette.text)
        row.add(*_swatch(part, look))
        row.add(pad(fmt.printable(part.phase.name), name), palette.text)
        row.add(pad(fmt.duration(part.phase.host_seconds), 9, right=True), palette.text)
        row.add(pad(fmt.duration(part.phase.gpu_seconds), 10, right=True), palette.text)
    return rows


def _legend(shown: list[Part], total: float, height: int, look: Look, unknown: int, gpu: str) -> list[Row]:
    """Phase by phase: time and share by both clocks. Phases without room are counted, with `unknown` others."""
    palette = look.palette
    if not shown or total <= 0:
        return []
    width = LEGEND
    name = width - 2 - 15 - 16
    rows = [Row(width).add(pad("phase", name + 2), palette.dim)]
    rows[0].add(f"{'host':>9}{'share':>6}{gpu:>10}{'share':>6}", palette.dim)
    room = height - 1
    fitting = shown
    if len(shown) > room:
        largest = sorted(shown, key=lambda p: -max(p.phase.host_seconds, p.phase.gpu_seconds or 0.0))
        kept = {part.phase.name for part in largest[: max(room - 1, 0)]}
        fitting = [part for part in shown if part.phase.name in kept]
    for part in fitting:
        row = Row(width).add(*_swatch(part, look))
        row.add(pad(fmt.printable(part.phase.name), name), palette.text)
        for seconds, gap in ((part.phase.host_seconds, 9), (part.phase.gpu_seconds, 10)):
            share = None if seconds is None else 100 * seconds / total
            row.add(pad(fmt.duration(seconds), gap, right=True), palette.text)
            row.add(pad(fmt.percent(share), 6, right=True), palette.dim)
        rows.append(row)
    more = len(shown) - len(fitting) + unknown
    if more and room > 0:
        rows.append(Row(width).add(f"  +{more:,} more phases {look.glyphs.more}", palette.dim))
    return rows[:height]


def _swatch(part: Part, look: Look) -> tuple[str, Style]:
    """What stands for a phase in the bars: a colour, or a pattern where there is none."""
    if part.color == REST:
        return look.glyphs.shade + " ", look.palette.rest
    filled = look.palette.depth != "mono" and not look.glyphs.ascii
    return look.glyphs.fills[0 if filled else part.color] + " ", look.palette.phases[part.color]


def _chart(rank: Rank, view: View, width: int, height: int, look: Look) -> list[Row]:
    """A chart from each step's start to the next one's, or of how long a request took; newest at the right."""
    palette = look.palette
    if height <= 0:
        return []
    label = 10
    name = "latency" if rank.kind == "request" else "interval"
    room = max(width - label, 0)
    values = view.history.rank(rank).seconds.last(room)
    known = finite(values)
    limit = nice_limit(max(known)) if known else None
    style = palette.compute if height == 1 else palette.compute_area
    rows = []
    for index, line in enumerate(area(values, room, height, limit, look.glyphs)):
        row = Row(width)
        if index == height - 1:
            text = name if height == 1 else "0"
        elif index == 0:
            text = fmt.duration(limit)
        else:
            text = name if index == height // 2 and height > 2 else ""
        row.add(pad(text, label - 1, right=True) + " ", palette.dim)
        rows.append(row.add(line, style))
    return rows
