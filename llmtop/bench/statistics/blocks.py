"""How long blocks of steps must be so that resampling them keeps what neighbouring steps have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Steps = NDArray[np.float64]


class BlockLength(NamedTuple):
    """The length of a block, in steps, and why it is that."""

    steps: int
    reason: str


def block_length(runs: Sequence[Steps], what: str = "steps") -> BlockLength:
    """Return the length at which a circular block bootstrap of the mean errs least, from the runs'
    autocorrelation.

    After Politis and White, "Automatic block-length selection for the dependent bootstrap", Econometric Reviews 23
    (2004), with the correction of Patton, Politis and White, ibid. 28 (2009): the autocorrelation counts up to
    where it stays within what chance gives. It is taken of all runs together, each about its own mean, because one
    of 40 steps is too short for it; of logarithms, so that one long step is not all there is. So is the noise that
    the blocks are for, and the sample's size in the formula is that of all runs. Short blocks are wrong where a
    host that launches ahead waits for the GPU now and then: a step of 134 ms is followed by two of 25 where all
    take 60, and blocks that tear them apart make noise of 2 % where runs differ by 0.2 %.

    Args:
        runs: seconds of the steps of each run, in order; or ratios of two commands by round of turns.
        what: what one of them is, in the plural, for the reason.

    Returns:
        From 1 to half of the shortest run.
    """
    runs = [run for run in runs if len(run) >= 4]
    if not runs:
        return BlockLength(1, f"too few {what} to tell how neighbours are related")
    shortest = min(len(run) for run in runs)
    covariance = _covariance(runs, most := max(1, shortest // 2))
    if covariance[0] <= 0.0:
        return BlockLength(1, f"all {what} are equally long")
    correlation = covariance / covariance[0]
    count = sum(len(run) for run in runs)
    chance = 2.0 * math.sqrt(math.log10(count) / count)
    last = _last_significant_lag(correlation, chance, max(5, math.ceil(math.sqrt(math.log10(count)))))
    if last == 0:
        return BlockLength(1, f"neighbouring {what} are unrelated (autocorrelation {correlation[1]:+.2f})")
    lags = np.arange(1, min(2 * last, most) + 1)
    weights = np.minimum(1.0, 2.0 * (1.0 - lags / (2.0 * last)))  # the flat-top window of Politis and Romano
    spectrum = covariance[0] + 2.0 * float(np.sum(weights * covariance[lags]))
    slope = 2.0 * float(np.sum(weights * lags * covariance[lags]))
    longest = max(1, shortest // 2)
    best = math.ceil((1.5 * (slope / spectrum) ** 2 * count) ** (1.0 / 3.0)) if spectrum > 0.0 else longest
    length = min(max(best, 1), longest)
    length = math.ceil(shortest / (shortest // length))  # as few as these, and as long: the last is whole too
    return BlockLength(
        length,
        f"{what} up to {last} apart are related (autocorrelation {correlation[1]:+.2f} of neighbours)",
    )


def _covariance(runs: Sequence[Steps], most: int) -> Steps:
    """Autocovariance at lags 0 to `most`, over all runs."""
    total = np.zeros(most + 1)
    for run in runs:
        logs = np.log(run)
        logs = logs - logs.mean()
        total += [float(np.dot(logs[: len(logs) - lag], logs[lag:])) for lag in range(most + 1)]
    return total / sum(len(run) for run in runs)


def _last_significant_lag(correlation: Steps, chance: float, quiet: int) -> int:
    """Return the last lag before `quiet` ones in a row (fewer at the end) that are no more than chance."""
    for lag in range(1, len(correlation)):
        if bool(np.all(np.abs(correlation[lag : lag + quiet]) < chance)):
            return lag - 1
    return len(correlation) - 1


def resample(steps: Steps, length: int, count: int, random: np.random.Generator) -> Steps:
    """Runs as long as `steps`, put together of blocks of it drawn with replacement; a block may go round the end.

    Args:
        steps: seconds of the steps of one run, in order.
        length: steps in a block.
        count: how many such runs.
        random: where chance comes from.

    Returns:
        Shape (count, len(steps)).
    """
    total = len(steps)
    starts = random.integers(total, size=(count, math.ceil(total / length)))
    places = (starts[:, :, None] + np.arange(length)) % total
    drawn: Steps = steps[places.reshape(count, -1)[:, :total]]
    return drawn
