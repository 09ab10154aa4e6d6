"""Generated series of steps with known truth, for the rules `slower` and `rare_steps`.

The kinds, their ranges and what is right of each were written before the rules were read. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llmtop.model.snapshot import Phase, Step
from llmtop.step_history.whole_steps import WholeStep

STEPS = 1200
"""Steps in one series."""
MUST_BE_RARE, MUST_NOT_BE_RARE = 0.10, 0.01
"""Shares of the time: long steps that cost more must be reported, those that cost less must not."""
_SHARES = {"dataload": 0.05, "forward": 0.3, "backward": 0.5, "optimizer": 0.1}
"""Of a usual step; the rest is outside of all phases."""
_START = 1.8e9

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """What holds of a series, by its construction."""

    slower_since: int | None = None
    """Step from which on steps are longer for good and no more work: `slower` must hold at the end, or have held
    where that is over half an hour ago."""
    slower_at_times: bool = False
    """Whether `slower` may hold before the end: there are bursts of longer steps."""
    work: str | None = None
    """"sequences" or "accumulation": what made steps longer and must be named; `slower` must not warn."""
    rare: bool | None = False
    """Whether `rare_steps` must hold at the end; None: either is right. False: it must never hold."""
    rare_every: float | None = None
    """Steps from one long step to the next, where that is regular."""
    rare_share: float = 0.0
    """Share of the time that long steps take beyond usual ones."""


@dataclass(frozen=True)
class StepSeries:
    """Steps of one training, and their truth."""

    kind: str
    noise: float
    """Standard deviation of the logarithm of a step's time."""
    truth: Truth
    seconds: Array = field(repr=False)
    """Usual work and noise of each step; shape (STEPS,)."""
    extra: Array = field(repr=False)
    """What each step takes beyond that; shape (STEPS,)."""
    part: str = "forward"
    """Where the extra is: a phase, or "outside"."""
    tokens: Array | None = field(default=None, repr=False)
    samples: Array | None = field(default=None, repr=False)

    def whole_steps(self) -> Iterator[WholeStep]:
        """Return the steps, counted from 0."""
        time = _START
        for index in range(STEPS):
            usual, extra = float(self.seconds[index]), float(self.extra[index])
            parts = {name: share * usual for name, share in _SHARES.items()}
            if self.part != "outside":
                parts[self.part] = parts.get(self.part, 0.0) + extra
            phases = tuple(Phase(name=name, host_seconds=seconds) for name, seconds in parts.items())
            step = Step(
                index=index,
                started_at=time,
                seconds=sum(parts.values()),
                tokens=None if self.tokens is None else float(self.tokens[index]),
                samples=None if self.samples is None else float(self.samples[index]),
                phases=phases,
            )
            yield WholeStep(step, usual + extra)
            time += usual + extra


def make_series(seed: int) -> StepSeries:
    """Return the series of a seed; kinds take turns."""
    names = list(_KINDS)
    name = names[seed % len(names)]
    return _KINDS[name](np.random.default_rng(seed), name)


@dataclass
class _Usual:
    """Steps before anything is planted."""

    chance: np.random.Generator
    usual: float
    noise: float
    seconds: Array

    @property
    def nothing(self) -> Array:
        return np.zeros(STEPS)

    def uniform(self, low: float, high: float) -> float:
        return float(self.chance.uniform(low, high))

    def between(self, low: int, high: int) -> int:
        return int(self.chance.integers(low, high))

    def factor(self, low: float, high: float) -> float:
        return float(np.exp(self.chance.uniform(np.log(low), np.log(high))))

    def part(self) -> str:
        return str(self.chance.choice([*_SHARES, "outside"]))

    def work(self) -> tuple[Array | None, Array | None]:
        """Tokens and samples a step: both, samples alone, or neither."""
        kind = self.between(0, 3)
        samples = np.full(STEPS, 32.0) if kind else None
        return (np.full(STEPS, 32.0 * 512) if kind == 2 else None), samples


