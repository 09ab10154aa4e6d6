"""The span that an instant lies in, against looking at all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmtop.analysis.work.nesting import Nesting
from llmtop.trace.intervals import Ns


@dataclass
class _Table:
    start: Ns
    end: Ns
    process: Ns
    thread: Ns


def _table(spans: list[tuple[int, int, int]]) -> _Table:
    columns = np.array(spans, dtype=np.int64).reshape(-1, 3).T
    return _Table(columns[0], columns[1], np.zeros(len(spans), dtype=np.int64), columns[2])


@st.composite
def _nested(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Spans on two threads of which any two lie in each other or apart, in any order."""
    spans: list[tuple[int, int, int]] = []

    def fill(low: int, high: int, thread: int, depth: int) -> None:
        at = low
        while depth and at < high and draw(st.booleans()):
            start = draw(st.integers(at, high))
            end = draw(st.integers(start, high))
            spans.append((start, end, thread))
            fill(start, end, thread, depth - 1)
            at = end

    for thread in (1, 2):
        fill(0, 60, thread, 4)
    return list(draw(st.permutations(spans)))


def _innermost(spans: list[tuple[int, int, int]], instant: int, thread: int) -> tuple[int, int] | None:
    around = [(start, end) for start, end, own in spans if own == thread and start <= instant < end]
    return min(around, key=lambda span: (span[1] - span[0], -span[0]), default=None)


@given(_nested())
def test_the_innermost_is_found(spans: list[tuple[int, int, int]]) -> None:
    table = _table(spans)
    nesting = Nesting(table, np.arange(len(spans)))
    instants = np.repeat(np.arange(-1, 62), 2)
    threads = np.tile(np.array([1, 2]), 63)
    at = nesting.innermost(np.zeros(len(instants), dtype=np.int64), threads, instants)
    for place, instant, thread in zip(at.tolist(), instants.tolist(), threads.tolist(), strict=True):
        row = None if place < 0 else nesting.rows[place]
        found = None if row is None else (int(table.start[row]), int(table.end[row]))
        assert found == _innermost(spans, instant, thread)


@given(_nested())
def test_the_parent_is_the_smallest_around(spans: list[tuple[int, int, int]]) -> None:
    kept = sorted({span for span in spans if span[1] > span[0]})
    table = _table(kept)
    nesting = Nesting(table, np.arange(len(kept)))
    for place, parent in enumerate(nesting.parents.tolist()):
        start, end, thread = kept[int(nesting.rows[place])]
        around = [
            s for s in kept if s[2] == thread and s[0] <= start and end <= s[1] and s != (start, end, thread)
        ]
        smallest = min(around, key=lambda span: span[1] - span[0], default=None)
        assert (None if parent < 0 else kept[int(nesting.rows[parent])]) == smallest


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.just(1)), max_size=25))
def test_spans_that_cross_give_one_that_holds_the_instant(spans: list[tuple[int, int, int]]) -> None:
    table = _table(spans)
    nesting = Nesting(table, np.arange(len(spans)))
    instants = np.arange(31)
    at = nesting.innermost(np.zeros(31, dtype=np.int64), np.ones(31, dtype=np.int64), instants)
    for place, instant in zip(at.tolist(), instants.tolist(), strict=True):
        if place >= 0:
            row = nesting.rows[place]
            assert table.start[row] <= instant < table.end[row]


def test_neighbouring_processes_and_threads_have_their_own_spans() -> None:
    owners = [(1, 1), (1, 2), (2, 2), (3, 2), (3, 4)]
    process, thread = np.array(owners).T
    start = 10 * np.arange(len(owners))
    nesting = Nesting(_Table(start, np.full(len(owners), 100), process, thread), np.arange(len(owners)))
    at = nesting.innermost(process[::-1].copy(), thread[::-1].copy(), np.full(len(owners), 50))
    assert nesting.rows[at].tolist() == [4, 3, 2, 1, 0]
    assert nesting.innermost(np.array([2]), np.array([4]), np.array([50])).tolist() == [-1]
