"""The values of one parameter in the order of their results, and which of them differ by no more than noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean, median

import numpy as np

from llmtop.bench.comparing import metric_change, metric_value
from llmtop.bench.model.comparison import RankedValue, Ranking
from llmtop.bench.model.results import BenchMetric, BenchRun
from llmtop.bench.statistics.intervals import CONFIDENCE
from llmtop.bench.statistics.step_statistics import worse_percent
from llmtop.format import plain


def rank_values(runs: Mapping[str, Sequence[BenchRun]], metric: BenchMetric) -> Ranking:
    """Order values of a knob whose runs were interleaved.

    Every two values are compared as pairs of runs. The more values there are, the more pairs could differ by
    chance, so each pair is held to a confidence that leaves 1 - `CONFIDENCE` for all of them together
    (Bonferroni).

    Args:
        runs: of each value, those that count, two or more, in the order of rounds.
        metric: what they are ordered by; all runs have it.
    """
    score = {
        label: fmean(np.log([metric_value(run, metric) or np.nan for run in found]))
        for label, found in runs.items()
    }
    order = sorted(runs, key=lambda label: score[label], reverse=metric.more_is_better)
    pairs = list(combinations(order, 2))
    confidence = 1.0 - (1.0 - CONFIDENCE) / max(1, len(pairs))
    changes = {
        pair: metric_change(runs[pair[0]], runs[pair[1]], metric, paired=True, confidence=confidence)
        for pair in pairs
    }
    apart = {pair for pair, change in changes.items() if change and (change.low > 0.0 or change.high < 0.0)}
    best = order[0]
    values = []
    for label in order:
        change = changes.get((best, label))
        low, high = (
            sorted((worse_percent(metric, change.low), worse_percent(metric, change.high)))
            if change
            else (0.0, 0.0)
        )
        values.append(
            RankedValue(
                label=label,
                median=median(value for run in runs[label] if (value := metric_value(run, metric))),
                mean=float(np.exp(score[label])),
                runs=len(runs[label]),
                behind_pct=worse_percent(metric, change.log_ratio) if change else 0.0,
                behind_low_pct=low,
                behind_high_pct=high,
                as_good_as_best=label == best or (best, label) not in apart,
            )
        )
    return Ranking(
        metric=metric.name,
        title=metric.title,
        unit=metric.unit,
        values=values,
        differs=bool(apart),
        summary=_summary(values, apart),
    )


def _summary(values: Sequence[RankedValue], apart: set[tuple[str, str]]) -> str:
    """Conclusion in one sentence."""
    best, *others = values
    if not apart:
        return (
            f"no difference beyond noise: none of {', '.join(one.label for one in values)} is shown to be better"
        )
    level = [one for one in others if one.as_good_as_best]
    behind = [one for one in others if not one.as_good_as_best]
    if not behind:
        worse = "; ".join(f"{after} is worse than {before}" for before, after in sorted(apart))
        return f"no value is shown to be the best: {worse}"
    behind_text = ", ".join(f"{one.label} ({plain(one.behind_pct, 2)} % worse)" for one in behind)
    if not level:
        return f"{best.label} is best: better than {behind_text}"
    names = ", ".join(one.label for one in (best, *level))
    return f"{names} do equally well within noise, and better than {behind_text}"
