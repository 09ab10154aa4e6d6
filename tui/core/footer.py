"""The footer: the keys of a screen, and which of them stands under the mouse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tui.core.keys import Key
from tui.paint.rows import CellTheme, Row


class KeySpan(NamedTuple):
    """Cells of the footer, and Textual's name of the key that a click on them presses."""

    start: int
    end: int
    name: str


class Footer(NamedTuple):
    """A painted footer."""

    row: Row
    spans: tuple[KeySpan, ...]

    def key_at(self, column: int) -> str:
        """Return the key at a column; "" where there is none."""
        return next((span.name for span in self.spans if span.start <= column < span.end), "")


def footer(
    keys: Sequence[Key], width: int, theme: CellTheme, labels: Mapping[str, str] | None = None, pinned: str = ""
) -> Footer:
    """Return the keys that work here. Those without room are in the help, which is always named.

    Args:
        keys: in the order of their worth; the last is always shown.
        width: of the row.
        theme: how to draw.
        labels: what to show instead of a key's label.
        pinned: label of a key that is shown at any width, beside the last.
    """
    labels = labels or {}
    row, spans = Row(width), list[KeySpan]()
    if not keys:
        return Footer(row.end(theme.palette.key_label), ())
    *others, last = keys
    kept = [key for key in others if key.label in labels or key.label == pinned]
    reserved = _cells(last, last.label) + sum(_cells(key, key.label) for key in kept)
    for key in others:
        if key in kept:
            reserved -= _cells(key, key.label)
        for label in dict.fromkeys((labels.get(key.label, key.label), key.label)):
            if _cells(key, label) + reserved <= row.free_cells:
                spans += _add(row, key, label, theme)
                break
    spans += _add(row, last, last.label, theme)
    return Footer(row.end(theme.palette.key_label), tuple(spans))


def _add(row: Row, key: Key, label: str, theme: CellTheme) -> list[KeySpan]:
    """Paint one key; of a pair, a click on the second character presses the second key."""
    start = row.used
    row.add(f" {key.shown} ", theme.palette.key).add(f"{label} ", theme.palette.key_label)
    first, _, _ = key.shown.partition(" ")
    if not key.partner:
        return [KeySpan(start, row.used, key.names[0])]
    middle = start + 1 + len(first)
    return [KeySpan(start, middle, key.names[0]), KeySpan(middle, row.used, key.partner)]


def _cells(key: Key, label: str) -> int:
    return len(key.shown) + len(label) + 3
