"""How the figures that runs are compared by come of the steps of a run, and which of two is the worse."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmtop.bench.model.results import METRICS, BenchMetric
from llmtop.errors import UnusableInput

Steps = NDArray[np.float64]


class StepStatistic(NamedTuple):
    """How a figure comes of seconds of steps, except for a factor of the run itself."""

    share: float | None = None
    """Share of steps below a percentile; None for the mean."""
    is_rate: bool = False
    """True for one over the mean."""

    def __call__(self, steps: Steps) -> Steps:
        """Return the figure, shape (...), of steps, shape (..., steps)."""
        found: Steps = steps.mean(axis=-1) if self.share is None else np.quantile(steps, self.share, axis=-1)
        return 1.0 / found if self.is_rate else found

    def of_counts(self, steps: Steps, counts: Steps) -> Steps:
        """Return the figure where each step occurs several times.

        Args:
            steps: shape (steps,).
            counts: how often each of them occurs, shape (draws, steps).

        Returns:
            Shape (draws,).
        """
        total = counts.sum(axis=1)
        if self.share is None:
            found: Steps = counts @ steps / total
        else:
            order = np.argsort(steps)
            below = np.cumsum(counts[:, order], axis=1)
            found = steps[order][np.argmax(below >= self.share * total[:, None], axis=1)]
        return 1.0 / found if self.is_rate else found


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


_STEP_STATISTICS: dict[str, StepStatistic] = {
    "steps_per_s": StepStatistic(is_rate=True),
    "samples_per_s": StepStatistic(is_rate=True),
    "tokens_per_s": StepStatistic(is_rate=True),
    "step_seconds_mean": StepStatistic(),
    "step_seconds_p50": StepStatistic(0.50),
    "step_seconds_p95": StepStatistic(0.95),
    "step_seconds_p99": StepStatistic(0.99),
}
