"""Blocks, quantiles and intervals against what is known of made-up noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llmtop.bench.statistics.blocks import block_length, resample
from llmtop.bench.statistics.intervals import RunSample, change_interval
from llmtop.bench.statistics.step_statistics import metric_named, step_statistic, worse_percent
from llmtop.bench.statistics.student_t import t_quantile
from llmtop.errors import UnusableInput

MEAN = step_statistic(metric_named("mean"))


@pytest.mark.parametrize(
    ("probability", "degrees", "value"),
    [(0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 4, 2.776), (0.95, 8, 1.860), (0.995, 30, 2.750)],
)
def test_quantiles_of_t_are_those_of_the_tables(probability: float, degrees: float, value: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(value, rel=1e-3)


def test_quantiles_of_t_lie_between_those_of_whole_degrees() -> None:
    assert t_quantile(0.975, 4) < t_quantile(0.975, 3.5) < t_quantile(0.975, 3)
    with pytest.raises(ValueError, match="degrees of freedom"):
        t_quantile(0.975, 0.0)


def _runs(
    level: float, count: int, steps: int, seed: int, *, between: float = 0.0, alike: float = 0.0
) -> list[RunSample]:
    """Runs whose logarithms of steps are a first-order autoregression of 3 % about a level of their own."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        noise = np.zeros(steps)
        last = random.normal()
        for place in range(steps):
            last = alike * last + math.sqrt(1.0 - alike**2) * random.normal()
            noise[place] = last
        times = level * np.exp(0.03 * noise + random.normal() * between)
        made.append(RunSample(float(times.mean()), times))
    return made


def test_blocks_are_single_steps_where_neighbours_are_unrelated_and_longer_where_they_are() -> None:
    loose = block_length([run.steps for run in _runs(0.1, 10, 40, 2) if run.steps is not None])
    tied = block_length([run.steps for run in _runs(0.1, 10, 40, 2, alike=0.8) if run.steps is not None])
    assert loose.steps == 1
    assert "unrelated" in loose.reason
    assert 5 <= tied.steps <= 20
    assert "+0.7" in tied.reason or "+0.8" in tied.reason


def test_blocks_are_as_long_as_the_paper_says_for_a_moving_average() -> None:
    """Steps x[t] = e[t] + e[t - lag]: autocovariance 2 at lag 0, 1 at `lag`, else 0. For lag 5, by hand after
    Politis and White: G = 2 * 5 * 1, D = 4 / 3 * (2 + 2) ** 2, length (2 G ** 2 / D * 2000) ** (1 / 3) = 26.6."""
    noise = 0.03 * np.random.default_rng(1).normal(size=2006)
    found = block_length([np.exp(noise[5:2005] + noise[:2000])])
    assert 24 <= found.steps <= 30
    assert found.reason.startswith("steps up to 5 apart are related")
    # Their K is 5 for samples of any size in use: relations beyond five unrelated lags are not looked for.
    assert block_length([np.exp(noise[6:2006] + noise[:2000])]).steps == 1


def _autoregression(count: int, seed: int, alike: float = 0.8) -> list[float]:
    x, series = 0.0, []
    for e in 0.01 * np.random.default_rng(seed).normal(size=count):
        x = alike * x + e
        series.append(x)
    return series


def _by_the_paper(x: list[float]) -> float:
    """Politis and White, section 3: the length by sums over lags -M to M, with their flat-top window."""
    count, mean = len(x), sum(x) / len(x)
    half = count // 2
    r = [sum((x[i] - mean) * (x[i + k] - mean) for i in range(count - k)) / count for k in range(half + 1)]
    chance = 2 * math.sqrt(math.log10(count) / count)
    m = next(m for m in range(half) if all(abs(r[m + k] / r[0]) < chance for k in range(1, 6) if m + k <= half))
    spectrum = slope = 0.0
    for k in range(-min(2 * m, half), min(2 * m, half) + 1):
        t = abs(k) / (2 * m)
        window = 1.0 if t <= 0.5 else 2 * (1 - t)
        spectrum += window * r[abs(k)]
        slope += window * abs(k) * r[abs(k)]
    return (1.5 * (slope / spectrum) ** 2 * count) ** (1 / 3)


