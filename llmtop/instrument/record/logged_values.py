"""Values by which a monitor judges whether the training learns, each with its step.

`State.metrics` has the last value of each name. A value that stands for one step alone, as NaN may, would be gone
before the next message. So the last values of losses, gradient norms, loss scales and learning rates are kept.
"""

from __future__ import annotations

from collections import deque
from itertools import count

from llmtop.naming.metric_names import metric_kind

KEPT = 2048
"""Values kept for a monitor that comes later: some 700 steps with loss, gradient norm and learning rate."""
MOST_OTHERS = 256
MOST_READ = 512
"""Values in one message: 30 bytes each."""

Logged = tuple[int, int, str, float]
"""Number of the value, step, name, value."""


class LoggedValues:
    """The last values of the names that show how the training learns. Written by any thread of the training."""

    __slots__ = ("_kept", "_numbers", "_others", "names")

    def __init__(self) -> None:
        self.names: set[str] = set()
        """Names whose values are kept."""
        self._others: set[str] = set()
        """Names of another kind: the patterns are tried once per name, not at each value."""
        self._kept: deque[Logged] = deque(maxlen=KEPT)
        self._numbers = count()

    def watch(self, name: str) -> bool:
        """Return whether values of this name are kept from now on."""
        if name in self.names:
            return True
        if name in self._others:
            return False
        if metric_kind(name) is not None:
            self.names.add(name)
            return True
        if len(self._others) < MOST_OTHERS:
            self._others.add(name)
        return False

    def add(self, name: str, value: float, step: int) -> None:
        """Keep a value of one of the `names`."""
        self._kept.append((next(self._numbers), step, name, value))

    def has_new(self, cursor: int) -> bool:
        """Return whether there are values from number `cursor` on."""
        kept = self._kept
        return bool(kept) and kept[-1][0] >= cursor

    def read(self, cursor: int) -> tuple[int, list[tuple[int, str, float]]]:
        """Return the number to read from next time, and some values from number `cursor` on, the oldest first."""
        fresh = [entry for entry in self._kept.copy() if entry[0] >= cursor][:MOST_READ]
        return (fresh[-1][0] + 1 if fresh else cursor), [entry[1:] for entry in fresh]
