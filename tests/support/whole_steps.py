"""Whole steps for tests: recorded ones, resampled ones, and ones with a change planted in them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np

from llmtop.model.snapshot import Phase, Step
from llmtop.recording.reader_writer import Reader
from llmtop.step_history.step_changes import StepChanges
from llmtop.step_history.whole_steps import WholeStep, WholeStepBuilder
from tests.support.data import DATA
from tests.support.processes import REPOSITORY

CPU = ("plain", "loader", "hf", "ddp")
DEMO_STARVES = 628
"""Index of the first step of the demo whose data comes late."""
Parts = Mapping[str, float]


@cache
def cpu_steps(name: str) -> tuple[WholeStep, ...]:
    """A healthy training on a shared CPU, as tests/data/README.md describes it."""
    with np.load(DATA / "cpu_steps.npz") as packed:
        rows = packed[name].astype(float) / 1e3
        phases = [str(phase) for phase in packed[f"{name}_phases"]]
    return tuple(made(float(row[0]), dict(zip(phases, map(float, row[1:]), strict=True))) for row in rows)


@cache
def demo_steps() -> tuple[WholeStep, ...]:
    """The GPU training of the shipped demo, with the bottlenecks planted in it; without warm-up."""
    reader, following = Reader(Path(REPOSITORY) / "llmtop" / "data" / "demo.llmtop.gz"), WholeStepBuilder()
    try:
        steps = [step for _, snapshot in reader.snapshots() for rank in snapshot.ranks for step in rank.new_steps]
    finally:
        reader.close()
    whole = [following.add(step) for step in steps]
    return tuple(one for one in whole if one is not None and not one.step.warmup)


def healthy() -> dict[str, tuple[WholeStep, ...]]:
    """Every recorded stretch in which nothing was planted."""
    demo = demo_steps()
    gpu = tuple(one for one in demo if one.step.index < DEMO_STARVES - 8)
    small = tuple(one for one in demo if 840 < one.step.index < 3000)
    return {**{name: cpu_steps(name) for name in CPU}, "gpu": gpu, "launch": small}


def made(seconds: float, parts: Parts) -> WholeStep:
    """A step that takes so long from start to start, with these phases."""
    phases = tuple(Phase(name=name, host_seconds=value) for name, value in parts.items())
    return WholeStep(Step(index=0, started_at=0.0, seconds=sum(parts.values()), phases=phases), seconds)


def longer(one: WholeStep, part: str, seconds: float) -> WholeStep:
    """The step with so much more of one part."""
    parts = {phase.name: phase.host_seconds for phase in one.step.phases if "/" not in phase.name}
    if part != "outside":
        parts[part] = parts.get(part, 0.0) + seconds
    return made(one.seconds + seconds, parts)


def slowed(one: WholeStep, factor: float) -> WholeStep:
    """The step with all of it so many times as long."""
    parts = {phase.name: phase.host_seconds * factor for phase in one.step.phases if "/" not in phase.name}
    return made(one.seconds * factor, parts)


def usual(steps: Iterable[WholeStep]) -> float:
    """Their median, in seconds."""
    return median(one.seconds for one in steps)


def resampled(
    chance: random.Random, steps: tuple[WholeStep, ...], count: int, block: float
) -> Iterator[WholeStep]:
    """So many steps in blocks drawn from `steps`, of random length with that mean (a block bootstrap)."""
    while count > 0:
        first, length = chance.randrange(len(steps)), 1 + int(chance.expovariate(1 / block))
        taken = steps[first : first + min(length, count)]
        count -= len(taken)
        yield from taken


def followed(steps: Iterable[WholeStep], changes: StepChanges | None = None) -> Iterator[tuple[int, StepChanges]]:
    """Give the steps to a `StepChanges`, counted from 0; yields it, and the count, whenever it tells a change."""
    changes, time = changes or StepChanges(), 1.8e9
    for index, one in enumerate(steps):
        step = Step(index=index, started_at=time, seconds=one.step.seconds, phases=one.step.phases)
        time += one.seconds
        if changes.add(WholeStep(step, one.seconds)):
            yield index, changes
