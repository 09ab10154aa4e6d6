"""Where everything on the main screen goes: a pure function of sizes and counts.

Nothing overlaps, nothing is left out without a sign, and a GPU with an alert is never the one left out. GPUs are
drawn as full cards if that leaves the training enough room, else as two lines each, else as one line each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import ceil
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

Form = Literal["full", "compact", "line"]

CELL = 27
"""Cells that one figure with a short history needs: label, value, at least six samples."""
FIGURES = 12
"""Figures of a full card."""
MIN_FULL = 46
MIN_COMPACT = 80
WIDE_COMPACT = 96
CARD_GROWTH = 6
"""Rows by which a card grows at most: each of its three telling histories to three rows."""
MAX_STEPS = 24
"""Rows past which the steps pane only gets emptier, unless nothing else wants them."""
LEAST_PROCESSES = 5
MAX_PROCESSES = 12
FRAMED_STEPS = 7
"""Rows from which on the steps pane has a frame, not only a rule above it."""
ONE_ALERT_ROW = 24
"""Up to this height the shown alert has one row, above it a second one for the keys that act on it."""
SIDE_BY_SIDE = 150
"""From this width on steps and ranks stand beside each other."""


class Rect(NamedTuple):
    """A rectangle of the screen, in cells."""

    x: int
    y: int
    width: int
    height: int


class Layout(Struct, frozen=True):
    """The main screen. A part that is None has no room, or nothing to show."""

    width: int
    height: int
    form: Form = "line"
    header: Rect | None = None
    host: Rect | None = None
    notes: Rect | None = None
    alerts: Rect | None = None
    titles: Rect | None = None
    """Column titles above GPUs of one line each."""
    cards: tuple[tuple[int, Rect], ...] = ()
    """Position in the list of GPUs, and where."""
    more: Rect | None = None
    """Where it is said how many GPUs are not shown."""
    hidden: int = 0
    empty: Rect | None = None
    """Where it is said why there is no GPU."""
    steps: Rect | None = None
    ranks: Rect | None = None
    ranks_framed: bool = False
    """Else the table has column titles only."""
    processes: Rect | None = None
    """Only where everything else has what it wants."""
    footer: Rect | None = None

    def parts(self) -> Iterator[Rect]:
        """Every part that has a place, with that place."""
        single = (
            self.header, self.host, self.notes, self.alerts, self.titles, self.more, self.empty,
            self.steps, self.ranks, self.processes, self.footer,
        )  # fmt: skip
        yield from (rect for rect in single if rect is not None)
        yield from (rect for _, rect in self.cards)


class _Demand(NamedTuple):
    """Rows that the training's panes want, would do with, and cannot go below."""

    wanted: int
    enough: int
    least: int


class _Ask(NamedTuple):
    """What is to be placed into the body of the screen."""

    base: Layout
    """The lines across the screen, placed already."""
    body: Rect
    gpus: int
    ranks: int
    processes: int
    alerting: Collection[int]
    selected: int | None
    demand: _Demand


