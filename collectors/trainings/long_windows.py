"""Step figures of the last minutes and of the whole run: in bounded memory, to half a percent."""

from __future__ import annotations

import math
from array import array
from collections import deque
from itertools import chain

from collectors.trainings.step_window import CountedStep, Sum
from llmtop.model.snapshot import Window

MINUTES_SECONDS = 300.0
_PARTS = 60
_RESOLUTION = math.log(1.01)
"""Lengths are counted in classes that are 1 % apart, so percentiles are off by half of that at most."""


def length_class(seconds: float) -> int:
    """Return the histogram bin of a step time.

    Args:
        seconds: the step time; less than 1 ns counts as 1 ns.

    Returns:
        Number of the bin. Bins are `_RESOLUTION` wide in the natural logarithm.
    """
    return round(math.log(max(seconds, 1e-9)) / _RESOLUTION)


class _Part:
    """Steps that leave a window together."""

    __slots__ = ("_packed", "classes", "outside", "seconds", "steps", "tokens")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = 0
        self.outside = Sum()
        self.tokens = Sum()
        self.classes: dict[int, int] = {}
        """How many steps of each class of lengths; empty once the part is packed."""
        self._packed = array("q")
        """Class and number in turns: 16 bytes in place of some 100."""

    def pack(self) -> None:
        """Take less memory; no step is added any more."""
        self._packed = array("q", chain.from_iterable(self.classes.items()))
        self.classes = {}

    def merge(self, other: _Part, sign: int) -> None:
        self.seconds += sign * other.seconds
        self.steps += sign * other.steps
        self.outside.merge(other.outside, sign)
        self.tokens.merge(other.tokens, sign)
        packed = other._packed
        for place, count in chain(zip(packed[::2], packed[1::2], strict=True), other.classes.items()):
            left = self.classes.get(place, 0) + sign * count
            if left:
                self.classes[place] = left
            else:
                del self.classes[place]

    def add(self, counted: CountedStep, place: int) -> None:
        self.seconds += counted.length
        self.steps += 1
        self.outside.add(counted.outside)
        self.tokens.add(counted.step.tokens)
        self.classes[place] = self.classes.get(place, 0) + 1


class LongWindow:
    """The steps of so many seconds, or all of them."""

    def __init__(self, name: str, seconds: float | None = None) -> None:
        """Begin without a step.

        Args:
            name: what it is called on the screen and in JSON.
            seconds: how far back it reaches, to within a sixtieth; None for all steps.
        """
        self._name = name
        self._seconds = seconds
        self._parts: deque[_Part] = deque()
        self._all = _Part()
        self._summary: Window | None = None
        """Last result; None: a step has come since."""

    def add(self, counted: CountedStep, place: int) -> None:
        """Take in the newest whole step, which is of that class (`length_class`)."""
        self._summary = None
        self._all.add(counted, place)
        if self._seconds is None:
            return
        if not self._parts or self._parts[-1].seconds >= self._seconds / _PARTS:
            if self._parts:
                self._parts[-1].pack()
            self._parts.append(_Part())
        self._parts[-1].add(counted, place)
        while len(self._parts) > 1 and self._all.seconds - self._parts[0].seconds >= self._seconds:
            self._all.merge(self._parts.popleft(), -1)

    def summary(self) -> Window | None:
        """Return the figures of the steps; None without steps."""
        if self._summary is None and self._all.steps:
            self._summary = self._summarize()
        return self._summary

    def _summarize(self) -> Window:
        seen = self._all
        mean = seen.seconds / seen.steps
        half, most = self._percentiles(50, 95)
        return Window(
            name=self._name,
            seconds=seen.seconds,
            steps=seen.steps,
            step_seconds=mean,
            step_seconds_p50=half,
            step_seconds_p95=most,
            outside_seconds=max(0.0, seen.outside.total) / seen.outside.count if seen.outside.count else None,
            tokens_per_s=seen.tokens.total / seen.seconds if seen.tokens.count and seen.seconds > 0 else None,
        )

    def _percentiles(self, *pcts: float) -> list[float]:
        """Return the requested percentiles, in ascending order; there is at least one step."""
        classes = iter(sorted(self._all.classes.items()))
        found: list[float] = []
        before = place = 0
        for pct in pcts:
            wanted = (self._all.steps - 1) * pct / 100
            while before <= wanted:
                place, count = next(classes)
                before += count
            found.append(math.exp(place * _RESOLUTION))
        return found
