"""Interval arithmetic against the plainest model there is: a Python set of instants."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmtop.trace import intervals as iv

TOP = 40
pairs = st.lists(st.tuples(st.integers(0, TOP), st.integers(0, TOP)), max_size=12)


def _arrays(intervals: list[tuple[int, int]]) -> tuple[iv.Ns, iv.Ns]:
    table = np.array(intervals, dtype=np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


def _spans(intervals: list[tuple[int, int]]) -> iv.Spans:
    return iv.union(*_arrays(intervals))


def _instants(intervals: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in intervals for t in range(start, end)}


def _as_set(spans: iv.Spans) -> set[int]:
    """The instants; fails on anything that is not disjoint, ascending, apart and non-empty."""
    assert (spans.ends > spans.starts).all()
    assert (spans.starts[1:] >= spans.ends[:-1]).all()
    return {
        t for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True) for t in range(start, end)
    }


@given(pairs)
def test_union_is_every_instant_that_some_interval_covers(intervals: list[tuple[int, int]]) -> None:
    spans = _spans(intervals)
    assert _as_set(spans) == _instants(intervals)
    assert spans.total == len(_instants(intervals))
    assert (spans.starts[1:] > spans.ends[:-1]).all(), "touching intervals become one"


@given(pairs, pairs)
def test_set_operations_agree_with_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    x, y = _spans(a), _spans(b)
    assert _as_set(iv.union_of(x, y)) == _instants(a) | _instants(b)
    assert _as_set(iv.intersection(x, y)) == _instants(a) & _instants(b)
    assert _as_set(iv.difference(x, y)) == _instants(a) - _instants(b)


@given(pairs, st.integers(0, TOP), st.integers(0, TOP))
def test_rest_and_clip_divide_a_window(a: list[tuple[int, int]], start: int, end: int) -> None:
    spans, window = _spans(a), set(range(start, end))
    inside, outside = iv.clip(spans, start, end), iv.complement(spans, start, end)
    assert _as_set(inside) == _instants(a) & window
    assert _as_set(outside) == window - _instants(a)
    assert inside.total + outside.total == max(0, end - start)


@given(pairs, pairs)
def test_overlap_measures_each_interval_by_itself(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    starts, ends = _arrays(a)
    found = iv.overlap_with(starts, ends, _spans(b)).tolist()
    assert found == [len(set(range(start, end)) & _instants(b)) for start, end in a]


@given(pairs, st.lists(st.integers(-3, TOP + 3), max_size=9))
def test_instants_are_found_in_their_intervals(a: list[tuple[int, int]], instants: list[int]) -> None:
    spans, points = _spans(a), np.array(instants, dtype=np.int64)
    assert iv.contains(spans, points).tolist() == [t in _instants(a) for t in instants]
    assert iv.time_before(spans, points).tolist() == [sum(i < t for i in _instants(a)) for t in instants]


@given(pairs)
def test_a_set_without_itself_is_empty_and_shares_nothing(a: list[tuple[int, int]]) -> None:
    spans = _spans(a)
    assert iv.difference(spans, spans).total == 0
    assert iv.intersection(spans, spans).total == spans.total


def test_no_interval_at_all_is_no_special_case() -> None:
    nothing = _spans([])
    assert nothing.total == 0
    assert iv.union_of().total == 0
    assert iv.complement(nothing, 3, 9).total == 6
