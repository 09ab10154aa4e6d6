"""Rows of machine integers, taken one by one or as whole columns: as Python objects they would take ten times the
memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from llmtop.trace.intervals import Ns


class Rows:
    """A table under way, whose rows keep the order in which they came."""

    def __init__(self, width: int) -> None:
        """A table of so many columns without rows."""
        self._single = array("q")
        self._columns: list[list[Ns]] = [[] for _ in range(width)]
        self._settled = 0
        self.extend = self._single.extend
        """Takes one row: as many numbers as there are columns."""

    def __len__(self) -> int:
        return self._settled + len(self._single) // len(self._columns)

    def add(self, columns: Sequence[Ns]) -> None:
        """Take some rows, column by column."""
        self._settle()
        self._settled += len(columns[0])
        for blocks, column in zip(self._columns, columns, strict=True):
            blocks.append(column)

    def _settle(self) -> None:
        """Make columns of the rows that came one by one."""
        if self._single:
            rows = np.frombuffer(self._single, dtype=np.int64).reshape(-1, len(self._columns))
            self._settled += len(rows)
            for place, blocks in enumerate(self._columns):
                blocks.append(rows[:, place].copy())
            del rows  # an array with a view cannot be emptied
            del self._single[:]

    def column(self, place: int) -> Ns:
        """Return a copy of a column as collected so far."""
        self._settle()
        blocks = self._columns[place]
        return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.int64)

    def pop_column(self, place: int) -> Ns:
        """Return a column and release its memory here."""
        self._settle()
        blocks, self._columns[place] = self._columns[place], []
        return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.int64)


class Tables:
    """Tables of a trace."""

    def __init__(self) -> None:
        self.ops = Rows(7)
        """start, end, device, stream, correlation, bytes, and the number of what it is."""
        self.calls = Rows(6)
        self.ranges = Rows(7)
        self.host = Rows(6)
        self.overhead = Rows(2)
        """Overheads with the columns of their table in the trace, in their order."""
        self.memory = Rows(9)
        """Memory events with the columns of their table in the trace but the last, in their order."""
        self.operators = Rows(3)
        """Operators with inputs or a sequence number, few of the rows of the host: the row, both numbers."""
        self.groups = Rows(3)
        """Kernels of collectives: row, size of the process group, number of the name."""
