"""The row of phases of the time line: how a step was made up, stretch by stretch."""

from __future__ import annotations

from llmtop.model.snapshot import Rank
from tui.paint.charts import split
from tui.paint.rows import CellTheme, Row, pad
from tui.panes import phase_bars
from tui.series.phase_history import PhaseHistory
from tui.series.series_store import Cells
from tui.state.history import History
from tui.state.stalled import stalled_seconds
from tui.state.view import View

_LEAST_SLICE = 12
"""Cells of one bar of phases at least."""
REFRESH_SECONDS = 5.0
"""The bars of phases are of quarter minutes, so they are painted no oftener."""


def paint(view: View, label: int, room: int, width: int, theme: CellTheme) -> Row:
    """Return how a step was made up, in bars side by side: each is of one stretch of the span.

    Args:
        view: its chosen rank, and the history.
        label: cells of the label.
        room: cells of the bars.
        width: cells of the row; at least `label` + 1 + `room`.
        theme: colours and glyphs of this terminal.
    """
    palette = theme.palette
    row = Row(width).add(pad(" phases", label), palette.dim).add(" ", palette.text)
    rank = view.rank()
    known = None if rank is None else view.history.phases_of(rank)
    if rank is None or known is None:
        return row
    history = view.history
    number = max(min(room // _LEAST_SLICE, 12), 1)
    cells, until = history.cells(number), history.end
    if view.snapshot is not None and (silent := stalled_seconds(rank, view.snapshot.time)) is not None:
        until -= silent  # no phase runs since the last step
    made_of = cells, until // REFRESH_SECONDS, room, theme
    if known.kept is None or known.kept[0] != made_of:
        known.kept = made_of, _slices(rank, known, history, until, cells, room, theme)
    kept = known.kept[1]
    assert isinstance(kept, Row)
    return row.join(kept)


def _slices(
    rank: Rank, known: PhaseHistory, history: History, last: float, cells: Cells, room: int, theme: CellTheme
) -> Row:
    row = Row(room)
    colors = phase_bars.colors(rank)
    letters = phase_bars.letters(known.names)
    first = history.first or 0.0
    begin = max(first, history.end - history.seconds)
    for place in range(-1, cells.number):  # the newest stretch is not over, so one more begins before the span
        start = (cells.first + place) * cells.seconds
        since, until = max(start, begin), min(start + cells.seconds, last)
        left, right = (room - round(room * (history.end - at) / history.seconds) for at in (since, until))
        parts = known.mean_phases(since, until) if right - left > 1 else None
        if parts is None:
            continue
        row.fill_to(left, theme.palette.text)
        lengths = split(list(parts.values()), sum(parts.values()), right - left - 1)
        for (name, _), length in zip(parts.items(), lengths, strict=True):
            phase_bars.block(row, letters[name], length, colors.get(name, phase_bars.REST), theme)
        row.fill_to(right, theme.palette.text)
    return row
