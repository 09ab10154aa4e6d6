"""A GPU in two lines, or in one: for many GPUs or small screens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from llmtop import format as fmt
from llmtop.snapshot import Alert, Gpu
from tui.columns import Around, Column, fitting
from tui.paint import alert_style
from tui.paint.charts import spark
from tui.paint.gpu_metrics import BY_KEY, GIB, power_text, short_name
from tui.paint.rows import Look, Row, clip, pad
from tui.panes.gpu_card import users
from tui.view import View


def _head(gpu: Gpu, view: View, look: Look, alert: Alert | None, row: Row, name: int) -> None:
    """Sign, number and name; the same width in every state."""
    palette, glyphs = look.palette, look.glyphs
    selected = gpu.uuid == view.selected
    number = view.gpu_label(gpu)
    name -= max(0, len(number) - 2)
    if alert is not None and alert_style.weight(alert) > 0:
        filled = alert_style.badge(alert, look)
        row.add(f"{glyphs.heavy_bar}{alert_style.mark(alert, look)}{number:>2} ", filled)
        row.add(pad(short_name(gpu.name), name), filled).add(" ", palette.text)
        return
    row.add(glyphs.bar, palette.faint).add(glyphs.selected if selected else " ", palette.selected)
    row.add(f"{number:>2} ", palette.selected if selected else palette.strong)
    row.add(pad(short_name(gpu.name), name) + " ", palette.strong if selected else palette.text)


def paint_compact(gpu: Gpu, view: View, width: int, look: Look, alert: Alert | None) -> list[Row]:
    """Two lines: what tells working from looking busy with history, then the other figures, or what is wrong."""
    palette = look.palette
    name = 10 if width < 90 else 16
    first, second = Row(width), Row(width)
    _head(gpu, view, look, alert, first, name)
    heroes = [(BY_KEY["util"], 4), (BY_KEY["power"], 9), (BY_KEY["memory"], 11)]
    room = width - first.used - 1
    fixed = sum(len(metric.label) + value + 2 for metric, value in heroes) + 2 * 2
    sparks = max(room - fixed, 0)
    for index, (metric, value) in enumerate(heroes):
        cells = sparks // 3 + (index < sparks % 3)
        first.add(metric.label + " ", palette.dim).add(pad(metric.text(gpu), value, right=True), palette.strong)
        if cells > 0:
            levels = view.history.levels(gpu.uuid, metric.key, cells)
            first.put(" " + spark(levels, cells, look.glyphs), look.hues[metric.hue], cells + 1)
        if index < 2:
            first.add("  ", palette.text)
    _second_line(gpu, view, look, alert, second)
    return [first.end(palette.text), second.end(palette.text)]


def _second_line(gpu: Gpu, view: View, look: Look, alert: Alert | None, row: Row) -> None:
    palette, glyphs = look.palette, look.glyphs
    if alert is not None and alert_style.weight(alert) > 0 and view.snapshot is not None:
        row.add(glyphs.heavy_bar + " ", alert_style.ink(alert, look))
        row.add(
            f" {alert_style.word(alert)} {alert_style.age(alert, view.snapshot.time)} ",
            alert_style.badge(alert, look),
        )
        row.add(" ", palette.text)
    else:
        row.add(glyphs.bar + "    ", palette.faint)
    if gpu.error:
        row.add(fmt.printable(gpu.error), palette.critical)
        return
    figures = ("sm", "tensor", "dram", "temperature", "clock", "pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx")
    for key in figures:
        metric = BY_KEY[key]
        value = pad(metric.text(gpu), _WIDTHS.get(key, 10), right=True)
        needed = len(metric.label) + 1 + len(value) + 2
        if (metric.optional and metric.value(gpu) is None) or needed > row.left + 2:
            continue
        row.add(metric.label + " ", palette.dim).add(value, palette.text).add("  ", palette.text)
    if row.left > 24:
        row.add(users(gpu, view, look), palette.dim)


_WIDTHS = {"sm": 4, "tensor": 4, "dram": 4, "temperature": 5, "clock": 8}


def cell_text(gpu: Gpu, key: str) -> str:
    """A figure of a GPU in the fixed unit that its column's title names."""
    metric = BY_KEY[key]
    value = metric.value(gpu)
    if key == "power":
        return power_text(gpu).removesuffix(" W")
    if key == "memory":
        return metric.text(gpu).removesuffix(" GiB")
    if key == "clock":
        return fmt.number(value)
    if key.startswith("pcie"):
        return fmt.number(None if value is None else value / 2**20)
    if key.startswith("nvlink"):
        return fmt.number(None if value is None else value / GIB, 1)
    return metric.text(gpu)


