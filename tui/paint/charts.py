"""Small and large charts. The axis is always fixed, so a flat 99 % is drawn flat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import floor, inf, log10

from tui.paint.glyphs import Glyphs


def spark(levels: Iterable[int], width: int, glyphs: Glyphs) -> str:
    """Return one row of eighth blocks, newest at the right; an absent sample is a blank, a zero the lowest block.

    Args:
        levels: at most `width` heights as `tui.series.heights.level` makes them.
    """
    table = glyphs.levels
    return "".join([table[level] for level in levels]).rjust(width)


def area(values: Sequence[float], width: int, height: int, limit: float | None, glyphs: Glyphs) -> list[str]:
    """Return a chart of a series over several rows, top first.

    Args:
        values: at most `width` of the newest are drawn; NaN is absent.
        limit: the upper end of the axis; without one nothing can be drawn to scale.
    """
    if limit is None or not 0 < limit < inf:
        return [" " * width] * height
    table = glyphs.levels
    most = 8 * height
    heights = [
        (1 if v <= 0.0 else min(1 + int(min(v / limit, 1.0) * most), most)) if v == v else 0  # noqa: PLR0124  (NaN)
        for v in (values[-width:] if width > 0 else ())
    ]
    return [
        "".join([table[min(max(h - base, 0), 8)] for h in heights]).rjust(width)
        for base in range(most - 8, -8, -8)
    ]


_DOTS = ((0x40, 0x80), (0x04, 0x20), (0x02, 0x10), (0x01, 0x08))
"""Braille dots from the bottom row up: left column, right column (Unicode 16.0, chart U+2800)."""


def braille(
    values: Sequence[tuple[float, float, float] | None], width: int, height: int, limit: float | None
) -> list[str]:
    """Return a line chart of two samples a cell and four levels a row, joined so that a jump shows as a stroke.

    Args:
        values: mean, lowest and highest of each sample, or None for an absent one; the extremes are strokes, too.
        width: in cells.
        height: in rows.
        limit: the upper end of the axis; without one nothing can be drawn to scale.
    """
    if limit is None or not 0 < limit < inf:
        return [" " * width] * height
    top = 4 * height - 1
    tail = list(values[-2 * width :])
    grid = [[0] * width for _ in range(height)]
    offset = 2 * width - len(tail)
    before = -1
    for index, value in enumerate(tail, offset):
        if value is None:
            before = -1
            continue
        level, least, most = (round(min(max(one / limit, 0.0), 1.0) * top) for one in value)
        low = min(level, level if before < 0 else before, least if level - least > 1 else level)
        high = max(level, level if before < 0 else before, most if most - level > 1 else level)
        for dot in range(low, high + 1):
            grid[height - 1 - dot // 4][index // 2] |= _DOTS[dot % 4][index % 2]
        before = level
    return ["".join(chr(0x2800 + cell) for cell in row) for row in grid]


def split(parts: Sequence[float], total: float, width: int) -> list[int]:
    """Share `width` cells among parts in proportion to `total`, or to their sum where that is more.

    Each gets what it deserves to within a cell: the largest remainders get what rounding down leaves over.
    What the parts leave of `total` gets none.
    """
    total = max(total, sum(max(part, 0.0) for part in parts))
    if not 0 < total < inf or width <= 0:
        return [0] * len(parts)
    exact = [max(part, 0.0) / total * width for part in parts]
    cells = [int(share) for share in exact]
    spare = min(round(sum(exact)), width) - sum(cells)
    for index in sorted(range(len(parts)), key=lambda i: exact[i] - cells[i], reverse=True)[: max(spare, 0)]:
        cells[index] += 1
    return cells


def nice_limit(value: float) -> float:
    """Return the next of 1, 1.5, 2, 3, 5, 8 times a power of ten: an axis that changes rarely."""
    if not value > 0:
        return 1.0
    power: float = 10.0 ** floor(log10(value))
    return next((step * power for step in (1.0, 1.5, 2.0, 3.0, 5.0, 8.0) if value <= step * power), 10.0 * power)
