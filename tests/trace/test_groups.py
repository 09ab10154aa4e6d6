"""Counting gives what sorting gives, whatever the values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtop.trace.groups import (
    count_and_sum,
    distinct_combinations,
    distinct_values,
    grouped,
    is_among,
    least_and_most,
)

_values = st.one_of(st.integers(-5, 5), st.integers(-(1 << 61), 1 << 61), st.integers(0, 3_000_000))
_rows = st.lists(st.tuples(_values, _values, st.integers(-3, 3)), max_size=40)


@given(_rows)
def test_combinations_are_those_of_unique(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    found, which = grouped(table[:, 0], table[:, 1], table[:, 2].astype(np.int8))
    assert found == sorted(set(rows))
    assert [found[place] for place in which.tolist()] == rows
    assert distinct_values(table[:, 0]).tolist() == sorted({row[0] for row in rows})


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64])
def test_narrow_columns_count_as_wide_ones(kind: npt.DTypeLike) -> None:
    column = np.array([3, -1, 3, 127, -128], dtype=kind)
    assert grouped(column) == ([(-128,), (-1,), (3,), (127,)], pytest.approx([2, 1, 2, 3, 0]))


@given(st.lists(_values, max_size=30), st.lists(_values, max_size=9))
def test_values_are_among_others_as_in_a_list(column: list[int], wanted: list[int]) -> None:
    column += wanted[:2]
    found = is_among(np.array(column, dtype=np.int64), wanted)
    assert found.tolist() == [value in wanted for value in column]
    assert distinct_values(np.array(column, dtype=np.int64)).tolist() == sorted(set(column))


def test_millions_of_rows_are_grouped_as_all_at_once() -> None:
    random = np.random.default_rng(11)
    rows = 2_300_000
    one, other = random.integers(-2, 40, rows, dtype=np.int32), random.integers(0, 3, rows) << 40
    other[-1] = 5  # a combination of the last block alone
    found, which = grouped(one, other)
    keys, expected = np.unique((one.astype(np.int64) << 42) + other, return_inverse=True)
    assert found == [(key >> 42, key & (1 << 42) - 1) for key in keys.tolist()]
    assert np.array_equal(which, expected)
    assert distinct_combinations(one, other) == found


def test_sums_and_bounds_of_groups_are_those_of_python() -> None:
    random = np.random.default_rng(12)
    rows = 1_200_000
    which = random.integers(0, 5, rows, dtype=np.int32)
    which[which == 3] = 4  # nothing is in group 3
    values = random.integers(-50, 1 << 33, rows)
    counts, sums = count_and_sum(which, values, 6)
    least, most = least_and_most(which, values, 6)
    lists: list[list[int]] = [[] for _ in range(6)]
    for group, value in zip(which.tolist(), values.tolist(), strict=True):
        lists[group].append(value)
    assert counts.tolist() == [len(own) for own in lists]
    assert sums.tolist() == [sum(own) for own in lists]
    for group in (0, 1, 2, 4):
        assert (least[group], most[group]) == (min(lists[group]), max(lists[group]))
    assert least[3] > most[3], "of no row"
