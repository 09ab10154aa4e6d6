"""The usual range of a logged value, and when the value leaves it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from llmtop.rules.state.metric_curve import CurveLimits, MetricCurve, RiseLimits

PLAIN = CurveLimits(
    pair=RiseLimits(sigmas=5.0, factor=1.05, times=2.0),
    single=RiseLimits(sigmas=7.0, factor=1.1, times=2.5),
    is_linear=True,
)
CONSISTENT = 1.4826
"""Standard deviations of normal noise in its median absolute deviation (Rousseeuw and Croux, 1993)."""


def _fed(count: int, value: Callable[[int], float], limits: CurveLimits = PLAIN) -> MetricCurve:
    """A curve after values of steps 0, 1, 2 ..., without an excursion."""
    curve = MetricCurve(limits)
    for step in range(count):
        assert not curve.add(step, value(step), is_lr_known=True)
    return curve


def _about_one(off: float) -> Callable[[int], float]:
    """Values around 1, by turns above and below it by as much in log space."""
    return lambda step: math.exp(off if step % 2 else -off)


def _add(curve: MetricCurve, *values: float, first: int = 1000, is_lr_known: bool = True) -> list[int]:
    """Add values from a step on; return the steps at which an excursion begins."""
    return [step for step, value in enumerate(values, first) if curve.add(step, value, is_lr_known=is_lr_known)]


# ---- the usual range ----


def test_the_usual_range_is_known_after_32_values() -> None:
    assert _fed(31, _about_one(0.01)).usual() is None
    assert _fed(32, _about_one(0.01)).usual() is not None


def test_the_usual_range_is_three_deviations_around_the_middle() -> None:
    low, high = _fed(64, _about_one(0.01)).usual() or (0.0, 0.0)
    assert low == pytest.approx(math.exp(-3 * CONSISTENT * 0.01))
    assert high == pytest.approx(math.exp(3 * CONSISTENT * 0.01))


def test_a_value_that_hardly_moves_has_a_spread_of_two_in_a_thousand() -> None:
    low, high = _fed(64, _about_one(0.001)).usual() or (0.0, 0.0)
    assert (low, high) == (pytest.approx(math.exp(-0.006)), pytest.approx(math.exp(0.006)))


@pytest.mark.parametrize("count", [32, 33, 35, 36, 64, 127, 128, 131, 200, 301])
@pytest.mark.parametrize("rate", [-0.01, 0.0, -0.002])
def test_an_exponential_trend_is_continued(count: int, rate: float) -> None:
    curve = _fed(count, lambda step: 5.0 * math.exp(rate * step))
    low, high = curve.usual() or (0.0, 0.0)
    assert math.sqrt(low * high) == pytest.approx(5.0 * math.exp(rate * count))
    assert high / low == pytest.approx(math.exp(2 * 0.006))


@pytest.mark.parametrize("count", [32, 35, 64, 128, 203])
def test_a_linear_trend_below_zero_is_continued(count: int) -> None:
    curve = _fed(count, lambda step: -5.0 - 0.125 * step)
    low, high = curve.usual() or (0.0, 0.0)
    assert (low + high) / 2 == pytest.approx(-5.0 - 0.125 * count)
    computed_at = count - count % 4
    window = min(computed_at, 128)
    middle = -5.0 - 0.125 * (computed_at - window / 4 - 0.5)
    assert high - low == pytest.approx(2 * 3 * 0.002 * abs(middle))


@pytest.mark.parametrize("first_not_positive", [10, 40, 128, 150])
def test_a_value_that_crosses_zero_keeps_its_trend(first_not_positive: int) -> None:
    curve = _fed(200, lambda step: 0.125 * (first_not_positive - step))
    low, high = curve.usual() or (0.0, 0.0)
    assert (low + high) / 2 == pytest.approx(0.125 * (first_not_positive - 200))


@pytest.mark.parametrize(
    ("late", "expected"),
    [(0.0049, True), (0.0051, False), (0.0, True), (-0.0049, True), (-0.0051, False), (1.0, False)],
)
def test_a_value_below_half_a_percent_of_its_beginning_is_near_zero(late: float, expected: bool) -> None:
    assert _fed(300, lambda step: 1.0 if step < 32 else late).is_near_zero() is expected


def test_before_its_range_is_known_nothing_is_near_zero() -> None:
    assert not _fed(31, lambda _step: 1.0).is_near_zero()
    assert not MetricCurve(PLAIN).is_near_zero()


# ---- outliers ----


@pytest.mark.parametrize(
    ("off", "value", "begins"),
    [
        (0.01, 1.0 + 7 * CONSISTENT * 0.01 + 0.0005, True),  # seven standard deviations
        (0.01, 1.0 + 7 * CONSISTENT * 0.01 - 0.0005, False),
        (0.001, 1.1005, True),  # the factor
        (0.001, 1.0995, False),
        (0.001, 0.5, False),  # a fall is none
    ],
)
def test_one_value_alone_must_reach_sigmas_and_factor(off: float, value: float, begins: bool) -> None:
    assert bool(_add(_fed(140, _about_one(off)), value)) is begins


@pytest.mark.parametrize(("count", "begins"), [(134, False), (136, True)])
def test_one_value_alone_is_judged_after_96_deviations(count: int, begins: bool) -> None:
    """32 values make the first range, and of the deviations after it the last eight do not count."""
    assert bool(_add(_fed(count, _about_one(0.001)), 1.5)) is begins


@pytest.mark.parametrize(
    ("off", "value", "begins"),
    [
        (0.01, 1.0 + 5 * CONSISTENT * 0.01 + 0.0005, True),
        (0.01, 1.0 + 5 * CONSISTENT * 0.01 - 0.0005, False),
        (0.001, 1.0505, True),
        (0.001, 1.0495, False),
    ],
)
def test_two_values_have_easier_limits(off: float, value: float, begins: bool) -> None:
    assert _add(_fed(140, _about_one(off)), value, value) == ([1001] if begins else [])


@pytest.mark.parametrize(
    ("values", "begins"),
    [
        ((1.06, 1.06), [1001]),
        ((1.06, 1.0, 1.06), [1002]),
        ((1.06, 1.0, 1.0, 1.06), []),  # not among three
        ((1.06, *[1.0] * 12, 1.06, 1.06), []),  # as high as one before: noise
        ((1.06, *[1.0] * 12, 1.125, 1.125), [1014]),  # twice as high
    ],
)
def test_two_among_three_values_are_an_excursion(values: tuple[float, ...], begins: list[int]) -> None:
    assert _add(_fed(140, _about_one(0.001)), *values) == begins


def test_young_curves_need_two_values_that_are_far_away() -> None:
    assert _add(_fed(60, _about_one(0.001)), 1.06, 1.06) == []
    assert _add(_fed(60, _about_one(0.001)), 1.2, 1.2) == [1001]


def test_an_excursion_has_its_first_step_and_its_furthest_value() -> None:
    curve = _fed(140, _about_one(0.01))
    assert _add(curve, 1.1, 1.0, 1.2) == [1002]
    found = curve.excursion
    assert found is not None
    assert (found.step, found.last_step, found.points, found.is_open) == (1000, 1002, 2, True)
    assert found.value == pytest.approx(1.2)
    assert found.spread == pytest.approx(CONSISTENT * 0.01)
    assert (found.usual_low, found.usual_high) == (
        pytest.approx(math.exp(-0.044478), rel=1e-3),
        pytest.approx(math.exp(0.044478), rel=1e-3),
    )


@pytest.mark.parametrize(("probability", "limit"), [(1e-5, 15.61), (1e-7, 22.25)])
def test_noise_with_an_exponential_tail_exceeds_a_limit_once_in_so_many_values(
    probability: float, limit: float
) -> None:
    """Half of the values above the median are above 0.01, a tenth of them are at log(10) / log(2) times that.

    The tail is exponential: log(2 p) / log(0.5) times 0.01 is exceeded with the probability p.
    """
    assert math.log(2 * probability) / math.log(0.5) == pytest.approx(limit, abs=0.01)
    far = 0.01 * math.log(10) / math.log(2)
    # A tenth of all values is high: twice the share of 0.05, which is a tenth of the upper half.
    noise = [-0.01, 0.01, -0.01, 0.01, -0.01, 0.01, -0.01, 0.01, -0.01, far]
    limits = CurveLimits(
        pair=RiseLimits(sigmas=5.0, factor=1.01, times=2.0, probability=probability),
        single=RiseLimits(sigmas=7.0, factor=9.0, times=2.5),
        is_linear=False,
    )
    for part, begins in ((0.97, []), (1.03, [1001])):
        curve = _fed(320, lambda step: math.exp(noise[step % 10]), limits)
        high = math.exp(part * limit * 0.01)
        assert _add(curve, high, high) == begins, part


@pytest.mark.parametrize(
    ("is_lr_known", "rise", "begins"), [(True, 1.4, True), (False, 1.4, False), (False, 2.4, True)]
)
def test_a_slow_rise_may_follow_an_unknown_learning_rate(is_lr_known: bool, rise: float, begins: bool) -> None:
    """It takes 60 steps; from half as much again on it is one however slowly it rises."""
    curve = _fed(300, _about_one(0.01))
    values = [math.exp(math.log(rise) * place / 60 + (0.01 if place % 2 else -0.01)) for place in range(70)]
    assert bool(_add(curve, *values, is_lr_known=is_lr_known)) is begins


# ---- the end of an excursion ----


def test_an_excursion_ends_with_the_fifth_value_after_it_if_most_are_back() -> None:
    curve = _fed(140, _about_one(0.01))
    assert _add(curve, 1.5) == [1000]
    found = curve.excursion
    assert found is not None
    assert _add(curve, 1.4, 1.6, 1.0, 1.0, first=1001) == []
    assert found.is_open
    assert _add(curve, 1.0, first=1005) == []
    assert not found.is_open
    assert (found.points, found.value, found.last_step) == (6, pytest.approx(1.6), 1004)


def test_an_excursion_whose_values_stay_high_ends_after_500() -> None:
    curve = _fed(140, _about_one(0.01))
    assert _add(curve, *[1.5] * 499) == [1000]
    found = curve.excursion
    assert found is not None
    assert (found.points, found.is_open, found.last_step) == (499, True, 1498)
    assert _add(curve, 1.5, first=1499) == []
    assert (found.points, found.is_open) == (500, False)
    assert curve.usual() is None


@pytest.mark.parametrize(("value", "begins"), [(1.49, []), (1.52, [2000])])
def test_the_next_value_alone_must_be_as_high(value: float, begins: list[int]) -> None:
    curve = _fed(140, _about_one(0.01))
    assert _add(curve, 1.5, *[_about_one(0.01)(step) for step in range(60)]) == [1000]
    assert _add(curve, value, first=2000) == begins


def test_while_an_excursion_is_open_no_other_begins() -> None:
    curve = _fed(140, _about_one(0.01))
    assert _add(curve, 1.5, 3.0, 5.0) == [1000]


# ---- a new beginning ----


@pytest.mark.parametrize(("judge_from", "begins"), [(1000, [1000]), (1001, [1001]), (1002, [])])
def test_values_before_a_step_are_not_judged(judge_from: int, begins: list[int]) -> None:
    curve = MetricCurve(PLAIN)
    curve.restart(judge_from)
    for step in range(140):
        curve.add(step, _about_one(0.01)(step), is_lr_known=True)
    assert _add(curve, 1.2, 1.2) == begins


def test_a_restart_drops_the_range_and_closes_the_excursion() -> None:
    curve = _fed(140, _about_one(0.01))
    _add(curve, 1.5)
    found = curve.excursion
    assert found is not None
    curve.restart(2000)
    assert not found.is_open
    assert curve.usual() is None
    assert _add(curve, *[1.0] * 32, 9.0, 9.0) == []


# ---- values that are not positive, and rises ----


@pytest.mark.parametrize(
    ("values", "begins"),
    [((-0.945, -0.945), [1001]), ((-0.955, -0.955), []), ((-0.895,), [1000]), ((-0.905,), [])],
    ids=str,
)
def test_of_values_below_zero_a_factor_is_a_share_of_their_size(
    values: tuple[float, ...], begins: list[int]
) -> None:
    """5 % and 10 % of 1, above -1."""
    curve = _fed(140, lambda step: -1.0 + 0.001 * (-1) ** step)
    assert _add(curve, *values) == begins


@pytest.mark.parametrize(("value", "begins"), [(0.26, [1001]), (0.24, [])])
def test_of_values_around_zero_a_factor_is_of_five_spreads(value: float, begins: list[int]) -> None:
    """Five spreads are 5 x 1.4826 x 0.01, and a factor of 4.4 is a rise by 3.4 times that."""
    limits = CurveLimits(
        pair=RiseLimits(sigmas=5.0, factor=4.4, times=2.0),
        single=RiseLimits(sigmas=7.0, factor=99.0, times=2.0),
        is_linear=False,
    )
    limit = 3.4 * 5 * CONSISTENT * 0.01
    assert limit == pytest.approx(0.252, abs=1e-3)
    curve = _fed(140, lambda step: 0.01 * (-1) ** step, limits)
    assert _add(curve, value, value) == begins


@pytest.mark.parametrize(("times", "begins"), [(1.9, []), (2.1, [1000])])
def test_a_rise_below_half_a_percent_of_the_beginning_is_none(times: float, begins: list[int]) -> None:
    """The value fell from 1 to 0.005; one that is 1.9 times that rose by 0.0045 of the beginning."""
    curve = _fed(1000, lambda step: max(math.exp(-0.02 * (step - 16)), 0.005))
    assert _add(curve, times * 0.005, times * 0.005) == begins


def test_values_that_are_mostly_equal_have_no_tail() -> None:
    limits = CurveLimits(
        pair=RiseLimits(sigmas=5.0, factor=1.05, times=2.0, probability=1e-5),
        single=RiseLimits(sigmas=7.0, factor=1.1, times=2.5, probability=1e-7),
        is_linear=True,
    )
    assert _add(_fed(140, lambda _step: 2.0, limits), 2.15, 2.15) == [1001]


@pytest.mark.parametrize(("rises", "begins"), [(0.59, False), (0.61, True)])
def test_a_value_above_a_trend_that_has_ended_must_have_risen_itself(rises: float, begins: bool) -> None:
    """The trend falls by 0.3 % a step; a rise counts from 0.6 of the distance to the trend on."""
    low = RiseLimits(sigmas=5.0, factor=1.01, times=2.0)
    curve = _fed(400, lambda step: math.exp(-0.003 * step), CurveLimits(pair=low, single=low, is_linear=True))
    trend, median = -0.003 * 400, -0.003 * (392 + 399) / 2
    # The value rises by that part of the distance: trend + distance - median = rises * distance.
    distance = (median - trend) / (1.0 - rises)
    assert bool(curve.add(400, math.exp(trend + distance), is_lr_known=True)) is begins


def test_a_huge_value_is_an_excursion_and_no_error() -> None:
    curve = _fed(140, _about_one(0.01))
    assert _add(curve, 1e308) == [1000]
    assert curve.excursion is not None
    assert curve.excursion.value == 1e308
