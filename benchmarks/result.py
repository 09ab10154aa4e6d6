"""What a benchmark says."""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

RESAMPLES = 1000


@dataclass(frozen=True)
class Result:
    """One figure.

    `value` is held against `limit` (at most) when there is one; a ratio has the unit "x". `interval` holds the
    true value with 95 %. `note` says what it was measured against and how.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""
    interval: tuple[float, float] | None = None

    @property
    def is_within_limit(self) -> bool:
        """Whether the figure keeps its promise."""
        return self.limit is None or self.value <= self.limit


class Spread(NamedTuple):
    """A mean and its 95 % interval."""

    value: float
    interval: tuple[float, float]


def spread(values: Sequence[float]) -> Spread:
    """Return the mean of values without the outermost tenth, and its interval by resampling."""
    chance = random.Random(0)
    means = sorted(_mean(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return Spread(_mean(values), (means[RESAMPLES // 40], means[-1 - RESAMPLES // 40]))


def _mean(values: Sequence[float]) -> float:
    left_out = len(values) // 20
    return statistics.mean(sorted(values)[left_out : len(values) - left_out])


def part() -> float:
    """Return the share of its usual seconds for which a benchmark watches: LLMTOP_BENCH_PART (1)."""
    return float(os.environ.get("LLMTOP_BENCH_PART", "1"))


class SkipBenchmark(Exception):
    """What this measures against is not here; the text says what to install."""
