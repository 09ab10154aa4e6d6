"""Columns of tables: which of them fit, for GPUs in lines, ranks and processes alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

Subject = TypeVar("Subject")
Comparable = float | str | None


class ColumnContext(NamedTuple):
    """Data of a cell besides its own subject."""

    gpus: dict[str, str]
    """Numbers of the GPUs as they are written, by UUID."""
    now: float
    """Unix time of the snapshot."""
    still: frozenset[int] = frozenset()
    """Pids of the trainings that run no step now (tui/state/stalled.py)."""


class Column(Struct, Generic[Subject], frozen=True):
    """One column of a table: its title, its width, and how a cell of it is made."""

    title: str
    width: int
    """Cells, the gap between columns not counted."""
    weight: int
    """Columns of higher weight go first when the screen is narrow."""
    text: Callable[[Subject, ColumnContext], str]
    order: Callable[[Subject, ColumnContext], Comparable] | None = None
    """Sort key, where a table can be sorted; absent values come last."""
    numeric: bool = True
    """True if it is aligned to the right of its cells, as numbers are."""
    strong: bool = False
    key: str = ""
    """The metric whose history may stand behind it (tui/paint/gpu_metrics.py)."""

    @property
    def name(self) -> str:
        """Return the name that an `Order` uses."""
        return self.key or self.title


def sorted_by(
    subjects: Sequence[Subject],
    order: Callable[[Subject], Comparable],
    *,
    reverse: bool,
) -> list[Subject]:
    """Return the subjects sorted; absent values come last either way, equal ones stay in their order.

    Args:
        subjects: in their usual order.
        order: the value of one; numbers, or words whose case does not count; None: absent.
        reverse: largest first.
    """
    pairs = [(order(one), one) for one in subjects]

    def rank(pair: tuple[Comparable, Subject]) -> tuple[str, float]:
        value = pair[0]
        return (value.lower(), 0.0) if isinstance(value, str) else ("", value or 0.0)

    known = sorted((pair for pair in pairs if not _is_absent(pair[0])), key=rank, reverse=reverse)
    return [one for _, one in known] + [one for value, one in pairs if _is_absent(value)]


def _is_absent(value: Comparable) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def title_cells(title: str, width: int, lead: str, sign: str, *, right: bool = True) -> str:
    """Return the cells of a title: the gap before it, then the title with the sign of the sort order before it.

    Args:
        title: of a column.
        width: cells of the column.
        lead: blanks before the column; the sign stands in the last of them where the column has no room for it.
        sign: one cell; "" for a column that is not sorted by.
        right: whether the title stands at the right end of its cells.
    """
    text = title[:width]
    cells = lead + (text.rjust(width) if right else (sign + text)[:width].ljust(width))
    place = len(cells) - len(text) - 1
    return cells[:place] + sign + cells[place + 1 :] if sign and right and place >= 0 else cells


def columns_titled(columns: Sequence[Column[Subject]], titles: Sequence[str] | None) -> list[Column[Subject]]:
    """Return the columns with these titles, in that order; None: all."""
    if titles is None:
        return list(columns)
    by_title = {column.title: column for column in columns}
    return [by_title[title] for title in dict.fromkeys(titles) if title in by_title]


def fitting(
    columns: Sequence[Column[Subject]],
    room: int,
    gap: int,
    *,
    always: Sequence[Column[Subject]] = (),
    reserve: Callable[[Column[Subject], int], int] = lambda _column, _chosen: 0,
) -> list[Column[Subject]]:
    """Return the columns that fit, in their own order.

    Args:
        columns: all of the table.
        room: cells for them and the gap that each has.
        gap: cells beside each column.
        always: those that stay however narrow it is.
        reserve: cells that must stay free for other things, by the column that is tried and how many are chosen.
    """
    chosen, used = list(always), sum(column.width + gap for column in always)
    for column in sorted(columns, key=lambda column: column.weight):
        needed = column.width + gap
        if column not in chosen and used + needed + reserve(column, len(chosen)) <= room:
            chosen.append(column)
            used += needed
    return [column for column in columns if column in chosen]
