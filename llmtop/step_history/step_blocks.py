"""A training's steps in blocks of a few, as `llmtop.step_history.step_changes` compares them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from operator import itemgetter
from statistics import median
from typing import NamedTuple

from llmtop.naming.own_phases import OUTSIDE
from llmtop.step_history.whole_steps import WholeStep

SPREAD = 5.0
"""Times the spread of a test's earlier values: were they normal, one in 1.7 million is beyond."""
WORST_MARGIN = 1.3
"""Times the largest of them."""
MAX_PAST_VALUES = 128


class Work(NamedTuple):
    """Mean work per step; None where a step does not count it."""

    tokens: float | None
    samples: float | None


NO_WORK = Work(None, None)


class Block(NamedTuple):
    """Some steps that follow each other."""

    ordinal: int
    """Ordinal of its first step, counted here."""
    steps: int
    step: int
    started_at: float
    seconds: float
    level: float
    """Logarithm of a step that four in eight are below: one of the steps, as those of `low` and `high` are. The
    median, a mean of two, lies between the two lengths of steps that alternate (a healthy training of transformers
    in tests/data does) and reported a change there."""
    low: float
    high: float
    """Logarithms of what one step in eight is below, and above."""
    parts: dict[str, float]
    """Median seconds of each phase, and outside."""
    work: Work = NO_WORK


class PastValues:
    """Past values of a test with their times, in blocks.

    A rank has fifty of these, most of them short: a deque would take 600 bytes while it has one value.
    """

    __slots__ = ("_times", "_values")

    def __init__(self) -> None:
        self._times = array("q")
        self._values = array("d")

    def add(self, now: int, shift: float) -> None:
        self._times.append(now)
        self._values.append(abs(shift))
        if len(self._times) > MAX_PAST_VALUES:
            del self._times[0], self._values[0]

    def remove_since(self, since: int) -> None:
        """Remove the blocks from there on, which belong to a change."""
        while self._times and self._times[-1] > since:
            self._times.pop()
            self._values.pop()

    def usual(self, until: int) -> tuple[int, float]:
        """Return how many there were until then, and what none of them exceeds, nor would by their spread."""
        ordered = sorted([value for at, value in zip(self._times, self._values, strict=True) if at <= until])
        if not ordered:
            return 0, 0.0
        return len(ordered), max(SPREAD * 1.4826 * median(ordered), WORST_MARGIN * ordered[-1])


def make_block(steps: Sequence[WholeStep], count: int) -> Block:
    ordered = sorted([whole.seconds for whole in steps])
    number = len(ordered)
    first = steps[0].step
    work = Work(_mean([whole.step.tokens for whole in steps]), _mean([whole.step.samples for whole in steps]))
    if ordered[0] == ordered[-1] and all(whole.step.phases is first.phases for whole in steps):
        level = math.log(ordered[0])  # of the mean of a minute
        parts = _parts_of_step(steps[0])
        return Block(
            count - number + 1,
            number,
            first.index,
            first.started_at,
            sum(ordered),
            level,
            level,
            level,
            parts,
            work,
        )
    columns: dict[str, list[float]] = {}
    outside: list[float] = []
    for whole in steps:
        rest = whole.seconds
        for phase in whole.step.phases:
            name = phase.name
            if "/" not in name:
                seconds = phase.host_seconds
                rest -= seconds
                column = columns.get(name)
                if column is None:
                    column = columns[name] = []
                column.append(seconds)
        outside.append(rest if rest > 0 else 0.0)
    parts = {name: median([*column, *[0.0] * (number - len(column))]) for name, column in columns.items()}
    if OUTSIDE not in parts:
        parts[OUTSIDE] = median(outside)
    return Block(
        count - number + 1,
        number,
        first.index,
        first.started_at,
        sum(ordered),
        math.log(ordered[number * 4 // 8]),
        math.log(ordered[number // 8]),
        math.log(ordered[-1 - number // 8]),
        parts,
        work,
    )


def _parts_of_step(whole: WholeStep) -> dict[str, float]:
    parts = {phase.name: phase.host_seconds for phase in whole.step.phases if "/" not in phase.name}
    parts.setdefault(OUTSIDE, max(0.0, whole.seconds - sum(parts.values())))
    return parts


def _mean(values: Sequence[float | None]) -> float | None:
    counted = [value for value in values if value is not None and math.isfinite(value)]
    return sum(counted) / len(counted) if values and len(counted) == len(values) else None


def work_of(blocks: Sequence[Block]) -> Work:
    """Return the mean work per step over the blocks; None where one of them does not count it."""
    return Work(_mean([block.work.tokens for block in blocks]), _mean([block.work.samples for block in blocks]))


def level_of(blocks: Sequence[Block]) -> float:
    return median([block.level for block in blocks])


def spread_of(blocks: Sequence[Block]) -> float:
    return median([block.high - block.low for block in blocks])


def parts_of(blocks: Sequence[Block]) -> dict[str, float]:
    names = {name for block in blocks for name in block.parts}
    return {name: median([block.parts.get(name, 0.0) for block in blocks]) for name in names}


class Columns:
    """Values of blocks by part, each list made once."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        """Take some blocks, oldest first."""
        self._blocks = blocks
        self._parts = [block.parts for block in blocks]
        self._columns: dict[str | None, list[float]] = {}

    def column(self, name: str | None) -> list[float]:
        """Return the level of each block; for a part its seconds."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self._make(name)
        return found

    def _make(self, name: str | None) -> list[float]:
        if name is None:
            return [block.level for block in self._blocks]
        try:
            return list(map(itemgetter(name), self._parts))
        except KeyError:
            return [parts.get(name, 0.0) for parts in self._parts]


def median_level(values: list[float], usual: float | None) -> float:
    """Return the median of `series_of` of some blocks.

    Args:
        values: of `Columns.column`.
        usual: as of `series_of`; None: values are levels.
    """
    ordered, middle = sorted(values), len(values) // 2
    low, high = ordered[(len(ordered) - 1) // 2], ordered[middle]
    if usual is None:
        return (low + high) / 2
    return (math.log1p(low / usual) + math.log1p(high / usual)) / 2


def series_of(blocks: Sequence[Block], name: str | None, usual: float) -> list[float]:
    """Return the level of each block; for a part, the level of a step that is longer by the part."""
    if name is None:
        return [block.level for block in blocks]
    return [math.log1p(block.parts.get(name, 0.0) / usual) for block in blocks]


def best_split(levels: list[float]) -> int:
    """Return the place at which two means describe the values best (least squares)."""
    number, total = len(levels), sum(levels)
    best, place, head = -1.0, 0, 0.0
    for at, level in enumerate(levels[:-1], 1):
        head += level
        apart = head / at - (total - head) / (number - at)
        gain = apart * apart * at * (number - at)
        if gain > best:
            best, place = gain, at
    return place
