"""A loss that has stopped moving, by each of its three signs."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from llmtop.rules.state.flat_loss import FlatLoss

LEFT = (500, 1.0)
"""Step at which a loss left its range, and a spread that limits nothing."""
LATE = 101
"""A first step at which a training goes on from a checkpoint."""


def _feed(
    flat: FlatLoss, values: Iterable[float], first: int = LATE, left: tuple[int, float] | None = None
) -> list[int]:
    """Add values from a step on; return the steps at which the loss was found to be flat."""
    return [step for step, value in enumerate(values, first) if flat.add(step, value, left)]


def _about(level: float, count: int, off: float = 1e-3) -> list[float]:
    """Values around a level; each differs from the one before by twice as much in log space."""
    return [level * math.exp(off * (-1) ** place) for place in range(count)]


# ---- the same value ----


def test_the_hundredth_equal_value_makes_a_loss_flat_since_the_first() -> None:
    flat = FlatLoss()
    assert _feed(flat, [3.0, *[2.0] * 99]) == []
    assert flat.since is None
    assert flat.add(201, 2.0, None) is True
    assert flat.since == 102
    assert flat.add(202, 2.0, None) is False, "found once"
    assert flat.since == 102


def test_a_loss_that_moves_again_is_not_flat() -> None:
    flat = FlatLoss()
    _feed(flat, [2.0] * 120)
    assert flat.add(500, 2.1, None) is False
    assert flat.since is None
    assert _feed(flat, [2.1] * 98, first=501) == []
    assert _feed(flat, [2.1], first=599) == [599]
    assert flat.since == 500


@pytest.mark.parametrize(
    ("other", "is_same"),
    [(2.000018, True), (2.00003, False), (1.999982, True), (1.99997, False)],
)
def test_values_are_the_same_up_to_a_hundred_thousandth(other: float, is_same: bool) -> None:
    assert bool(_feed(FlatLoss(), [2.0, other] * 60)) is is_same


@pytest.mark.parametrize(("value", "is_same"), [(1e5, True), (1e5 + 0.1, False)])
def test_a_difference_of_exactly_a_hundred_thousandth_is_the_same(value: float, is_same: bool) -> None:
    assert bool(_feed(FlatLoss(), [1e5 - 1, value] * 60)) is is_same


@pytest.mark.parametrize("value", [0.0, -3.0])
def test_a_loss_that_stays_at_zero_or_below_is_flat_too(value: float) -> None:
    flat = FlatLoss()
    assert _feed(flat, [value] * 100) == [LATE + 99]
    assert flat.since == LATE


def test_values_that_creep_are_compared_with_the_first_of_them() -> None:
    """Each is 0.4e-5 above the one before, and the third 1.2e-5 above the first."""
    assert _feed(FlatLoss(), [2.0 * (1 + 0.4e-5) ** place for place in range(300)]) == []


# ---- never fallen ----


@pytest.mark.parametrize(("first", "is_flat"), [(0, True), (100, True), (101, False)])
def test_a_loss_that_has_not_fallen_in_512_values_is_flat_since_its_first(first: int, is_flat: bool) -> None:
    flat = FlatLoss()
    assert _feed(flat, _about(10.0, 511), first) == []
    assert bool(_feed(flat, _about(10.0, 1), first + 511)) is is_flat
    assert flat.since == (first if is_flat else None)


@pytest.mark.parametrize(("fall_pct", "is_flat"), [(1.99, True), (2.02, False), (3.0, False)])
def test_blocks_within_one_percent_of_their_middle_have_not_fallen(fall_pct: float, is_flat: bool) -> None:
    values = _about(10.0, 256) + _about(10.0 * math.exp(-fall_pct / 100), 256)
    assert bool(_feed(FlatLoss(), values, first=0)) is is_flat


def test_a_loss_below_one_is_judged_as_any_other() -> None:
    assert _feed(FlatLoss(), _about(0.5, 512), first=0) == [511]


def test_a_loss_that_has_fallen_once_is_not_judged_by_its_later_blocks() -> None:
    flat = FlatLoss()
    assert _feed(flat, _about(10.0, 16) + _about(9.0, 1000), first=0) == []


def test_a_block_has_sixteen_values() -> None:
    """In each block of 16 seven values are high, which leaves the median; in blocks of 17 some have more."""
    flat = FlatLoss()
    high = _about(20.0, 7)
    assert _feed(flat, (high + _about(10.0, 9)) * 32, first=0) == [511]


def test_a_loss_that_falls_after_all_is_not_flat_any_more() -> None:
    flat = FlatLoss()
    _feed(flat, _about(10.0, 512), first=0)
    assert flat.since == 0
    _feed(flat, _about(9.0, 15), first=512)
    assert flat.since == 0
    _feed(flat, _about(9.0, 1), first=527)
    assert flat.since is None


def test_values_that_are_not_positive_are_in_no_block() -> None:
    flat = FlatLoss()
    values = [value for one in _about(10.0, 512) for value in (one, -1.0 - one)]
    assert _feed(flat, values, first=0) == [1022]


# ---- a level above its range ----


def test_a_hundred_values_at_a_level_are_flat_since_the_loss_left_its_range() -> None:
    flat = FlatLoss()
    assert _feed(flat, _about(5.0, 99), left=LEFT) == []
    assert flat.add(600, 5.0, LEFT) is True
    assert flat.since == 500


def test_a_loss_that_was_back_in_its_range_begins_anew() -> None:
    flat = FlatLoss()
    assert _feed(flat, [*_about(5.0, 60)], left=LEFT) == []
    flat.add(300, 5.0, None)
    assert _feed(flat, _about(5.0, 99), first=301, left=LEFT) == []
    assert _feed(flat, [5.0], first=400, left=LEFT) == [400]


@pytest.mark.parametrize(
    ("off", "usual_spread", "is_flat"),
    [
        (0.0134, 1.0, True),
        (0.0136, 1.0, False),
        (0.0066, 0.02, True),
        (0.0069, 0.02, False),
        (0.0134, 0.041, True),
    ],
)
def test_a_level_has_a_spread_of_two_percent_or_half_of_the_usual_one(
    off: float, usual_spread: float, is_flat: bool
) -> None:
    """Values that are off by as much have a spread of 1.4826 times that: 0.02 at 0.01349, 0.01 at 0.00674."""
    assert bool(_feed(FlatLoss(), _about(5.0, 100, off), left=(500, usual_spread))) is is_flat


@pytest.mark.parametrize(("shift", "is_flat"), [(1.45, True), (1.52, False), (-1.45, True), (-1.52, False)])
def test_the_halves_of_a_level_differ_by_four_errors_at_most(shift: float, is_flat: bool) -> None:
    """An error is sqrt(pi / 50) spreads, so four of them are 1.487 times what the values are off."""
    off = 0.004
    values = _about(5.0, 50, off) + _about(5.0 * math.exp(shift * off), 50, off)
    assert bool(_feed(FlatLoss(), values, left=LEFT)) is is_flat


def test_a_level_that_is_left_keeps_its_begin_until_the_values_are_the_same() -> None:
    flat = FlatLoss()
    _feed(flat, _about(5.0, 100), left=LEFT)
    assert _feed(flat, _about(5.0, 50), first=700, left=(650, 1.0)) == []
    assert flat.since == 500
