"""What intervals decide, and how it is told."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llmtop.bench.statistics.blocks import BlockLength
from llmtop.bench.statistics.decide import Decision, change_text, decide, required_runs
from llmtop.bench.statistics.intervals import CONFIDENCE, ChangeInterval, RunSample, change_interval
from llmtop.bench.statistics.step_statistics import metric_named
from llmtop.bench.statistics.student_t import t_quantile
from tests.support.resampled_runs import LEFT_WHOLE, outcome, plain_bootstrap, pools


def _change(worse: float, half: float) -> ChangeInterval:
    """An interval in percent of longer steps."""
    middle = math.log1p(worse / 100.0)
    half = math.log1p(half / 100.0)
    return ChangeInterval(middle, middle - half, middle + half, half / 2.3, 8.0, BlockLength(1, ""), False)


@pytest.mark.parametrize(
    ("worse", "half", "decision", "code"),
    [
        (0.2, 1.0, Decision.OK, 0),
        (3.0, 1.5, Decision.OK, 0),
        (-4.0, 1.0, Decision.IMPROVEMENT, 0),
        (6.0, 1.0, Decision.REGRESSION, 1),
        (5.5, 2.0, Decision.REGRESSION, 1),
        (6.0, 7.0, Decision.UNDECIDABLE, 3),
        (0.0, 9.0, Decision.UNDECIDABLE, 3),
        (4.5, 1.0, Decision.UNDECIDABLE, 3),
    ],
)
def test_a_change_is_held_to_the_limit_and_to_the_noise(
    worse: float, half: float, decision: Decision, code: int
) -> None:
    found = decide(_change(worse, half), metric_named("mean"), 5.0)
    assert found.decision is decision
    assert found.decision.exit_code == code
    assert "5 %" in found.reason or decision is Decision.IMPROVEMENT


def test_an_interval_that_reaches_0_is_no_regression() -> None:
    """However much more than the limit the change itself is."""
    touching = ChangeInterval(math.log1p(0.2), 0.0, math.log1p(0.4), 0.05, 8.0, BlockLength(1, ""), False)
    assert decide(touching, metric_named("mean"), 5.0).decision is Decision.UNDECIDABLE


def test_an_interval_that_reaches_0_from_below_is_no_improvement() -> None:
    touching = ChangeInterval(math.log1p(-0.02), math.log1p(-0.04), 0.0, 0.01, 8.0, BlockLength(1, ""), False)
    assert decide(touching, metric_named("mean"), 5.0).decision is Decision.OK


def test_the_same_change_of_a_rate_is_decided_the_same_way() -> None:
    slower = _change(6.0, 1.0)
    rate = ChangeInterval(-slower.log_ratio, -slower.high, -slower.low, slower.error, 8.0, slower.blocks, False)
    longer, fewer = decide(slower, metric_named("mean"), 5.0), decide(rate, metric_named("tokens_per_s"), 5.0)
    assert (longer.decision, longer.worse) == (fewer.decision, pytest.approx(fewer.worse))
    assert (longer.worse_low, longer.worse_high) == pytest.approx((fewer.worse_low, fewer.worse_high))


@pytest.mark.parametrize(
    ("worse", "words"),
    [(6.12, "6.1 % worse"), (-0.44, "0.44 % better"), (0.001, "the same"), (148.2, "148 % worse")],
)
def test_a_change_is_told_in_words(worse: float, words: str) -> None:
    assert change_text(worse) == words


@pytest.mark.parametrize("runs", [2, 3, 10])
def test_more_runs_than_there_were_are_named_however_little_is_lacking(runs: int) -> None:
    """Of any that lack nothing, one more than there were."""
    clear = ChangeInterval(0.3, 0.299, 0.301, 1e-6, 2.0 * (runs - 1), BlockLength(1, ""), False)
    assert required_runs(clear, metric_named("mean"), 5.0, runs) == runs + 1


def test_of_a_noise_that_no_number_of_runs_overcomes_none_is_named() -> None:
    hidden = ChangeInterval(math.log1p(0.05), -9.0, 9.0, 9.0, 4.0, BlockLength(1, ""), False)
    assert required_runs(hidden, metric_named("mean"), 5.0, 3) is None


@pytest.mark.parametrize(("change", "limit", "runs"), [(0.0, 5.0, 3), (-0.06, 5.0, 3), (0.10, 5.0, 4)])
def test_the_number_of_runs_that_is_named_decides_four_of_five_benches(
    change: float, limit: float, runs: int
) -> None:
    """Simulated benches, whose change and noise are those that the measured one had."""
    noise, mean = 0.06, metric_named("mean")
    degrees, error = 2.0 * (runs - 1), noise * math.sqrt(2.0 / runs)
    half = error * t_quantile(0.5 + CONFIDENCE / 2.0, degrees)
    measured = ChangeInterval(change, change - half, change + half, error, degrees, BlockLength(1, ""), False)
    assert decide(measured, mean, limit).decision is Decision.UNDECIDABLE
    named = required_runs(measured, mean, limit, runs)
    assert named is not None
    random = np.random.default_rng(5)

    def share_decided(count: int) -> float:
        decided = 0
        for _ in range(150):
            sides = [[RunSample(math.exp(random.normal(at, noise))) for _ in range(count)] for at in (0.0, change)]
            found = decide(change_interval(*sides, None), mean, limit)
            decided += found.decision is not Decision.UNDECIDABLE
        return decided / 150

    assert 0.70 <= share_decided(named) <= 0.93
    assert share_decided(named // 2) < 0.70


def test_no_number_of_runs_is_named_where_forty_are_not_likely_to_do() -> None:
    assert required_runs(_change(0.0, 60.0), metric_named("mean"), 5.0, 5) is None
    assert required_runs(_change(0.0, 4.0), metric_named("mean"), 0.0, 5) is None


@pytest.mark.slow("test_a_few_equal_benches_raise_no_alarm_and_a_planted_slowdown_is_found finds the same fault")
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pool", ["h100", "typical", "waiting", "mixed", "compute"])
def test_equal_benches_raise_no_alarm_and_a_planted_slowdown_is_found(pool: str, interleaved: bool) -> None:
    """400 pairs drawn from runs of real trainings; `python -m benchmarks decisions` says more of it."""
    runs = pools()[pool]
    whole = pool == LEFT_WHOLE
    equal = outcome(runs, 400, interleaved=interleaved, whole=whole)
    planted = outcome(runs, 400, interleaved=interleaved, slower=0.06, whole=whole)
    assert equal.decisions["regression"] <= 8, "0.5 % are meant, 2 of 400; 8 in one of 2,000 series"
    assert min(equal.covered, planted.covered) >= 0.96
    if pool in ("h100", "typical"):
        assert planted.decisions["regression"] >= 380
        assert equal.decisions["ok"] >= 240, "noise of 1 % from run to run leaves a third open at a limit of 3 %"


def test_a_few_equal_benches_raise_no_alarm_and_a_planted_slowdown_is_found() -> None:
    runs = pools()["typical"]
    equal = outcome(runs, 20).decisions
    assert (equal["regression"], equal["ok"] >= 10) == (0, True)
    assert outcome(runs, 20, slower=0.06).decisions["regression"] >= 18


@pytest.mark.slow("test_a_few_equal_benches_raise_no_alarm_and_a_planted_slowdown_is_found finds the same fault")
def test_the_plain_bootstrap_is_too_narrow_for_five_runs() -> None:
    runs = pools()["mixed"]
    plain, corrected = outcome(runs, 100, compare=plain_bootstrap), outcome(runs, 100)
    assert plain.covered < 0.96 <= corrected.covered
