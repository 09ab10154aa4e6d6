"""The series behind the charts: what they keep, and that they take all their room at once."""

from __future__ import annotations

import math

from tui.history import Series


def test_a_series_keeps_the_newest_in_order_however_many_come() -> None:
    series = Series(keep=100)
    for number in range(1, 1001):
        series.add(float(number), 1000.0)
        expected = [float(n) for n in range(max(1, number - 99), number + 1)]
        assert list(series.last(100)) == expected
        assert len(series.levels(100)) == len(expected)
    assert list(series.last(3)) == [998.0, 999.0, 1000.0]
    assert list(series.levels(3)) == [8, 8, 8]
    assert list(series.last(0)) == list(series.levels(0)) == []


def test_what_was_missed_is_absent() -> None:
    series = Series(keep=10, missed=4)
    series.add(5.0, 10.0)
    assert [math.isnan(value) for value in series.last(10)] == [True] * 4 + [False]
    assert list(series.levels(10)) == [0, 0, 0, 0, 5]
    assert len(Series(keep=10, missed=1000).last(1000)) == 10


def test_a_series_takes_all_its_room_at_once() -> None:
    series = Series(keep=100)
    room = (len(series._values), len(series._levels))
    for number in range(1000):
        series.add(float(number), 1.0)
    assert (len(series._values), len(series._levels)) == room
