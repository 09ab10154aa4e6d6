"""Counting gives what sorting gives, whatever the values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtop.trace.groups import distinct_values, grouped

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
