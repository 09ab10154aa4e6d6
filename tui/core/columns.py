"""Columns of tables: which of them fit, for GPUs in lines, ranks and processes alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

Subject = TypeVar("Subject")
Comparable = float | str | None


class ColumnContext(NamedTuple):
    """What a cell needs beside its own subject."""

    gpus: dict[str, str]
    """Numbers of the GPUs as they are written, by UUID."""
    now: float
    """Unix time of the snapshot."""


class Column(Struct, Generic[Subject], frozen=True):
    """One column of a table: its title, its width, and how a cell of it is made."""

    title: str
    width: int
    """Cells, the gap between columns not counted."""
    weight: int
    """Columns of higher weight go first when the screen is narrow."""
    text: Callable[[Subject, ColumnContext], str]
    order: Callable[[Subject, ColumnContext], Comparable] | None = None
    """What to sort by, where a table can be sorted; absent values come last."""
    numeric: bool = True
    """At the right end of its cells, as numbers are."""
    strong: bool = False
    key: str = ""
    """The metric whose history may stand behind it (tui/paint/gpu_metrics.py)."""


def columns_titled(columns: Sequence[Column[Subject]], titles: Sequence[str] | None) -> list[Column[Subject]]:
    """The columns with these titles, in that order; None: all."""
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
    """The columns that fit, in their own order.

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
