"""The ruler below charts: how long ago each cell was."""

from __future__ import annotations

import time

from tui.paint.rows import CellTheme, Row
from tui.state.history import History

_TICKS = (
    *(1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 150.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0),
    *(10800.0, 14400.0, 21600.0, 43200.0, 86400.0, 172800.0, 432000.0, 864000.0, 1728000.0),
)
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
    edge = min(base + room, width)
    cells = history.cells(room)
    known = 0 if history.first is None else min(max(cells.index_of(history.first), 0), room)
    if known > 0 and history.first is not None:
        place = min(known, room - len(end) - 1)
        words = (
            f"no data before {_moment(history.first, history.end)} ",
            f"since {_moment(history.first, history.end)} ",
            f"since {_clock(history.first)[:5]} ",
            "",
        )
        since = next(text for text in words if len(text) <= max(place, 0))
        row.fill_to(base + place - len(since), palette.text).add(since, palette.dim).fill_to(
            base + place, palette.text
        )
    most = max(room // _TICK_CELLS, 1)
    fitting = [one for one in _TICKS if seconds / one <= most and one < seconds]
    tick = next((one for one in fitting if seconds % one == 0), next(iter(fitting), seconds))
    for number in range(int(seconds / tick), 0, -1):
        place = base + max(round(room * (1 - number * tick / seconds)) - 1, 0)
        text = _age_text(number * tick)
        if place < row.used or place + len(text) + len(end) + 2 > edge:
            continue
        row.fill_to(place, palette.faint, across).add(text, palette.dim)
    row.fill_to(edge - len(end), palette.faint, across)
    return row.add(end, palette.strong if history.instant is None else palette.mark)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _moment(at: float, end: float) -> str:
    """Return the time of the day, with the day before it where the axis ends on another."""
    then = time.localtime(at)
    same_day = time.strftime("%F", then) == time.strftime("%F", time.localtime(end))
    return _clock(at) if same_day else time.strftime("%m-%d %H:%M", then)


def _age_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"-{rest}s"
    if rest:
        return f"-{minutes}m{rest:02d}s"
    if minutes % 1440 == 0:
        return f"-{minutes // 1440}d"
    return f"-{minutes // 60}h" if minutes % 60 == 0 else f"-{minutes}m"
