"""Steps that come now and then and take much longer than the others, and what they cost."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from llmtop import format as fmt
from llmtop.model.snapshot import RareSteps
from llmtop.naming.own_phases import OUTSIDE, phase_label
from llmtop.step_history.whole_steps import WholeStep

LONG = 2.0
"""Times the usual step, and longer than what one step in eight exceeds by half: a long step."""
SPREAD = 1.5
MAX_LONG_STEPS = 256
"""Long steps that are remembered."""
PAID_BACK_STEPS = 4
PAID_BACK = 0.8
"""A step that waits for the GPU is followed by short ones, whose work the GPU had done already: those of the next
steps that are under this share of the usual one are taken off what it cost."""
MOST_SHARE = 0.25
"""If more of the steps are long, they are not rare."""
NEAR = 1 / MOST_SHARE
"""Long steps that follow each other within fewer steps than this are not rare there: they are one run."""
IN_A_ROW = 2
"""Long steps in a run that are still rare: an evaluation and the checkpoint after it."""
LEAST_SHARE = 0.005
"""Least share of time for a report."""
MAX_LOG_SPREAD = math.log(2.5)
"""Long steps of one part whose lengths lie further apart than this are of two kinds."""
REGULAR_SHARE = 0.75
REGULAR_WITHIN = 0.05
"""They come regularly if so many of the distances are within this share of the median one."""


def most_text(part: str) -> str:
    """Return where most of the time of the long steps went: "most in dataload", "most of it untimed"."""
    return "most of it untimed" if part == OUTSIDE else f"most in {fmt.shorten_middle(phase_label(part), 40)}"


def rare_steps_text(rare: RareSteps) -> str:
    """Return their cost: "1 step in 20 takes 1.20 s, most of it untimed; together they cost 3m 00s per hour"."""
    often = "a rare step" if rare.every is None else f"1 step in {fmt.number(rare.every)}"
    where = f", {most_text(rare.part)}" if rare.part else ""
    return (
        f"{often} takes {fmt.duration(rare.seconds)}{where}; together they cost "
        f"{fmt.duration(rare.seconds_per_hour)} per hour"
    )


class _LongStep(NamedTuple):
    ordinal: int
    at: float
    """Seconds of training before it."""
    seconds: float
    part: str | None


class RareStepFinder:
    """Remembers a training's long steps. Bounded memory."""

    def __init__(self) -> None:
        self._long: deque[_LongStep] = deque(maxlen=MAX_LONG_STEPS)
        self._costs: deque[float] = deque(maxlen=MAX_LONG_STEPS)
        self._limit = math.inf
        self._usual = 0.0
        self._usual_parts: Callable[[], dict[str, float]] = dict
        self._elapsed = 0.0
        self._began = 0.0
        self._count = 0
        self._began_count = 0
        self._paying = 0

    def set_usual(self, usual_seconds: float, high_seconds: float, parts: Callable[[], dict[str, float]]) -> None:
        """Set the usual step time.

        Args:
            usual_seconds: the median step.
            high_seconds: what one step in eight exceeds.
            parts: returns the median seconds of each part, which long steps alone need.
        """
        self._usual = usual_seconds
        self._limit = max(LONG * usual_seconds, SPREAD * high_seconds)
        self._usual_parts = parts

    def add(self, whole: WholeStep, ordinal: int) -> None:
        """Take the next step; `ordinal` counts them."""
        seconds = whole.seconds
        self._count = ordinal
        self._elapsed += seconds
        if seconds > self._limit:
            self._take(whole, ordinal)
        elif self._paying:
            self._paying -= 1
            if seconds < PAID_BACK * self._usual:
                self._costs[-1] -= self._usual - seconds

    def _take(self, whole: WholeStep, ordinal: int) -> None:
        if len(self._long) == MAX_LONG_STEPS:
            self._began, self._began_count = self._long[0].at, self._long[0].ordinal
        self._long.append(_LongStep(ordinal, self._elapsed, whole.seconds, self._part(whole)))
        self._costs.append(whole.seconds - self._usual)
        self._paying = PAID_BACK_STEPS

    def _part(self, whole: WholeStep) -> str | None:
        usual, excess = self._usual_parts(), whole.seconds - self._usual
        parts = {phase.name: phase.host_seconds for phase in whole.step.phases if "/" not in phase.name}
        parts.setdefault(OUTSIDE, whole.outside)
        name = max(parts, key=lambda one: parts[one] - usual.get(one, 0.0))
        return name if parts[name] - usual.get(name, 0.0) >= excess / 2 else None

    def forget_since(self, ordinal: int) -> None:
        """Forget the steps from there on: they are how steps are now."""
        while self._long and self._long[-1].ordinal >= ordinal:
            self._long.pop()
            self._costs.pop()
        self._limit = math.inf
        self._paying = 0

    def costliest(self) -> RareSteps | None:
        """Return the kind that costs most; None where none costs enough to be reported."""
        kinds = [kind for kind in self._kinds() if len(kind) > 1]
        elapsed, count = self._elapsed - self._began, self._count - self._began_count
        if not kinds or elapsed <= 0:
            return None
        kind = max(kinds, key=lambda one: sum(cost for _, cost in one))
        cost = max(0.0, sum(cost for _, cost in kind))
        if cost < LEAST_SHARE * elapsed or len(kind) > MOST_SHARE * count:
            return None
        return RareSteps(
            every=_regular_interval([long.ordinal for long, _ in kind]),
            seconds=median(long.seconds for long, _ in kind),
            usual_seconds=self._usual,
            seconds_per_hour=3600.0 * cost / elapsed,
            part=kind[0][0].part,
        )

    def _kinds(self) -> list[list[tuple[_LongStep, float]]]:
        """Long steps of one part and of like length."""
        by_part: dict[str | None, list[tuple[_LongStep, float]]] = {}
        for run in self._runs():
            if len(run) > IN_A_ROW:
                continue  # a stretch in which steps were long, or the beginning of a change
            for long, cost in run:
                by_part.setdefault(long.part, []).append((long, cost))
        return self._by_length(by_part)

    def _runs(self) -> list[list[tuple[_LongStep, float]]]:
        """Long steps with their costs, those near each other together."""
        runs: list[list[tuple[_LongStep, float]]] = []
        for long, cost in zip(self._long, self._costs, strict=True):
            if long.seconds <= LONG * self._usual:
                continue  # steps have become as long as that since
            if not runs or long.ordinal - runs[-1][-1][0].ordinal >= NEAR:
                runs.append([])
            runs[-1].append((long, cost))
        return runs

    @staticmethod
    def _by_length(
        by_part: dict[str | None, list[tuple[_LongStep, float]]],
    ) -> list[list[tuple[_LongStep, float]]]:
        kinds = []
        for members in by_part.values():
            members.sort(key=lambda one: one[0].seconds)
            kind = [members[0]]
            for one in members[1:]:
                if math.log(one[0].seconds / kind[-1][0].seconds) > MAX_LOG_SPREAD:
                    kinds.append(kind)
                    kind = []
                kind.append(one)
            kinds.append(kind)
        for kind in kinds:
            kind.sort(key=lambda one: one[0].ordinal)
        return kinds


def _regular_interval(ordinals: list[int]) -> float | None:
    """Return the steps from one to the next where that is regular."""
    gaps = [b - a for a, b in pairwise(ordinals)]
    if len(gaps) < 2:
        return None
    usual = median(gaps)
    near = sum(abs(gap - usual) <= max(REGULAR_WITHIN * usual, 0.5) for gap in gaps)
    return float(usual) if near >= REGULAR_SHARE * len(gaps) else None
