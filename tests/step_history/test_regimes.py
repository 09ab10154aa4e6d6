"""Jumps and drifts of steps: found where planted, and not where steps merely differ."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.bench_regimes import count_wrong
from llmtop.step_history.regimes import find_change, find_changes
from tests.support.bench_series import stationary, with_jump


def test_stationary_windows_are_not_reported_and_planted_jumps_are_found() -> None:
    windows, wrong = count_wrong(stationary, None, 1500, 11)
    assert wrong.total() <= 0.01 * windows.total()
    windows, missed = count_wrong(with_jump, "jump", 1500, 12)
    assert missed.total() <= 0.10 * windows.total()


def test_a_length_that_comes_and_goes_again_is_two_changes() -> None:
    steps = np.full(1000, 0.1)
    steps[400:600] *= 1.3
    steps *= 1 + 0.01 * np.random.default_rng(5).standard_normal(1000)
    assert [(change.kind, change.step) for change in find_changes(steps.tolist())] == [
        ("jump", 400),
        ("jump", 600),
    ]


def test_series_without_a_change_have_none() -> None:
    found = [find_changes((0.1 * np.exp(0.02 * _chance(seed, 2000))).tolist()) for seed in range(20)]
    assert sum(map(bool, found)) <= 3  # of 300 windows; docs of MOST_HALVINGS


def _chance(seed: int, number: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(number)


def test_figures_of_a_jump_agree_with_each_other() -> None:
    steps = np.full(100, 0.005)
    steps[40:] *= 1.1
    steps *= 1 + 0.01 * np.random.default_rng(3).standard_normal(100)
    change = find_change(steps.tolist())
    assert change is not None
    assert (change.kind, change.step) == ("jump", 40)
    assert change.after_seconds / change.before_seconds == pytest.approx(math.exp(change.log))
    assert change.log == pytest.approx(math.log(1.1), rel=0.05)
    assert change.before_seconds == pytest.approx(0.005, rel=0.01)


@pytest.mark.parametrize("factor", [1.1, 1 / 1.1])
def test_a_drift_is_no_jump(factor: float) -> None:
    noise = 1 + 0.005 * np.random.default_rng(4).standard_normal(200)
    change = find_change((np.geomspace(0.2, 0.2 * factor, 200) * noise).tolist())
    assert change is not None
    assert change.kind == "drift"
    assert change.log == pytest.approx(math.log(factor), rel=0.05)


@pytest.mark.parametrize("steps", [19, 20, 21])
def test_windows_of_under_twenty_steps_are_not_judged(steps: int) -> None:
    seconds = [0.1] * 10 + [0.2] * (steps - 10)
    assert (find_change(seconds) is None) is (steps < 20)


def test_small_changes_and_equal_steps_are_not_reported() -> None:
    assert find_change([0.1] * 100) is None
    assert find_change([0.1] * 50 + [0.104] * 50) is None
