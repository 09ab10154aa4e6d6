"""Limits of `--fail-over`: how much worse one figure may be, in percent or in its own unit."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from llmtop.bench.model.comparison import BenchComparison, LimitDecision
from llmtop.bench.model.results import BenchMetric
from llmtop.bench.statistics.decide import Decision
from llmtop.bench.statistics.step_statistics import metric_named
from llmtop.errors import UnusableInput

_VALUE = re.compile(r"\s*([0-9.]+(?:e-?[0-9]+)?)\s*([a-zA-Zµ%]*)\s*")
_UNITS: dict[str, dict[str, float]] = {
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6},
    "B": {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
    "W": {"W": 1.0},
    "J": {"J": 1.0, "mJ": 1e-3},
}
"""Units in which the limit of a figure may be written, by the figure's own unit."""
_SHORTEST_TURN, _LONGEST_TURN = 0.01, 3600.0
"""Seconds. A shorter turn is of the order of a slice of the kernel's scheduler (3 to 4 ms)."""
_ORDER = (
    Decision.REGRESSION.value,
    Decision.UNDECIDABLE.value,
    "none",
    Decision.OK.value,
    Decision.IMPROVEMENT.value,
)
"""Order of decisions: the first of several holds."""


class FigureLimit(NamedTuple):
    """How much worse a candidate may be."""

    text: str
    """Limit as the user wrote it."""
    metric: BenchMetric | None
    """The figure; None: the one that is compared."""
    percent: float | None
    amount: float | None = None
    """Limit in the unit of the figure, where it is not in percent."""

    def percent_of(self, baseline: float | None) -> float | None:
        """Return the limit in percent of the baseline's figure; None where that is unknown."""
        if self.amount is None:
            return self.percent
        return 100.0 * self.amount / baseline if baseline else None


def parse_limit(text: str) -> FigureLimit:
    """Read one value of `--fail-over`: 5, 5%, tokens/s=3 or p95=2ms.

    Raises:
        UnusableInput: no such figure, no number of 0 or more, or a unit that the figure does not have.
    """
    name, equals, value = text.rpartition("=")
    metric = metric_named(name.strip(), "--fail-over") if equals else None
    found = _VALUE.fullmatch(value)
    number = _number(found[1]) if found else math.nan
    if found is None or not math.isfinite(number):
        raise UnusableInput(
            f"--fail-over {text}: {value!r} is not a limit. Pass percent, 0 or more (5 or tokens/s=3), or a "
            "value in the unit of the metric (p95=2ms)."
        )
    unit = found[2]
    if unit in ("", "%"):
        return FigureLimit(text, metric, number)
    units = _UNITS.get(metric.unit, {}) if metric is not None else {}
    if unit not in units:
        allowed = ", ".join(["%", *units])
        what = metric.title if metric is not None else "a limit without the name of a metric"
        raise UnusableInput(f"--fail-over {text}: {unit} is not a unit of {what}; use {allowed}")
    return FigureLimit(text, metric, None, number * units[unit])


def parse_turns(text: str) -> float:
    """Read the value of `--turns`: auto, 100ms, 0.5s or 2.

    Returns:
        Seconds; 0 for auto.

    Raises:
        UnusableInput: no time from 10 ms to an hour.
    """
    if text.strip() == "auto":
        return 0.0
    found = _VALUE.fullmatch(text)
    seconds = _number(found[1]) * _UNITS["s"].get(found[2] or "s", math.nan) if found else math.nan
    if not _SHORTEST_TURN <= seconds <= _LONGEST_TURN:
        raise UnusableInput(f"--turns {text}: pass auto, or a time from 10 ms to 1 h, as in 100ms or 2s")
    return seconds


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_limits(limits: Sequence[FigureLimit]) -> None:
    """Refuse two limits for one figure.

    Raises:
        UnusableInput: there are two.
    """
    names = [limit.metric.name if limit.metric else "" for limit in limits]
    for limit, name in zip(limits, names, strict=True):
        if names.count(name) > 1:
            of_what = limit.metric.title if limit.metric else "the figure that is compared"
            raise UnusableInput(f"--fail-over gives two limits for {of_what}: give one")


def merge_limits(compared: Sequence[BenchComparison], limits: Sequence[FigureLimit]) -> BenchComparison:
    """Return the first comparison with the decision of all limits: the worst one.

    Args:
        compared: one comparison per limit, not empty.
        limits: in the same order.
    """
    if len(compared) == 1:
        return compared[0]
    worst = min(compared, key=lambda one: _ORDER.index(one.decision))
    decisions = [
        LimitDecision(
            limit=limit.text,
            metric=one.metric,
            limit_pct=one.limit_pct,
            decision=one.decision,
            reason=one.reason,
            advice=one.advice,
        )
        for one, limit in zip(compared, limits, strict=True)
    ]
    return replace(
        compared[0], decision=worst.decision, reason=worst.reason, advice=worst.advice, limits=decisions
    )
