"""Where everything on the main screen goes: a pure function of sizes and counts.

From top to bottom: header, machine, alerts, the table of GPUs and ranks, the step, the time line, processes, keys.
Nothing overlaps, nothing is left out without a sign, and a GPU with an alert is never the one left out. Whether an
alert holds changes no place: nothing jumps when one comes or goes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from msgspec import Struct

LEAST_PROCESSES = 5
MAX_PROCESSES = 12
ONE_ALERT_ROW = 24
"""Up to this height the shown alert has one row, above it a second one for what to do next and the keys for it."""
_USUAL_HEIGHT, _FEW_LINES = 24, 8
"""Most terminals have 24 rows: who sees there what is wrong must not need a key to read what helps. So there it
has the second row too, but where the table has so many lines that one of them would have to go for it."""
HOST_HEIGHT = 30
"""Height from which a row shows the present state of the machine."""
_TITLED = 4
"""Rows from which on a table that is cut has titles all the same."""
FULL_WIDTH, FULL_HEIGHT = 80, 24
"""Size from which the step names its phases and the time line has power and utilization."""
PHASE_COLUMN = 55
"""Cells of one column of phases with all its figures, and the gap after it."""
NAMED_PHASES = 4
"""The longest phases that a screen of that size names."""
_LEAST_TIMELINE = 4
"""Step, power, utilization, ruler."""
_TITLED_TIMELINE = 6
"""These, a title and the alerts."""
_TITLE_AND_BAR, _TITLE_AND_BARS = 2, 3
_EMPTY_BOX, _NARROW_NOTE = 4, 100
"""Rows of the box in place of an empty table, besides its notes; cells below which a note takes two rows."""
_LEAST_TABLE = 3
"""Titles and two lines, or one line and how many there are besides."""


def phase_columns(width: int) -> int:
    """Return the number of columns of phases where the screen is low."""
    return 1 if width < 70 else 2


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
    header: Rect | None = None
    host: Rect | None = None
    notes: Rect | None = None
    alerts: Rect | None = None
    titles: Rect | None = None
    """Column titles of the table."""
    entries: tuple[tuple[int, Rect], ...] = ()
    """Position in the list of the table's lines, and where."""
    more: Rect | None = None
    """Row that counts the table's hidden lines."""
    hidden: int = 0
    empty: Rect | None = None
    """Area that explains an empty table."""
    steps: Rect | None = None
    timeline: Rect | None = None
    processes: Rect | None = None
    """Only where everything else has what it wants."""
    footer: Rect | None = None

    def parts(self) -> Iterator[Rect]:
        """Yield every part that has a place, with that place."""
        single = (
            self.header, self.host, self.notes, self.alerts, self.titles, self.more, self.empty,
            self.steps, self.timeline, self.processes, self.footer,
        )  # fmt: skip
        yield from (rect for rect in single if rect is not None)
        yield from (rect for _, rect in self.entries)


def alert_rows(height: int, lines: int) -> int:
    """Return how many rows the shown alert has on a screen of this height, with so many lines in the table."""
    if height < 5:
        return 0
    return 2 if height > ONE_ALERT_ROW or (height == _USUAL_HEIGHT and lines <= _FEW_LINES) else 1


def visible(count: int, room: int, alerting: Collection[int], selected: int | None) -> list[int]:
    """Return which of `count` lines are shown when only `room` can be, in the order in which they are shown.

    The first ones, or those up to the selected one. An alerting line that is not among them replaces the last
    one, a second one the line above it: no other line moves.

    Args:
        count: how many there are.
        room: for how many there is room.
        alerting: positions, the most urgent first.
        selected: the position of the selected one.
    """
    chosen = selected if selected is not None and 0 <= selected < count else None
    start = min(max((chosen or 0) - room + 1, 0), max(count - room, 0))
    shown = list(range(start, min(start + room, count)))
    outside = [position for position in dict.fromkeys(alerting) if position < count and position not in shown]
    free = [place for place in reversed(range(len(shown))) if shown[place] not in alerting]
    free.sort(key=lambda place: shown[place] == chosen)
    replaced = free[: len(outside)]
    for place, position in zip(sorted(replaced), sorted(outside[: len(replaced)]), strict=True):
        shown[place] = position
    return shown


class _Shares(NamedTuple):
    """How many rows each part below the alerts gets."""

    table: int
    steps: int
    timeline: int
    processes: int


