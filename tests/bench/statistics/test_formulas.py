"""Quantiles, figures and intervals against formulas that are written out."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtop.bench.model.results import METRICS, BenchMetric
from llmtop.bench.statistics.blocks import BlockLength, block_length, resample
from llmtop.bench.statistics.decide import Decision, change_text, decide, required_runs
from llmtop.bench.statistics.intervals import (
    CONFIDENCE,
    CONFIDENCE_TEXT,
    ChangeInterval,
    RunSample,
    TurnPair,
    change_interval,
)
from llmtop.bench.statistics.step_statistics import (
    StepStatistic,
    metric_named,
    step_statistic,
    worse_percent,
)
from llmtop.bench.statistics.student_t import t_quantile


@pytest.mark.parametrize("probability", [0.5, 0.6, 0.75, 0.9, 0.975, 0.995, 0.9995])
def test_quantiles_of_one_and_two_degrees_have_a_closed_form(probability: float) -> None:
    """One degree is the Cauchy distribution; two: 2 a sqrt(2 / (1 - a^2)) / 2 with a = 2 p - 1."""
    a = 2 * probability - 1
    assert t_quantile(probability, 1) == pytest.approx(math.tan(math.pi * a / 2), rel=1e-3, abs=1e-6)
    assert t_quantile(probability, 2) == pytest.approx(a * math.sqrt(2 / (1 - a * a)), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("probability", [0.6, 0.8, 0.975, 0.995])
def test_quantiles_of_many_degrees_are_those_of_the_normal_distribution(probability: float) -> None:
    normal = statistics.NormalDist().inv_cdf(probability)
    # Fisher's expansion: z + (z^3 + z) / (4 n).
    for degrees in (1000.0, 1e9):
        assert t_quantile(probability, degrees) == pytest.approx(normal + (normal**3 + normal) / 4000, rel=2e-4)
    hundred = normal + (normal**3 + normal) / 400 + (5 * normal**5 + 16 * normal**3 + 3 * normal) / 96 / 100**2
    assert t_quantile(probability, 100) == pytest.approx(hundred, rel=2e-4)


@pytest.mark.parametrize(("probability", "degrees"), [(0.499, 3.0), (1.0, 3.0), (0.9, 0.0), (0.9, -1.0)])
def test_there_is_no_such_quantile(probability: float, degrees: float) -> None:
    with pytest.raises(ValueError, match="no quantile of t at"):
        t_quantile(probability, degrees)


def test_half_a_degree_is_allowed() -> None:
    assert t_quantile(0.975, 0.5) > t_quantile(0.975, 1.0)
    assert t_quantile(0.5, 0.5) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("worse", "words"),
    [
        (0.0, "the same"),
        (0.005, "the same"),
        (0.0051, "0.0051 % worse"),
        (-0.0049, "the same"),
        (-0.0051, "0.0051 % better"),
        (9.94, "9.9 % worse"),
        (10.0, "10 % worse"),
        (-10.4, "10 % better"),
        (-99.6, "100 % better"),
    ],
)
def test_a_change_has_two_digits_below_ten_percent(worse: float, words: str) -> None:
    assert change_text(worse) == words


def _interval(change: float, low: float, high: float, error: float = 0.01, degrees: float = 1e9) -> ChangeInterval:
    return ChangeInterval(change, low, high, error, degrees, BlockLength(1, ""), False)


@pytest.mark.parametrize(
    ("worse", "low", "high", "limit", "decision"),
    [
        (50.0, 0.0, 100.0, 50.0, Decision.UNDECIDABLE),
        (100.0, 50.0, 150.0, 100.0, Decision.UNDECIDABLE),  # no more than the limit
        (100.0, 50.0, 150.0, 99.0, Decision.REGRESSION),
        (50.0, 25.0, 100.0, 101.0, Decision.OK),
        (-50.0, -75.0, 0.0, 0.0, Decision.OK),
        (-50.0, -75.0, -25.0, 0.0, Decision.IMPROVEMENT),
        (-50.0, -75.0, 25.0, 30.0, Decision.OK),
        (-50.0, -75.0, 25.0, 20.0, Decision.UNDECIDABLE),
    ],
)
def test_a_decision_at_its_bounds(worse: float, low: float, high: float, limit: float, decision: Decision) -> None:
    found = decide(
        _interval(*(math.log1p(percent / 100) for percent in (worse, low, high))), metric_named("mean"), limit
    )
    assert found.decision is decision
    assert (found.worse, found.worse_low, found.worse_high) == pytest.approx((worse, low, high))
    assert found.limit == limit


def test_the_noise_is_half_the_width() -> None:
    assert _interval(0.0, -0.25, 0.75).noise == 0.5
    assert CONFIDENCE_TEXT == "99 %"
    assert CONFIDENCE == 0.99


@pytest.mark.parametrize(
    ("change", "error", "runs"),
    [
        (0.0, 0.03, 18),  # 4 (3.4228 0.03 / 0.04879)^2 = 17.7
        (0.10, 0.05, 12),  # 4 (3.4228 0.05 / 0.1)^2 = 11.7: the bound is 0
        (-0.05, 0.06, 18),  # the distance to the limit is 0.09879: 4 (3.4228 0.06 / 0.09879)^2 = 17.3
        (0.0, 0.045, 40),  # 39.9
        (0.0, 0.0452, None),  # 40.2
        (0.0, 0.0, 5),
    ],
)
def test_runs_that_decide_are_those_whose_noise_fits_the_room(
    change: float, error: float, runs: int | None
) -> None:
    """A sample's size: n (z error / room)^2, with z = 2.5808 + 0.8420 of 1000 degrees at 99.5 and 80 %; the room
    is to the limit of 5 %, log 1.05 = 0.04879, or to 0 where the change is beyond it."""
    found = _interval(change, change - 1, change + 1, error)
    assert required_runs(found, metric_named("mean"), 5.0, 4) == runs
    rate = _interval(-change, -change - 1, -change + 1, error)
    assert required_runs(rate, metric_named("tokens_per_s"), 5.0, 4) == runs


def test_more_runs_have_more_degrees_of_freedom() -> None:
    """Two runs a side, 2 degrees: with n runs they are 2 (n - 1), and t falls with them. At n = 5, 8 degrees:
    (3.3554 + 0.8889) error sqrt(2 / 5); at n = 4, 6 degrees: (3.7074 + 0.9057) error sqrt(2 / 4)."""
    room = math.log1p(0.05)
    five, four = (3.3554 + 0.8889) * math.sqrt(2 / 5), (3.7074 + 0.9057) * math.sqrt(2 / 4)
    for error, runs in ((0.99 * room / five, 5), (0.99 * room / four, 4), (1.01 * room / five, 6)):
        assert required_runs(_interval(0.0, -1, 1, error, 2.0), metric_named("mean"), 5.0, 2) == runs


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("step_seconds_mean", 0.25),
        ("steps_per_s", 4.0),
        ("samples_per_s", 4.0),
        ("tokens_per_s", 4.0),
        ("step_seconds_p50", 0.25),
        ("step_seconds_p95", 0.385),
        ("step_seconds_p99", 0.397),
    ],
)
def test_figures_of_steps(name: str, figure: float) -> None:
    """Of 0.1, 0.2, 0.3 and 0.4 s; quantiles lie between two steps, (n - 1) q from the first."""
    found = step_statistic(metric_named(name))
    assert found is not None
    steps = np.array([[0.4, 0.1, 0.3, 0.2], [0.8, 0.2, 0.6, 0.4]])
    per = 0.5 if found.is_rate else 2.0
    assert found(steps) == pytest.approx([figure, per * figure])


def test_figures_that_no_step_has() -> None:
    without = {metric.name for metric in METRICS if step_statistic(metric) is None}
    assert without == {metric.name for metric in METRICS} - {
        *("steps_per_s", "samples_per_s", "tokens_per_s", "step_seconds_mean"),
        *("step_seconds_p50", "step_seconds_p95", "step_seconds_p99"),
    }


def test_figures_of_repeated_steps() -> None:
    steps = np.array([3.0, 1.0, 2.0])
    counts = np.array([[1.0, 1.0, 2.0], [0.0, 4.0, 0.0], [1.0, 2.0, 1.0]])
    assert StepStatistic().of_counts(steps, counts).tolist() == [2.0, 1.0, 1.75]
    assert StepStatistic(is_rate=True).of_counts(steps, counts).tolist() == [0.5, 1.0, 1 / 1.75]
    assert StepStatistic(0.5).of_counts(steps, counts).tolist() == [2.0, 1.0, 1.0]
    assert StepStatistic(0.76).of_counts(steps, counts).tolist() == [3.0, 1.0, 3.0]


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_is_known_by_each_of_its_names(metric: BenchMetric) -> None:
    for name in (metric.name, metric.short, metric.title):
        assert not name or metric_named(name) is metric


def test_worse_is_more_of_what_shall_be_low() -> None:
    assert worse_percent(metric_named("mean"), math.log(2)) == pytest.approx(100)
    assert worse_percent(metric_named("tokens_per_s"), math.log(2)) == pytest.approx(-50)


def _samples(*values: float) -> list[RunSample]:
    return [RunSample(value) for value in values]


BEFORE, AFTER = (1.0, 1.1, 0.9, 1.05), (1.2, 1.3, 1.25)


def test_an_interval_of_runs_is_that_of_welch() -> None:
    """Logarithms of three and four runs: their means, variances of means, and Welch's degrees by hand."""
    found = change_interval(_samples(*BEFORE), _samples(*AFTER), None)
    logs = [[math.log(value) for value in side] for side in (BEFORE, AFTER)]
    means = [statistics.fmean(side) for side in logs]
    parts = [statistics.variance(side) / len(side) for side in logs]
    assert found.log_ratio == pytest.approx(means[1] - means[0])
    assert found.error == pytest.approx(math.sqrt(sum(parts)), rel=0.05), "by 4000 draws"
    degrees = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    assert found.degrees == pytest.approx(degrees)
    half = found.error * t_quantile(0.995, degrees)
    assert (found.low, found.high) == pytest.approx((found.log_ratio - half, found.log_ratio + half))
    assert (found.paired, found.in_turns) == (False, False)


