"""The time line: steps, phases, rates, logged values, machine, alerts and captures over one span and one ruler.

Every row has its name and its value at the instant shown at the left; its history ends at the ruler's end. What
has no room is not drawn; the order of the rows is the order of what they are worth.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from llmtop import format as fmt
from llmtop.model.snapshot import Gpu, Rank
from tui.paint import alert_style
from tui.paint.charts import split
from tui.paint.gpu_metrics import BY_KEY, Hue
from tui.paint.past_strip import add_chart
from tui.paint.rows import CellTheme, Row, clip, pad, rule
from tui.panes import phase_bars
from tui.series.heights import FigureHistory
from tui.series.phase_history import PhaseHistory
from tui.series.series_store import Cells
from tui.state.history import METRICS_OF_A_RANK, History, Name, key_of
from tui.state.stalled import stalled_seconds
from tui.state.view import View

LABEL = 16
_NARROW_LABEL = 12
_TALL = 10
"""Rows of the chart of steps at most."""
_MANY_ROWS = 12
"""Rows from which on the steps have two before the least telling figures have one."""
_MAX_ALERT_ROWS = 3
_LEAST_SLICE = 12
"""Cells of one bar of phases at least."""
_REFRESH_SECONDS = 5.0
"""The bars of phases are of quarter minutes, so they are painted no oftener."""
Axis = Literal["zero", "between", "hundred", "limit"]


class _Line(Struct, frozen=True):
    """One figure of the time line."""

    label: str
    value: str
    name: Name
    axis: Axis
    hue: Hue
    tall: int = 1
    """Rows that it may have, where there is room."""
    limit: float | None = None
    top: Callable[[float | None], str] | None = None
    """How the largest value in the span is written beside a tall chart."""


def rows_wanted(view: View) -> int:
    """How many rows there are at least to show, without the ruler."""
    rank = view.rank()
    lanes = 1 + bool(view.snapshot is not None and view.snapshot.alerts)
    if rank is None:
        return 6 + lanes
    return min(3 + len(rank.metrics) + 2 * bool(view.gpus()), 8) + lanes + 1


def span_words(history: History) -> str:
    """What every chart covers, in words: "5 min", "all, 20 min"."""
    seconds = history.seconds
    words = f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds / 60:g} min"
    return words if history.span is not None else f"all, {words}"


def paint(view: View, width: int, height: int, theme: CellTheme) -> list[Row]:
    """Paint the common time line, exactly `height` rows, the ruler last.

    Args:
        view: the histories, all on the axis of their common span.
        width: cells; the labels take `LABEL` of them, fewer below 80.
        height: rows; from 5 on the first is a title. Figures without room are left out, the least important first.
        theme: colours and glyphs of this terminal.
    """
    label = LABEL if width >= 80 else _NARROW_LABEL
    if height <= 0 or width <= label + 4:
        return [Row(width).end(theme.palette.text) for _ in range(max(height, 0))]
    room = width - label - 1
    rows: list[Row] = []
    titled = height >= 5
    left = height - 1 - titled
    if titled:
        rows.append(_title(view, width, theme))
    plan = _plan(view, left)
    for what, tall in plan:
        if isinstance(what, _Line):
            rows += _chart(what, view, label, room, tall, width, theme)
        elif what == "phases":
            rows.append(_phases(view, label, room, width, theme))
        elif what == "alerts":
            rows += _alerts(view, label, room, tall, width, theme)
        else:
            rows.append(_captures(view, label, room, width, theme))
    rows.append(ruler(view.history, label, room, width, theme))
    rows += [Row(width) for _ in range(height - len(rows))]
    return [row.end(theme.palette.text) for row in rows[:height]]


def _title(view: View, width: int, theme: CellTheme) -> Row:
    words, rewound = span_words(view.history), view.history.instant is not None and not view.replay
    made_of = (words, rewound, width, theme)
    return view.kept.get("time line", made_of, lambda: _title_row(words, rewound, width, theme))


def _title_row(words: str, rewound: bool, width: int, theme: CellTheme) -> Row:
    palette, dot = theme.palette, theme.glyphs.dot
    title = [("time line", palette.strong), (f" {dot} {words} {dot} ", palette.text)]
    keys = [("[ ]", "span"), ("< >", "rewind"), ("{ }", "by a minute")]
    if rewound:
        keys.insert(0, ("end", "now"))
    used = sum(len(text) for text, _ in title) + 4
    for key, does in keys:
        used += len(key) + len(does) + 3
        if used <= width:
            title += [(key, palette.code), (f" {does}  ", palette.dim)]
    return rule(width, theme, title)


def _plan(view: View, room: int) -> list[tuple[_Line | str, int]]:
    """What is shown in which order from the top, and how many rows each has."""
    lines = _lines(view)
    lanes = min(max(len(_spans(view)), 1), _MAX_ALERT_ROWS)
    heights = {"alerts": min(lanes, 1 if room < 7 else 2)} if room >= 2 else {}
    if room >= 6 and view.captures:
        heights["captures"] = 1
    if room >= 6 and view.rank() is not None and view.history.phases:
        heights["phases"] = 1
    left = room - sum(heights.values())
    if left >= _MANY_ROWS:
        left -= 1
    tall = [1] * max(min(len(lines), left), 0)
    spare = room - sum(heights.values()) - len(tall)
    if "alerts" in heights:
        more = min(lanes - heights["alerts"], spare)
        heights["alerts"] += more
        spare -= more
    for most in (2, 3, 4, _TALL):  # the steps first, then all alike
        for place in range(len(tall)):
            if spare > 0 and tall[place] < min(most, lines[place].tall):
                tall[place] += 1
                spare -= 1
    while spare > 0 and tall and min(tall) < _TALL:
        place = tall.index(min(tall))
        tall[place] += 1
        spare -= 1
    plan: list[tuple[_Line | str, int]] = list(zip(lines, tall, strict=False))
    if "phases" in heights:
        plan.insert(min(1, len(plan)), ("phases", 1))
    return plan + [(what, heights[what]) for what in ("alerts", "captures") if what in heights]


def _lines(view: View) -> list[_Line]:
    """Every figure that has a history here, the most telling first."""
    snapshot, rank = view.snapshot, view.rank()
    if snapshot is None:
        return []
    host = snapshot.host
    lines: list[_Line] = []
    if rank is not None:
        word = "latency" if rank.kind == "request" else "step"
        value = fmt.duration(rank.step_seconds_p50 or rank.step_seconds).replace(" ", "")
        lines.append(_Line(word, value, (key_of(rank), "step"), "zero", "compute", _TALL, top=fmt.duration))
        lines += _rates(view, rank)
        lines += [
            _Line(fmt.printable(name), fmt.figure(value), (key_of(rank), "metric", name), "between", "transfer", 2)
            for name, value in list(rank.metrics.items())[:1]
        ]
    lines.append(_Line("CPU", fmt.percent(host.cpu_pct), ("host", "cpu"), "hundred", "energy", 2))
    if rank is not None:
        lines += [
            _Line(fmt.printable(name), fmt.figure(value), (key_of(rank), "metric", name), "between", "transfer", 2)
            for name, value in list(rank.metrics.items())[1:METRICS_OF_A_RANK]
        ]
    gpu = _selected_gpu(view, rank)
    if gpu is not None:
        lines += _gpu_lines(view, gpu)
    lines.append(_Line("disk r", _rate(host.disk_read_bytes_per_s), ("host", "disk_read"), "zero", "transfer", 2))
    lines.append(
        _Line("disk w", _rate(host.disk_write_bytes_per_s), ("host", "disk_write"), "zero", "transfer", 1)
    )
    lines.append(_Line("net rx", _rate(host.net_rx_bytes_per_s), ("host", "net_rx"), "zero", "transfer", 1))
    return lines


def _rates(view: View, rank: Rank) -> list[_Line]:
    job = view.job_of(rank)
    stands = view.snapshot is not None and stalled_seconds(rank, view.snapshot.time) is not None
    if job is not None and job.tokens_per_s is not None and job.ranks_seen > 1:
        return [
            _Line(
                "tok/s",
                fmt.DASH if stands else fmt.count(job.tokens_per_s),
                ("job", job.name),
                "zero",
                "compute",
                2,
                top=fmt.count,
            )
        ]
    if rank.tokens_per_s is not None:
        name = (key_of(rank), "tokens")
        value = fmt.DASH if stands else fmt.count(rank.tokens_per_s)
        return [_Line("tok/s", value, name, "zero", "compute", 2, top=fmt.count)]
    return []


def _selected_gpu(view: View, rank: Rank | None) -> Gpu | None:
    """The GPU that rows are of: the selected one, else that of the training shown."""
    wanted = view.selected or (None if rank is None else rank.gpu_uuid)
    gpus = view.gpus()
    return next((gpu for gpu in gpus if gpu.uuid == wanted), gpus[0] if gpus else None)


def _gpu_lines(view: View, gpu: Gpu) -> list[_Line]:
    """What the table has no strip of, for one GPU."""
    lines = []
    several = f"GPU{view.gpu_label(gpu)} " if len(view.gpus()) > 1 else ""
    for key in ("sm", "memory", "tensor", "dram", "pcie_rx", "nvlink_rx", "temperature", "clock"):
        metric = BY_KEY[key]
        if metric.value(gpu) is None:
            continue
        value = _rate(metric.value(gpu)) if metric.hue == "transfer" and key != "dram" else metric.text(gpu)
        label = several + _SHORT.get(key, metric.label)
        value = value.removesuffix(" MHz").replace(" ", "")
        lines.append(_Line(label, value, (gpu.uuid, key), "limit", metric.hue, 2, metric.limit(gpu)))
    return lines


_SHORT = {
    "temperature": "temp",
    "memory": "mem",
    "tensor": "tens",
    "clock": "MHz",
    "pcie_rx": "PCIe",
    "nvlink_rx": "NVL",
}


def _rate(value: float | None) -> str:
    return fmt.DASH if value is None else fmt.size(value).removesuffix("iB").removesuffix("B").replace(" ", "")


def _chart(line: _Line, view: View, label: int, room: int, tall: int, width: int, theme: CellTheme) -> list[Row]:
    past = _past(line, view.history, room, tall)
    top = "" if line.top is None or past.most is None else line.top(past.most)
    made_of = (line.label, line.value, top, past, line.hue, label, width, theme)
    return view.kept.get(
        (line.name, tall), made_of, lambda: _chart_rows(line, past, top, label, tall, width, theme)
    )


def _chart_rows(
    line: _Line, past: FigureHistory, top: str, label: int, tall: int, width: int, theme: CellTheme
) -> list[Row]:
    palette = theme.palette
    rows = [Row(width) for _ in range(tall)]
    for place, row in enumerate(rows):
        if place == 0:
            value = clip(line.value, label - 4)
            name = pad(clip(line.label, label - 2 - len(value)), label - 1 - len(value))
            row.add(" " + name, palette.dim).add(value + " ", palette.strong)
        elif place == tall - 1 and top:
            row.add(pad(f"max {top} ", label + 1, right=True), palette.dim)
        else:
            row.add(" " * (label + 1), palette.dim)
    add_chart(rows, past, line.hue, theme)
    return rows


def _past(line: _Line, history: History, room: int, tall: int) -> FigureHistory:
    if line.axis == "zero":
        return history.heights_from_zero(line.name, room, tall)
    if line.axis == "between":
        return history.heights_in_range(line.name, room, tall)
    return history.heights_of(line.name, room, 100.0 if line.axis == "hundred" else line.limit, tall)


def _phases(view: View, label: int, room: int, width: int, theme: CellTheme) -> Row:
    """How a step was made up, in bars side by side: each is of one stretch of the span."""
    palette = theme.palette
    row = Row(width).add(pad(" phases", label), palette.dim).add(" ", palette.text)
    rank = view.rank()
    known = None if rank is None else view.history.phases.get(key_of(rank))
    if rank is None or known is None:
        return row
    history = view.history
    number = max(min(room // _LEAST_SLICE, 12), 1)
    cells = history.cells(number)
    if known.kept is None or known.kept[0] != (cells, history.end // _REFRESH_SECONDS, room, theme):
        painted = _slices(rank, known, history, cells, room, theme)
        known.kept = (cells, history.end // _REFRESH_SECONDS, room, theme), painted
    kept = known.kept[1]
    assert isinstance(kept, Row)
    return row.join(kept)


def _slices(rank: Rank, known: PhaseHistory, history: History, cells: Cells, room: int, theme: CellTheme) -> Row:
    row = Row(room)
    colors = phase_bars.colors(rank)
    letters = phase_bars.letters(known.names)
    first = history.first or 0.0
    for place in range(cells.number):
        left, right = place * room // cells.number, (place + 1) * room // cells.number
        start = (cells.first + place) * cells.seconds
        parts = known.mean_phases(max(start, first), min(start + cells.seconds, history.end))
        if parts is None or start + cells.seconds < first:
            row.add(" " * (right - left), theme.palette.text)
            continue
        lengths = split(list(parts.values()), sum(parts.values()), right - left - 1)
        for (name, _), length in zip(parts.items(), lengths, strict=True):
            phase_bars.block(row, letters[name], length, colors.get(name, phase_bars.REST), theme)
        row.fill_to(right, theme.palette.text)
    return row


def _spans(view: View) -> list[list[tuple[float, float, str, int]]]:
    """Return the alerts of the span in rows without overlap; the most severe in the first."""
    history, snapshot = view.history, view.snapshot
    if snapshot is None:
        return []
    start = history.end - history.seconds
    found = [one for one in history.alerts if one.until >= start and one.since <= history.end]
    found.sort(key=lambda one: (-alert_style.alert_rank(one.alert), one.since))
    lanes: list[list[tuple[float, float, str, int]]] = []
    for one in found:
        words = f"{alert_style.alert_word(one.alert)} {alert_style.subject(one.alert, snapshot)}"
        entry = (max(one.since, start), min(one.until, history.end), words, alert_style.alert_rank(one.alert))
        apart = history.seconds / 40
        lane = next(
            (
                lane
                for lane in lanes
                if all(entry[1] + apart < other[0] or entry[0] > other[1] + apart for other in lane)
            ),
            None,
        )
        if lane is None:
            lanes.append([entry])
        else:
            lane.append(entry)
    return lanes


def _alerts(view: View, label: int, room: int, tall: int, width: int, theme: CellTheme) -> list[Row]:
    """From when to when which alert held: its sign where it came, then a line with its name in it."""
    palette, glyphs = theme.palette, theme.glyphs
    lanes = _spans(view)
    cells = view.history.cells(room)
    rows = []
    hidden = sum(len(lane) for lane in lanes[tall:])
    for place in range(tall):
        row = Row(width)
        said = " alerts" if place == 0 else ""
        if place == tall - 1 and hidden:
            said = f"{said} +{hidden}"
        row.add(pad(said, label) + " ", palette.dim)
        for since, until, words, weight in sorted(lanes[place]) if place < len(lanes) else ():
            first, last = max(cells.index_of(since), 0), min(max(cells.index_of(until), 0), room - 1)
            row.fill_to(label + 1 + first, palette.text)
            style = (palette.info, palette.warning, palette.critical)[weight]
            left = last - first + 1
            sign = (glyphs.info, glyphs.warning, glyphs.critical)[weight] + glyphs.gauge_full
            text = sign[:left]
            if left >= len(words) + 4:
                text = f"{sign} {words} "
            row.add(text + glyphs.gauge_full * (left - len(text)), style)
        rows.append(row)
    return rows


def _captures(view: View, label: int, room: int, width: int, theme: CellTheme) -> Row:
    """Captures where they were taken, each with its engine and verdict as far as there is room."""
    palette = theme.palette
    row = Row(width).add(pad(" captures", label) + " ", palette.dim)
    cells = view.history.cells(room)
    shown = sorted((at, words) for at, words in view.captures if 0 <= cells.index_of(at) < room)
    for place, (at, words) in enumerate(shown):
        first = label + 1 + cells.index_of(at)
        if first < row.used:
            continue
        until = label + 1 + cells.index_of(shown[place + 1][0]) if place + 1 < len(shown) else width
        row.fill_to(first, palette.text).add(theme.glyphs.capture, palette.code)
        row.add(clip(f" {fmt.printable(words)}", until - row.used - 1), palette.dim)
    return row


_TICKS = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 150.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
_TICK_CELLS = 16


def ruler(history: History, label: int, room: int, width: int, theme: CellTheme) -> Row:
    """Paint how long ago each cell was; the axis ends now, or at the instant that is shown.

    Args:
        history: gives the span, its end, and since when there is data.
        label: cells of the labels, which stay empty.
        room: cells of the axis.
        width: cells of the row; at least `label` + 1 + `room`.
        theme: colours and glyphs of this terminal.
    """
    palette, across = theme.palette, theme.glyphs.thin.across
    row = Row(width).add(" " * (label + 1), palette.text)
    end = "now" if history.instant is None else _clock(history.end)
    seconds, base = history.seconds, label + 1
    cells = history.cells(room)
    known = 0 if history.first is None else min(max(cells.index_of(history.first), 0), room)
    if known > 0 and history.first is not None:
        place = min(known, room - len(end) - 1)
        words = (
            f"nothing is known before {_clock(history.first)} ",
            f"since {_clock(history.first)} ",
            f"since {_clock(history.first)[:5]} ",
            "",
        )
        since = next(text for text in words if len(text) <= max(place, 0))
        row.fill_to(base + place - len(since), palette.text).add(since, palette.faint).fill_to(
            base + place, palette.text
        )
    most = max(room // _TICK_CELLS, 1)
    tick = next((one for one in _TICKS if seconds / one <= most and seconds % one == 0), seconds)
    for number in range(round(seconds / tick), 0, -1):
        place = base + max(round(room * (1 - number * tick / seconds)) - 1, 0)
        text = _age_text(number * tick)
        if place < row.used or place + len(text) + len(end) + 2 > width:
            continue
        row.fill_to(place, palette.faint, across).add(text, palette.dim)
    row.fill_to(width - len(end), palette.faint, across)
    return row.add(end, palette.strong if history.instant is None else palette.mark)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _age_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"-{rest}s"
    if rest:
        return f"-{minutes}m{rest:02d}s"
    return f"-{minutes // 60}h" if minutes % 60 == 0 else f"-{minutes}m"
