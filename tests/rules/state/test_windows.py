"""Rolling means, and conditions that must hold for some time."""

from __future__ import annotations

import math

import pytest

from llmtop.rules.state.windows import Hold, RecentValues, finite_or_none


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (math.nan, None), (math.inf, None), (-math.inf, None), (0.0, 0.0), (-1.5, -1.5)],
)
def test_only_finite_values_pass(value: float | None, expected: float | None) -> None:
    assert finite_or_none(value) == expected


def test_a_window_without_values_has_no_mean() -> None:
    window = RecentValues(3.0)
    assert window.mean() is None
    assert len(window) == 0
    assert window.since(0.0) == []


def test_the_mean_is_over_the_values_of_the_last_seconds() -> None:
    """At 4 s the window of 3 s begins at 1 s, and the value of that instant is in it."""
    window = RecentValues(3.0)
    for second in range(5):
        window.add(float(second), 10.0 + second)
    assert len(window) == 4
    assert window.mean() == pytest.approx((11 + 12 + 13 + 14) / 4)
    window.add(4.5, 20.0)
    assert window.mean() == pytest.approx((12 + 13 + 14 + 20) / 4)


def test_the_newest_two_values_stay_however_old_they_are() -> None:
    window = RecentValues(3.0)
    window.add(0.0, 1.0)
    window.add(100.0, 3.0)
    assert window.mean() == pytest.approx(2.0)
    window.add(200.0, 5.0)
    assert window.since(0.0) == [3.0, 5.0]
    assert window.mean() == pytest.approx(4.0)


@pytest.mark.parametrize(("limit", "kept"), [(1, 2), (2, 2), (3, 3), (5, 5)])
def test_no_more_values_than_the_limit_are_kept(limit: int, kept: int) -> None:
    window = RecentValues(1000.0, limit=limit)
    for number in range(9):
        window.add(float(number), float(number))
    assert window.since(0.0) == [float(number) for number in range(9 - kept, 9)]


def test_without_a_limit_64_values_are_kept() -> None:
    window = RecentValues(1000.0)
    for number in range(70):
        window.add(float(number), 1.0)
    assert len(window) == 64


def test_a_cleared_window_begins_anew() -> None:
    window = RecentValues(3.0)
    window.add(0.0, 7.0)
    window.clear()
    assert window.mean() is None
    window.add(1.0, 2.0)
    assert window.mean() == pytest.approx(2.0)


def test_values_are_returned_from_an_instant_on() -> None:
    window = RecentValues(10.0)
    for second in range(4):
        window.add(float(second), float(second))
    assert window.since(2.0) == [2.0, 3.0]
    assert window.since(2.5) == [3.0]


def _hold(*updates: tuple[float, bool], hold: float = 4.0, clear: float = 5.0) -> Hold:
    found = Hold(updates[0][0])
    for now, holds in updates:
        found.update(now, holds, hold, clear)
    return found


def test_a_new_hold_is_idle() -> None:
    found = Hold(10.0)
    assert (found.score, found.is_raised, found.since, found.idle) == (0.0, False, 10.0, True)


def test_an_alert_without_a_hold_time_is_raised_at_once() -> None:
    found = _hold((10.0, True), hold=0.0)
    assert (found.is_raised, found.since, found.score) == (True, 10.0, 1.0)


@pytest.mark.parametrize(
    ("end", "score", "is_raised"), [(12.0, 0.5, False), (13.9, 0.975, False), (14.0, 1.0, True)]
)
def test_an_alert_is_raised_once_its_condition_held_for_the_hold_time(
    end: float, score: float, is_raised: bool
) -> None:
    found = _hold((10.0, True), (end, True))
    assert found.score == pytest.approx(score)
    assert found.is_raised is is_raised
    assert found.since == 10.0


def test_a_long_interval_counts_once() -> None:
    assert _hold((10.0, True), (99.0, True)).score == 1.0


def test_one_sample_is_pending_and_not_idle() -> None:
    found = _hold((10.0, True))
    assert (found.score, found.is_raised, found.idle) == (0.0, False, False)
    found.update(11.0, False, 4.0, 5.0)
    assert found.idle