def card_height(width: int) -> int:
    """The fewest rows in which a full card of this width shows every figure and the line of words below them."""
    columns = max(1, min((width - 4 + 2) // CELL, 4))
    return ceil(FIGURES / columns) + 3


def visible(count: int, room: int, alerting: Collection[int], selected: int | None) -> list[int]:
    """Which of `count` GPUs are shown when only `room` can be: alerting ones, the selected one, then in order.

    Args:
        alerting: positions, the most urgent first.
    """
    first = [*dict.fromkeys(i for i in alerting if i < count)]
    if selected is not None and 0 <= selected < count and selected not in first:
        first.append(selected)
    start = min(max((selected or 0) - room + 1, 0), max(count - room, 0))
    rest = [i for i in [*range(start, count), *range(start)] if i not in set(first)]
    return sorted([*first, *rest][:room])


def arrange(
    width: int,
    height: int,
    *,
    gpus: int,
    ranks: int,
    alerting: Collection[int] = (),
    selected: int | None = None,
    notes: int = 0,
    processes: int = 0,
) -> Layout:
    """Place everything.

    Args:
        gpus: how many there are to show.
        ranks: how many attached training processes.
        alerting: positions of GPUs with a warning or worse, the most urgent first.
        selected: the position of the selected GPU.
        notes: how many sentences there are for the person at the screen.
        processes: how many processes use the GPUs.
    """
    top = 0

    def take(rows: int) -> Rect | None:
        nonlocal top
        if rows <= 0:
            return None
        rect = Rect(0, top, width, rows)
        top += rows
        return rect

    header = take(1 if height >= 5 else 0)
    host = take(1 if height >= 18 else 0)
    note = take(min(notes, 1) if height >= 20 and gpus else 0)
    strip = take(_alert_rows(height))
    bottom = 1 if height >= 8 else 0
    footer = Rect(0, height - 1, width, 1) if bottom else None
    body = Rect(0, top, width, max(height - bottom - top, 0))
    fixed = Layout(width, height, header=header, host=host, notes=note, alerts=strip, footer=footer)
    ask = _Ask(fixed, body, gpus, ranks, processes, alerting, selected, _training_demand(width, ranks))
    if gpus == 0:
        return _without_gpus(ask)
    grid = _choose(ask)
    return _cut_lines(ask) if grid is None else _with_gpus(ask, grid)


def _alert_rows(height: int) -> int:
    """The same with and without alerts: nothing on the screen moves when one comes or goes."""
    return 0 if height < 5 else 1 if height <= ONE_ALERT_ROW else 2


def _training_demand(width: int, ranks: int) -> _Demand:
    if ranks == 0:
        return _Demand(wanted=7, enough=1, least=1)
    if ranks == 1:
        return _Demand(wanted=12, enough=6, least=1)
    if width >= SIDE_BY_SIDE:
        return _Demand(wanted=max(12, min(ranks, 16) + 3), enough=max(8, min(ranks, 4) + 3), least=1)
    return _Demand(wanted=12 + min(ranks, 16) + 3, enough=4 + min(ranks, 8) + 1, least=2)


def _without_gpus(ask: _Ask) -> Layout:
    """The layout without a GPU: the reason why there is none, and the training, if any, below it."""
    body = ask.body
    if ask.ranks == 0 and body.height < 12:
        rows = body.height - (ask.demand.least if body.height > 3 else 0)
    elif ask.ranks == 0:
        rows = body.height - ask.demand.wanted
    else:
        rows = min(7, body.height // 3)
    empty = body._replace(height=rows) if rows > 0 else None
    return _training(replace(ask.base, empty=empty), ask, body.y + max(rows, 0))


class _Grid(NamedTuple):
    form: Form
    columns: int
    rows: int
    """Rows of entries."""
    height: int
    """Lines of one entry."""
    total: int
    """Rows of the screen, titles included."""


def _grids(width: int, gpus: int, form: Form) -> Iterator[_Grid]:
    """The ways to lay out so many entries in this form, the preferred first."""
    if form == "full":
        for columns in range(min(gpus, width // MIN_FULL), 0, -1):
            rows = ceil(gpus / columns)
            if ceil(gpus / rows) == columns:
                height = card_height(width // columns)
                yield _Grid(form, columns, rows, height, rows * height)
    elif form == "compact":
        usual = max(min(gpus, width // WIDE_COMPACT), 1)
        for columns in range(usual, min(gpus, width // MIN_COMPACT) + 1):
            rows = ceil(gpus / columns)
            yield _Grid(form, columns, rows, 2, rows * 2)
    else:
        yield _Grid(form, 1, gpus, 1, gpus + 1)
        if width >= 160 and gpus > 1:
            yield _Grid(form, 2, ceil(gpus / 2), 1, ceil(gpus / 2) + 1)


def _choose(ask: _Ask) -> _Grid | None:
    """The richest form that leaves the training enough; None if not even lines fit."""
    demand = ask.demand
    wishes: tuple[tuple[Form, int], ...] = (
        ("full", demand.wanted),
        ("full", demand.enough),
        ("compact", demand.wanted),
        ("compact", demand.enough),
        ("line", demand.enough),
        ("line", demand.least),
    )
    for form, training in wishes:
        for grid in _grids(ask.body.width, ask.gpus, form):
            if grid.total + training <= ask.body.height:
                return grid
    return None


def _with_gpus(ask: _Ask, grid: _Grid) -> Layout:
    """The layout in which every GPU has its place."""
    body, top, entry = ask.body, ask.body.y, grid.height
    titles = None
    if grid.form == "full":
        entry += _growth(ask, grid)
    elif grid.form == "line":
        titles = body._replace(height=1)
        top += 1
    cards = []
    for position in range(ask.gpus):
        # Down the columns for lines, as a list is read; across for cards.
        across = divmod(position, grid.columns)
        row, column = divmod(position, grid.rows)[::-1] if grid.form == "line" else across
        x, width = _column(body.width, column, grid.columns, gap=grid.form != "full")
        cards.append((position, Rect(x, top + row * entry, width, entry)))
    placed = replace(ask.base, form=grid.form, titles=titles, cards=tuple(cards))
    return _training(placed, ask, top + grid.rows * entry)


def _column(width: int, column: int, columns: int, *, gap: bool) -> tuple[int, int]:
    """The cell where a column begins, and its width; with `gap`, a cell keeps entries without frames apart."""
    left, right = column * width // columns, (column + 1) * width // columns
    return left, right - left - (1 if gap and column + 1 < columns else 0)


def _growth(ask: _Ask, grid: _Grid) -> int:
    """Rows that each card gets beyond its least: the training's wish goes first, then both grow alike."""
    spare = (ask.body.height - grid.total - ask.demand.wanted) // grid.rows
    return max(min(spare if ask.ranks == 0 else (spare + 1) // 2, CARD_GROWTH), 0)


def _cut_lines(ask: _Ask) -> Layout:
    """The layout with as many GPUs of one line each as there is room for, and a line that counts the rest."""
    body = ask.body
    rows = body.height - (ask.demand.least if body.height > 6 else 0)
    top = body.y
    titles = None
    if rows >= 4:
        titles = body._replace(height=1)
        top, rows = top + 1, rows - 1
    columns = 2 if body.width >= 160 else 1
    if rows * columns < ask.gpus and rows >= 2:
        rows -= 1
    shown = visible(ask.gpus, max(rows * columns, 0), ask.alerting, ask.selected)
    cards = []
    for place, position in enumerate(shown):
        column, row = divmod(place, max(rows, 1))
        x, width = _column(body.width, column, columns, gap=True)
        cards.append((position, Rect(x, top + row, width, 1)))
    end = top + min(rows, len(shown))
    hidden = ask.gpus - len(shown)
    more = None
    if hidden and body.y + body.height > end:
        more = Rect(0, end, body.width, 1)
        end += 1
    placed = replace(ask.base, titles=titles, cards=tuple(cards), more=more, hidden=hidden)
    return _training(placed, ask, end)


def _training(placed: Layout, ask: _Ask, top: int) -> Layout:
    """Add the steps pane, for more than one rank their table, and processes where there is room left."""
    body, ranks = ask.body, ask.ranks
    area = Rect(0, top, body.width, body.y + body.height - top)
    if area.height <= 0:
        return placed
    beside = body.width >= SIDE_BY_SIDE
    most = 7 if ranks == 0 else MAX_STEPS if ranks == 1 else max(MAX_STEPS, ranks + 3)
    if ranks > 1 and not beside:
        most = MAX_STEPS + ranks + 3
    spare = min(area.height - most, ask.processes + 3, MAX_PROCESSES)
    if ask.processes and spare >= min(LEAST_PROCESSES, ask.processes + 3):
        area = area._replace(height=area.height - spare)
        placed = replace(placed, processes=area._replace(y=area.y + area.height, height=spare))
    if ranks <= 1 or area.height < 4:
        return replace(placed, steps=area)
    if beside:
        left = area.width // 2
        table = area._replace(x=left, width=area.width - left)
        return replace(placed, steps=area._replace(width=left), ranks=table, ranks_framed=area.height >= 5)
    return _stacked(placed, area, ranks)


def _stacked(placed: Layout, area: Rect, ranks: int) -> Layout:
    """The table of ranks below the steps.

    Without room for two frames the table does with its column titles, then the steps with a rule above them.
    """
    rows, framed = min(area.height - 4, ranks + 1), False
    if area.height >= FRAMED_STEPS + min(ranks, 12) + 3:
        rows, framed = min(ranks + 3, area.height - FRAMED_STEPS), True
    elif area.height >= FRAMED_STEPS + min(ranks, 12) + 1:
        rows = min(ranks + 1, area.height - FRAMED_STEPS)
    first = area.height - max(rows, 2)
    table = area._replace(y=area.y + first, height=area.height - first)
    return replace(placed, steps=area._replace(height=first), ranks=table, ranks_framed=framed)
