"""Text in cells of a terminal: lines that are broken, and texts that are cut, to a width."""

from __future__ import annotations

from typing import Literal

from llmtop.format import printable, width_of

MOST_CHARACTERS = 4000
"""Limit of one text: a file may have names of any length."""


def clean(text: str) -> str:
    """Return `text` without control sequences, of a bounded length: every text of a document passes here."""
    return printable(text, MOST_CHARACTERS)


def shorten(text: str, width: int, cut: Literal["start", "middle", "end", "never"] = "end") -> str:
    """Return `text` in at most `width` cells, with an ellipsis where characters are missing."""
    if width_of(text) <= width or cut == "never":
        return text
    room = width - 1
    left = {"start": 0, "middle": room // 2, "end": room}[cut]
    return f"{_first(text, left)}…{_first(text[::-1], room - left)[::-1]}" if width > 0 else ""


def _first(text: str, width: int) -> str:
    """Return the first characters that take at most so many cells."""
    end = min(len(text), width)
    while width_of(text[:end]) > width:
        end -= 1
    return text[:end]


_CLOSING = {"(": ")", "[": "]", "{": "}"}


def unclosed(text: str) -> str:
    """Return what closes the brackets that `text` leaves open, the innermost first; "" where none is."""
    missing: list[str] = []
    for char in text:
        if char in _CLOSING:
            missing.append(_CLOSING[char])
        elif missing and char == missing[-1]:
            missing.pop()
    return "".join(reversed(missing))


def wrap(text: str, width: int, first: str = "", later: str | None = None) -> list[str]:
    """Break text into lines of at most `width` cells; words longer than a line are broken too.

    Args:
        text: without line ends.
        width: cells of a line, indentation included.
        first: indentation of the first line.
        later: indentation of the other lines; None: as of the first.
    """
    later = first if later is None else later
    lines, line, is_empty = [], first, True
    for word in text.split(" "):
        rest = word if is_empty else f" {word}"
        if not is_empty and width_of(line + rest) > width >= width_of(later + word):
            lines.append(line.rstrip())
            line, rest = later, word
        while width_of(line + rest) > width:
            room = width - width_of(line)
            part = _first(rest, room if line.strip() else max(room, 2))
            lines.append((line + part).rstrip())
            line, rest = later, rest[len(part) :].lstrip()
        line, is_empty = line + rest, False
    return [*lines, line.rstrip()]
