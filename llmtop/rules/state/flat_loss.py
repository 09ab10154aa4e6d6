"""Whether a loss has stopped moving, and since which step.

Late in a training a loss moves by less than its noise, and it slows down all the time. So a loss is flat only
where its values are the same, or where its fall ended at once: where it is far above what its own slowing-down
predicts.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final, NamedTuple

from llmtop.rules.state.metric_curve import CONSISTENT, median

SAME: Final = 1e-6
"""Relative difference up to which two values are the same."""
SAME_VALUES: Final = 100
BLOCK: Final = 16
MOST_BLOCKS: Final = 256
"""From there on two blocks become one."""
LEAST_BLOCKS: Final = 8
"""In each of the compared stretches."""
SEGMENTS: Final = 6
"""Three before the step since which it is flat, three after it."""
EXPECTED_ERRORS: Final = 8.0
"""The fall that is missing is so many standard errors."""
FLAT_ERRORS: Final = 2.5
SURE_ERRORS: Final = 4.0
"""Standard errors by which the falls before are taken for smaller than measured."""
NEVER_BLOCKS: Final = 32
NEVER_PCT: Final = 1.0
"""A loss whose blocks since the first step all lie within so much never fell: trainings that learn lose far
more in their first 500 steps."""
NEVER_FIRST_STEP: Final = 10
"""A training that goes on from a checkpoint has fallen before."""


class _Block(NamedTuple):
    """Some values in a row."""

    step: int
    """Of the first."""
    middle: float
    """Median of the logarithms."""
    variance: float
    """Of that median."""


class FlatLoss:
    """Watches one loss. Values come in the order of their steps."""

    __slots__ = ("_blocks", "_factor", "_open", "_open_step", "_same_count", "_same_since", "_same_value", "since")

    def __init__(self) -> None:
        self.since: int | None = None
        """The step since which the loss is flat; None while it moves or while that is unknown."""
        self._same_value = math.nan
        self._same_since = self._same_count = 0
        self._blocks: list[_Block] = []
        self._factor = 1
        self._open: list[float] = []
        self._open_step = 0

    def forget_fall(self) -> None:
        """Begin anew with the fall: the loss comes back from a spike, or its learning rate rises."""
        self._blocks, self._open, self._factor = [], [], 1

    def add(self, step: int, value: float) -> bool:
        """Take the finite value of a step.

        Returns:
            Whether the loss is found to be flat by this value.
        """
        if abs(value - self._same_value) <= SAME * max(abs(value), 1e-12):
            self._same_count += 1
        else:
            if self.since is not None and self.since == self._same_since:
                self.since = None
            self._same_value, self._same_since, self._same_count = value, step, 1
        if self.since is None and self._same_count >= SAME_VALUES and step - self._same_since >= SAME_VALUES - 1:
            self.since = self._same_since
            return True
        if value <= 0.0:
            return False
        if not self._open:
            self._open_step = step
        self._open.append(math.log(value))
        return len(self._open) >= BLOCK * self._factor and self._close_block()

    def _close_block(self) -> bool:
        middle = median(self._open)
        spread = CONSISTENT * median([abs(one - middle) for one in self._open])
        count = len(self._open)
        # The median of normal noise varies pi / 2 times as much as its mean.
        self._blocks.append(_Block(self._open_step, middle, math.pi / 2 * spread * spread / count))
        self._open = []
        if len(self._blocks) >= MOST_BLOCKS:
            pairs = zip(self._blocks[::2], self._blocks[1::2], strict=False)
            self._blocks = [
                _Block(one.step, (one.middle + two.middle) / 2, (one.variance + two.variance) / 4)
                for one, two in pairs
            ]
            self._factor *= 2
        found = self._end_of_fall()
        if found is None:
            if self.since is not None and self.since != self._same_since and self._falls_again():
                self.since = None
            return False
        is_new = self.since is None
        self.since = found if self.since is None else self.since
        return is_new

    def _end_of_fall(self) -> int | None:
        """Return the step since which the loss is flat; None while it moves or that is unknown."""
        if self._factor == 1 and len(self._blocks) == NEVER_BLOCKS and self._never_fell():
            return self._blocks[0].step
        size = LEAST_BLOCKS
        while size * SEGMENTS <= len(self._blocks):
            step = self._flat_since(size)
            if step is not None:
                return step
            size *= 2
        return None

    def _flat_since(self, size: int) -> int | None:
        blocks = self._blocks[-size * SEGMENTS :]
        parts = [blocks[place : place + size] for place in range(0, len(blocks), size)]
        means = [sum(block.middle for block in part) / size for part in parts]
        error = math.sqrt(2 * _variance(blocks) / size)
        falls = [before - after for before, after in pairwise(means)]
        first, second = falls[0] + SURE_ERRORS * error, falls[1] - SURE_ERRORS * error
        if first <= 0.0 or second <= 0.0:
            return None
        slowing = min(second / first, 1.0)
        expected = second * (slowing**2 + slowing**3)  # the first stretch after the end has part of the fall
        missing = falls[3] + falls[4]
        flat = all(abs(fall) <= FLAT_ERRORS * error for fall in falls[3:])
        if not flat or expected - missing < EXPECTED_ERRORS * error:
            return None
        return parts[3][0].step

    def _never_fell(self) -> bool:
        middles = [block.middle for block in self._blocks]
        spread = max(middles) - min(middles)
        return self._blocks[0].step <= NEVER_FIRST_STEP and spread <= 2 * NEVER_PCT / 100

    def _falls_again(self) -> bool:
        """Return whether the last blocks are clearly below those before them."""
        blocks = self._blocks[-2 * LEAST_BLOCKS :]
        if len(blocks) < 2 * LEAST_BLOCKS:
            return False
        before, after = blocks[:LEAST_BLOCKS], blocks[LEAST_BLOCKS:]
        fall = (sum(one.middle for one in before) - sum(one.middle for one in after)) / LEAST_BLOCKS
        error = math.sqrt(2 * _variance(blocks) / LEAST_BLOCKS)
        return fall > EXPECTED_ERRORS / 2 * error


def _variance(blocks: list[_Block]) -> float:
    """Return the variance of a block's median: by the values in it, or by its neighbors if these say more.

    Neighbors show noise that lasts for more than a block. Second differences leave a trend out; their variance is
    six times that of a block.
    """
    middles = [block.middle for block in blocks]
    bends = [
        (before - 2 * middle + after) ** 2 / 6
        for before, middle, after in zip(middles, middles[1:], middles[2:], strict=False)
    ]
    within = sum(block.variance for block in blocks) / len(blocks)
    return max(within, sum(bends) / len(bends) if bends else 0.0)
