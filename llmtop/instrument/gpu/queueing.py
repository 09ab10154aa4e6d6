"""Cost of calls that put work on a GPU's queue, without the time in which they wait for room there.

The queue of a training that is bound by its GPU is full for long. The next call waits until the GPU has taken
something: an event of llmtop, or else the script's next launch. So that wait is not llmtop's cost.
"""

from __future__ import annotations

MOST = 4.0
"""A call counts as long as the shortest so far, times this, at most: one between other work takes two to three
times as long as one in a loop of its own."""


class CallTimes:
    """How long the calls of one step took; the shortest of all steps is remembered."""

    def __init__(self) -> None:
        self._taken_ns: list[int] = []
        self._least_ns = float("inf")

    def clear(self) -> None:
        """A step begins."""
        self._taken_ns.clear()

    def add(self, ns: int) -> None:
        """Add one call that put something on the queue.

        Args:
            ns: how long the call took on the host, including any wait for room in the queue.
        """
        self._taken_ns.append(ns)

    def cost_ns(self) -> int:
        """Return the cost of all events of this step together, in ns."""
        self._least_ns = min([self._least_ns, *self._taken_ns])
        return round(sum(min(ns, MOST * self._least_ns) for ns in self._taken_ns))
