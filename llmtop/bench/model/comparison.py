"""Results of a comparison of two benches and of a ranking of several values, as in metrics.json."""

from __future__ import annotations

import msgspec


class FigureChange(msgspec.Struct, frozen=True, kw_only=True):
    """One figure on both sides. Percent are of how much worse the candidate is; negative: better."""

    name: str
    """Name as in `RunFigures`."""
    title: str
    unit: str
    baseline: float
    """Median over its runs."""
    candidate: float
    compared_baseline: float | None = None
    """Figure that the change is from: the geometric mean over the runs; with --history the median."""
    compared_candidate: float | None = None
    """Figure that the change is to; None in files of an older version."""
    worse_pct: float
    worse_low_pct: float
    worse_high_pct: float
    """Bounds of the change, with 99 % confidence (`llmtop.bench.statistics.intervals.CONFIDENCE`)."""

    @property
    def is_beyond_noise(self) -> bool:
        """Return True if the interval leaves out that nothing has changed."""
        return self.worse_low_pct > 0.0 or self.worse_high_pct < 0.0


class FactDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in which the environments of two benches differ; None where one does not have it."""

    name: str
    before: str | None
    after: str | None
    matters: bool
    """True if --strict refuses it: the commit and the command are what is meant to differ."""


class LimitDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Decision on one of several limits of --fail-over."""

    limit: str
    """Limit as the user wrote it: "p95=2ms"."""
    metric: str
    limit_pct: float | None
    """Limit in percent of the baseline; None where the baseline is unknown."""
    decision: str
    """Decision, as in `BenchComparison`."""
    reason: str
    advice: str = ""


class BenchComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate beside its baseline."""

    against: str
    """The baseline: its file, its command, or the history."""
    metric: str
    """Metric that the decision uses."""
    limit_pct: float | None = None
    """Limit of --fail-over; None: no decision was requested."""
    decision: str
    """"ok", "improvement", "regression", "undecidable", or "none" where there is no limit or too little yet."""
    reason: str
    """Reason in one sentence, with the numbers."""
    advice: str = ""
    """How to reach a decision; "" where it is decided."""
    limits: list[LimitDecision] = []
    """Decision on each --fail-over if several were given. `decision`, `reason` and `advice` are those of the
    worst."""
    changes: list[FigureChange] = []
    """Changes of every figure that both sides have, the decided one first."""
    baseline_runs: int = 0
    candidate_runs: int = 0
    paired: bool = False
    """True if runs were interleaved, and compared as pairs."""
    in_turns: bool = False
    """True if both commands ran at the same time in turns (--turns), and rounds of turns were compared."""
    block_steps: int | None = None
    """Steps, or rounds of turns, that were drawn together; None where none were."""
    block_reason: str = ""
    differs: list[FactDifference] = []
    """Differences between the environments."""
    notes: list[str] = []
    capture: str | None = None
    """Where --capture-on-regression put its capture and the compared report."""


class RankedValue(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the knob that --vary turned."""

    label: str
    median: float
    """Median of the figure over its runs."""
    mean: float | None = None
    """Geometric mean over its runs, which `behind_pct` is of; None in files of an older version."""
    runs: int
    behind_pct: float = 0.0
    """Distance to the best in percent; 0 for the best."""
    behind_low_pct: float = 0.0
    behind_high_pct: float = 0.0
    as_good_as_best: bool = True
    """True if noise hides that it is worse than the best."""


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a knob, best first."""

    metric: str
    title: str
    unit: str
    values: list[RankedValue]
    differs: bool
    """True if any two values differ by more than noise."""
    summary: str
    """Conclusion in one sentence."""
