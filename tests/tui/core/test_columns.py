"""Which columns of a table fit: the same rule for GPUs in lines, ranks and processes."""

from __future__ import annotations

from typing import Any

import pytest

from tui.core.columns import Column, fitting
from tui.panes import node_table, process_table, rank_table

TABLES: dict[str, tuple[Column[Any], ...]] = {
    "GPUs and ranks": node_table.COLUMNS,
    "ranks": rank_table.COLUMNS,
    "processes": process_table.COLUMNS,
}


def column(title: str, width: int, weight: int) -> Column[str]:
    return Column(title, width, weight, lambda subject, _around: subject)


A, B, C = column("a", 4, 1), column("b", 6, 0), column("c", 2, 2)


@pytest.mark.parametrize(
    ("room", "shown"), [(0, ""), (6, "a"), (7, "a"), (8, "b"), (12, "bc"), (13, "bc"), (14, "ab"), (18, "abc")]
)
def test_the_lightest_come_first_and_stay_in_their_order(room: int, shown: str) -> None:
    assert "".join(one.title for one in fitting((A, B, C), room, 2)) == shown


def test_what_must_stay_stays_and_what_is_reserved_is_left_free() -> None:
    assert fitting((A, B, C), 0, 2, always=[C]) == [C]
    assert fitting((A, B, C), 18, 2, reserve=lambda one, _: 5 if one is C else 0) == [A, B]
    assert fitting((A, B, C), 18, 2, reserve=lambda _, chosen: 20 if chosen else 0) == [B]


@pytest.mark.parametrize("name", TABLES)
def test_a_wider_screen_never_shows_less_weight_and_never_overflows(name: str) -> None:
    columns = TABLES[name]
    weights = [one.weight for one in columns if one.title != "command"]
    assert len(set(weights)) == len(weights), "no two columns compete for a place"
    for room in range(250):
        assert sum(one.width + 2 for one in fitting(columns, room, 2)) <= room
