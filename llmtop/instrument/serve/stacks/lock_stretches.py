"""Finds the line of the loop that ran before a thread gave up Python's lock by itself.

A sampler that needs the lock gets it where an operator of torch gives it up, if that is before the switch interval
ends. What ran until then is between the release before and this one. Samples that waited for the whole interval
show which lines that is: they are of the same stretches. Without such samples nothing is known.
"""

from __future__ import annotations

from collections import Counter
from types import CodeType
from typing import Final

from llmtop.instrument.serve.stacks.since_check import MAX_LINES

_LEAST_SAMPLES: Final = 4
"""Samples of a stretch from which its lines are known."""
_LEAST_SHARE: Final = 0.1
"""Share of these samples below which a line is no part of the answer."""
_FREE_SHARE: Final = 0.25
"""A line at which the lock is free in more of its samples than this ends a stretch."""
_MOST_SAMPLES: Final = 512
"""Counts are halved then, so that what the loop did earlier fades."""


class LockStretches:
    """Counts of samples by line of the function that runs the loop."""

    def __init__(self) -> None:
        self._code: CodeType | None = None
        self._kept: Counter[tuple[int, int]] = Counter()
        """Samples for which the lock was kept until it was requested, by first and last line."""
        self._free: Counter[int] = Counter()
        """Samples for which it was free or given up, and those in phases."""

    def add_kept(self, code: CodeType, first: int, last: int) -> None:
        """Ingest a sample outside of phases for which the lock was kept until it was requested."""
        self._follow(code)
        self._kept[first, last] += 1

    def add_free(self, code: CodeType, line: int) -> None:
        """Ingest a sample at whose line the lock is given up, or that is in a phase."""
        self._follow(code)
        self._free[line] += 1

    def lines_before(self, code: CodeType, line: int) -> tuple[int, int] | None:
        """Return first and last line of what ran before the lock was given up at a line; None while unknown."""
        if code is not self._code:
            return None
        kept_by_line: Counter[int] = Counter()
        for (_, last), times in self._kept.items():
            kept_by_line[last] += times
        ends = [one for one, times in self._free.items() if times > _FREE_SHARE * (times + kept_by_line[one])]
        start = max((one for one in ends if one < line), default=None)
        # Before the first release of an iteration, the stretch begins after the last one of the iteration before.
        since = max(ends, default=line) if start is None else None
        inside = {
            lines: times
            for lines, times in self._kept.items()
            if (start or 0) < lines[1] <= line or (since is not None and lines[0] > since)
        }
        total = sum(inside.values())
        if total < _LEAST_SAMPLES:
            return None
        usual = [lines for lines, times in inside.items() if times >= _LEAST_SHARE * total]
        if not usual:
            return None
        first, last = min(one for one, _ in usual), max(one for _, one in usual)
        return (first, last) if last - first < MAX_LINES else None

    def _follow(self, code: CodeType) -> None:
        if code is not self._code:
            self._code = code
            self._kept.clear()
            self._free.clear()
        for counts in (self._kept, self._free):
            if counts.total() >= _MOST_SAMPLES:
                halved = {key: times // 2 for key, times in counts.items() if times > 1}
                counts.clear()
                counts.update(halved)  # type: ignore[arg-type]
