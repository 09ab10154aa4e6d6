"""True if a loss has stopped moving, and since which step.

Late in a training a loss moves by less than its noise, and a curriculum or a low learning rate ends its fall
too. So a loss is flat only where no healthy one is: its values are the same, or it has never fallen, or it has
left its range for a level at which it stays.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import Final

from llmtop.rules.state.metric_curve import CONSISTENT

SAME: Final = 1e-5
"""Relative difference up to which two values are the same: sums in float32 vary by 1e-6 with their order."""
SAME_VALUES: Final = 100
BLOCK: Final = 16
NEVER_BLOCKS: Final = 32
NEVER_PCT: Final = 1.0
"""A loss whose blocks since the first step all lie within so much never fell: trainings that learn lose far
more in their first 500 steps."""
NEVER_FIRST_STEP: Final = 100
"""A training that goes on from a checkpoint has fallen before."""
LEVEL_VALUES: Final = 100
LEVEL_SPREAD: Final = 0.02
LEVEL_SPREAD_SHARE: Final = 0.5
"""Share of the usual spread, for a level at which a loss stays. A model that predicts the same for each input
has a loss near the logarithm of the number of its classes, with less noise than one that separates the
inputs."""
LEVEL_ERRORS: Final = 4.0


class FlatLoss:
    """Watches one loss. Values come in the order of their steps."""

    __slots__ = (
        "_first_step",
        "_level",
        "_middles",
        "_open",
        "_same_count",
        "_same_since",
        "_same_value",
        "since",
    )

    def __init__(self) -> None:
        self.since: int | None = None
        """The step since which the loss is flat; None while it moves or while that is unknown."""
        self._same_value = math.nan
        self._same_since = self._same_count = 0
        self._first_step: int | None = None
        self._middles: list[float] | None = []
        """Medians of the blocks since the first step; None once it has fallen."""
        self._open: list[float] = []
        self._level: deque[float] = deque(maxlen=LEVEL_VALUES)

    def add(self, step: int, value: float, left_range: tuple[int, float] | None) -> bool:
        """Take the finite value of a step.

        Args:
            step: not below that of the value before.
            value: finite.
            left_range: step since which the loss is above its usual range, and the usual spread of its logarithm;
                None where it is within.

        Returns:
            Whether the loss is found to be flat by this value.
        """
        if self._first_step is None:
            self._first_step = step
        was = self.since
        if abs(value - self._same_value) <= SAME * max(abs(value), 1e-12):
            self._same_count += 1
        else:
            if self.since == self._same_since:
                self.since = None
            self._same_value, self._same_since, self._same_count = value, step, 1
        if self.since is None and self._same_count >= SAME_VALUES:
            self.since = self._same_since
        elif value > 0.0:
            self._take_never(math.log(value))
            self._take_level(math.log(value), left_range)
        return was is None and self.since is not None

    def _take_never(self, scaled: float) -> None:
        if self._middles is None or self._first_step is None or self._first_step > NEVER_FIRST_STEP:
            return
        self._open.append(scaled)
        if len(self._open) < BLOCK:
            return
        self._middles.append(median(self._open))
        self._open = []
        if max(self._middles) - min(self._middles) > 2 * NEVER_PCT / 100:
            self._middles = None
            if self.since == self._first_step:
                self.since = None
        elif len(self._middles) >= NEVER_BLOCKS and self.since is None:
            self.since = self._first_step

    def _take_level(self, scaled: float, left_range: tuple[int, float] | None) -> None:
        if left_range is None:
            self._level.clear()
            return
        self._level.append(scaled)
        if self.since is not None or len(self._level) < LEVEL_VALUES:
            return
        values = list(self._level)
        half = len(values) // 2
        first, second = median(values[:half]), median(values[half:])
        middle = median(values)
        spread = CONSISTENT * median([abs(one - middle) for one in values])
        # The median of normal noise varies pi / 2 times as much as its mean.
        error = math.sqrt(math.pi / half) * spread
        most = min(LEVEL_SPREAD, LEVEL_SPREAD_SHARE * left_range[1])
        if spread <= most and abs(first - second) <= max(LEVEL_ERRORS * error, SAME):
            self.since = left_range[0]