@pytest.mark.parametrize("seed", range(6))
def test_blocks_are_as_long_as_the_paper_says_for_an_autoregression(seed: int) -> None:
    x = _autoregression(600, seed)
    found = block_length([np.exp(np.array(x))]).steps
    wanted = math.ceil(_by_the_paper(x))
    assert found == math.ceil(600 / (600 // wanted)), "as few blocks, and all as long"


def test_steps_that_are_related_at_every_lag_are_related_up_to_half_of_a_run() -> None:
    alternating = np.exp(0.1 * np.array([1.0, -1.0] * 4))
    assert block_length([alternating] * 10).reason.startswith("steps up to 4 apart are related")


def test_blocks_of_steps_that_never_vary_or_of_next_to_none_are_told() -> None:
    assert block_length([np.full(40, 0.1)]) == (1, "all steps are equally long")
    assert block_length([np.array([0.1, 0.2])]).steps == 1
    assert block_length([]).steps == 1


def test_a_resampled_run_keeps_neighbours_together_and_goes_round_the_end() -> None:
    made = resample(np.arange(10.0), 5, 200, np.random.default_rng(0))
    assert made.shape == (200, 10)
    whole = made.reshape(200, 2, 5)
    assert set(np.unique(np.diff(whole, axis=2))) == {1.0, -9.0}


def test_a_host_that_launches_ahead_and_waits_now_and_then_makes_no_noise() -> None:
    """As on a GPU: each 20th step waits until the GPU has caught up, and the two after it are launched at once."""
    random = np.random.default_rng(4)

    def made(level: float) -> list[RunSample]:
        turn = np.full(20, 0.060)
        turn[9:12] = 0.134, 0.023, 0.023
        runs = [np.tile(turn, 2) * level * (1.0 + 0.002 * random.normal()) for _ in range(5)]
        runs = [steps * (1.0 + 0.01 * random.normal(size=40)) for steps in runs]
        return [RunSample(float(steps.mean()), steps) for steps in runs]

    found = change_interval(made(1.0), made(1.0), MEAN)
    assert found.blocks.steps == 20
    assert found.noise < 0.02
    slower = change_interval(made(1.0), made(1.06), MEAN)
    assert slower.low > 0.03


@pytest.mark.slow("test_a_few_equal_benches_raise_no_alarm_and_a_planted_slowdown_is_found finds the same fault")
def test_an_interval_holds_what_was_planted_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(60):
        before = _runs(0.1, 5, 40, 2 * seed, between=0.01)
        after = _runs(0.106, 5, 40, 2 * seed + 1, between=0.01)
        found = change_interval(before, after, MEAN)
        held += found.low <= math.log(1.06) <= found.high
    assert held >= 52, held


def test_runs_that_lie_close_by_chance_still_have_the_noise_of_their_steps() -> None:
    random = np.random.default_rng(3)
    steps = 0.1 * np.exp(0.2 * random.normal(size=(6, 40)))
    steps = steps / steps.mean(axis=1, keepdims=True) * 0.1
    runs = [RunSample(0.1, one) for one in steps]
    found = change_interval(runs[:3], runs[3:], MEAN)
    assert found.error == pytest.approx(0.2 / math.sqrt(40) * math.sqrt(2 / 3), rel=0.3)


def test_drift_that_both_of_a_pair_share_drops_out() -> None:
    drift = [1.0, 1.1, 1.2, 1.3, 1.4]
    before = [RunSample(one) for one in drift]
    after = [RunSample(1.06 * one * (1 + 0.001 * (-1) ** place)) for place, one in enumerate(drift)]
    paired, loose = change_interval(before, after, None, paired=True), change_interval(before, after, None)
    assert paired.low > 0.05
    assert loose.low < 0.0 < loose.high
    assert paired.paired
    assert not loose.paired


def test_the_same_runs_are_always_decided_the_same_way() -> None:
    before, after = _runs(0.1, 5, 40, 1, between=0.01), _runs(0.1, 5, 40, 2, between=0.01)
    assert change_interval(before, after, MEAN) == change_interval(before, after, MEAN)


@pytest.mark.slow("test_a_few_equal_benches_raise_no_alarm_and_a_planted_slowdown_is_found finds the same fault")
def test_a_long_run_is_drawn_in_parts() -> None:
    runs = _runs(0.1, 2, 30_000, 5)
    assert change_interval(runs, runs, MEAN).noise < 0.01


def test_one_run_has_no_interval() -> None:
    with pytest.raises(ValueError, match="two runs"):
        change_interval([RunSample(1.0)], [RunSample(1.0), RunSample(1.0)], None)


def test_a_rate_and_the_mean_step_tell_the_same_percent() -> None:
    longer = math.log(1.06)
    assert worse_percent(metric_named("mean"), longer) == pytest.approx(6.0)
    assert worse_percent(metric_named("tokens_per_s"), -longer) == pytest.approx(6.0)
    assert worse_percent(metric_named("p95"), -longer) == pytest.approx(-5.66, abs=0.01)


def test_an_unknown_metric_is_answered_with_those_there_are() -> None:
    with pytest.raises(UnusableInput, match=r"'speed'; there are: .*tokens_per_s.*p95"):
        metric_named("speed")


def test_runs_closer_together_than_their_noise_have_the_degrees_of_that_noise() -> None:
    """400 steps of 3 % make noise of variance 0.03 ** 2 / 400 in a run's mean. Four runs whose logarithms vary by
    1.5 times less have 3 * 1.5 ** 2 degrees of freedom, two such groups (Welch, Satterthwaite) twice as many."""
    random = np.random.default_rng(7)
    apart = math.sqrt(0.03**2 / 400 / 1.5 * 3 / 4)
    runs = [
        RunSample(math.exp(sign * apart), np.exp(0.03 * random.normal(size=400))) for sign in (1, -1, 1, -1) * 2
    ]
    found = change_interval(runs[:4], runs[4:], MEAN)
    assert found.degrees == pytest.approx(13.5, rel=0.3)


def test_the_noise_of_related_steps_is_near_that_of_an_autoregression() -> None:
    """The variance of the mean of 40 steps of an AR(1) of 0.8 is known; blocks of such short runs find less."""
    runs = [RunSample(0.1, run.steps) for run in _runs(0.1, 20, 40, 0, alike=0.8)]
    found = change_interval(runs[:10], runs[10:], MEAN)
    mean_variance = 0.03**2 / 40 * (1.8 / 0.2 - 2 * 0.8 * (1 - 0.8**40) / (40 * 0.2**2))
    assert 0.6 < found.error / math.sqrt(mean_variance * 2 / 10) < 1.1