def _usual(chance: np.random.Generator) -> _Usual:
    """Noise is lognormal, alike in neighbouring steps, with a few outliers."""
    usual = float(np.exp(chance.uniform(np.log(0.02), np.log(2.0))))
    noise = float(np.exp(chance.uniform(np.log(0.005), np.log(0.3))))
    alike = float(chance.choice([0.0, 0.3, 0.6]))
    shocks = chance.standard_normal(STEPS) * np.sqrt(1 - alike**2)
    state = np.empty(STEPS)
    state[0] = chance.standard_normal()
    for index in range(1, STEPS):
        state[index] = alike * state[index - 1] + shocks[index]
    seconds = usual * np.exp(noise * state)
    outliers = chance.random(STEPS) < 0.003
    seconds[outliers] *= chance.uniform(1.2, 2.0, int(outliers.sum()))
    return _Usual(chance, usual, noise, seconds)


def _series(name: str, usual: _Usual, truth: Truth, extra: Array, part: str | None = None) -> StepSeries:
    tokens, samples = usual.work()
    part = usual.part() if part is None else part
    return StepSeries(name, usual.noise, truth, usual.seconds, extra, part, tokens, samples)


def _healthy(chance: np.random.Generator, name: str) -> StepSeries:
    usual = _usual(chance)
    return _series(name, usual, Truth(), usual.nothing)


def _jump(chance: np.random.Generator, name: str) -> StepSeries:
    usual = _usual(chance)
    since, factor = usual.between(200, 700), usual.factor(1.1, 4.0)
    extra = usual.nothing
    extra[since:] = (factor - 1) * usual.usual * (usual.seconds[since:] / usual.usual) ** 0.5
    return _series(name, usual, Truth(slower_since=since), extra)


def _burst(chance: np.random.Generator, name: str) -> StepSeries:
    """One to five runs of 12 to 80 longer steps, after which steps are as before for at least 250 steps."""
    usual = _usual(chance)
    extra, start = usual.nothing, 200
    for _ in range(usual.between(1, 6)):
        start += usual.between(20, 60)
        length = usual.between(12, 80)
        extra[start : min(start + length, STEPS - 250)] = (usual.factor(1.5, 4.0) - 1) * usual.usual
        start += length
    return _series(name, usual, Truth(slower_at_times=True), extra)


def _rare(usual: _Usual, extra: Array) -> tuple[bool | None, float]:
    share = float(extra.sum() / (usual.seconds.sum() + extra.sum()))
    told = True if share >= MUST_BE_RARE else False if share < MUST_NOT_BE_RARE else None
    return told, share


def _long_steps(usual: _Usual) -> tuple[Array, float]:
    """Evaluations: every so many steps one takes 3 to 60 times as long."""
    every = usual.between(20, 150)
    extra = usual.nothing
    at = np.arange(usual.between(5, every), STEPS, every)
    extra[at] = usual.usual * (usual.factor(3.0, 60.0) - 1) * np.exp(0.1 * usual.chance.standard_normal(len(at)))
    return extra, float(every)


def _evaluations(chance: np.random.Generator, name: str) -> StepSeries:
    usual = _usual(chance)
    extra, every = _long_steps(usual)
    told, share = _rare(usual, extra)
    truth = Truth(rare=told, rare_every=every, rare_share=share)
    return _series(name, usual, truth, extra, str(usual.chance.choice(["eval", "outside"])))