def test_an_interval_of_pairs_is_that_of_their_differences() -> None:
    after = (1.2, 1.3, 1.0, 1.3)
    found = change_interval(_samples(*BEFORE), _samples(*after), None, paired=True)
    differences = [math.log(other / one) for one, other in zip(BEFORE, after, strict=True)]
    assert found.log_ratio == pytest.approx(statistics.fmean(differences))
    assert found.error == pytest.approx(statistics.stdev(differences) / 2, rel=0.05)
    assert found.degrees == pytest.approx(3)
    assert (found.paired, found.in_turns) == (True, False)


def test_less_confidence_has_a_narrower_interval() -> None:
    wide = change_interval(_samples(*BEFORE), _samples(*AFTER), None)
    narrow = change_interval(_samples(*BEFORE), _samples(*AFTER), None, confidence=0.8)
    assert narrow.error == wide.error
    ratio = t_quantile(0.9, wide.degrees) / t_quantile(0.995, wide.degrees)
    assert narrow.noise / wide.noise == pytest.approx(ratio)


def test_runs_that_are_all_equal_have_no_noise() -> None:
    found = change_interval(_samples(1.0, 1.0, 1.0), _samples(2.0, 2.0), None)
    assert (found.log_ratio, found.error) == (pytest.approx(math.log(2)), 0.0)
    assert found.low == found.high == pytest.approx(math.log(2))
    assert found.degrees == pytest.approx(2 + 1)