def _column(title: str, width: int, key: str, weight: int, *, strong: bool = False) -> Column[Gpu]:
    return Column(title, width, weight, lambda gpu, _around: cell_text(gpu, key), strong=strong, key=key)


COLUMNS: tuple[Column[Gpu], ...] = (
    _column("util", 4, "util", 0, strong=True),
    _column("power W", 8, "power", 1, strong=True),
    _column("mem GiB", 9, "memory", 2),
    _column("SM", 4, "sm", 3),
    _column("tensor", 6, "tensor", 5),
    _column("DRAM", 4, "dram", 6),
    _column("temp", 5, "temperature", 4),
    _column("MHz", 5, "clock", 7),
    _column("rx MiB/s", 8, "pcie_rx", 8),
    _column("tx MiB/s", 8, "pcie_tx", 9),
    _column("NVL rx GiB/s", 12, "nvlink_rx", 10),
    _column("NVL tx GiB/s", 12, "nvlink_tx", 11),
)
_SPARKS = ("util", "power", "sm", "memory")
_NOTHING = Around({}, 0.0)
_NAME = 12
_LEAST_SPARK = 6


@lru_cache(maxsize=8)
def _plan(width: int) -> tuple[int, list[Column[Gpu]], dict[str, int]]:
    """Name width, the columns that fit, and the cells of history after each; the same for every line."""
    name = _NAME if width >= 80 else 5
    room = width - 5 - name
    shown = fitting(COLUMNS, room, 2, reserve=lambda _, chosen: (_LEAST_SPARK + 1) * 2 if chosen >= 3 else 0)
    spare = room - sum(column.width + 2 for column in shown)
    sparks = [key for key in _SPARKS if any(column.key == key for column in shown)]
    while sparks and spare // len(sparks) < _LEAST_SPARK + 1:
        sparks.pop()
    return name, shown, {key: min(spare // len(sparks) - 1, 40) for key in sparks}


def titles(width: int, look: Look) -> Row:
    """The line of titles above GPUs of one line each."""
    name, columns, cells = _plan(width)
    row = Row(width).add(pad("  GPU", 5 + name), look.palette.dim)
    for column in columns:
        row.add("  " + pad(column.title, column.width, right=True), look.palette.dim)
        if column.key in cells:
            row.add(" " * (cells[column.key] + 1), look.palette.dim)
    return row.end(look.palette.text)


def paint_line(gpu: Gpu, view: View, width: int, look: Look, alert: Alert | None) -> Row:
    """One line; with an alert its word takes the place of the last columns and the whole line is filled."""
    palette = look.palette
    name, columns, cells = _plan(width)
    row = Row(width)
    loud = alert is not None and alert_style.weight(alert) > 0
    _head(gpu, view, look, alert, row, name - 1)
    fill = alert_style.badge(alert, look) if alert is not None and loud else None
    said = _said(gpu, alert, view)
    end = width - len(said) - 3 if said else width
    for column in columns:
        spark_cells = cells.get(column.key, 0)
        if row.used + 2 + column.width > end:
            break
        row.add("  ", palette.text)
        row.add(
            pad(column.text(gpu, _NOTHING), column.width, right=True),
            palette.strong if column.strong else palette.text,
        )
        if spark_cells and row.used + spark_cells + 1 <= end:
            metric = BY_KEY[column.key]
            levels = view.history.levels(gpu.uuid, column.key, spark_cells)
            row.put(" " + spark(levels, spark_cells, look.glyphs), look.hues[metric.hue], spark_cells + 1)
    if said:
        row.to(end + 1, palette.text).add(f" {said} ", fill or palette.critical)
    return row.end(palette.text)


def _said(gpu: Gpu, alert: Alert | None, view: View) -> str:
    if alert is not None and alert_style.weight(alert) > 0 and view.snapshot is not None:
        return f"{alert_style.word(alert)} {alert_style.age(alert, view.snapshot.time)}"
    return clip(fmt.printable(gpu.error), 32) if gpu.error else ""


def more(hidden: Sequence[Gpu], loud: int, width: int, look: Look) -> Row:
    """The line that counts the GPUs for which there is no room."""
    palette = look.palette
    text = f"  +{len(hidden)} more GPU{'s' if len(hidden) > 1 else ''} {look.glyphs.more}"
    if loud:
        text += f"  {loud} of them with an alert"
    return Row(width).add(text, palette.warning if loud else palette.dim).end(palette.text)
