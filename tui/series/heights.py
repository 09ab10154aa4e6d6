"""Heights of drawn values in eighths of a row, with marks for extremes far from a cell's mean."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from tui.series.series_store import Cells, SeriesStore, Spread

SPIKE = 128
"""Added to a height that is not the mean's but an extreme's, which lies far from it."""
_CALM = 0.12
"""Share of the axis: less than an eighth and its rounding."""
_FAR = 2


def level(value: float | None, limit: float | None, rows: int = 1) -> int:
    """Return how high to draw a value in eighths of a row, 8 for each row: 0 absent, 1 the lowest, all at 97 %."""
    if value is None or limit is None or not math.isfinite(value) or not 0 < limit < math.inf:
        return 0
    eighths = value / limit * 8.0 * rows + 0.25
    return 1 if eighths < 2.0 else 8 * rows if eighths >= 8 * rows else int(eighths)


def height(spread: Spread | None, low: float, limit: float, rows: int = 1) -> int:
    """Return how high a cell is drawn, in eighths of a row.

    Args:
        spread: mean and extremes of the cell; None: absent.
        low: value at the bottom of the axis.
        limit: value at its top; not above `low`: no axis, and nothing is drawn.
        rows: rows of the chart.

    Returns:
        0 for absent, else 1 to 8 per row: that of the mean; or of an extreme far from the mean, plus `SPIKE`.
    """
    if spread is None or not limit > low:
        return 0
    mean_value, low_value, high_value = spread
    mean = level(mean_value - low, limit - low, rows)
    if high_value - low_value < (limit - low) * _CALM:
        return mean
    least, most = level(low_value - low, limit - low, rows), level(high_value - low, limit - low, rows)
    far = most if most - mean >= mean - least else least
    return far + SPIKE if abs(far - mean) >= max(_FAR, rows) else mean


def heights(runs: Iterable[tuple[Spread | None, int]], low: float, limit: float, rows: int = 1) -> bytes:
    """Return the heights of many cells, as `height` of each; quick for cells whose extremes are near their mean.

    Args:
        runs: mean and extremes (None: absent), each with the number of cells next to each other that have them.
        low: value at the bottom of the axis.
        limit: value at its top; not above `low`: no axis, and nothing is drawn.
        rows: rows of the chart.
    """
    span = limit - low
    if not 0 < span < math.inf:
        return bytes(sum(times for _, times in runs))
    calm, top = span * _CALM, 8 * rows
    found: list[int] = []
    for spread, times in runs:
        if spread is None:
            drawn = 0
        elif spread[2] - spread[1] < calm:  # `level` without its call: the values of a store are finite
            eighths = (spread[0] - low) / span * 8.0 * rows + 0.25
            drawn = 1 if eighths < 2.0 else top if eighths >= top else int(eighths)
        else:
            drawn = height(spread, low, limit, rows)
        if times == 1:
            found.append(drawn)
        else:
            found += [drawn] * times
    return bytes(found)


def fixed_heights(
    store: SeriesStore, slot: int, cells: Cells, start: int, until: float, axis: tuple[float, int]
) -> bytes:
    """Return what `heights` returns for a series on an axis from 0, without an object for each cell.

    Args:
        store: has the series.
        slot: number of the series.
        cells: of the row.
        start: index of the first cell to return.
        until: unix seconds; values from later are ignored.
        axis: value at its top, and rows of the chart.
    """
    limit, rows = axis
    if store.is_empty or not 0 < limit < math.inf:
        return bytes(cells.number - start)
    level, runs = store.stretches(cells, start, until)
    keep, mean, low, high, count = level.keep, level.mean, level.low, level.high, level.count
    base, calm, top = slot * keep, limit * _CALM, 8 * rows
    found: list[int] = []
    for first, end, times in runs:
        place = base + first % keep
        if end == first + 1 and high[place] - low[place] < calm:  # an empty bucket has the extremes of none
            eighths = mean[place] / limit * 8.0 * rows + 0.25
            drawn = 0 if not count[place] else 1 if eighths < 2.0 else top if eighths >= top else int(eighths)
        else:
            drawn = height(level.spread(slot, first, end), 0.0, limit, rows)
        if times == 1:
            found.append(drawn)
        else:
            found += [drawn] * times
    return bytes(found)


class FigureHistory(Struct, frozen=True):
    """One figure over the cells of a row: what is drawn, and the ends of its axis."""

    heights: bytes
    """Heights by cell, as `height` gives them; 0 where nothing is known."""
    low: float
    high: float
    """The ends of the axis."""
    least: float | None
    most: float | None
    """The extremes of all values in the span; None without any."""
