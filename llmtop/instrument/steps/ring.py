"""The last finished steps, written by the training and read by the server thread.

A step is one tuple. Packing it into preallocated memory seems cheaper and is not: in a real training the code and
the tables of the struct module are cold each time, which costs twice what the few objects of a tuple do.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from llmtop.instrument.steps.phase_tree import Paths, PhaseNode

SIZE = 2048
"""Steps kept; a power of two."""
MASK = SIZE - 1

FIELDS = 6
"""The fields of a row before its cells: the step's index, begun (perf_counter ns), host ns, ns since the step
before began (-1: there was none), tokens, samples. A cell is nanoseconds or a count, by slot as in `phases.Paths`;
there may be fewer than there are slots by now."""

Row = tuple[Any, ...]


class Ring:
    """One writer, any number of readers, no lock.

    The writer sets row `count & MASK` and only then raises `count`. A reader copies and then reads `count` again:
    it discards what the writer may have replaced meanwhile.
    """

    __slots__ = ("count", "paths", "rows")

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.count = 0
        """Steps finished since the process attached."""
        self.rows: list[Row] = [()] * SIZE

    def oldest(self) -> int:
        """Return the number of the oldest step that can still be read."""
        return max(0, self.count - SIZE + 1)

    def last_end(self) -> int:
        """Return when the last finished step ended, as perf_counter ns; 0 before the first."""
        count = self.count
        if not count:
            return 0
        row = self.rows[(count - 1) & MASK]
        return int(row[1] + row[2])

    def read(self, first: int, limit: int) -> tuple[int, list[Row]]:
        """Copy up to `limit` steps from number `first` on.

        Returns:
            the number of the first step copied, larger than `first` when the ring has turned over; and the steps.
        """
        start = max(first, self.oldest())
        stop = min(self.count, start + limit)
        copied = [self.rows[number & MASK] for number in range(start, stop)]
        overrun = min(max(0, self.oldest() - start), len(copied))
        return start + overrun, copied[overrun:]


def in_phases(row: Row, root: PhaseNode) -> tuple[int, int]:
    """Return the nanoseconds that a step spent in phases, and how many there were, without those within others.

    Args:
        row: of a ring.
        root: of the tree of phases that its cells belong to.
    """
    places = [FIELDS + node.slot for node in tuple(root.children.values())]
    cells = [row[place : place + 2] for place in places if place < len(row)]
    return sum(ns for ns, _ in cells), sum(count for _, count in cells)


def share_in_no_phase(rows: Sequence[Row], root: PhaseNode) -> float:
    """Return the share of a step, up to the begin of the next one, that no phase has: the median; 1 if unknown.

    Args:
        rows: of a ring.
        root: as of `in_phases`.
    """
    shares = [1 - in_phases(row, root)[0] / max(row[2], row[3]) for row in rows if row[2] > 0]
    return median(shares) if shares else 1.0
