"""A line of a script's source, or the part of it that runs; no file is read into Python's own caches."""

from __future__ import annotations

import itertools
import linecache
import os
import tokenize
from types import CodeType
from typing import Final

_MAX_FILE_BYTES: Final = 4 << 20


def columns(code: CodeType, instruction: int, line: int) -> slice:
    """Return which part of the line runs, in bytes: one call of several; all of it where Python (3.10) does not
    know."""
    positions = getattr(code, "co_positions", None)
    if positions is None or instruction < 0:
        return slice(None)
    place = next(itertools.islice(positions(), instruction // 2, None), (None,) * 4)
    first, last, start, end = place
    if first != line or last != line or start is None or end is None:
        return slice(None)
    return slice(start, end)


def source(file: str, line: int, columns: slice) -> str:
    """Return a part of a line of a file, stripped; "" where it cannot be read."""
    return _line(file, line).encode()[columns].decode(errors="replace").strip()


def _line(file: str, line: int) -> str:
    known = linecache.cache.get(file)  # what cells of a notebook are in, and no file
    if known is not None and len(known) == 4:
        lines = known[2]
        return lines[line - 1] if 0 < line <= len(lines) else ""
    try:
        if not os.path.isfile(file) or os.stat(file).st_size > _MAX_FILE_BYTES:
            return ""
        with tokenize.open(file) as opened:
            return next(itertools.islice(opened, line - 1, line), "") if line > 0 else ""
    except (OSError, SyntaxError, ValueError):
        return ""
