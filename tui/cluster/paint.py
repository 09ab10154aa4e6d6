"""The rows of the cluster's pane: what is wrong first, then a grid of nodes with one cell a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import nan
from typing import get_args

from rich.style import Style

from collectors.prometheus.cluster_view import NODE_ORDERS, ClusterView, Node, NodeCharts, Series
from collectors.prometheus.node_words import down_text, node_notes, rate_texts
from collectors.prometheus.words import (
    counts_text,
    critical_text,
    hung_text,
    is_overdue,
    late_text,
    missing_text,
    run_text,
    state_notes,
)
from llmtop import format as fmt
from llmtop.model.severity import Severity
from llmtop.rules.gpu import POWER_LOW
from tui.cluster.state import ClusterState
from tui.paint.charts import area, nice_limit
from tui.paint.rows import CellTheme, Row, blank, clip

MOST_RUNS, MOST_STATE, MOST_WRONG = 4, 4, 10
NAME_CELLS = 14
GAP = 2
CHART_ROWS = 5
LEAST_CHARTS = 8
"""Rows below the nodes from which on the charts of the chosen one are drawn there."""
_OLD_SECONDS = 1.0
"""Age of values that is worth a place on the line of the chosen node."""
_CLOCK = 11
"""Cells of the clock at the end of the header."""


def rows(state: ClusterState, width: int, height: int, cell_theme: CellTheme) -> list[Row]:
    """Paint the whole pane, exactly `height` rows of `width` cells.

    Args:
        state: the last reply of Prometheus, and what the user has opened and chosen.
        width: cells.
        height: rows, the header among them; the footer is painted by the screen.
        cell_theme: colours and glyphs of this terminal.
    """
    view, body = state.view, max(0, height - 1)
    painted = [_header(state, width, cell_theme)] if height > 0 else []
    if view is None:
        painted.append(_plain("querying Prometheus …", width, cell_theme.palette.dim))
    elif state.opened is not None:
        painted += list(_charts(state, view, width, body, cell_theme))
    else:
        painted += list(_overview(state, view, width, body, cell_theme))
    painted = painted[:height]
    return painted + [blank(width, cell_theme) for _ in range(height - len(painted))]


def _plain(text: str, width: int, style: Style) -> Row:
    return Row(width).add(text, style)


def is_stale(state: ClusterState) -> bool:
    """Return True if what is shown is not of now and was not meant to be: nothing of it is drawn as live then."""
    view = state.view
    return view is not None and not view.pinned and (state.failed or is_overdue(view, state.now))


def _header(state: ClusterState, width: int, cell_theme: CellTheme) -> Row:
    palette, view = cell_theme.palette, state.view
    row = Row(width).add(" llmtop cluster ", palette.header_strong)
    if view is not None:
        counts = counts_text(view)
        server = f" {view.server}  "
        if fmt.width_of(server) + fmt.width_of(counts) + _CLOCK <= row.free_cells:
            row.add(server, palette.header_dim)
        row.add(clip(counts, row.free_cells), palette.header)
        _add_clock(row, state, view, cell_theme)
    return row.end(palette.header)


def _add_clock(row: Row, state: ClusterState, view: ClusterView, cell_theme: CellTheme) -> None:
    """The instant that is shown; how often it is asked for only where there is room."""
    palette, at = cell_theme.palette, time.strftime("%H:%M:%S", time.localtime(view.time))
    texts, style = [f"  {at}  every {fmt.duration(view.every_seconds)} ", f"  {at} "], palette.header_dim
    if view.pinned:
        texts, style = [f" {at} "], palette.mark
    elif is_stale(state):
        texts, style = [f" {at} NOT LIVE ", " NOT LIVE "], palette.mark
    text = next((one for one in texts if fmt.width_of(one) <= row.free_cells), "")
    row.add_right(text, style, palette.header)


def header_line(width: int, cell_theme: CellTheme) -> Row:
    """Return the first line of the help."""
    return Row(width).add(" llmtop cluster ", cell_theme.palette.header_strong).end(cell_theme.palette.header)


def _overview(
    state: ClusterState, view: ClusterView, width: int, height: int, cell_theme: CellTheme
) -> Iterator[Row]:
    stale = is_stale(state)
    above = [*_state_rows(state, view, width, cell_theme), *_run_rows(view, width, cell_theme, stale)]
    above += list(_wrong_rows(view, width, cell_theme, stale))
    above += _capture_rows(state, width, cell_theme)
    detail = _detail(state, width, cell_theme)
    room = height - len(above) - len(detail)
    state.first_row = 1 + len(above) + 1  # below the header and the grid's title
    grid = list(_grid(state, view, width, max(0, room), cell_theme, stale))
    spare = room - len(grid)
    state.draws_chosen = spare >= LEAST_CHARTS
    yield from above
    yield from grid
    yield from detail
    if state.draws_chosen and state.charted is not None:
        yield from _chart_rows(state, state.charted, width, spare, cell_theme)


def _state_rows(state: ClusterState, view: ClusterView, width: int, cell_theme: CellTheme) -> list[Row]:
    sentences = list(state_notes(view, state.now))
    return [
        _plain(f" {cell_theme.glyphs.warning} {sentence}", width, cell_theme.palette.warning)
        for sentence in sentences[:MOST_STATE]
    ]


def _run_rows(view: ClusterView, width: int, cell_theme: CellTheme, stale: bool) -> Iterator[Row]:
    style = cell_theme.palette.dim if stale else cell_theme.palette.text
    for run in view.runs[:MOST_RUNS]:
        yield _plain(f" {run_text(run, width - 1)}", width, style)
    if len(view.runs) > MOST_RUNS:
        yield _plain(f" and {len(view.runs) - MOST_RUNS} more runs", width, cell_theme.palette.dim)


def _wrong_rows(view: ClusterView, width: int, cell_theme: CellTheme, stale: bool) -> Iterator[Row]:
    palette, glyphs = cell_theme.palette, cell_theme.glyphs
    found = [(glyphs.critical, palette.critical, f"CRITICAL hung: {hung_text(one)}") for one in view.hung]
    notes = {
        severity: [one for one in node_notes(view) if one.severity == severity] for severity in get_args(Severity)
    }
    found += [(glyphs.critical, palette.critical, f"CRITICAL {one.kind}: {one.text}") for one in notes["critical"]]
    found += [
        (glyphs.warning, palette.warning, f"WARNING link errors: {critical_text(one)}")
        if one.id == "link_errors"
        else (glyphs.critical, palette.critical, f"CRITICAL {critical_text(one)}")
        for one in sorted(view.grave, key=lambda one: one.id == "link_errors")
    ]
    found += [
        (glyphs.warning, palette.warning, f"WARNING missing: {words}")
        for words in map(missing_text, view.runs)
        if words
    ]
    found += [(glyphs.warning, palette.warning, f"WARNING {one.kind}: {one.text}") for one in notes["warning"]]
    found += [
        (glyphs.warning, palette.warning, f"WARNING straggler: {late_text(one)}")
        if one.is_straggler
        else (glyphs.info, palette.dim, f"INFO late: {late_text(one)}")
        for one in view.late
    ]
    found += [(glyphs.info, palette.dim, f"INFO {one.kind}: {one.text}") for one in notes["info"]]
    for sign, style, words in found[:MOST_WRONG]:
        yield _plain(f" {sign} {words}", width, palette.dim if stale else style)
    if len(found) > MOST_WRONG:
        yield _plain(f"   and {len(found) - MOST_WRONG} more", width, palette.dim)


def _capture_rows(state: ClusterState, width: int, cell_theme: CellTheme) -> list[Row]:
    """Return the command in full: it may take several rows."""
    words = f" {cell_theme.glyphs.selected} {fmt.printable(state.capture)}" if state.capture else ""
    return [
        _plain(words[at : at + width], width, cell_theme.palette.strong)
        for at in range(0, len(words), max(1, width))
    ]


def _detail(state: ClusterState, width: int, cell_theme: CellTheme) -> list[Row]:
    nodes = state.nodes
    if not nodes:
        return []
    node = nodes[state.place]
    if node.up is False and state.view is not None:
        why = f"{down_text(node, state.view.time)}; press z to hide it"
    else:
        why = ", ".join(node.reasons) or ("no llmtop exporter" if node.up is None else "OK")
    figures: list[str] = []
    if node.up is not False and not node.is_stale:  # else they are of an earlier time
        if node.power_ratio is not None:
            figures.append(f"{fmt.percent_text(100 * node.power_ratio)} of the power limit")
        figures += rate_texts(node.rates)
    age = node.data_age_seconds or 0.0
    old = f"values {fmt.duration(round(age, 1))} old" if age >= _OLD_SECONDS else ""
    row = Row(width).add(f" {cell_theme.glyphs.selected} {node.name}: {why}", cell_theme.palette.strong)
    for part in (*figures, old):
        if part and fmt.width_of(part) + 2 <= row.free_cells:
            row.add(f", {part}", cell_theme.palette.strong)
    return [row]


def entry_width(view: ClusterView) -> int:
    """Columns that a node takes."""
    cells = max((len(node.cells) for node in view.nodes), default=0)
    name = min(NAME_CELLS, max((fmt.width_of(node.name) for node in view.nodes), default=0))
    return name + 3 + max(cells, len("stale")) + GAP


def _grid(
    state: ClusterState, view: ClusterView, width: int, height: int, cell_theme: CellTheme, stale: bool
) -> Iterator[Row]:
    """Nodes down the columns, worst first; of more than fit, one page."""
    if height < 2 or not view.nodes:
        state.page_size = max(1, height)
        return
    wide = entry_width(view)
    columns = max(1, width // wide)
    lines = height - 1
    state.columns, state.page_size, state.entry_width = lines, columns * lines, wide
    start, end = state.page
    shown = state.nodes[start:end]
    yield _grid_title(state, start, len(shown), width, cell_theme)
    for line in range(min(lines, len(shown))):
        row = Row(width)
        for place in range(line, len(shown), lines):
            row.fill_to((place // lines) * wide, cell_theme.palette.text)
            _entry(row, shown[place], wide, cell_theme, stale=stale, chosen=start + place == state.place)
        yield row


def _grid_title(state: ClusterState, start: int, shown: int, width: int, cell_theme: CellTheme) -> Row:
    """Return which nodes are shown, by what they are sorted, and what a cell is."""
    palette, glyphs = cell_theme.palette, cell_theme.glyphs
    row = Row(width).add(f" nodes {start + 1} to {start + shown} of {len(state.nodes)}, sorted by", palette.dim)
    ends = []
    for order in NODE_ORDERS:
        sign = "" if order != state.order else glyphs.more if state.reverse else glyphs.less
        row.add(f" {sign}{order}", palette.selected if sign else palette.dim)
        ends.append((row.used, order))
    state.order_ends = tuple(ends)
    for meaning in ("; one bar per GPU: power in % of its limit", "; bars: power, % of limit", ""):
        if fmt.width_of(meaning) <= row.free_cells:
            return row.add(meaning, palette.dim)
    return row


def _entry(row: Row, node: Node, wide: int, cell_theme: CellTheme, *, stale: bool, chosen: bool) -> None:
    palette, glyphs = cell_theme.palette, cell_theme.glyphs
    bad = node.badness > 0
    style = palette.dim if stale else palette.critical if bad else palette.text
    mark = glyphs.critical if bad else " "
    name = clip(node.name, min(NAME_CELLS, max(1, wide - GAP - 4)))
    row.add(f"{glyphs.selected if chosen else ' '}{mark}", style)
    row.add(name, palette.cursor if chosen else style)
    row.add(" ", palette.text)
    if node.up is False:
        word, ink = ("down", palette.critical) if node.is_target else ("gone", palette.dim)
        row.add(word, palette.dim if stale else ink)
        return
    if node.is_stale:
        row.add("stale", palette.dim if stale else palette.warning)
        return
    for cell in node.cells:
        level = 1 + min(7, max(0, int(cell.power_ratio * 8)))
        low = 100.0 * cell.power_ratio < POWER_LOW[0]
        ink = palette.dim if stale else palette.warning if low else palette.energy
        row.add(glyphs.levels[level], ink)


def _charts(
    state: ClusterState, view: ClusterView, width: int, height: int, cell_theme: CellTheme
) -> Iterator[Row]:
    above = [*_state_rows(state, view, width, cell_theme), *_capture_rows(state, width, cell_theme)]
    yield from above
    if state.opened is not None:
        yield from _chart_rows(state, state.opened, width, height - len(above), cell_theme)


def _chart_rows(state: ClusterState, node: str, width: int, height: int, cell_theme: CellTheme) -> Iterator[Row]:
    """Yield the charts of one node, in as many rows as there are; those that have no two rows are left out."""
    charts = state.charts
    title = f" {node}, the last {fmt.duration(state.span)}"
    if state.at is not None:
        title += time.strftime(" before %H:%M:%S", time.localtime(state.at))
    yield _plain(title, width, cell_theme.palette.strong)
    if charts is None or charts.node != node:
        yield _plain(" querying Prometheus …", width, cell_theme.palette.dim)
        return
    for sentence in charts.problems[:MOST_STATE]:
        yield _plain(f" {cell_theme.glyphs.warning} {sentence}", width, cell_theme.palette.warning)
    room = height - 2 - len(charts.problems[:MOST_STATE])
    each = max(2, min(CHART_ROWS + 1, room // max(1, len(charts.series))))
    for series in charts.series[: max(room // each, 1)]:
        yield from _chart(series, width, each - 1, cell_theme)
    yield _plain(f" {_clock(charts, start=True)}", width, cell_theme.palette.dim).add_right(
        f"{_clock(charts, start=False)} ", cell_theme.palette.dim, cell_theme.palette.text
    )


def _clock(charts: NodeCharts, *, start: bool) -> str:
    form = "%m-%d %H:%M" if charts.end - charts.start > 86_400 else "%H:%M:%S"
    return time.strftime(form, time.localtime(charts.start if start else charts.end))


def _chart(series: Series, width: int, height: int, cell_theme: CellTheme) -> Iterator[Row]:
    known = [value for value in series.values if value is not None]
    limit = 100.0 if series.unit == "%" else nice_limit(max(known, default=0.0))
    last = _figure(known[-1], series.unit) if known else fmt.DASH
    head = Row(width).add(f" {series.title} ", cell_theme.palette.dim).add(last, cell_theme.palette.strong)
    yield head.add_right(f"0 to {_figure(limit, series.unit)} ", cell_theme.palette.dim, cell_theme.palette.text)
    inner = max(1, width - 2)
    values = stretch(series.values, inner)
    for text in area(values, inner, height, limit, cell_theme.glyphs):
        yield Row(width).add(" ", cell_theme.palette.text).add(text, cell_theme.palette.compute_area)


def _figure(value: float, unit: str) -> str:
    """Return a value of a chart, written as on every other screen."""
    if unit == " s":
        return fmt.duration(value)
    return fmt.percent(value) if unit == "%" else f"{fmt.plain(value, 3)}{unit}"


def stretch(values: tuple[float | None, ...], width: int) -> list[float]:
    """Return one value a column; NaN where there is a gap."""
    if not values:
        return [nan] * width
    picked = (values[place * len(values) // width] for place in range(width))
    return [nan if value is None else value for value in picked]
