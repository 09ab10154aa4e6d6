"""Width of texts in cells of the terminal, without a cache.

rich keeps the width of each text that it was ever asked for, up to 4096 of them: of a screen of changing numbers
that is a megabyte of texts that are never drawn again.
"""

from __future__ import annotations

from rich.cells import cached_cell_len

_measure = cached_cell_len.__wrapped__


def cell_len(text: str) -> int:
    """Return the number of cells that a text takes; control characters take none."""
    return len(text) if text.isascii() and text.isprintable() else _measure(text)