@pytest.mark.parametrize(
    ("before", "after", "paired"),
    [((1.0,), (1.0, 2.0), False), ((1.0, 2.0), (1.0,), False), ((1.0, 2.0), (1.0, 2.0, 3.0), True)],
)
def test_an_interval_needs_two_runs_and_as_many_for_pairs(
    before: tuple[float, ...], after: tuple[float, ...], paired: bool
) -> None:
    with pytest.raises(ValueError, match="two runs on each side, and pairs as many on both"):
        change_interval(_samples(*before), _samples(*after), None, paired=paired)


def test_a_single_step_has_no_noise_of_its_own() -> None:
    """Nor has a figure that is of no steps."""
    figure = step_statistic(metric_named("mean"))
    steps = np.array([0.1, 0.3, 0.1, 0.3])
    one = [RunSample(value, np.array([value])) for value in BEFORE]
    plain = change_interval(_samples(*BEFORE), _samples(*AFTER), None)
    assert change_interval(one, _samples(*AFTER), figure)[:5] == plain[:5]
    whole = [RunSample(value, steps) for value in BEFORE]
    assert change_interval(whole, _samples(*AFTER), None)[:5] == plain[:5]


def test_two_runs_in_turns_have_the_mean_step_of_each_common_round() -> None:
    before = RunSample(1.0, np.array([1.0, 3.0, 9.0, 5.0]), np.array([0, 0, 1, 2]))
    after = RunSample(1.0, np.array([4.0, 6.0, 10.0]), np.array([0, 2, 2]))
    found = TurnPair.of_runs(before, after)
    assert found.before.means().tolist() == [2.0, 5.0]
    assert found.after.means().tolist() == [4.0, 8.0]
    assert found.ratios.tolist() == [2.0, 1.6]
    for lacking in (before._replace(rounds=None), before._replace(steps=None)):
        for pair in ((lacking, after), (after, lacking)):
            with pytest.raises(ValueError, match="needs steps with rounds"):
                TurnPair.of_runs(*pair)


