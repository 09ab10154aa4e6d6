"""Columns of a table in the cells of a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from llmtop.document.cells import shorten, wrap
from llmtop.document.model import Column
from llmtop.format import pad, width_of

_GAP = "  "
_LEAST_TEXT = {"start": 12, "end": 12, "middle": 20, "never": 24}
"""Cells to which a column of words may be cut: names that lose their middle need more to be distinct."""
_NARROWEST_TEXT = 8
"""Cells to which such a column is cut where not even one other column fits beside it."""
_USUAL_TEXT = 32
"""Cells that a column of words wants where an optional column asks for room."""


def layout(columns: Sequence[Column], rows: Sequence[list[str]], room: int) -> list[tuple[list[int], list[int]]]:
    """Return groups of columns that stand side by side, each with its places and their widths.

    Columns of words are cut as far as they may be. Columns that still do not fit stand in further groups below,
    each beginning with the first column, or with two where the first has a word twice. Optional ones come last
    there, where not all fit side by side.
    """
    heads = [width_of(column.title) for column in columns]
    widest = [max(head, *(width_of(row[place]) for row in rows)) for place, head in enumerate(heads)]
    places = list(range(len(columns)))
    wanted = [min(width, _USUAL_TEXT) if columns[place].is_text else width for place, width in enumerate(widest)]
    apart = None
    if _total(wanted) > room:
        places.sort(key=lambda place: columns[place].is_optional)
        apart = next((place for place in places if columns[place].is_optional), None)
    least = [
        min(width, max(head, _LEAST_TEXT[column.cut])) if column.is_text else width
        for width, head, column in zip(widest, heads, columns, strict=True)
    ]
    keys = places[: 1 if len({row[places[0]] for row in rows}) == len(rows) else 2]
    groups: list[list[int]] = [[]]
    for place in places:
        group = [*groups[-1], place]
        is_full = len(group) > len(keys) + 1 and _total([least[one] for one in group]) > room
        if is_full or (place == apart and place not in keys):
            groups.append([*keys, place])
        else:
            groups[-1] = group
    made = []
    for group in groups:
        few = [least[one] for one in group]
        if _total(few) > room:
            few = [min(least[one], _NARROWEST_TEXT) if columns[one].is_text else least[one] for one in group]
        made.append((group, _shrunk([widest[one] for one in group], few, room)))
    return made


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _shrunk(widths: list[int], least: list[int], room: int) -> list[int]:
    """Return the widths, the widest of those that may shrink first made smaller until they fit."""
    while (excess := _total(widths) - room) > 0:
        shrinkable = sorted((width, place) for place, width in enumerate(widths) if width > least[place])
        if not shrinkable:
            break
        width, place = shrinkable[-1]
        below = shrinkable[-2][0] if len(shrinkable) > 1 else 0
        widths[place] = max(width - excess, least[place], min(below, width - 1))
    return widths


def aligned(cells: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> list[str]:
    """Return the lines of one row: cells side by side, cut or broken to the widths of their columns."""
    parts = [
        wrap(cell, width) if column.cut == "never" else [shorten(cell, width, column.cut)]
        for cell, width, column in zip(cells, widths, columns, strict=True)
    ]
    lines = []
    for line in zip_longest(*parts, fillvalue=""):
        row = zip(line, widths, columns, strict=True)
        lines.append(_GAP.join(pad(text, width, right=not column.is_text) for text, width, column in row).rstrip())
    return lines
