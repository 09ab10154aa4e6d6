"""Percentiles, spread and median have one definition each."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from llmtop.order_statistics import percentile, spread_pct

PACKAGES = [Path(__file__).parents[1] / name for name in ("llmtop", "collectors", "tui")]


@pytest.mark.parametrize("count", range(1, 24))
def test_percentiles_are_those_of_numpy(count: int) -> None:
    values = np.sort(np.random.default_rng(count).uniform(0.05, 0.4, count))
    for pct in (25, 50, 75):
        assert percentile(values.tolist(), pct) == np.percentile(values, pct)
    assert percentile(values.tolist(), 95) == pytest.approx(np.percentile(values, 95), rel=1e-12)


def test_the_spread_is_the_interquartile_range_over_the_median() -> None:
    assert spread_pct([1, 1.02, 1.01, 1.3, 1.0]) == pytest.approx(1.98, abs=0.01)
    assert spread_pct([0.2]) == 0.0
    assert spread_pct([]) is None
    assert spread_pct([0.0, 0.0]) is None


def test_without_values_there_is_no_percentile() -> None:
    assert percentile([], 50) is None


def test_no_module_takes_the_upper_median_of_two() -> None:
    """The median of an even number of values is the mean of the two in the middle, in every figure."""
    middle = re.compile(r"\[len\((\w+)\) // 2\]|upper_median|\w\[number // 2\]")
    files = [file for folder in PACKAGES for file in folder.rglob("*.py")]
    assert not [file.name for file in files if middle.search(file.read_text())]


def test_no_module_defines_median_or_percentile_again() -> None:
    defines = re.compile(r"^ *def (median|median_of|percentile|spread_pct|_spread_pct|quantiles?)\(", re.MULTILINE)
    files = [file for folder in PACKAGES for file in folder.rglob("*.py")]
    assert {file.name for file in files if defines.search(file.read_text())} == {"order_statistics.py"}