def test_rounds_are_drawn_only_where_every_run_has_them() -> None:
    figure = step_statistic(metric_named("mean"))
    steps, rounds = np.array([1.0, 1.2, 1.1, 1.0]), np.array([0, 0, 1, 1])
    runs = [RunSample(float(steps.mean()) * part, steps * part, rounds) for part in (1.0, 1.01)]
    assert change_interval(runs, runs, figure, paired=True).in_turns
    assert not change_interval(runs, runs, figure).in_turns
    assert not change_interval(runs, runs, None, paired=True).in_turns
    some = [runs[0], runs[1]._replace(rounds=None)]
    assert not change_interval(some, runs, figure, paired=True).in_turns


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5))
def test_resampled_runs_consist_of_blocks_in_their_order(total: int, length: int, count: int) -> None:
    found = resample(np.arange(float(total)), length, count, np.random.default_rng(total))
    assert found.shape == (count, total)
    for row in found.tolist():
        for place in range(total - 1):
            if (place + 1) % length:
                assert row[place + 1] == (row[place] + 1) % total


@pytest.mark.parametrize(("steps", "reason"), [(3, "too few rounds to tell"), (4, "")])
def test_four_steps_are_enough_to_tell(steps: int, reason: str) -> None:
    found = block_length([np.exp(np.array([0.0, 1.0, 0.0, 1.0][:steps]))], "rounds")
    assert found.reason.startswith(reason or "neighbouring rounds are unrelated")
    assert found.steps >= 1


@pytest.mark.parametrize("length", [8, 9, 12, 40])
def test_a_block_is_at_most_half_of_the_shortest_run(length: int) -> None:
    """Runs that rise all the time are related at every lag."""
    rising = [np.exp(0.1 * np.arange(float(count))) for count in (length, 3 * length)]
    assert 1 <= block_length(rising).steps <= math.ceil(length / 2)