def _checkpoints(chance: np.random.Generator, name: str) -> StepSeries:
    """Long steps by the clock, of uneven length: no regular number of steps lies between them."""
    usual = _usual(chance)
    mean = usual.between(30, 150)
    extra, at = usual.nothing, usual.between(10, mean)
    longer = usual.usual * (usual.factor(4.0, 60.0) - 1)
    while at < STEPS:
        extra[at] = longer * np.exp(0.25 * usual.chance.standard_normal())
        at += usual.between(mean // 2, mean * 3 // 2)
    told, share = _rare(usual, extra)
    return _series(name, usual, Truth(rare=told, rare_share=share), extra, "checkpoint")


def _drift(chance: np.random.Generator, name: str) -> StepSeries:
    """Steps grow slowly, up to twice as long: no step is the first of a new length."""
    usual = _usual(chance)
    since = usual.between(0, 400)
    grown = np.clip((np.arange(STEPS) - since) / (STEPS - since), 0, None)
    return _series(name, usual, Truth(), (usual.factor(1.1, 2.0) - 1) * usual.usual * grown)


def _evaluations_and_jump(chance: np.random.Generator, name: str) -> StepSeries:
    usual = _usual(chance)
    extra, _ = _long_steps(usual)
    told, share = _rare(usual, extra)
    since = usual.between(200, 700)
    extra[since:] += (usual.factor(1.3, 3.0) - 1) * usual.usual
    # Either is right of what the new length makes of the long steps' share.
    truth = Truth(slower_since=since, rare=False if told is False else None, rare_share=share)
    return _series(name, usual, truth, extra, "outside")


def _with_work(usual: _Usual, name: str, truth: Truth, samples: Array, tokens: Array, longer: Array) -> StepSeries:
    """A series whose steps take `longer` times their usual time, in every part."""
    return StepSeries(
        name, usual.noise, truth, usual.seconds * longer, usual.nothing, tokens=tokens, samples=samples
    )


def _changed(usual: _Usual, since: int, factor: float) -> Array:
    found = np.ones(STEPS)
    found[since:] = factor
    return found


def _longer_sequences(chance: np.random.Generator, name: str) -> StepSeries:
    """More tokens a sample; attention makes the time grow by a power of the length from 1 to 2."""
    usual = _usual(chance)
    since, more = usual.between(200, 700), usual.factor(1.25, 4.0)
    samples = np.full(STEPS, 16.0)
    tokens = samples * 512 * _changed(usual, since, more)
    longer = _changed(usual, since, more ** usual.uniform(1.0, 1.7))
    return _with_work(usual, name, Truth(work="sequences"), samples, tokens, longer)


def _accumulation(chance: np.random.Generator, name: str) -> StepSeries:
    """More samples a step, of the same length."""
    usual = _usual(chance)
    since, more = usual.between(200, 700), float(usual.between(2, 5))
    samples = np.full(STEPS, 16.0) * _changed(usual, since, more)
    longer = _changed(usual, since, 1 + (more - 1) * usual.uniform(0.85, 1.0))
    return _with_work(usual, name, Truth(work="accumulation"), samples, samples * 512, longer)


def _more_work_and_slower(chance: np.random.Generator, name: str) -> StepSeries:
    """A fifth to a half more samples, and each takes 1.5 to 3 times as long."""
    usual = _usual(chance)
    since, more = usual.between(200, 700), usual.uniform(1.2, 1.5)
    samples = np.full(STEPS, 16.0) * _changed(usual, since, more)
    longer = _changed(usual, since, more * usual.factor(1.5, 3.0))
    return _with_work(usual, name, Truth(slower_since=since), samples, samples * 512, longer)


def _uneven_batches(chance: np.random.Generator, name: str) -> StepSeries:
    """Tokens differ from step to step, and the time with them."""
    usual = _usual(chance)
    uneven = np.exp(usual.uniform(0.05, 0.3) * usual.chance.standard_normal(STEPS))
    samples = np.full(STEPS, 16.0)
    return _with_work(usual, name, Truth(), samples, samples * 512 * uneven, uneven)


def _alternating(chance: np.random.Generator, name: str) -> StepSeries:
    """Every second to eighth step is longer: an optimizer step after micro-batches."""
    usual = _usual(chance)
    extra = usual.nothing
    extra[:: usual.between(2, 9)] = (usual.factor(1.3, 4.0) - 1) * usual.usual
    return _series(name, usual, Truth(rare=None), extra, "optimizer")


_KINDS: dict[str, Callable[[np.random.Generator, str], StepSeries]] = {
    "healthy": _healthy,
    "jump": _jump,
    "burst": _burst,
    "evaluations": _evaluations,
    "checkpoints": _checkpoints,
    "drift": _drift,
    "evaluations and jump": _evaluations_and_jump,
    "longer sequences": _longer_sequences,
    "accumulation": _accumulation,
    "more work and slower": _more_work_and_slower,
    "uneven batches": _uneven_batches,
    "alternating": _alternating,
}
