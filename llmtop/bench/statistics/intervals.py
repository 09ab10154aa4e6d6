"""How far a candidate's runs are from a baseline's, with the interval that noise leaves.

A hierarchical bootstrap: runs are drawn with replacement, then within each run blocks of its steps. As it stands
such a bootstrap errs with few runs, in both directions, and is corrected for both:

- It is too narrow. With n runs it knows (n - 1)/n of their variance, and it takes the tails of a normal
  distribution for those of Student's t. Both are put right as by T. C. Hesterberg ("What teachers should know
  about the bootstrap", The American Statistician 69, 2015: bootstrap standard error times t, n - 1 corrected); the
  degrees of freedom are Welch's. The interval is symmetrical, since with three to five runs the bootstrap's own
  quantiles are those of the one run that lies farthest out.
- It counts the noise within a run twice, since how far runs lie apart holds that already. What runs lie apart is
  therefore reduced to what they do beyond their own noise (A. C. Davison and D. V. Hinkley, "Bootstrap methods and
  their application", 1997, section 3.8). Where three runs lie close together by chance, the noise within them
  remains as the least.

`benchmarks/bench_decisions.py` measures what comes of that, beside the plain bootstrap, on runs of real trainings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmtop.bench.statistics.blocks import BlockLength, block_length, resample
from llmtop.bench.statistics.step_statistics import Steps, StepStatistic
from llmtop.bench.statistics.student_t import t_quantile

Values = NDArray[np.float64]

REPLICATES = 4000
"""Draws over runs: the standard error is then right to about one percent of itself."""
WITHIN = 500
"""Draws over blocks of each run."""
_CELLS = 4_000_000
"""Most steps that are drawn from one run at a time, whatever its length: 32 MB."""
_MORE_DEGREES = 4.0
"""Times as many degrees of freedom as runs alone give, at the most: blocks hold less information than their
number."""
CONFIDENCE = 0.99
"""Confidence of every interval that decides, both sides together. A false alarm stops a merge, and an undecidable
bench is made again with more runs. Two looks at equal programs (5 runs, then 10) are to err in at most 2 %. At
98 % they do not (docs/bench.md)."""
CONFIDENCE_TEXT = f"{100.0 * CONFIDENCE:.0f} %"
SEED = 20150  # any: the same runs are always decided the same way


class RunSample(NamedTuple):
    """One run as it is resampled."""

    value: float
    """Its figure, above 0."""
    steps: Steps | None = None
    """Seconds of its steps, in order; None where the figure is none of steps."""
    rounds: NDArray[np.int64] | None = None
    """Round of turns of each step, where both sides of a pair ran at the same time in turns; ascending."""


class ChangeInterval(NamedTuple):
    """The logarithm of candidate over baseline, and between what it lies."""

    log_ratio: float
    low: float
    high: float
    error: float
    """Standard error."""
    degrees: float
    """Degrees of freedom that it is known with."""
    blocks: BlockLength
    paired: bool
    in_turns: bool = False
    """True if the rounds of turns were drawn, both sides together."""

    @property
    def noise(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2.0


class _TurnSide(NamedTuple):
    """The steps of one side of a pair that ran in turns."""

    steps: Steps
    rounds: NDArray[np.int64]
    """Number of each step's round among those that both sides have, from 0."""

    def means(self) -> Steps:
        """Return the mean step of each round."""
        found: Steps = np.bincount(self.rounds, self.steps) / np.bincount(self.rounds)
        return found


class TurnPair(NamedTuple):
    """Two runs that ran at the same time in turns."""

    before: _TurnSide
    after: _TurnSide
    ratios: Steps
    """Mean step of the second over that of the first, by round."""

    @classmethod
    def of_runs(cls, before: RunSample, after: RunSample) -> TurnPair:
        """Return the rounds that both runs have.

        Raises:
            ValueError: they have none in common, or one has no steps.
        """
        if before.rounds is None or after.rounds is None or before.steps is None or after.steps is None:
            raise ValueError("a run in turns needs steps with rounds")
        common = np.intersect1d(before.rounds, after.rounds)
        if not len(common):
            raise ValueError("the two runs have no round in common")
        sides = []
        for steps, rounds in ((before.steps, before.rounds), (after.steps, after.rounds)):
            inside = np.isin(rounds, common)
            sides.append(_TurnSide(steps[inside], np.searchsorted(common, rounds[inside])))
        return cls(sides[0], sides[1], sides[1].means() / sides[0].means())


class _DrawnRuns(NamedTuple):
    """Runs of one side, or the differences of pairs of runs."""

    mean: float
    variance: float
    """Variance of the mean."""
    degrees: float
    """Degrees of freedom that `variance` is known with."""
    deviations: Values
    """Deviations of the mean from its true value, one for each replicate."""


