"""Code that stands in for another function's, so that the stack is the same as without llmtop.

Warnings, loggers and tracebacks name the frames of callers by file, function, line and columns, which a code
object keeps beside its instructions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

_Place = tuple[int, int, int | None, int | None]
"""First and last line, first and last column."""
_UNITS_AN_ENTRY = 8
_NO_COLUMNS, _LONG = 13, 14
"""Kinds of entries of CPython 3.11 and later (its Objects/locations.md)."""


def in_place_of(code: CodeType, other: CodeType) -> CodeType:
    """`code` with the name of `other`, all of it at the call whose value `other` returns in its last line.

    Its first line is that one, too: profilers keep functions apart by their first lines, and would take the
    figures of the one for those of the other.
    """
    names: dict[str, Any] = {"co_filename": other.co_filename, "co_name": other.co_name}
    if sys.version_info < (3, 11):
        last = max(line for _, _, line in other.co_lines() if line is not None)
        return code.replace(**names, co_firstlineno=last, co_linetable=_same_line(len(code.co_code)))
    place = _last_call(other)
    table = b"".join(_entries(len(code.co_code) // 2, place))
    return code.replace(**names, co_qualname=other.co_qualname, co_firstlineno=place[0], co_linetable=table)


def _same_line(size: int) -> bytes:
    """Return the table of CPython 3.10 for so many bytes of instructions in one line."""
    whole, rest = divmod(size, 254)
    return bytes((254, 0)) * whole + (bytes((rest, 0)) if rest else b"")


def _last_call(code: Any) -> _Place:
    """Return where the expression stands that is returned last: its place comes just before that of the return."""
    places = [place for place in code.co_positions() if place[0] is not None]
    line, end, first, last = next((place for place in reversed(places) if place != places[-1]), places[-1])
    return line, line if end is None else end, first, last


def _entries(units: int, place: _Place) -> Iterator[bytes]:
    """Yield the table of CPython 3.11 and later for so many instructions, all of them there."""
    line, end, first, last = place
    for done in range(0, units, _UNITS_AN_ENTRY):
        length = min(_UNITS_AN_ENTRY, units - done) - 1
        if first is None or last is None:
            yield bytes((0x80 | _NO_COLUMNS << 3 | length, 0))
        else:
            columns = _varint(first + 1) + _varint(last + 1)
            yield bytes((0x80 | _LONG << 3 | length, 0)) + _varint(end - line) + columns


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 63:
        written.append(0x40 | number & 63)
        number >>= 6
    written.append(number)
    return bytes(written)
