"""How often `llmtop bench` reports a jump or a drift in stationary windows, and how often it finds a planted jump.

The windows are of `tests.support.bench_series`, which was written without knowledge of the test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from benchmarks.result import Result
from llmtop.step_history.regimes import find_change
from tests.support.bench_series import StepSeries, stationary, with_jump

WINDOWS = 10_000
SEED = 20261124
MOST_FALSE_PCT = 1.0
MOST_MISSED_PCT = 10.0
Maker = Callable[[np.random.Generator], StepSeries]


def run() -> Iterable[Result]:
    """Yield the shares over all windows with their limits, then those of each kind."""
    for name, maker, limit, wanted in (
        ("stationary, reported as changed", stationary, MOST_FALSE_PCT, None),
        ("jump of 10 %, not found", with_jump, MOST_MISSED_PCT, "jump"),
    ):
        windows, wrong = count_wrong(maker, wanted, WINDOWS, SEED)
        yield Result(name, 100 * wrong.total() / windows.total(), "%", limit, f"of {WINDOWS} windows")
        for kind in sorted(windows):
            yield Result(f"  {kind}", 100 * wrong[kind] / windows[kind], "%", note=f"of {windows[kind]}")


def count_wrong(maker: Maker, wanted: str | None, number: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    """Return how many windows of each kind there were, and of how many the test says something else.

    Args:
        maker: makes one window from a generator of random numbers.
        wanted: the kind of change that is right; None: no change.
        number: of windows.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    windows: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for _ in range(number):
        series = maker(rng)
        change = find_change(series.seconds.tolist())
        windows[series.kind] += 1
        wrong[series.kind] += (None if change is None else change.kind) != wanted
    return windows, wrong
