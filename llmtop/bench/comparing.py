"""The runs of a candidate beside those of its baseline: every figure, and the decision by one of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean, median

import numpy as np

from llmtop.bench.model.comparison import BenchComparison, FactDifference, FigureChange
from llmtop.bench.model.results import METRICS, BenchMetric, BenchRun, is_bound
from llmtop.bench.statistics.decide import MOST_RUNS, Decision, change_text, decide, required_runs
from llmtop.bench.statistics.intervals import ChangeInterval, RunSample, change_interval
from llmtop.bench.statistics.step_statistics import step_statistic, worse_percent
from llmtop.errors import UnusableInput
from llmtop.format import counted

_DEFAULT_METRICS = ("tokens_per_s", "samples_per_s", "steps_per_s")
"""Metrics compared unless --metric names another: the first that both sides have."""
_ROUGH_RUNS = 5
"""Runs below which a standard deviation is known to no better than a factor of about two (chi-squared, 4 degrees
of freedom: 0.6 to 2.9)."""
_TURNS_ADVICE = (
    "add --turns auto: both commands then run at the same time in short turns, so that noise touches both (they "
    "must fit in memory together)"
)
MIN_RUNS = 2
"""Runs on each side, without which nothing is known of their noise."""


def metric_value(run: BenchRun, metric: BenchMetric) -> float | None:
    """Return a figure of a run as far as it can be compared by ratio; None where it is absent, 0 or a bound."""
    if is_bound(run.figures, metric):
        return None
    value = getattr(run.figures, metric.name)
    return float(value) if value is not None and value > 0 else None


def choose_metric(wanted: BenchMetric | None, *sides: Sequence[BenchRun]) -> BenchMetric:
    """Return the metric to compare: the requested one, or the first default that all runs have.

    Raises:
        UnusableInput: a run lacks it.
    """
    by_name = {metric.name: metric for metric in METRICS}
    if wanted is None:
        has = [
            all(metric_value(run, by_name[name]) for runs in sides for run in runs) for name in _DEFAULT_METRICS
        ]
        return by_name[_DEFAULT_METRICS[has.index(True) if True in has else -1]]
    if not all(metric_value(run, wanted) for runs in sides for run in runs):
        present = [one for one in METRICS if all(metric_value(run, one) for runs in sides for run in runs)]
        names = ", ".join(one.short or one.name for one in present) or "nothing"
        raise UnusableInput(
            f"--metric {wanted.short or wanted.name}: not every run has this metric; metrics of all runs: {names}"
        )
    return wanted


def metric_change(
    baseline: Sequence[BenchRun],
    candidate: Sequence[BenchRun],
    metric: BenchMetric,
    *,
    paired: bool,
    confidence: float | None = None,
) -> ChangeInterval | None:
    """Return the change of one figure with its interval; None where a run lacks it, or there are too few.

    Args:
        baseline: its runs that count.
        candidate: its runs that count.
        metric: the figure.
        paired: whether runs of the same place in both were made side by side.
        confidence: of the interval; None: the usual one.
    """
    before, after = _samples(baseline, metric), _samples(candidate, metric)
    if before is None or after is None or min(len(before), len(after)) < MIN_RUNS:
        return None
    side_by_side = paired and len(before) == len(after)
    more = {} if confidence is None else {"confidence": confidence}
    return change_interval(before, after, step_statistic(metric), paired=side_by_side, **more)


def _samples(runs: Sequence[BenchRun], metric: BenchMetric) -> list[RunSample] | None:
    found = []
    for run in runs:
        value = metric_value(run, metric)
        if value is None:
            return None
        steps = np.array(run.window.step_seconds if run.window else [], dtype=float)
        usable = len(steps) > 1 and bool(np.all(steps > 0.0))
        if not (usable and step_statistic(metric)):
            found.append(RunSample(value))
            continue
        rounds = run.window.step_rounds if run.window else None
        found.append(RunSample(value, steps, None if rounds is None else np.array(rounds)))
    return found


def compare_runs(
    baseline: Sequence[BenchRun],
    candidate: Sequence[BenchRun],
    *,
    against: str,
    metric: BenchMetric,
    limit: float | None,
    paired: bool = False,
    differs: Sequence[FactDifference] = (),
) -> BenchComparison:
    """Compare and, if there is a limit, decide.

    Args:
        baseline: its runs that count.
        candidate: its runs that count.
        against: what the baseline is, for the person who reads.
        metric: what is decided by.
        limit: percent that the candidate may be worse; None: nothing is decided.
        paired: whether runs of the same place in both were made side by side.
        differs: in what their environments differ.
    """
    found = metric_change(baseline, candidate, metric, paired=paired)
    decision, reason, advice = _decision(found, metric, limit, (len(baseline), len(candidate)))
    blocks = found.blocks if found is not None and step_statistic(metric) else None
    return BenchComparison(
        against=against,
        metric=metric.name,
        limit_pct=limit,
        decision=decision,
        reason=reason,
        advice=advice,
        changes=_changes(baseline, candidate, metric, found, paired=paired) if found else [],
        baseline_runs=len(baseline),
        candidate_runs=len(candidate),
        paired=found is not None and found.paired,
        in_turns=found is not None and found.in_turns,
        block_steps=blocks.steps if blocks else None,
        block_reason=blocks.reason if blocks else "",
        differs=list(differs),
    )


def _decision(
    found: ChangeInterval | None, metric: BenchMetric, limit: float | None, runs: tuple[int, int]
) -> tuple[str, str, str]:
    """Return the decision, why, and what would decide it; `runs` of the baseline and of the candidate."""
    if found is None:
        reason = (
            f"{counted(runs[0], 'run')} of the baseline and {counted(runs[1], 'run')} of the candidate count; "
            f"with fewer than {MIN_RUNS} on a side nothing is known of their noise"
        )
        return "none" if limit is None else Decision.UNDECIDABLE.value, reason, "give --runs 5, to both"
    if limit is None:
        low, high = sorted((worse_percent(metric, found.low), worse_percent(metric, found.high)))
        more = "more than the noise" if low > 0.0 or high < 0.0 else "no difference beyond noise"
        between = f"between {change_text(low)} and {change_text(high)}"
        return (
            "none",
            f"{metric.title} is {change_text(worse_percent(metric, found.log_ratio))}, {between}: {more}",
            "",
        )
    verdict = decide(found, metric, limit)
    if verdict.decision is not Decision.UNDECIDABLE:
        return verdict.decision.value, verdict.reason, ""
    return verdict.decision.value, verdict.reason, _advice(found, metric, limit, min(runs))


def _advice(found: ChangeInterval, metric: BenchMetric, limit: float, runs: int) -> str:
    """Return what is likely to decide it, with what that estimate assumes."""
    needed = required_runs(found, metric, limit, runs)
    # Pairs of whole runs: noise of a second's length is in one side alone.
    can_take_turns = found.paired and not found.in_turns and step_statistic(metric) is not None
    first = f"{_TURNS_ADVICE}. Without --turns: " if can_take_turns else ""
    rough = f" (a rough estimate: the noise is known of {runs} runs only)" if runs < _ROUGH_RUNS else ""
    if needed is None:
        return (
            f"{first}at this noise no number of runs up to {MOST_RUNS} is likely to decide{rough}; reduce other "
            "load on the machine, or use a longer window (--steps)"
        )
    sides = "" if found.paired else " on both sides"
    return (
        f"{first}at this noise, and if the change stays the same, about --runs {needed}{sides} would decide{rough}"
    )


def _changes(
    baseline: Sequence[BenchRun],
    candidate: Sequence[BenchRun],
    first: BenchMetric,
    found: ChangeInterval,
    *,
    paired: bool,
) -> list[FigureChange]:
    changes = [_change(baseline, candidate, first, found)]
    for metric in METRICS:
        if metric is not first:
            other = metric_change(baseline, candidate, metric, paired=paired)
            changes += [_change(baseline, candidate, metric, other)] if other else []
    return changes


def _change(
    baseline: Sequence[BenchRun], candidate: Sequence[BenchRun], metric: BenchMetric, found: ChangeInterval
) -> FigureChange:
    low, high = sorted((worse_percent(metric, found.low), worse_percent(metric, found.high)))
    before = [value for run in baseline if (value := metric_value(run, metric))]
    after = [value for run in candidate if (value := metric_value(run, metric))]
    return FigureChange(
        name=metric.name,
        title=metric.title,
        unit=metric.unit,
        baseline=median(before),
        candidate=median(after),
        compared_baseline=geometric_mean(before),  # the change is a difference of means of logarithms
        compared_candidate=geometric_mean(after),
        worse_pct=worse_percent(metric, found.log_ratio),
        worse_low_pct=low,
        worse_high_pct=high,
    )