def test_an_interval_counts_only_if_the_condition_held_at_both_ends() -> None:
    """From 0.5 on, 0.5 s against it take 3 x 0.5 / 4 = 0.375; then 2 s that begin without it add nothing."""
    found = _hold((10.0, True), (12.0, True), (12.5, False))
    assert found.score == pytest.approx(0.125)
    assert not found.idle
    found.update(14.5, True, 4.0, 5.0)
    assert found.score == pytest.approx(0.125)
    assert found.since == 10.0, "the score was never 0"
    found.update(16.5, True, 4.0, 5.0)
    assert found.score == pytest.approx(0.625)


def test_the_begin_is_the_first_sample_after_the_score_fell_to_zero() -> None:
    found = _hold((10.0, True), (12.0, True), (15.0, False), (16.0, True), (17.0, True))
    assert found.since == 16.0
    assert found.score == pytest.approx(0.25)


def test_a_score_does_not_fall_below_zero() -> None:
    assert _hold((10.0, True), (11.0, True), (90.0, False)).score == 0.0


def test_a_raised_alert_falls_by_the_clear_time() -> None:
    found = _hold((10.0, True), (14.0, True), (15.0, False))
    assert found.score == pytest.approx(0.8)
    assert found.is_raised
    found.update(16.0, True, 4.0, 5.0)
    assert found.score == pytest.approx(0.8), "the interval began without it"
    found.update(16.5, True, 4.0, 5.0)
    assert found.score == pytest.approx(0.9), "0.5 of 5 s: a raised alert gains by the clear time"
    assert found.since == 10.0


def test_one_sample_against_a_raised_alert_takes_half_at_most() -> None:
    found = _hold((10.0, True), (14.0, True), (99.0, False))
    assert found.score == pytest.approx(0.5)
    assert found.is_raised
    assert not found.idle
    found.update(199.0, False, 4.0, 5.0)
    assert (found.score, found.is_raised, found.idle) == (0.0, False, True)


def test_hold_and_clear_times_below_a_second_count_as_any_other() -> None:
    found = _hold((10.0, True), hold=0.5, clear=0.5)
    assert not found.is_raised
    found.update(10.25, True, 0.5, 0.5)
    assert found.score == pytest.approx(0.5)
    found.update(10.5, True, 0.5, 0.5)
    assert found.is_raised
    found.update(12.0, False, 0.5, 0.5)
    assert found.score == pytest.approx(0.5), "half at most"


def test_a_score_does_not_rise_above_one() -> None:
    assert _hold((10.0, True), (14.0, True), (19.0, True), (20.0, False)).score == pytest.approx(0.8)


def test_an_alert_without_a_clear_time_is_cleared_at_once() -> None:
    found = _hold((10.0, True), (14.0, True), (14.5, False), clear=0.0)
    assert (found.score, found.is_raised) == (0.0, False)


def test_a_raised_alert_whose_score_fell_is_renewed_without_a_new_begin() -> None:
    found = _hold((10.0, True), (14.0, True), (16.0, False), (17.0, True))
    assert found.since == 10.0


def test_time_that_goes_back_counts_for_nothing() -> None:
    found = _hold((10.0, True), (12.0, True), (11.0, True))
    assert found.score == pytest.approx(0.5)
    found.update(12.0, True, 4.0, 5.0)
    assert found.score == pytest.approx(0.75)


@pytest.mark.parametrize(("rest", "is_raised"), [(5e-10, False), (1.5e-9, True)])
def test_a_rest_of_a_billionth_is_rounding(rest: float, is_raised: bool) -> None:
    found = _hold((0.0, True), (4.0, True), (99.0, False))
    found.update(99.0 + 5.0 * (0.5 - rest), False, 4.0, 5.0)
    assert found.is_raised is is_raised


@pytest.mark.parametrize(("lacking", "is_raised"), [(5e-10, True), (1.5e-9, False)])
def test_an_alert_is_raised_although_a_billionth_is_lacking(lacking: float, is_raised: bool) -> None:
    found = _hold((0.0, True), (4.0 * (1.0 - lacking), True))
    assert found.is_raised is is_raised
