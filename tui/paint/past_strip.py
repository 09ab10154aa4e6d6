"""Histories as cells: one figure over the time line, in one row or several."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby

from rich.style import Style

from tui.paint.glyphs import Glyphs
from tui.paint.gpu_metrics import Hue
from tui.paint.rows import CellTheme, Row
from tui.series.heights import SPIKE, FigureHistory


def add_strip(row: Row, past: FigureHistory, hue: Hue, theme: CellTheme, style: Style | None = None) -> Row:
    """Append a history in one row of eighth blocks; a cell whose extreme is far from its mean is brighter.

    Args:
        row: to append to; one cell for each height.
        past: heights of 0 to 8, where 0 is absent; `SPIKE` is added to those that stand out.
        hue: compute, energy or transfer: which colour of the theme.
        theme: colours and glyphs of this terminal.
        style: in place of the hue's colour; None: the hue's.
    """
    usual = theme.hues[hue] if style is None else style
    return _add_cells(row, past.heights, 0, usual, theme.spikes[hue], theme.glyphs)


def add_chart(rows: list[Row], past: FigureHistory, hue: Hue, theme: CellTheme) -> None:
    """Append a history to several rows.

    Args:
        rows: the top one first; `past` must be made for as many, 8 heights for each.
        past: 0 is absent; `SPIKE` is added to heights that stand out.
        hue: compute, energy or transfer: which colour of the theme.
        theme: colours and glyphs of this terminal.
    """
    for place, row in enumerate(rows):
        base = 8 * (len(rows) - 1 - place)
        usual = theme.hues[hue] if len(rows) == 1 else theme.areas[hue]
        _add_cells(row, past.heights, base, usual, theme.spikes[hue], theme.glyphs)


def _add_cells(row: Row, heights: bytes, base: int, usual: Style, spike: Style, glyphs: Glyphs) -> Row:
    text, lengths = _runs(heights, base, glyphs.levels)
    at = 0
    for place, length in enumerate(lengths):
        if length:
            row.put(text[at : at + length], spike if place % 2 else usual, length)
            at += length
    return row


@lru_cache(maxsize=256)
def _runs(heights: bytes, base: int, levels: str) -> tuple[str, tuple[int, ...]]:
    """Return the characters of a row, and how many of them in turns do not stand out and do.

    Most rows are the same for some frames. One text for each run would take ten times the memory.
    """
    text = heights.decode("latin-1").translate(_table(base, levels))
    if not heights or max(heights) < SPIKE:
        return text, (len(heights),)
    first = (0,) if heights[0] >= SPIKE else ()
    return text, (*first, *(len(bytes(run)) for _, run in groupby(heights, SPIKE.__le__)))


@lru_cache(maxsize=64)
def _table(base: int, levels: str) -> dict[int, str]:
    """Return the character for each height in a row that begins `base` eighths above the axis."""
    return {value + spike: levels[min(max(value - base, 0), 8)] for value in range(SPIKE) for spike in (0, SPIKE)}
