"""The last finished steps, in memory that is laid out once; written by the training, read by the server thread.

A step is one row of packed numbers. Lists of Python's integers would cost ten times as much here: in a real
training every line of memory that was last touched two thousand steps ago is a cache miss, and an integer has
one of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from llmtop.publish import values
from llmtop.publish.phases import Paths

SIZE = 2048
"""Steps kept; a power of two."""
MASK = SIZE - 1
NAN = float("nan")
"""Tokens or samples that were not given."""

_HEAD = "4q2d"
_HEAD_FIELDS = 6
_CELLS_AT_ONCE = 8
"""Four phases more: to lay out the ring again takes a moment."""


class Row(NamedTuple):
    """One finished step, as it was packed."""

    step_index: int
    begun_ns: int
    """perf_counter."""
    host_ns: int
    interval_ns: int
    """Since the step before began; -1: there was none."""
    tokens: float
    samples: float
    cells: tuple[int, ...]
    """Nanoseconds and count by slot, as in `phases.Paths`."""


class Layout(NamedTuple):
    """Where rows lie. A new one replaces it whole when a step needs more cells."""

    buffer: bytearray
    row_bytes: int
    cells: int
    pack_into: Callable[..., None]
    unpack_from: Callable[[Any, int], tuple[Any, ...]]

    @classmethod
    def of(cls, cells: int) -> Layout:
        """Rows of that many cells, all empty."""
        packed = struct.Struct(f"<{_HEAD}{cells}q")
        return cls(bytearray(SIZE * packed.size), packed.size, cells, packed.pack_into, packed.unpack_from)


class Ring:
    """One writer, any number of readers, no lock.

    The writer packs row `count & MASK` and only then raises `count`. A reader copies and then looks at `count`
    again: what the writer may have reached meanwhile it throws away.
    """

    __slots__ = ("count", "layout", "paths")

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.count = 0
        """Steps finished since the process attached."""
        self.layout = Layout.of(paths.cells)

    def pack_slowly(self, place: int, fields: tuple[Any, ...], cells: list[int]) -> int:
        """Write a row that is not as usual: wider than any before, or with tokens or samples that are no number.

        Returns:
            how many cells a row has now; `cells` has been filled up to that.
        """
        if len(cells) > self.layout.cells:
            self._widen(-(-len(cells) // _CELLS_AT_ONCE) * _CELLS_AT_ONCE)
        layout = self.layout
        cells += [0] * (layout.cells - len(cells))
        *whole, tokens, samples = fields
        numbers = [NAN if number is None else number for number in map(values.number, (tokens, samples))]
        layout.pack_into(layout.buffer, place * layout.row_bytes, *whole, *numbers, *cells)
        return layout.cells

    def _widen(self, cells: int) -> None:
        """Make room for that many cells a step."""
        old, new = self.layout, Layout.of(cells)
        blank = (0,) * (cells - old.cells)
        for place in range(min(self.count, SIZE)):
            new.pack_into(
                new.buffer, place * new.row_bytes, *old.unpack_from(old.buffer, place * old.row_bytes), *blank
            )
        self.layout = new

    def oldest(self) -> int:
        """The number of the oldest step that can still be read."""
        return max(0, self.count - SIZE + 1)

    def read(self, first: int, limit: int) -> tuple[int, list[Row]]:
        """Copy up to `limit` steps from number `first` on.

        Returns:
            the number of the first step copied, larger than `first` when the ring has turned over; and the steps.
        """
        start = max(first, self.oldest())
        stop = min(self.count, start + limit)
        layout = self.layout  # after `count`: an older one would lack the last rows
        copied = []
        for number in range(start, stop):
            fields = layout.unpack_from(layout.buffer, (number & MASK) * layout.row_bytes)
            copied.append(Row._make((*fields[:_HEAD_FIELDS], fields[_HEAD_FIELDS:])))
        overrun = min(max(0, self.oldest() - start), len(copied))
        return start + overrun, copied[overrun:]
