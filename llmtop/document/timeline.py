"""Timeline of every device over all its whole steps, for a page that zooms: rows of pieces, few however many
events there are.

Times are whole ns since the beginning of the timeline. A row has so few pieces that all rows together stay below a
limit: where there are more events, neighbours are one piece, which says of how many and how much of it is filled.
"""

from __future__ import annotations

import msgspec


class PieceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row: its pieces in order of their start, none over another; a value a piece in each column."""

    label: str
    starts: tuple[int, ...]
    """ns since the start of the piece before, of the first since the beginning: short numbers."""
    lengths: tuple[int, ...]
    """ns."""
    kinds: tuple[int, ...]
    """Places in `WholeTimeline.kinds`: what most of the piece's time is."""
    texts: tuple[int, ...]
    """Places in `WholeTimeline.texts`: what took the most of its time."""
    counts: tuple[int, ...] = ()
    """How many events it stands for; empty: one each."""
    fills: tuple[int, ...] = ()
    """How much of it is filled, in percent; empty: all of it."""


class DeviceRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one process on one GPU."""

    label: str
    rows: tuple[PieceRow, ...] = ()


class WholeTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """All whole steps; without steps, all of the capture."""

    title: str
    length: int
    """ns from the first step of any device to the end of the last."""
    kinds: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    devices: tuple[DeviceRows, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()
    """Start and length of the judged device's steps, in ns."""
    usual: tuple[int, int] | None = None
    """Start and length of that of them with the median length, which is drawn closest."""
    left_out: str = ""
    """Left-out parts, in words."""
