"""Runs in turns: what both sides of a round share drops out, and what one side alone has does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llmtop.bench.statistics.intervals import RunSample, TurnPair, change_interval
from llmtop.bench.statistics.step_statistics import metric_named, step_statistic

MEAN = step_statistic(metric_named("mean"))
ROUNDS, STEPS = 20, 15


def _pairs(
    slower: float, count: int, seed: int, *, own: float = 0.0, alike: float = 0.0, between: float = 0.0
) -> tuple[list[RunSample], list[RunSample]]:
    """Pairs of runs that share noise of 20 % per round; `own` is that of each side's rounds, first-order related
    by `alike`, and `between` that of the ratio of a pair."""
    random = np.random.default_rng(seed)
    sides: tuple[list[RunSample], list[RunSample]] = ([], [])
    for _ in range(count):
        shared = 0.2 * random.normal(size=ROUNDS)
        ratio = math.log1p(slower) + between * random.normal()
        for side, level in zip(sides, (0.0, ratio), strict=True):
            alone, last = np.zeros(ROUNDS), random.normal()
            for place in range(ROUNDS):
                last = alike * last + math.sqrt(1.0 - alike**2) * random.normal()
                alone[place] = own * last
            steps = 0.003 * np.exp(np.repeat(shared + alone + level, STEPS))
            side.append(RunSample(float(steps.mean()), steps, np.repeat(np.arange(ROUNDS), STEPS)))
    return sides


def test_noise_that_both_sides_of_a_round_share_drops_out() -> None:
    before, after = _pairs(0.05, 5, 1, own=0.005)
    in_turns = change_interval(before, after, MEAN, paired=True)
    whole = change_interval([run._replace(rounds=None) for run in before], after, MEAN, paired=True)
    assert in_turns.in_turns
    assert not whole.in_turns
    assert in_turns.low < math.log(1.05) < in_turns.high
    assert in_turns.noise < 0.01
    assert whole.noise > 2.0 * in_turns.noise


@pytest.mark.parametrize("alike", [0.0, 0.6])
def test_an_interval_of_turns_holds_what_was_planted_as_often_as_it_states(alike: float) -> None:
    """Of 100 intervals of 99 %, more than five miss in one of two thousand series (binomial)."""
    found = [
        change_interval(*_pairs(0.05, 5, seed, own=0.05, alike=alike, between=0.01), MEAN, paired=True)
        for seed in range(100)
    ]
    assert sum(one.low <= math.log(1.05) <= one.high for one in found) >= 95


def test_related_rounds_are_drawn_in_blocks() -> None:
    loose = change_interval(*_pairs(0.0, 10, 3, own=0.05), MEAN, paired=True)
    tied = change_interval(*_pairs(0.0, 10, 3, own=0.05, alike=0.8), MEAN, paired=True)
    assert loose.blocks.steps == 1
    assert tied.blocks.steps > 1
    assert tied.blocks.reason.startswith("rounds of turns up to ")


def test_differences_from_run_to_run_remain() -> None:
    found = change_interval(*_pairs(0.0, 40, 2, own=0.001, between=0.03), MEAN, paired=True)
    assert found.error == pytest.approx(0.03 / math.sqrt(40), rel=0.3)


def test_rounds_of_one_side_alone_are_left_out() -> None:
    before = RunSample(2.0, np.array([1.0, 2.0, 4.0]), np.array([0, 1, 3]))
    after = RunSample(3.0, np.array([3.0, 5.0, 8.0]), np.array([1, 2, 3]))
    pair = TurnPair.of_runs(before, after)
    assert pair.ratios.tolist() == [1.5, 2.0]
    with pytest.raises(ValueError, match="no round in common"):
        TurnPair.of_runs(before, RunSample(1.0, np.array([1.0]), np.array([7])))


@pytest.mark.parametrize("name", ["mean", "steps_per_s", "p50", "p95"])
def test_a_figure_of_counts_is_that_of_the_repeated_steps(name: str) -> None:
    random = np.random.default_rng(4)
    steps, counts = random.lognormal(size=50), random.integers(0, 5, size=(20, 50))
    figure = step_statistic(metric_named(name))
    assert figure is not None
    for row, value in zip(counts, figure.of_counts(steps, counts.astype(float)), strict=True):
        repeated = np.sort(np.repeat(steps, row))
        if figure.share is None:
            assert value == pytest.approx(float(figure(repeated)))
        else:
            assert value == np.quantile(repeated, figure.share, method="inverted_cdf")
