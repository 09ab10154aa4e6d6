"""Which optimizer's step ends a step of the training.

Where several take turns (GAN, one for each group of parameters) it is the one that came last. Not so for one that
is made anew within each step, as for the inner loops of meta-learning: an optimizer that was there when the first
backward pass began, and still is, keeps or takes the role from those that were not, unless the new one trains the
same parameters, or nobody else steps any more.
"""

from __future__ import annotations

import weakref
from typing import Any

LOST_CLOSER = 64
"""Optimizer steps without one of the optimizer that used to close a step, until another one does. More than a
GAN's discriminator takes for one of the generator."""
ALONE = 4
"""Steps in a row of one that was made later, after which it has taken over, until one of the first comes back."""


class Closer:
    """Told of each optimizer's step that has ended; keeps no optimizer alive."""

    __slots__ = ("_alone", "_founders", "_last", "_others", "_returned", "_seen", "_shares", "number")

    def __init__(self) -> None:
        self.number: int | None = None
        """id() of the optimizer that closes steps; to be compared first, as the usual case."""
        self._others = 0
        self._alone = 0
        self._last = 0
        self._seen: dict[int, weakref.ref[Any]] = {}
        self._shares: dict[int, bool] = {}
        """Of those that were made later: whether they train parameters of one that was there first."""
        self._founders: list[weakref.ref[Any]] = []
        self._returned = False
        """Whether one of them came back after a later one had taken over."""

    def found(self, optimizers: list[Any]) -> None:
        """These were there when the training began."""
        self._founders = [weakref.ref(optimizer) for optimizer in optimizers]

    def closed(self) -> None:
        """The one that closes steps has stepped."""
        self._others = 0

    def closes(self, optimizer: Any) -> bool:
        """Whether the step of another optimizer than `number` ends a step of the training."""
        number = id(optimizer)
        self._others += 1
        self._alone = self._alone + 1 if number == self._last else 1
        self._last = number
        seen = self._seen.get(number)
        new = seen is None or seen() is not optimizer  # a new one may have the id of one that is no more
        if new:
            self._seen[number] = weakref.ref(optimizer, lambda _: self._forget(number))
            self._shares.pop(number, None)
        if self._takes_over(optimizer, new):
            self.number, self._others, self._alone = number, 0, 0
        return number == self.number

    def _takes_over(self, optimizer: Any, new: bool) -> bool:
        if self._others > LOST_CLOSER:
            return True
        founders = [founder for reference in self._founders if (founder := reference()) is not None]
        if any(founder is optimizer for founder in founders):
            closer = self._closer()
            returns = not new and all(founder is not closer for founder in founders)
            self._returned = self._returned or returns
            return new or returns
        if not founders or (not self._returned and self._shares_with(optimizer, founders)):
            return new
        return self._alone > ALONE and not self._returned

    def _shares_with(self, optimizer: Any, founders: list[Any]) -> bool:
        # Asked once: it looks at each parameter of both.
        number = id(optimizer)
        if number not in self._shares:
            self._shares[number] = any(_train_the_same(optimizer, one) for one in founders)
        return self._shares[number]

    def _forget(self, number: int) -> None:
        self._seen.pop(number, None)
        self._shares.pop(number, None)

    def _closer(self) -> Any:
        seen = None if self.number is None else self._seen.get(self.number)
        return None if seen is None else seen()


def _train_the_same(optimizer: Any, other: Any) -> bool:
    """Whether two optimizers have parameters in common."""
    mine, others = ({id(p) for group in one.param_groups for p in group["params"]} for one in (optimizer, other))
    return not mine.isdisjoint(others)