def _full_steps(phases: int, width: int, others: int) -> int:
    """Return the rows of a step with all its phases, its title and `others`."""
    return 1 + others + (1 + -(-phases // _columns(width)) if phases else 1)


def arrange(
    width: int,
    height: int,
    *,
    lines: int,
    phases: int = 0,
    trains: bool = False,
    bars: int = 2,
    rows: int = 6,
    alerting: Collection[int] = (),
    selected: int | None = None,
    notes: int = 0,
    processes: int = 0,
) -> Layout:
    """Place everything.

    Args:
        width: of the screen, in cells.
        height: of it.
        lines: how many lines the table of GPUs and ranks has.
        phases: how many parts the step that is shown has.
        trains: whether a training is attached.
        bars: rows of bars, one for each clock that measured the step; and the row on health, if there is one.
        rows: how many rows the time line has to show at least, its ruler not counted.
        alerting: positions of lines with a warning or worse, the most urgent first.
        selected: its line's position.
        notes: how many sentences there are.
        processes: how many processes use the GPUs.
    """
    free = _Free(width)
    header = free.take(1 if height >= 5 else 0)
    host = free.take(int(height >= HOST_HEIGHT))
    note = free.take(min(notes, 1) if height >= 20 and lines else 0)
    strip = free.take(alert_rows(height, lines))
    footer = Rect(0, height - 1, width, 1) if height >= 8 else None
    room = max(height - free.top - bool(footer), 0)
    full = _full_steps(phases, width, bars) if trains else 7
    share = _least if width >= FULL_WIDTH and height >= FULL_HEIGHT else _least_of_a_small_screen
    wanted = lines + 1 if lines else _EMPTY_BOX + max(notes, 1) + (width < _NARROW_NOTE)
    least = share(room, lines, wanted, trains=trains, phases=phases, width=width)
    shares = _share(room, least, wanted_table=wanted, full_steps=full, rows=rows, processes=processes)
    shares = shares if trains or shares.steps >= full else _hint_in_one_row(shares)
    table = _place_table(free, shares.table, lines, alerting, selected)
    return Layout(
        width,
        height,
        header=header,
        host=host,
        notes=note,
        alerts=strip,
        titles=table.titles,
        entries=table.entries,
        more=table.more,
        hidden=table.hidden,
        empty=table.empty,
        steps=free.take(shares.steps),
        timeline=free.take(shares.timeline + table.unused),
        processes=free.take(shares.processes),
        footer=footer,
    )


class _Free:
    """Free rest of the screen, from the top."""

    def __init__(self, width: int) -> None:
        self.top = 0
        self._width = width

    def take(self, wanted: int) -> Rect | None:
        """Take that many rows; None for none."""
        if wanted <= 0:
            return None
        rect = Rect(0, self.top, self._width, wanted)
        self.top += wanted
        return rect


class _TablePlace(NamedTuple):
    """The table's parts, as `Layout` has them, and how many of its rows it does not need."""

    titles: Rect | None = None
    entries: tuple[tuple[int, Rect], ...] = ()
    more: Rect | None = None
    hidden: int = 0
    empty: Rect | None = None
    unused: int = 0


def _place_table(
    free: _Free, rows: int, lines: int, alerting: Collection[int], selected: int | None
) -> _TablePlace:
    if not lines:
        return _TablePlace(empty=free.take(rows))
    titled = rows > lines or rows >= _TITLED
    titles = free.take(1) if titled else None
    left = rows - titled
    shown = visible(lines, left - (lines > left > 1), alerting, selected)
    places = [free.take(1) for _ in shown]
    entries = tuple((position, rect) for position, rect in zip(shown, places, strict=True) if rect is not None)
    hidden = lines - len(shown)
    more = free.take(1) if hidden and left > len(shown) else None
    return _TablePlace(titles, entries, more, hidden, unused=left - len(shown) - (more is not None))


def _columns(width: int) -> int:
    """Return the number of columns of phases where there is room for all of them: as many as fit."""
    return phase_columns(width) if width < 3 * PHASE_COLUMN + 2 else 3


def _share(room: int, least: _Shares, *, wanted_table: int, full_steps: int, rows: int, processes: int) -> _Shares:
    """Share the rows: first what each cannot do without, then as each wants; the time line takes what is left."""
    left = room - least.table - least.steps - least.timeline

    def more(part: int, wanted: int) -> int:
        nonlocal left
        given = max(min(left, wanted - part), 0)
        left -= given
        return part + given

    table = more(least.table, wanted_table)
    steps = more(least.steps, min(least.steps + 1, full_steps)) if least.steps > _TITLE_AND_BAR else least.steps
    timeline = more(least.timeline, min(rows + 1, _TITLED_TIMELINE))
    wanted_steps = full_steps if steps + left >= min(full_steps, _TITLE_AND_BARS + 2) else steps
    steps = more(steps, wanted_steps)
    timeline = more(timeline, rows + 2)
    shown = min(left, processes + 3, MAX_PROCESSES) if processes else 0
    if shown < min(LEAST_PROCESSES, processes + 3):
        shown = 0
    return _Shares(table, steps, timeline + left - shown, shown)


def _hint_in_one_row(shares: _Shares) -> _Shares:
    """Return how to attach a training has one row where its box has no room; the time line gets the others."""
    steps = min(shares.steps, 1)
    return shares._replace(steps=steps, timeline=shares.timeline + shares.steps - steps)


def _least(room: int, lines: int, wanted_table: int, *, trains: bool, phases: int, width: int) -> _Shares:
    """Return the minimum of every part before any part gets more, for at least 80x24 cells."""
    named = -(-min(phases, NAMED_PHASES) // phase_columns(width))
    steps = (_TITLE_AND_BAR + 1 + named if phases else _TITLE_AND_BAR) if trains else 1
    table = min(wanted_table, room - steps - _LEAST_TIMELINE)
    return _Shares(table, steps, _LEAST_TIMELINE, 0)


def _least_of_a_small_screen(
    room: int, lines: int, wanted_table: int, *, trains: bool, phases: int, width: int
) -> _Shares:
    """Return the same on a smaller one: the step in one row, then its two bars, then its phases."""
    least_table = min(wanted_table, _LEAST_TABLE)
    steps = min(_TITLE_AND_BARS if trains else 1, max(room - least_table - 2, 0))
    if room - least_table < 4:
        steps = min(steps, 1)
    timeline = min(2, max(room - least_table - steps, 0))
    table = min(wanted_table, room - steps - timeline)
    if lines and steps > 1 and table < wanted_table:  # a GPU more is worth more than a second bar
        spare = min(steps - 1, wanted_table - table)
        steps, table = steps - spare, table + spare
    return _Shares(table, steps, timeline, 0)
