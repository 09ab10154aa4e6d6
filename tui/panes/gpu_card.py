"""A GPU as a full card: a row of text and history for each figure, in a frame."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from rich.style import Style

from llmtop import format as fmt
from llmtop import ownership
from llmtop.snapshot import Alert, Gpu, Rank
from tui.layout import CELL, card_height
from tui.paint import alert_style
from tui.paint.charts import area, spark
from tui.paint.gpu_metrics import HEROES, Metric, for_card, short_name
from tui.paint.rows import Look, Row, clip, flow, frame
from tui.view import View

LABEL = 7
VALUE = 11


def paint(gpu: Gpu, view: View, width: int, height: int, look: Look, alert: Alert | None) -> list[Row]:
    """Draw one card.

    Args:
        alert: the worst that holds for this GPU.
    """
    palette, glyphs = look.palette, look.glyphs
    selected = gpu.uuid == view.selected
    inner = width - 4
    words = _words(gpu, view, inner, look, alert, 2 if height - 4 >= card_height(width) - 3 else 1)
    content = _figures(gpu, view, inner, height - 2 - len(words), look)
    content += [Row(inner) for _ in range(height - 2 - len(words) - len(content))] + words
    number = f"{glyphs.selected if selected else ''}{view.gpu_label(gpu)}"
    title: list[tuple[str, Style]] = [
        (number, palette.selected if selected else palette.strong),
        (f" {short_name(gpu.name)}", palette.strong if selected else palette.text),
    ]
    right: list[tuple[str, Style]] = []
    box, style, bar = glyphs.thin, palette.selected if selected else palette.faint, None
    if alert is not None and view.snapshot is not None:
        said = f"{alert_style.word(alert)} {alert_style.age(alert, view.snapshot.time)}"
        right = [(said, alert_style.ink(alert, look))]
        if alert_style.weight(alert) > 0:
            title.insert(0, (f"{alert_style.mark(alert, look)} ", palette.strong))
            box, style, bar = glyphs.heavy, alert_style.ink(alert, look), alert_style.badge(alert, look)
    rows = frame(content, width, look, title=title, right=right, box=box, style=style, bar=bar)
    return rows[:height]


def _figures(gpu: Gpu, view: View, inner: int, height: int, look: Look) -> list[Row]:
    """Every figure that there is room for: the telling ones across and tall, the others in columns below."""
    metrics = for_card(gpu)
    heroes = [m for m in metrics if m.key in HEROES]
    others = [m for m in metrics if m.key not in HEROES]
    most = max(1, min((inner + 2) // CELL, 4))
    least = max(1, min(inner // 60, most))
    for columns in range(least, most + 1):
        grid = ceil(len(others) / columns)
        if len(heroes) + grid <= height:
            tall, spare = divmod(min(height - grid, 3 * len(heroes)), len(heroes))
            # Util and power are compared, so they are of one height; a row left over sets them off.
            heights = [tall + (spare == 2 and hero.key != "memory") for hero in heroes]
            rows = [r for m, h in zip(heroes, heights, strict=True) for r in _tall(m, gpu, view, inner, h, look)]
            rows += [Row(inner)] if spare == 1 else []
            return rows + _columns(others, gpu, view, inner, columns, look)
    shown = metrics[: most * max(height, 0)]
    return _columns(shown, gpu, view, inner, min(most, max(ceil(len(shown) / max(height, 1)), 1)), look)


def _tall(metric: Metric, gpu: Gpu, view: View, width: int, height: int, look: Look) -> list[Row]:
    """One figure over the whole width, its history several rows high, its name and value beside the top row."""
    first = Row(width)
    if height == 1:
        _cell(first, metric, gpu, view, width, look, look.palette.strong)
        return [first]
    room = width - LABEL - VALUE - 2
    values = view.history.gpu(gpu.uuid, metric.key, room)
    top, *lower = area(values, room, height, metric.limit(gpu), look.glyphs)
    hue = look.areas[metric.hue]
    blank = " " * (LABEL + VALUE + 2)
    _name_and_value(first, metric, gpu, look, look.palette.strong)
    rest = [Row(width).put(blank, look.palette.text, len(blank)).put(line, hue, room) for line in lower]
    return [first.put(top, hue, room), *rest]


def _columns(metrics: Sequence[Metric], gpu: Gpu, view: View, width: int, columns: int, look: Look) -> list[Row]:
    """Figures of one row each, down the first column, then the next."""
    height = ceil(len(metrics) / columns)
    rows = [Row(width) for _ in range(height)]
    for place, metric in enumerate(metrics):
        column, line = divmod(place, height)
        start = column * (width + 2) // columns
        end = (column + 1) * (width + 2) // columns - 2
        _cell(rows[line].to(start, look.palette.text), metric, gpu, view, end - start, look, look.palette.text)
    return rows


def _cell(row: Row, metric: Metric, gpu: Gpu, view: View, width: int, look: Look, style: Style) -> None:
    room = width - LABEL - VALUE - 2
    _name_and_value(row, metric, gpu, look, style)
    levels = view.history.levels(gpu.uuid, metric.key, room)
    row.put(spark(levels, room, look.glyphs), look.hues[metric.hue], room)


def _name_and_value(row: Row, metric: Metric, gpu: Gpu, look: Look, style: Style) -> None:
    row.put(metric.label.ljust(LABEL + 1), look.palette.dim, LABEL + 1)
    text = metric.text(gpu)
    row.put((text if len(text) <= VALUE else clip(text, VALUE)).rjust(VALUE) + " ", style, VALUE + 1)


def _words(gpu: Gpu, view: View, width: int, look: Look, alert: Alert | None, most: int) -> list[Row]:
    """What is wrong, in up to `most` lines, else who uses this GPU."""
    palette = look.palette
    if gpu.error:
        text, style = gpu.error, palette.critical
    elif alert is not None and alert_style.weight(alert) > 0:
        text, style = alert.summary, alert_style.ink(alert, look)
    else:
        return [Row(width).add(users(gpu, view, look), palette.dim)]
    return [Row(width).add(line, style) for line in flow(fmt.printable(text), [width] * most)]


def users(gpu: Gpu, view: View, look: Look) -> str:
    """The attached training on this GPU, else how many processes use it, and whose; why its clock is low."""
    if view.snapshot is None:
        return ""
    dot = f" {look.glyphs.dot} "
    parts = [_rank(rank, dot) for rank in view.snapshot.ranks if rank.gpu_uuid == gpu.uuid][:1]
    if not parts:
        pids = [process for process in view.snapshot.processes if process.gpu_uuid == gpu.uuid]
        command = (short_command(pids[0].command) or f"pid {pids[0].pid}") if pids else ""
        others = f" +{len(pids) - 1} more" if len(pids) > 1 else ""
        parts = [command + others] if pids else ["no process"]
    whose = ownership.owners(gpu.uuid, view.snapshot)
    if whose:
        parts.insert(0 if whose.endswith("alone") else 1, fmt.printable(whose))
    reasons = [reason for reason in gpu.clock_event_reasons or () if "idle" not in reason.lower()]
    if reasons:
        parts.append(fmt.printable(", ".join(reasons)).replace("_", " "))
    return dot.join(parts)


def short_command(command: str | None) -> str:
    """What runs, without the interpreter and the folders: "train.py --lr 3e-4"."""
    words = (command or "").split()
    if len(words) > 1 and words[0].rpartition("/")[2].startswith("python") and not words[1].startswith("-"):
        words = words[1:]
    return fmt.printable(" ".join([word.rpartition("/")[2] or word for word in words[:1]] + words[1:]))


def _rank(rank: Rank, dot: str) -> str:
    name = f"pid {rank.pid}" if rank.rank is None else f"rank {rank.rank}"
    step = "" if rank.step is None else f"{dot}step {rank.step:,}"
    return f"{name}{step}{dot}{short_command(rank.command)}".rstrip(dot)
