"""The time line: steps, phases, rates, logged values, machine, alerts and captures over one span and one ruler.

Every row has its name and its value at the instant shown at the left; its history ends at the ruler's end. What
has no room is not drawn; the order of the rows is the order of what they are worth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Literal

from msgspec import Struct

from llmtop import format as fmt
from llmtop.model.snapshot import Gpu, Host, Rank
from tui.paint import alert_style
from tui.paint.gpu_metrics import BY_KEY, Hue
from tui.paint.past_strip import add_chart
from tui.paint.rows import CellTheme, Row, clip, elapsed, pad, rule
from tui.paint.text_width import cell_len
from tui.panes import phase_slices
from tui.panes.time_ruler import ruler
from tui.series.heights import FigureHistory
from tui.state.history import History, Name, key_of
from tui.state.past_rows import METRICS_OF_A_RANK
from tui.state.stalled import is_still, still_pids
from tui.state.view import View

LABEL = 16
NARROW_LABEL = 12
_SCALE, _NARROW_SCALE = 12, 9
"""Cells at the right of a chart for the ends of its axis."""
_TALL = 5
"""Rows of one chart at most."""
_MANY_ROWS = 12
"""Rows from which on the steps have two before the least telling figures have one."""
_MAX_ALERT_ROWS = 3
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
    write: Callable[[float], str] = fmt.percent
    """A value on the axis, with its unit."""
    short: tuple[str, ...] = ()
    """The label in ever fewer cells."""
    write_scale: Callable[[float], str] | None = None
    """A value at the ends of the axis, where `write` leaves out a part of the unit."""
    core: bool = False
    """True if it comes before the alerts where there are few rows."""


def rows_wanted(view: View) -> int:
    """Return how many rows there are at least to show, without the ruler."""
    rank = view.rank()
    lanes = 1 + bool(view.snapshot is not None and view.snapshot.alerts)
    if rank is None:
        return 6 + lanes
    return min(3 + len(rank.metrics) + 4 * bool(view.gpus()), 9) + lanes + 1


def span_words(history: History) -> str:
    """Return the span of every chart in words: "5 min", "1m 15s", "all, 20 min"."""
    seconds = history.seconds
    units = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
    words = next(
        (f"{seconds / size:g} {unit}" for size, unit in units if seconds >= size and seconds % size == 0),
        elapsed(seconds),
    )
    return words if history.span is not None else f"all, {words}"


def paint(view: View, width: int, height: int, theme: CellTheme) -> list[Row]:
    """Draw as many rows as there is room for, the ruler last."""
    label = LABEL if width >= 80 else NARROW_LABEL
    scale = _SCALE if width >= 80 else _NARROW_SCALE
    if height <= 0 or width <= label + scale + 4:
        return [Row(width).end(theme.palette.text) for _ in range(max(height, 0))]
    room = width - label - 1 - scale
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
            rows.append(phase_slices.paint(view, label, room, width, theme))
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
        keys.insert(0, ("L", "now"))
    used = sum(len(text) for text, _ in title) + 4
    for key, does in keys:
        used += len(key) + len(does) + 3
        if used <= width:
            title += [(key, palette.code), (f" {does}  ", palette.dim)]
    return rule(width, theme, title)


def _plan(view: View, room: int) -> list[tuple[_Line | str, int]]:
    """Return the lines in display order, each with its number of rows."""
    lines = [line for line in _lines(view, room) if not view.history.is_left_out(line.name)]
    lanes = min(max(len(_spans(view)), 1), _MAX_ALERT_ROWS)
    first = sum(line.core for line in lines)  # the rows above the table say what holds, these are nowhere else
    heights = {"alerts": min(lanes, 1 if room < 7 else 2)} if room > max(first, 1) else {}
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
    growing = [
        place
        for place in range(len(tall))
        if spare > 0 and view.history.store.slot(lines[place].name) is not None
        if not _is_constant(lines[place], view)
    ]
    for most in (2, 3, 4, _TALL):  # the steps first, then all alike
        for place in growing:
            if spare > 0 and tall[place] < min(most, lines[place].tall):
                tall[place] += 1
                spare -= 1
    while spare > 0 and growing and min(tall[place] for place in growing) < _TALL:
        tall[min(growing, key=lambda place: tall[place])] += 1
        spare -= 1
    plan: list[tuple[_Line | str, int]] = list(zip(lines, tall, strict=False))
    if "phases" in heights:
        plan.insert(min(1, len(plan)), ("phases", 1))
    return plan + [(what, heights[what]) for what in ("alerts", "captures") if what in heights]


def _lines(view: View, most: int) -> list[_Line]:
    """Return every figure that has a history here, the most useful first; `most` of them at least."""
    snapshot, rank = view.snapshot, view.rank()
    if snapshot is None:
        return []
    host = snapshot.host
    lines: list[_Line] = []
    logged: list[_Line] = []
    if rank is not None:
        word = "latency" if rank.kind == "request" else "step"
        value = fmt.duration(rank.step_seconds_p50 or rank.step_seconds)
        lines.append(
            _Line(word, value, (key_of(rank), "step"), "zero", "compute", _TALL, write=fmt.duration, core=True)
        )
    gpu = shown_gpu(view, rank)
    if gpu is not None:
        lines += _power_and_utilization(view, _whole(view, gpu), is_core=True)
    if rank is not None:
        logged = _logged(rank)
        lines += [*_rates(view, rank), *logged[:1]]
    cpu = fmt.percent(host.cpu_pct)
    lines.append(_Line("CPU", cpu, ("host", "cpu"), "hundred", "energy", 2))
    lines += logged[1:]
    if gpu is not None:
        lines += _gpu_lines(view, gpu)
    if len(lines) < most:
        lines += _other_gpus(view, gpu)
    return [*lines, *_host_lines(host)]


def _logged(rank: Rank) -> list[_Line]:
    """Return the lines of what a rank logs, the losses first."""
    key = key_of(rank)
    return [
        _Line(
            fmt.printable(name), fmt.figure(value), (key, "metric", name), "between", "transfer", 2, write=_value
        )
        for name, value in list(rank.metrics.items())[:METRICS_OF_A_RANK]
    ]


def _host_lines(host: Host) -> list[_Line]:
    """Return what the machine reads, writes, receives and sends, and its memory."""
    lines: list[_Line] = []
    for label, short, key, rate in (
        ("disk r", "read", "disk_read", host.disk_read_bytes_per_s),
        ("disk w", "write", "disk_write", host.disk_write_bytes_per_s),
        ("net rx", "netrx", "net_rx", host.net_rx_bytes_per_s),
        ("net tx", "nettx", "net_tx", host.net_tx_bytes_per_s),
    ):
        name = ("host", key)
        lines.append(_Line(label, _rate(rate), name, "zero", "transfer", 2, None, _rate, (short,), fmt.rate))
    total = host.memory_total_bytes
    if total:
        used, name = _size(host.memory_used_bytes), ("host", "memory")
        lines.append(_Line("memory", used, name, "limit", "transfer", 2, total, write=_size, write_scale=fmt.size))
    return lines


def _rates(view: View, rank: Rank) -> list[_Line]:
    job = view.job_of(rank)
    snapshot = view.snapshot
    still = frozenset[int]() if snapshot is None else still_pids(snapshot)
    stands = rank.pid in still or (job is not None and is_still(job, still))
    if job is not None and job.tokens_per_s is not None and job.ranks_seen > 1:
        return [
            _Line(
                "job tok/s",
                fmt.DASH if stands else fmt.count(job.tokens_per_s),
                ("job", job.name),
                "zero",
                "compute",
                2,
                write=fmt.count,
                short=("tok/s",),
            )
        ]
    if rank.tokens_per_s is not None:
        name = (key_of(rank), "tokens")
        value = fmt.DASH if stands else fmt.count(rank.tokens_per_s)
        return [_Line("tok/s", value, name, "zero", "compute", 2, write=fmt.count)]
    return []


def shown_gpu(view: View, rank: Rank | None) -> Gpu | None:
    """Return the GPU that rows are of: the selected one, that of the shown alert, the one that draws least of its
    limit.

    The least only where it lies apart from the others; else the GPU of the training shown, else the first.
    """
    gpus = view.gpus()
    alert = view.alerts.selected_alert(view.alerts.unmuted(view.snapshot))
    accused = None if alert is None else alert.gpu
    if accused is None and alert is not None and alert.pid is not None:
        accused = next((one.gpu_uuid for one in view.ranks() if one.pid == alert.pid), None)
    lowest = None if view.rank_pid is not None else _lowest(gpus)
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    for wanted in (view.selected, accused, lowest, None if rank is None else rank.gpu_uuid):
        if wanted in by_uuid:
            return by_uuid[wanted]
    return gpus[0] if gpus else None


def _lowest(gpus: Sequence[Gpu]) -> str | None:
    """Return the GPU in use whose share of its power limit lies furthest below the others, if it does."""
    shares = {
        gpu.uuid: gpu.power_watts / gpu.power_limit_watts
        for gpu in gpus
        if gpu.power_watts is not None and gpu.power_limit_watts and (gpu.util_pct or 0.0) >= _IN_USE_PCT
    }
    if len(shares) < 2:
        return None
    lowest = min(shares, key=lambda uuid: shares[uuid])
    return lowest if median(shares.values()) - shares[lowest] > _APART else None


_IN_USE_PCT = 50.0
_APART = 0.1
"""Share of the limit. It chooses what is drawn; only the rules judge whether anything is wrong."""


def _power_and_utilization(view: View, gpu: Gpu, *, is_core: bool = False) -> list[_Line]:
    """Return both on an axis from 0 to 100 %, power against its limit: little power at full utilization is
    seen. Without a limit, power is in watts."""
    number = f"{view.gpu_label(gpu)} " if len(view.gpus()) > 1 else ""
    prefix = f"GPU{number}" if number else ""
    limit = gpu.power_limit_watts
    lines = []
    if gpu.power_watts is not None and limit:
        share = fmt.percent(100 * gpu.power_watts / limit)
        lines.append(
            _Line(
                f"{prefix}power",
                share,
                (gpu.uuid, "power"),
                "limit",
                "energy",
                2,
                limit,
                lambda watts: fmt.percent(100 * watts / limit),
                (f"{number}power",),
                core=is_core,
            )
        )
    elif gpu.power_watts is not None:
        lines.append(
            _Line(
                f"{prefix}power",
                fmt.watts(gpu.power_watts),
                (gpu.uuid, "power"),
                "zero",
                "energy",
                2,
                write=fmt.watts,
                short=(f"{number}power",),
                core=is_core,
            )
        )
    if gpu.util_pct is not None:
        util = fmt.percent(gpu.util_pct)
        name = (gpu.uuid, "util")
        lines.append(
            _Line(f"{prefix}util", util, name, "hundred", "compute", 2, short=(f"{number}util",), core=is_core)
        )
    return lines


def _whole(view: View, gpu: Gpu) -> Gpu:
    """Return the GPU itself; of a MIG instance, whose power the driver does not give, the GPU that it is a part
    of."""
    if gpu.mig_parent_uuid is None or gpu.power_watts is not None:
        return gpu
    return next((one for one in view.gpus() if one.uuid == gpu.mig_parent_uuid), gpu)


def _other_gpus(view: View, shown: Gpu | None) -> list[_Line]:
    """Power and utilization of the GPUs that no other row is of, where a tall screen has room for them."""
    drawn = None if shown is None else _whole(view, shown).uuid
    others = [gpu for gpu in view.gpus() if gpu.uuid != drawn]
    return [line for gpu in others[:_MOST_GPUS] for line in _power_and_utilization(view, gpu)]


def _gpu_lines(view: View, gpu: Gpu) -> list[_Line]:
    """Return the lines of one GPU for which the table has no strip."""
    lines = []
    number = f"{view.gpu_label(gpu)} " if len(view.gpus()) > 1 else ""
    prefix = f"GPU{number}" if number else ""
    for key in ("sm", "memory", "tensor", "dram", "pcie_rx", "pcie_tx", "nvlink_rx", "temperature", "clock"):
        metric = BY_KEY[key]
        if metric.value(gpu) is None:
            continue
        short = _rate if key in _RATES else _size if key == "memory" else None
        value = metric.text(gpu) if short is None else short(metric.value(gpu))
        label = _SHORT.get(key, metric.label)
        value = value.removesuffix(" MHz")
        axis: Axis = "zero" if key in _RATES else "limit"
        write = short or metric.axis
        lines.append(
            _Line(
                prefix + label,
                value,
                (gpu.uuid, key),
                axis,
                metric.hue,
                2,
                metric.limit(gpu),
                write,
                (f"{prefix}{_SHORTEST.get(key, label)}", number + _SHORTEST.get(key, label)),
                fmt.rate if key in _RATES else fmt.size if key == "memory" else None,
            )
        )
    return lines


_MOST_GPUS = 15
_RATES = ("pcie_rx", "pcie_tx", "nvlink_rx")
"""Against what their links can carry nearly all would be a flat line at the bottom."""
_SHORT = {
    "temperature": "temp",
    "memory": "mem",
    "tensor": "tens",
    "clock": "MHz",
    "pcie_rx": "PCIe rx",
    "pcie_tx": "PCIe tx",
    "nvlink_rx": "NVL rx",
}
_SHORTEST = {"pcie_rx": "rx", "pcie_tx": "tx", "nvlink_rx": "NVL"}


def _rate(value: float | None) -> str:
    return fmt.DASH if value is None else fmt.rate(value).removesuffix("B/s").replace(" ", "")


def _size(value: float | None) -> str:
    return fmt.DASH if value is None else fmt.size(value).removesuffix("iB").removesuffix("B").replace(" ", "")


class _Chart(Struct):
    """The rows of a line as painted, and what they were painted from."""

    made_of: tuple[object, ...] = ()
    """Label, value and limit."""
    past: FigureHistory | None = None
    named: Row | None = None
    ends: tuple[object, ...] = ()
    scale: Sequence[Row] = ()
    rows: Sequence[Row] = ()


def _chart(
    line: _Line, view: View, label: int, room: int, tall: int, width: int, theme: CellTheme
) -> Sequence[Row]:
    """Return a line as painted; the same rows until what they show changes."""
    past = _past_heights(line, view.history, room, tall)
    kept = view.kept.get((line.name, "chart"), (line.axis, line.hue, label, room, tall, width, theme), _Chart)
    made_of = line.label, line.value, line.limit
    if past is kept.past and made_of == kept.made_of:
        return kept.rows
    named, scale = kept.named, kept.scale
    if named is None or made_of != kept.made_of:
        named = _label(line, label, theme)
    ends = line.limit, past.low, past.high, past.least, past.most, any(past.heights)
    if ends != kept.ends:
        scale = _scale_rows(line, past, tall, width - label - 1 - room, theme)
    if (
        named is not kept.named
        or scale is not kept.scale
        or kept.past is None
        or past.heights != kept.past.heights
    ):
        kept.rows = _chart_rows(line.hue, named, past, scale, width, theme)
    kept.made_of, kept.past, kept.named, kept.ends, kept.scale = made_of, past, named, ends, scale
    return kept.rows


def _chart_rows(
    hue: Hue, label: Row, past: FigureHistory, scale: Sequence[Row], width: int, theme: CellTheme
) -> list[Row]:
    rows = [Row(width) for _ in scale]
    rows[0].join(label)
    for row in rows[1:]:
        row.put(" " * label.used, theme.palette.dim, label.used)
    if past.heights and not any(past.heights):
        _fill_without_values(rows, len(past.heights), theme)
    else:
        add_chart(rows, past, hue, theme)
    for row, end in zip(rows, scale, strict=True):
        row.join(end).end(theme.palette.text)
    return rows


def _fill_without_values(rows: list[Row], room: int, theme: CellTheme) -> None:
    """Fill the cells of a chart of which no value is known in the whole span."""
    rows[0].add(pad(clip(" no value is known of this span", room), room), theme.palette.dim)
    for row in rows[1:]:
        row.add(" " * room, theme.palette.dim)


def _label(line: _Line, label: int, theme: CellTheme) -> Row:
    """Name and value, with a blank at either end."""
    palette = theme.palette
    names = (line.label, *line.short)
    value = line.value if len(names[0]) + len(line.value) + 2 <= label else line.value.replace(" ", "")
    value = clip(value, label - 4)
    named = label - 2 - len(value)
    name = next((text for text in names if len(text) <= named), names[-1])
    row = Row(label + 1)
    row.add(" " + pad(clip(name, named), label - 1 - len(value)), palette.dim).add(value + " ", palette.strong)
    return row


def _scale_rows(line: _Line, past: FigureHistory, tall: int, room: int, theme: CellTheme) -> list[Row]:
    """Return the ends of the axis, as many cells as there are at the right of the chart."""
    texts = _scale(line, past, tall, room - 1, theme)
    return [Row(room).add(f" {text}" if text else "", theme.palette.dim) for text in texts]


def _scale(line: _Line, past: FigureHistory, tall: int, room: int, theme: CellTheme) -> list[str]:
    """Return the ends of the axis, a row each; where values go beyond the upper one, how far."""
    if line.write_scale is not None:
        whole = _scale_texts(line, line.write_scale, past, tall, room, theme)
        if whole[0]:
            return whole
    return _scale_texts(line, line.write, past, tall, room, theme)


def _scale_texts(
    line: _Line, write: Callable[[float], str], past: FigureHistory, tall: int, room: int, theme: CellTheme
) -> list[str]:
    """Return the ends of the axis in one way to write them; empty texts where that has no room."""
    if not past.high > past.low or not any(past.heights):
        return [""] * tall
    if (line.axis == "between" and past.least == past.most) or (line.axis == "zero" and past.most == 0):
        return ["constant", *[""] * (tall - 1)]
    low, high = "0" if past.low == 0 else write(past.low), write(past.high)
    upper = [high]
    beyond = past.most is not None and past.most > 1.02 * past.high
    if beyond and past.most is not None:
        most = write(past.most)
        upper = [_with_one_unit(high, theme.glyphs.above, most), theme.glyphs.above + most]
    elif tall == 1:
        lows = [low, f"{past.low:.1g}"] if line.axis == "between" else [low]
        upper = [_with_one_unit(one, theme.glyphs.to, high) for one in lows]
    texts = [text for one in upper for text in (one, one.replace(" ", ""))]
    fits = next((text for text in [*texts, f"to {high}"] if cell_len(text) <= room), "")
    return [fits, *[""] * (tall - 2), low if cell_len(low) <= room else ""][:tall]


def _with_one_unit(one: str, between: str, other: str) -> str:
    """Two values, the unit only once where it is the same: "2.1–4.5ms"."""
    unit = other.lstrip("0123456789.-")
    return f"{one.removesuffix(unit) if unit else one}{between}{other}"


def _value(value: float) -> str:
    """Return a logged value on the axis, in few cells."""
    return f"{value:.2g}"


def _is_constant(line: _Line, view: View) -> bool:
    """Return True if a logged value was the same all the time: more rows would say no more."""
    if line.axis != "between":
        return False
    history = view.history
    made_of = history.end // phase_slices.REFRESH_SECONDS, history.seconds
    # What has changed is seen to have changed for as long as the span reaches back to it.
    if view.kept.get(("changes", line.name), made_of, lambda: _changes(line, history)):
        return False
    return not _changes(line, history)


def _changes(line: _Line, history: History) -> bool:
    past = history.heights_in_range(line.name, 1)
    return past.least != past.most


def _past_heights(line: _Line, history: History, room: int, tall: int) -> FigureHistory:
    if line.axis == "zero":
        return history.heights_from_zero(line.name, room, tall)
    if line.axis == "between":
        return history.heights_in_range(line.name, room, tall)
    return history.heights_of(line.name, room, 100.0 if line.axis == "hundred" else line.limit, tall)


def _spans(view: View) -> list[list[tuple[float, float, tuple[str, str], int]]]:
    """Return the alerts of the span in rows without overlap: the most severe first, of these those that hold."""
    history, snapshot = view.history, view.snapshot
    if snapshot is None:
        return []
    start = history.end - history.seconds
    found = [one for one in history.alerts if one.until >= start and one.since <= history.end]
    found.sort(key=lambda one: (-alert_style.alert_rank(one.alert), one.until < history.end, one.since))
    lanes: list[list[tuple[float, float, tuple[str, str], int]]] = []
    for one in found:
        word = alert_style.alert_word(one.alert)
        words = f"{word} {alert_style.subject(one.alert, snapshot)}", word
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
    """Return rows with the time of each alert: its sign where it began, then a line with its name in it."""
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
        shown = sorted(lanes[place]) if place < len(lanes) else []
        begins = [max(cells.index_of(since), 0) for since, *_ in shown] + [room]
        for (_, until, words, weight), first, following in zip(shown, begins, begins[1:], strict=False):
            last = min(max(cells.index_of(until), 0), room - 1)
            style = (palette.info, palette.warning, palette.critical)[weight]
            left = last - first + 1
            sign = (glyphs.info, glyphs.warning, glyphs.critical)[weight] + glyphs.gauge_full
            name = next((one for one in words if left >= len(one) + 4), "")
            after = "" if name else next((f" {one}" for one in words if len(one) + 2 <= following - last - 1), "")
            room_before = label + 1 + first - row.used
            before = "" if name or after else next((f"{one} " for one in words if len(one) + 2 <= room_before), "")
            row.fill_to(label + 1 + first - len(before), palette.text)
            text = f"{sign} {name} " if name else sign[:left]
            row.add(before + text + glyphs.gauge_full * (left - len(text)) + after, style)
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
