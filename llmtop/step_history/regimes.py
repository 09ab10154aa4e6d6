"""Tests whether a window of steps holds a jump or a drift, against what equal stretches of such steps differ by.

Steps of two lengths, or steps that resemble the one before, make stretches that differ although nothing changed.
So a change is measured in standard errors of the mean of a stretch. That error is the larger of two estimates:
what the stretches of the window differ by, and what its autocorrelation says of means of so many steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCKS: Final = 10
MIN_STEPS: Final = 20
"""Fewer steps show neither a drift nor a jump."""
CLIPPED: Final = 0.05
"""Share of the shortest and of the longest steps that are set to those quantiles: a rare step of five times
the usual length is no change."""
LEAST_JUMP: Final = math.log(1.05)
LEAST_DRIFT: Final = math.log(1.03)
"""Changes below these, from the window's begin to its end, are not reported."""
JUMP_ERRORS: Final = 5.8
"""Standard errors of a jump: of windows of 100 to 1000 independent normal steps, one in 200 to 300 has more at its
best split. `python -m benchmarks regimes` measures it for other steps."""
MOST_CHANGES: Final = 20
"""Most changes of one series: the search begins with the whole of it, so the largest are among them."""
MOST_HALVINGS: Final = 3
"""Halvings of a stretch without a change: fifteen windows, in one of 15 to 20 of which chance is taken for a
change."""
DRIFT_ERRORS: Final = 4.3
"""Standard errors of a drift: Student's t of 8 degrees of freedom, one window in 380."""


class Change(NamedTuple):
    """A lasting change within a window."""

    kind: str
    """"jump" or "drift"."""
    log: float
    """Logarithm of the factor between the window's begin and its end."""
    before_seconds: float
    after_seconds: float
    """Geometric means of the steps before and after a jump; of a drift, where its line begins and ends."""
    step: int
    """Step of the window: the first step after a jump; 0 for a drift."""


class _Fit(NamedTuple):
    """A change that describes the blocks."""

    change: float
    rest: NDArray[np.float64]
    """The logarithms of all steps without the change."""
    block_rest: NDArray[np.float64]
    """The means of the blocks that count, without the change."""
    weight: float
    """Variance of the change over that of a block's mean."""
    freedom: int


def find_change(step_seconds: Sequence[float]) -> Change | None:
    """Return the jump or the drift that a window holds; None without one, and for windows of under 20 steps.

    Args:
        step_seconds: the durations of the window's steps, in order.
    """
    if len(step_seconds) < MIN_STEPS:
        return None
    logs = np.log(np.maximum(np.asarray(step_seconds, dtype=np.float64), 1e-9))
    logs = np.clip(logs, *np.quantile(logs, (CLIPPED, 1 - CLIPPED)))
    edges = [round(place * len(logs) / BLOCKS) for place in range(BLOCKS + 1)]
    place = _best_split(logs, edges[1], edges[-2])
    jump, drift = _jump_fit(logs, edges, place), _drift_fit(logs, edges)
    # The better description of all steps is tested, so that a drift is not reported as a jump.
    if np.dot(jump.rest, jump.rest) <= np.dot(drift.rest, drift.rest):
        if abs(jump.change) >= max(LEAST_JUMP, JUMP_ERRORS * _standard_error(jump, len(logs))):
            return _change("jump", jump.change, float(logs[:place].mean()), place)
    elif abs(drift.change) >= max(LEAST_DRIFT, DRIFT_ERRORS * _standard_error(drift, len(logs))):
        return _change("drift", drift.change, float(logs.mean()) - drift.change / 2, 0)
    return None


def find_changes(step_seconds: Sequence[float]) -> list[Change]:
    """Return the lasting changes of a long series, each of its stretch between the changes before and after it.

    Args:
        step_seconds: durations in order, of steps or of stretches of the same length.

    Returns:
        In order, `step` counted from the beginning of the series; a drift is of the stretch from its `step` on.
    """
    found: list[Change] = []
    stretches = [(0, len(step_seconds), MOST_HALVINGS)]
    while stretches and len(found) < MOST_CHANGES:
        first, last, halvings = stretches.pop(0)
        change = find_change(step_seconds[first:last])
        if change is None and halvings and last - first >= 2 * MIN_STEPS:
            # A length that comes and goes again is no jump of the whole.
            middle = (first + last) // 2
            stretches += [(first, middle, halvings - 1), (middle, last, halvings - 1)]
        if change is None:
            continue
        found.append(change._replace(step=first + change.step))
        if change.kind == "jump":
            place = first + change.step
            stretches += [(first, place, halvings), (place, last, halvings)]
    return sorted(found, key=lambda change: change.step)


def _change(kind: str, log: float, before: float, step: int) -> Change:
    return Change(kind, log, math.exp(before), math.exp(before + log), step)


def _best_split(logs: NDArray[np.float64], first: int, last: int) -> int:
    """Return the place from `first` to `last` at which two means describe the values best (least squares)."""
    places = np.arange(first, last + 1)
    heads = np.cumsum(logs)[places - 1]
    number, total = len(logs), logs.sum()
    gains = (heads / places - (total - heads) / (number - places)) ** 2 * places * (number - places)
    return int(places[np.argmax(gains)])


def _jump_fit(logs: NDArray[np.float64], edges: Sequence[int], place: int) -> _Fit:
    sides = logs[:place], logs[place:]
    rest = np.concatenate([side - side.mean() for side in sides])
    # The block within which the steps jump is of neither side.
    whole = [(low, high) for low, high in pairwise(edges) if high <= place or low >= place]
    means = np.array([rest[low:high].mean() for low, high in whole])
    before = sum(high <= place for _, high in whole)
    after = len(whole) - before
    change = float(sides[1].mean() - sides[0].mean())
    return _Fit(change, rest, means, 1 / before + 1 / after, len(whole) - 2)


def _drift_fit(logs: NDArray[np.float64], edges: Sequence[int]) -> _Fit:
    number = len(logs)
    along = np.arange(number) / (number - 1) - 0.5
    slope = float(along @ (logs - logs.mean()) / (along @ along))
    rest = logs - logs.mean() - slope * along
    means = np.array([rest[low:high].mean() for low, high in pairwise(edges)])
    centres = (np.arange(BLOCKS) + 0.5) / BLOCKS - 0.5
    return _Fit(slope, rest, means, 1 / float(centres @ centres), BLOCKS - 2)


def _standard_error(fit: _Fit, steps: int) -> float:
    """Return the standard error of the change: from the blocks, and from the autocorrelation of neighbours,
    whichever is larger."""
    by_blocks = float(fit.block_rest @ fit.block_rest) / fit.freedom
    variance = float(fit.rest @ fit.rest) / (steps - 2)
    if variance == 0.0:
        return 0.0
    neighbours = float(fit.rest[:-1] @ fit.rest[1:]) / float(fit.rest @ fit.rest)
    # Estimated of few steps, and without the change, it is too small (Kendall 1954, Marriott and Pope 1954).
    neighbours = min(neighbours + (2 + 4 * max(neighbours, 0.0)) / steps, 0.98)
    by_steps = variance * (1 + neighbours) / (1 - neighbours) * BLOCKS / steps if neighbours > 0 else 0.0
    return math.sqrt(fit.weight * max(by_blocks, by_steps))
