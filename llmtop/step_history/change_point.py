"""Where a training's steps became of another length, and what it comes to once they are known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from llmtop.model.snapshot import Change
from llmtop.step_history.step_blocks import NO_WORK, Work

SPREAD_OUT = 0.3
"""Share of the change, as a logarithm, that the rest of the step has too where all of it got slower."""
MIN_REST_SHARE = 0.1
"""Share of the step below which the rest of it is not compared."""
HELD_SECONDS = 60.0
HELD_SECONDS_LARGE = 15.0
LARGE = math.log(4.0)
MORE_SPREAD = 1.5, 0.1
"""If all parts of a step are slower at once, the machine is busy with something else, most often for a moment:
that is reported when it has lasted. Sooner when it is large and steps are as even as before, since programs that
take turns on a CPU make them uneven: in their spread by this factor, and to more than this logarithm."""
NORMAL_AFTER_SECONDS = 1800.0
"""Time after which the new length is the normal one: longer sequences after an hour of short ones are meant.
Half an hour leaves time to come back to the screen and read it."""
OF_THE_CHANGE = 0.5
"""A part is named if it has this share of the difference."""


class ChangePoint(NamedTuple):
    """Where the steps changed, and what they were before."""

    ordinal: int
    """The first step of the new length, as `StepChanges` counts."""
    step: int
    """Its index."""
    started_at: float
    before: float
    """Logarithm of the usual step before, in seconds."""
    before_parts: Mapping[str, float]
    """Median seconds of each part before."""
    before_spread: float
    """Spread between the lower and the upper eighth of the steps, as logarithms, within few steps."""
    before_work: Work = NO_WORK

    def grown_part(self, level: float, parts: Mapping[str, float]) -> tuple[str, float, float] | None:
        """Return the part that changed most the way the step did, with its seconds before and after."""
        sign = 1.0 if level > self.before else -1.0
        each = [
            (name, self.before_parts.get(name, 0.0), parts.get(name, 0.0))
            for name in self.before_parts.keys() | parts.keys()
        ]
        return max(each, key=lambda one: (sign * (one[2] - one[1]), one[0]), default=None)

    def is_everywhere(self, level: float, parts: Mapping[str, float]) -> bool:
        """Return True if the rest of the step changed as well, beside the part that changed most."""
        part = self.grown_part(level, parts)
        if part is None:
            return False
        step = math.exp(self.before)
        before, after = step - part[1], math.exp(level) - part[2]
        if before <= MIN_REST_SHARE * step or after <= 0:
            return False
        return math.log(after / before) / (level - self.before) >= SPREAD_OUT

    def is_by_work(self, level: float, work: Work) -> bool:
        """Return True if more tokens or samples per step account for at least half of the change, as a
        logarithm."""
        pairs = zip(self.before_work, work, strict=True)
        more = max((after / before for before, after in pairs if before and after), default=1.0)
        return math.log(more) >= OF_THE_CHANGE * (level - self.before)

    def seconds_to_last(self, level: float, parts: Mapping[str, float], spread: float, work: Work) -> float:
        """Seconds for which steps must stay so before that is reported; 0: at once."""
        # Other programs do not change the work of a step, so no wait is needed to exclude them.
        if self.is_by_work(level, work):
            return 0.0
        if level <= self.before or not self.is_everywhere(level, parts):
            return 0.0
        factor, floor = MORE_SPREAD
        uneven = spread > max(factor * self.before_spread, floor)
        return HELD_SECONDS if uneven or level - self.before < LARGE else HELD_SECONDS_LARGE

    def change(self, level: float, parts: Mapping[str, float], work: Work) -> Change:
        """Return the reported change.

        Args:
            level: logarithm of the usual step since, in seconds.
            parts: median seconds of each part since.
            work: mean tokens and samples per step since.
        """
        before, after = math.exp(self.before), math.exp(level)
        part = self.grown_part(level, parts)
        if part is not None and (part[2] - part[1]) / (after - before or 1.0) < OF_THE_CHANGE:
            part = None
        return Change(
            since_step=self.step,
            since=self.started_at,
            before_seconds=before,
            after_seconds=after,
            part=part[0] if part else None,
            part_before_seconds=part[1] if part else None,
            part_after_seconds=part[2] if part else None,
            tokens_before=self.before_work.tokens,
            tokens_after=work.tokens,
            samples_before=self.before_work.samples,
            samples_after=work.samples,
        )