def change_interval(
    baseline: Sequence[RunSample],
    candidate: Sequence[RunSample],
    figure: StepStatistic | None,
    *,
    paired: bool = False,
    confidence: float = CONFIDENCE,
) -> ChangeInterval:
    """Return the change from `baseline` to `candidate`, with what noise leaves open.

    Args:
        baseline: its runs, two or more.
        candidate: its runs, two or more.
        figure: how the figure comes of steps; None where it does not, and only runs show the noise.
        paired: whether runs of the same number were made one after the other, as many on both sides. What drifts
            with time is then in both and drops out.
        confidence: of the interval, both sides together.

    Raises:
        ValueError: there are fewer than two runs, or pairs that are none.
    """
    if min(len(baseline), len(candidate)) < 2 or (paired and len(baseline) != len(candidate)):
        raise ValueError("an interval needs two runs on each side, and pairs as many on both")
    random = np.random.default_rng(SEED)
    before_logs, after_logs = _log_values(baseline), _log_values(candidate)
    in_turns = paired and figure is not None and all(run.rounds is not None for run in (*baseline, *candidate))
    if in_turns and figure is not None:
        pairs = [TurnPair.of_runs(*pair) for pair in zip(baseline, candidate, strict=True)]
        blocks = block_length([pair.ratios for pair in pairs], "rounds of turns")
        both = [_turn_noise(pair, figure, blocks.steps, random) for pair in pairs]
    else:
        blocks = block_length([run.steps for run in (*baseline, *candidate) if run.steps is not None])
        before = [_step_noise(run, figure, blocks.steps, random) for run in baseline]
        after = [_step_noise(run, figure, blocks.steps, random) for run in candidate]
        both = [one - other for one, other in zip(after, before, strict=True)] if paired else []
    if paired:
        groups = [_draw_runs(after_logs - before_logs, both, random)]
        log_ratio, deviations = groups[0].mean, groups[0].deviations
    else:
        groups = [_draw_runs(before_logs, before, random), _draw_runs(after_logs, after, random)]
        log_ratio, deviations = groups[1].mean - groups[0].mean, groups[1].deviations - groups[0].deviations
    error, degrees = float(deviations.std()), _welch(groups)
    half = error * t_quantile(0.5 + confidence / 2.0, degrees)
    return ChangeInterval(log_ratio, log_ratio - half, log_ratio + half, error, degrees, blocks, paired, in_turns)


def _log_values(runs: Sequence[RunSample]) -> Values:
    return np.log([run.value for run in runs])


def _step_noise(run: RunSample, figure: StepStatistic | None, length: int, random: np.random.Generator) -> Values:
    """Return the shift of the logarithm of a run's figure by the noise of its steps: one value per draw, mean
    0."""
    if run.steps is None or figure is None or len(run.steps) < 2:
        return np.zeros(WITHIN)
    chunk = max(1, _CELLS // len(run.steps))
    drawn = [
        np.log(figure(resample(run.steps, length, min(chunk, WITHIN - done), random)))
        for done in range(0, WITHIN, chunk)
    ]
    return _centred(np.concatenate(drawn), len(run.steps), length)


def _centred(found: Values, count: int, length: int) -> Values:
    """Return draws about 0, with the variance that blocks of `length` of `count` steps or rounds leave out."""
    # Blocks of half a run are but two: as with runs, they know (n - length)/n of the variance.
    known = 1.0 - min(length, count // 2) / count
    centred: Values = (found - found.mean()) / math.sqrt(known)
    return centred


def _turn_noise(pair: TurnPair, figure: StepStatistic, length: int, random: np.random.Generator) -> Values:
    """Return the shift of the logarithm of the ratio of a pair by the noise of its rounds: one value per draw,
    mean 0. Both sides of a round are drawn together, so what slows both drops out."""
    rounds = len(pair.ratios)
    if rounds < 2:
        return np.zeros(WITHIN)
    starts = random.integers(rounds, size=(WITHIN, math.ceil(rounds / length)))
    drawn = ((starts[:, :, None] + np.arange(length)) % rounds).reshape(WITHIN, -1)[:, :rounds]
    chunk = max(1, _CELLS // max(len(side.steps) for side in (pair.before, pair.after)))
    found = []
    for done in range(0, WITHIN, chunk):
        counts = np.stack([np.bincount(row, minlength=rounds) for row in drawn[done : done + chunk]]).astype(float)
        before, after = (
            np.log(figure.of_counts(side.steps, counts[:, side.rounds])) for side in (pair.before, pair.after)
        )
        found.append(after - before)
    return _centred(np.concatenate(found), rounds, length)


def _draw_runs(logs: Values, within: Sequence[Values], random: np.random.Generator) -> _DrawnRuns:
    """Draw runs, then for each of them the noise of its steps."""
    count = len(logs)
    spread = float(logs.var(ddof=1))
    own = float(np.mean([draws.var() for draws in within]))
    beyond = max(0.0, spread - own)
    offsets = (logs - logs.mean()) * (math.sqrt(beyond / spread * count / (count - 1)) if spread > 0.0 else 0.0)
    runs = random.integers(count, size=(REPLICATES, count))
    draws = random.integers(WITHIN, size=(REPLICATES, count))
    deviations = (offsets[runs] + np.stack(within)[runs, draws]).mean(axis=1)
    # Of runs that lie closer together than their own noise would have them, that noise is what counts, and it is
    # known of many more steps than there are runs.
    degrees = (count - 1) * min(((beyond + own) / spread) ** 2 if spread > 0.0 else 1.0, _MORE_DEGREES)
    return _DrawnRuns(float(logs.mean()), (beyond + own) / count, degrees, deviations)


def _welch(groups: Sequence[_DrawnRuns]) -> float:
    """Degrees of freedom of a difference of means whose variances differ (Welch and Satterthwaite)."""
    total = sum(group.variance for group in groups)
    if total <= 0.0:
        return sum(group.degrees for group in groups)
    return total**2 / sum(group.variance**2 / group.degrees for group in groups)
