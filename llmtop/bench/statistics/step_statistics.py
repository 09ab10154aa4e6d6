"""How the figures that runs are compared by come of the steps of a run, and which of two is the worse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from llmtop.bench.model.results import METRICS, BenchMetric
from llmtop.errors import UnusableInput

Steps = NDArray[np.float64]
StepStatistic = Callable[[Steps], Steps]
"""Function from seconds of steps, shape (..., steps), to a figure, shape (...), except for a factor of the run
itself."""


def metric_named(name: str, option: str = "--metric") -> BenchMetric:
    """Return the metric that an option names by its name, its short form or its title.

    Raises:
        UnusableInput: none is called that; the sentence lists all.
    """
    for metric in METRICS:
        if name and name in (metric.name, metric.short, metric.title):
            return metric
    names = ", ".join(metric.short or metric.name for metric in METRICS)
    raise UnusableInput(f"{option}: there is no metric {name!r}; there are: {names}")


def step_statistic(metric: BenchMetric) -> StepStatistic | None:
    """Return how a figure comes of the steps of a run; None where a run has it as a whole and no step does."""
    return _STEP_STATISTICS.get(metric.name)


def worse_percent(metric: BenchMetric, log_ratio: float) -> float:
    """Return the percent by which a candidate is worse, from the logarithm of candidate over baseline; negative:
    better.

    Of what shall be high it is what the time for the same work grew by, so that 5% mean the same of `steps_per_s`
    and of `mean`.
    """
    return 100.0 * float(np.expm1(-log_ratio if metric.more_is_better else log_ratio))


def _mean(steps: Steps) -> Steps:
    found: Steps = steps.mean(axis=-1)
    return found


def _rate(steps: Steps) -> Steps:
    return 1.0 / _mean(steps)


def _percentile(share: float) -> StepStatistic:
    def of_steps(steps: Steps) -> Steps:
        found: Steps = np.quantile(steps, share, axis=-1)
        return found

    return of_steps


_STEP_STATISTICS: dict[str, StepStatistic] = {
    "steps_per_s": _rate,
    "samples_per_s": _rate,
    "tokens_per_s": _rate,
    "step_seconds_mean": _mean,
    "step_seconds_p50": _percentile(0.50),
    "step_seconds_p95": _percentile(0.95),
    "step_seconds_p99": _percentile(0.99),
}
