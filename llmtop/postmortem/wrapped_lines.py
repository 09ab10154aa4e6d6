"""Lines that a terminal has broken at its width, as a pane of tmux or a copied screen has them."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from llmtop.format import width_of

_WHOLE = re.compile(
    rb'File "[^"\n]{1,400}", line \d{1,7}, in \S|failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: \d+\)|'
    rb"Sending process \d+ closing signal"
)
"""Texts that no program breaks: where one lies in two lines, a terminal has broken it."""
_MAY_HOLD = re.compile(rb'File "|torch/distributed/elastic')
_SEARCHED = 1 << 18
_LEAST_WIDTH = 40
_LONGER_SHARE = 0.02
"""A terminal breaks all lines: only those with characters of unclear width may be longer."""
_LONGEST = 4000


def terminal_width(part: bytes) -> int:
    """Return the width at which a terminal has broken the lines of a log; 0 for none.

    Args:
        part: of the log; its last 256 KiB are looked at.
    """
    lines = [line.rstrip() for line in part[-_SEARCHED:].splitlines()]
    widths: Counter[int] = Counter()
    for first, second in pairwise(lines):
        if _MAY_HOLD.search(first) and not _WHOLE.search(first):
            if _is_broken(first, second):
                widths[_cells(first)] += 1
            elif _is_broken(first + b" ", second):  # tmux leaves spaces at the end of a line out
                widths[_cells(first) + 1] += 1
    if not widths:
        return 0
    width = widths.most_common(1)[0][0]
    longer = sum(_cells(line) > width for line in lines)
    return width if width >= _LEAST_WIDTH and longer <= _LONGER_SHARE * len(lines) else 0


def numbered_lines(part: bytes, width: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield each line with the number of its first row and its bytes in the file.

    Args:
        part: of a log.
        width: at which a terminal has broken its lines; 0: it has not.
    """
    held, first, size = b"", 0, 0
    for number, raw in enumerate(io.BytesIO(part), 1):
        if not width:
            yield number, raw, len(raw)
            continue
        row = raw.rstrip()  # a pane may be padded with spaces
        if not held:
            first = number
        held, size = held + row, size + len(raw)
        if _cells(row) == width and len(held) < _LONGEST:
            continue
        if _cells(row) == width - 1 and _MAY_HOLD.search(held) and not _WHOLE.search(held):
            held += b" "
            continue
        yield first, held + b"\n", size
        held, size = b"", 0
    if held:
        yield first, held, size


def _is_broken(first: bytes, second: bytes) -> bool:
    return _WHOLE.search(first + second) is not None and _WHOLE.search(second) is None


def _cells(line: bytes) -> int:
    return len(line) if line.isascii() else width_of(line.decode("utf-8", "replace"))
