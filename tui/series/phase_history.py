"""How a training's step was made up: seconds of each phase, over two hours by quarter minutes, or longer."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

from llmtop.model.snapshot import Rank
from llmtop.naming.own_phases import OUTSIDE

BUCKET_SECONDS = 15.0
_BUCKETS = 480
MOST_NAMES = 10
"""The top-level phases of which there is a history, `outside` among them."""


def parts_of(rank: Rank) -> dict[str, float]:
    """Return mean seconds by top-level phase, `OUTSIDE` among them."""
    parts = {phase.name: phase.host_seconds for phase in rank.phases if "/" not in phase.name}
    if rank.outside_seconds is not None:
        parts[OUTSIDE] = rank.outside_seconds
    return parts


class PhaseHistory:
    """One training process; all the room is taken at once."""

    __slots__ = ("_bucket_seconds", "_seconds", "_stamps", "kept", "names", "newest")

    def __init__(self, bucket_seconds: float = BUCKET_SECONDS) -> None:
        """Take the room.

        Args:
            bucket_seconds: how long the means of one bucket hold.
        """
        self._bucket_seconds = bucket_seconds
        self.names: list[str] = []
        """Names in the order in which the phases run, as far as it is known."""
        self.newest = 0.0
        self.kept: tuple[object, object] | None = None
        """Last drawing, with its key."""
        self._seconds = array("f", [0.0]) * (_BUCKETS * MOST_NAMES)
        self._stamps = array("q", [-1]) * _BUCKETS

    def add(self, rank: Rank, now: float) -> None:
        """Take in the means that hold now; the last of a quarter minute stays."""
        self.newest = now
        self.add_parts(parts_of(rank), now)

    def add_parts(self, parts: Mapping[str, float], at: float) -> None:
        """Take in mean seconds by top-level phase.

        Args:
            parts: by name, `OUTSIDE` among them.
            at: unix time.
        """
        bucket = math.floor(at / self._bucket_seconds)
        place = bucket % _BUCKETS
        base = place * MOST_NAMES
        self._seconds[base : base + MOST_NAMES] = array("f", [0.0]) * MOST_NAMES
        self._stamps[place] = bucket
        for name, seconds in parts.items():
            if name not in self.names:
                if len(self.names) >= MOST_NAMES:
                    continue
                self.names.append(name)
            if 0.0 <= seconds < math.inf:
                self._seconds[base + self.names.index(name)] = seconds

    def mean_phases(self, start: float, end: float) -> dict[str, float] | None:
        """Mean seconds of each phase from one instant to before another; None where nothing is known."""
        found, number = [0.0] * len(self.names), 0
        length = self._bucket_seconds
        first = math.floor(start / length)
        for bucket in range(first, max(math.ceil(end / length), first + 1)):
            place = bucket % _BUCKETS
            if self._stamps[place] == bucket:
                number += 1
                for index in range(len(found)):
                    found[index] += self._seconds[place * MOST_NAMES + index]
        if not number:
            return None
        return {name: seconds / number for name, seconds in zip(self.names, found, strict=True)}
