"""One table of a report as cells of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtop.format import pad, width_of


@dataclass(frozen=True)
class TextTable:
    """Table of a report as cells of text."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    text_columns: int = 1
    """How many columns from the left hold words; the others hold numbers."""
    most: int = 12
    """How many rows are worth showing where space is short."""

    @property
    def shown(self) -> Sequence[tuple[str, ...]]:
        """The first rows, which are the most important ones."""
        return self.rows[: self.most]

    @property
    def more(self) -> int:
        """How many rows are left out of `shown`."""
        return len(self.rows) - len(self.shown)

    def lines(self) -> list[tuple[str, ...]]:
        """The header, then `shown`, all cells as wide as their column; numbers at its right end."""
        cells = [self.header, *self.shown]
        widths = [max(map(width_of, column)) for column in zip(*cells, strict=True)]
        return [
            tuple(pad(cell, widths[i], right=i >= self.text_columns) for i, cell in enumerate(row))
            for row in cells
        ]
