"""Durations of steps with a known truth: stationary series of many kinds, and such series with one planted jump.

A stationary series has one distribution from its first step to its last. Its steps may come from two modes, follow
a period, stick to a mode for a while, or depend on the step before. How long they stick or depend is bounded by a
tenth of the window: with less than ten such stretches nothing in the window tells them from a lasting change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, float], Values]

WINDOWS = (20, 30, 50, 100, 100, 100, 100, 200, 500, 1000)
"""Steps of a window: 100 is what `llmtop bench` measures by default, 20 the least that it judges."""
INDEPENDENT_STRETCHES = 10
JUMP = 0.10
JUMP_FROM, JUMP_TO = 0.25, 0.75
"""Where in the window a jump lies, as a share of it."""


@dataclass(frozen=True)
class StepSeries:
    """The durations of one window's steps."""

    kind: str
    seconds: Values
    """Of shape (steps,)."""
    jump_at: int | None = None
    """The first step after the jump; None: stationary."""


def stationary(rng: np.random.Generator) -> StepSeries:
    """Return a window without a lasting change: noise of 0.2 to 10 %, modes up to a factor of 2 apart."""
    return _series(rng, STATIONARY, widest=0.10)


def with_jump(rng: np.random.Generator) -> StepSeries:
    """Return a window of the same kinds with noise of 0.2 to 3 %, whose steps change by 10 % for good."""
    series = _series(rng, STEADY_MODES, widest=0.03)
    steps = len(series.seconds)
    at = int(rng.integers(math.ceil(JUMP_FROM * steps), math.floor(JUMP_TO * steps) + 1))
    seconds = series.seconds.copy()
    seconds[at:] *= 1 + JUMP if rng.random() < 0.5 else 1 - JUMP
    return StepSeries(series.kind, seconds, at)


def _series(rng: np.random.Generator, kinds: dict[str, Noise], widest: float) -> StepSeries:
    kind = str(rng.choice(list(kinds)))
    steps = int(rng.choice(WINDOWS))
    width = math.exp(rng.uniform(math.log(0.002), math.log(widest)))
    base = math.exp(rng.uniform(math.log(0.002), math.log(2.0)))
    return StepSeries(kind, base * np.maximum(kinds[kind](rng, steps, width), 0.05))


def _gaussian(rng: np.random.Generator, steps: int, width: float) -> Values:
    return 1 + width * rng.standard_normal(steps)


def _skewed(rng: np.random.Generator, steps: int, width: float) -> Values:
    return np.exp(width * (rng.exponential(size=steps) - 1))


def _rare(rng: np.random.Generator, steps: int, width: float) -> Values:
    """A few steps, at random, take two to five times as long."""
    long = rng.random(steps) < rng.uniform(0.005, 0.05)
    return _gaussian(rng, steps, width) * np.where(long, rng.uniform(2, 5, steps), 1)


def _periodic(rng: np.random.Generator, steps: int, width: float) -> Values:
    """Every so many steps one is longer: a log line, a checkpoint, a refilled queue."""
    period = int(rng.integers(2, max(3, steps // INDEPENDENT_STRETCHES) + 1))
    long = np.arange(steps) % period == int(rng.integers(period))
    return _gaussian(rng, steps, width) * np.where(long, 1 + rng.uniform(0.05, 1.0), 1)


def _two_modes(gap_to: float) -> Noise:
    def noise(rng: np.random.Generator, steps: int, width: float) -> Values:
        second = rng.random(steps) < rng.uniform(0.05, 0.5)
        return _gaussian(rng, steps, width) * np.where(second, 1 + rng.uniform(0.05, gap_to), 1)

    return noise


def _sticky_modes(gap_to: float) -> Noise:
    """Two modes, each kept for a random number of steps: lengths of sequences, a neighbour on the CPU."""

    def noise(rng: np.random.Generator, steps: int, width: float) -> Values:
        most = max(2.0, steps / INDEPENDENT_STRETCHES / 2)  # of both modes together: a tenth of the window
        stay = math.exp(rng.uniform(math.log(1.5), math.log(most))) if most > 1.5 else 1.5
        flips = rng.random(steps) < 1 / stay
        second = (np.cumsum(flips) + int(rng.integers(2))) % 2 == 1
        return _gaussian(rng, steps, width) * np.where(second, 1 + rng.uniform(0.05, gap_to), 1)

    return noise


def _autoregressive(rng: np.random.Generator, steps: int, width: float) -> Values:
    """Each step resembles the one before: AR(1), its correlation time at most a tenth of the window."""
    longest = max(1.5, steps / INDEPENDENT_STRETCHES)
    time = math.exp(rng.uniform(0, math.log(longest)))
    phi = (time - 1) / (time + 1)
    noise = rng.standard_normal(steps)
    values = np.empty(steps)
    values[0] = noise[0]
    for number in range(1, steps):
        values[number] = phi * values[number - 1] + math.sqrt(1 - phi * phi) * noise[number]
    return np.exp(width * values)


def _launched_ahead(rng: np.random.Generator, steps: int, width: float) -> Values:
    """A long step is followed by short ones: the host runs ahead of the GPU and waits for it."""
    noise = rng.standard_normal(steps + 1)
    return np.maximum(1 + width * (noise[1:] - rng.uniform(0.3, 1.0) * noise[:-1]), 0.05)


STATIONARY: dict[str, Noise] = {
    "gaussian": _gaussian,
    "skewed": _skewed,
    "rare long steps": _rare,
    "periodic": _periodic,
    "two modes": _two_modes(1.0),
    "sticky modes": _sticky_modes(1.0),
    "autoregressive": _autoregressive,
    "launched ahead": _launched_ahead,
}
STEADY_MODES: dict[str, Noise] = {**STATIONARY, "two modes": _two_modes(0.10), "sticky modes": _sticky_modes(0.10)}
"""For plants: modes further apart than the jump itself hide it from anybody in a window of 20 steps."""
