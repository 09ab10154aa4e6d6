"""True if a candidate is slower than its baseline by more than a limit, or noise hides that."""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

from llmtop.bench.model.results import BenchMetric
from llmtop.bench.statistics.intervals import CONFIDENCE, ChangeInterval
from llmtop.bench.statistics.step_statistics import worse_percent
from llmtop.bench.statistics.student_t import t_quantile
from llmtop.errors import EXIT_DONE, EXIT_ENVIRONMENT, EXIT_FINDING
from llmtop.format import plain

MOST_RUNS = 40
"""Most runs on each side that an advice names: more cost more time than a quieter machine or a longer window."""
_LIKELY = 0.8
"""Probability that a number of runs that is named decides, the usual power of a plan."""


class Decision(str, enum.Enum):
    """Decision of a comparison."""

    OK = "ok"
    IMPROVEMENT = "improvement"
    REGRESSION = "regression"
    UNDECIDABLE = "undecidable"

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        if self is Decision.REGRESSION:
            return EXIT_FINDING
        return EXIT_ENVIRONMENT if self is Decision.UNDECIDABLE else EXIT_DONE


class GateVerdict(NamedTuple):
    """A decision with its numbers, in percent that the candidate is worse (negative: better)."""

    decision: Decision
    worse: float
    worse_low: float
    worse_high: float
    limit: float
    reason: str


def decide(found: ChangeInterval, metric: BenchMetric, limit: float) -> GateVerdict:
    """Hold a change against a limit.

    A regression is larger than the limit and than the noise: the change itself lies beyond the limit, and its
    interval does not reach 0. All is well if the whole interval lies within the limit. Between the two,
    noise hides which it is.

    Args:
        found: the change.
        metric: what it is a change of.
        limit: percent that the candidate may be worse; 0 or more.
    """
    worse = worse_percent(metric, found.log_ratio)
    low, high = sorted((worse_percent(metric, found.low), worse_percent(metric, found.high)))
    interval = f"{metric.title} is {change_text(worse)}, between {change_text(low)} and {change_text(high)}"
    if worse > limit and low > 0.0:
        decision, why = Decision.REGRESSION, f"more than the limit of {plain(limit, 4)} % and than the noise"
    elif high <= limit and high < 0.0:
        decision, why = Decision.IMPROVEMENT, "more than the noise"
    elif high <= limit:
        decision, why = Decision.OK, f"within the limit of {plain(limit, 4)} %"
    else:
        decision, why = (
            Decision.UNDECIDABLE,
            f"so noise hides whether it is more than the limit of {plain(limit, 4)} %",
        )
    return GateVerdict(decision, worse, low, high, limit, f"{interval}: {why}")


def change_text(worse: float) -> str:
    """Return a change in words: "6.1% worse", "0.4% better", "the same"."""
    if math.isclose(worse, 0.0, abs_tol=0.005):
        return "the same"
    return (
        f"{plain(abs(worse), 2)} % {'worse' if worse > 0 else 'better'}"
        if abs(worse) < 10
        else (f"{abs(worse):.0f} % {'worse' if worse > 0 else 'better'}")
    )


def required_runs(found: ChangeInterval, metric: BenchMetric, limit: float, runs: int) -> int | None:
    """Return how many runs on each side decide with a probability of 80 %, if change and noise are as measured.

    The interval must end before the bound that leaves the decision open: the limit where the change is within it,
    else 0. As in any estimate of a sample's size, the distance to that bound must hold the half width of the
    interval and the 80 % quantile of the change's own error. Both shrink with the square root of the runs.

    Args:
        found: the change with its noise.
        metric: what it is a change of.
        limit: percent.
        runs: how many there were on each side, two or more.

    Returns:
        None: more than `MOST_RUNS`.
    """
    worse = -found.log_ratio if metric.more_is_better else found.log_ratio
    bound = math.log1p(limit / 100.0)
    room = worse if worse > bound else bound - worse
    for count in range(runs + 1, MOST_RUNS + 1):
        error = found.error * math.sqrt(runs / count)
        degrees = found.degrees * (count - 1) / (runs - 1)
        if (t_quantile(0.5 + CONFIDENCE / 2.0, degrees) + t_quantile(_LIKELY, degrees)) * error <= room:
            return count
    return None
