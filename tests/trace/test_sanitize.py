"""Rows without a usable time, and those that a jump of the clock put far away."""

from __future__ import annotations

import numpy as np
import pytest

from llmtop.trace import model
from llmtop.trace.sanitize import ABSENT, drop_unusable_rows
from tests.support.tables import Tables

MINUTE = 60_000_000_000


def _cleaned(*spans: tuple[int, int]) -> tuple[list[tuple[int, int]], list[str]]:
    made = Tables()
    for start, end in spans:
        made.op(start, end)
    trace = drop_unusable_rows(made.trace())
    return list(zip(trace.ops.start.tolist(), trace.ops.end.tolist(), strict=True)), trace.notes


def test_usable_rows_stay_as_they_are() -> None:
    rows = [(5, 5), (-100, 3), (0, 1)]
    assert _cleaned(*rows) == (rows, [])


@pytest.mark.parametrize("row", [(ABSENT, 5), (5, ABSENT), (-ABSENT, -ABSENT), (ABSENT, ABSENT)])
def test_rows_without_a_time_are_left_out(row: tuple[int, int]) -> None:
    rows, notes = _cleaned((0, 1), row, row, (2, 3))
    assert rows == [(0, 1), (2, 3)]
    assert notes == ["2 events have no usable time and are left out"]


def test_the_last_usable_times_are_kept() -> None:
    made = Tables()
    made.range("open", 5, int(model.OPEN))
    assert len(drop_unusable_rows(made.trace()).ranges) == 1


def test_rows_that_end_before_they_start_are_left_out() -> None:
    rows, notes = _cleaned((0, 1), (5, 4), (2, 2))
    assert rows == [(0, 1), (2, 2)]
    assert notes == ["1 events end before they start and are left out"]


def test_all_tables_are_cleaned_and_counted_together() -> None:
    made = Tables()
    made.op(ABSENT, 1)
    made.call("c", ABSENT, 1)
    made.range("r", 5, 4)
    made.host("h", 7, 6)
    trace = made.trace()
    trace.overhead = model.build(model.Table, {"start": [3, 1], "end": [2, 2]})
    trace.samples = model.build(model.StackSamples, {"start": [ABSENT], "end": [0]})
    drop_unusable_rows(trace)
    assert [len(table) for table in (trace.ops, trace.calls, trace.ranges, trace.host, trace.samples)] == [0] * 5
    assert trace.overhead.start.tolist() == [1]
    assert trace.notes == [
        "3 events have no usable time and are left out",
        "3 events end before they start and are left out",
    ]


def _with_outlier(
    near: int, apart: int, spread: int = 1000, *, before: bool = False, outliers: int = 1
) -> list[int]:
    """Starts that are kept of so many evenly spread over `spread` ns and others `apart` ns from them."""
    starts = np.linspace(0, spread, near).astype(int).tolist()
    far = [-apart - n if before else spread + apart + n for n in range(outliers)]
    return [start for start, _ in _cleaned(*((start, start + 1) for start in [*starts, *far]))[0]]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("near", "outliers", "apart", "spread", "dropped"),
    [
        (9, 1, MINUTE, 1000, True),  # nine of ten lie together
        (8, 1, MINUTE, 1000, False),
        (18, 2, MINUTE, 1000, True),
        (17, 2, MINUTE, 1000, False),
        (9, 1, MINUTE - 1, 1000, False),
        (9, 1, MINUTE, MINUTE // 20, True),  # twenty times as far as they are spread
        (9, 1, MINUTE, MINUTE // 20 + 1, False),
        (2, 0, 5 * MINUTE, MINUTE, False),
    ],
)
def test_few_events_a_minute_and_twenty_times_the_spread_away_are_left_out(
    near: int, outliers: int, apart: int, spread: int, dropped: bool, before: bool
) -> None:
    kept = _with_outlier(near, apart, spread, before=before, outliers=outliers)
    assert len(kept) == near + (0 if dropped else outliers)
    if dropped:
        assert (min(kept), max(kept)) == (0, spread)


def test_the_hole_nearest_to_the_many_decides() -> None:
    """Events on both sides: one hole of a minute, which is not twenty times the spread, keeps all."""
    spread = MINUTE // 20 + 20
    near = np.linspace(0, spread, 40).astype(int).tolist()
    rows = [-MINUTE, *near, spread + 5 * MINUTE]
    assert len(_cleaned(*((start, start + 1) for start in rows))[0]) == 42
    rows = [-5 * MINUTE, *near, spread + 5 * MINUTE]
    kept, notes = _cleaned(*((start, start + 1) for start in rows))
    assert len(kept) == 40
    assert notes == ["2 events lie more than a minute from all others (the clock jumped?) and are left out"]


def test_what_lies_far_away_is_left_out_of_every_table() -> None:
    made = Tables()
    for number in range(40):
        made.op(number, number + 1)
    made.call("c", MINUTE * 2, MINUTE * 2 + 1)
    made.range("r", 20, 25)
    made.host("h", 39, 50)
    trace = drop_unusable_rows(made.trace())
    assert [len(table) for table in (trace.ops, trace.calls, trace.ranges, trace.host)] == [40, 0, 1, 1]
