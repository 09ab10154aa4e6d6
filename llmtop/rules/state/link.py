"""State of one port of an InfiniBand or RoCE adapter over time."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator

from llmtop.model.links import ALERTING, WINDOW_SECONDS, Link, threshold


class LinkState:
    """One port, with its counts of errors over the last `WINDOW_SECONDS`."""

    is_updated = True
    __slots__ = ("_counts", "key", "link")

    def __init__(self, link: Link) -> None:
        self.key: Hashable = ("link", link.device, link.port)
        self.link = link
        self._counts: deque[tuple[float, dict[str, int]]] = deque()
        """When the counts changed, by the snapshots' time, and to what: the first holds at the window's begin."""

    def update(self, link: Link, now: float) -> None:
        """Take in the port as a snapshot has it.

        Args:
            link: the same port.
            now: unix time of the snapshot.
        """
        self.link = link
        counts = self._counts
        if not counts or counts[-1][1] != link.errors:
            counts.append((now, link.errors))
        while len(counts) > 1 and counts[1][0] <= now - WINDOW_SECONDS:
            counts.popleft()

    def rising(self) -> dict[str, int]:
        """Return the counters that have risen in the window by as much as an alert needs, with their rise."""
        return {error: rise for error, rise in self._rises() if rise >= threshold(error)}

    def _rises(self) -> Iterator[tuple[str, int]]:
        for error in ALERTING:
            now = self.link.errors.get(error)
            if now is not None:
                yield error, now - min(counts.get(error, now) for _, counts in self._counts)

    def concerned_keys(self) -> frozenset[Hashable]:
        """Return the port alone: which process uses it is not known."""
        return frozenset((self.key,))

    def alert_target(self) -> tuple[str | None, int | None]:
        """Neither a GPU nor a process: the alert concerns the machine."""
        return None, None
