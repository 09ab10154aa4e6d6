"""What a benchmark says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One figure.

    `value` is held against `limit` (at most) when there is one; a ratio has the unit "x". `note` says what it was
    measured against and how.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""

    @property
    def is_within_limit(self) -> bool:
        """Whether the figure keeps its promise."""
        return self.limit is None or self.value <= self.limit


class SkipBenchmark(Exception):
    """What this measures against is not here; the text says what to install."""
