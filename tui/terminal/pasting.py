"""Pasted text: what is between the marks of a bracketed paste, and text that arrives faster than a person types.

A terminal marks the two ends of a paste (``ESC [ 200 ~`` and ``ESC [ 201 ~``) if it supports that. A terminal
without the marks sends a paste like typed keys, and no program can tell the two apart for certain. The rate
distinguishes them well: a person presses at most some 20 different keys in a second, and a held key repeats one
character.
"""

from __future__ import annotations

import re
from typing import Final

PASTE_START: Final = "\x1b[200~"
PASTE_END: Final = "\x1b[201~"

PASTE_CHARACTERS = 1 << 16
"""The most that is kept of one paste; the rest of it is dropped. No field of the screen is longer."""
PASTE_SECONDS = 2.0
"""A marked paste without its end mark is over when nothing came for this time."""
BURST_SECONDS = 0.5
"""An unmarked paste is over when nothing came for this time."""
KEYS_IN_PASTE_SECONDS = 40
"""Fewer single keys than this in `PASTE_SECONDS`, and nothing else, are a person at a paste that lost its end."""

_BURST = 64.0
"""Different characters beyond what a person types: from here on, typed text is a paste."""
_TYPED_PER_SECOND = 30.0
"""Different characters that a person types in a second, generously."""
_REPEATED = 1 / 16
"""Weight of a repeated character. Held keys repeat up to 100 times a second: 6 of the 30."""
_SEQUENCE_COUNTS = 1 / 64
"""Weight of a sequence: a moving mouse sends hundreds in a second."""
_CUT_CHARACTERS = 64
"""An unfinished sequence that is longer is none."""

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O?.)?", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?")
_ONE_KEY = re.compile(rf".|{_SEQUENCE.pattern}", re.DOTALL)
_MARK = re.compile(f"{re.escape(PASTE_START)}|{re.escape(PASTE_END)}")
_LONGEST_CUT_MARK = len(PASTE_END) - 1


class Paste:
    """A paste that has begun and not ended."""

    def __init__(self, now: float, *, marked: bool) -> None:
        """Begin.

        Args:
            now: seconds of a clock that only grows.
            marked: whether it began with `PASTE_START`, so that only `PASTE_END` ends it.
        """
        self.marked = marked
        self._parts: list[str] = []
        self._room = PASTE_CHARACTERS
        self._tail = ""  # perhaps the beginning of a mark
        self._last_read = self._window_began = now
        self._keys_in_window = 0

    @property
    def text(self) -> str:
        """Return the kept text."""
        return ("".join(self._parts) + self._tail[: self._room]).replace("\0", "")

    def take(self, text: str, now: float) -> tuple[str, str] | None:
        """Add what was read.

        Returns:
            The mark that ends the paste and what follows the mark; None while the paste goes on.
        """
        self._last_read = now
        self._keys_in_window += 1 if _ONE_KEY.fullmatch(text) else KEYS_IN_PASTE_SECONDS
        joined = self._tail + text
        found = _MARK.search(joined)
        while found is not None and self.marked and found.group() == PASTE_START:
            found = _MARK.search(joined, found.end())
        end = len(joined) - _LONGEST_CUT_MARK if found is None else found.start()
        self._keep(joined[: max(end, 0)])
        self._tail = joined[max(end, 0) :] if found is None else ""
        return None if found is None else (found.group(), joined[found.end() :])

    def is_over(self, now: float) -> bool:
        """Return True if no more will come though no mark ended it; to be called often."""
        if now - self._last_read > (PASTE_SECONDS if self.marked else BURST_SECONDS):
            return True
        if now - self._window_began <= PASTE_SECONDS:
            return False
        few = self._keys_in_window < KEYS_IN_PASTE_SECONDS
        self._window_began, self._keys_in_window = now, 0
        return few

    def _keep(self, text: str) -> None:
        if self._room and text:
            self._parts.append(text[: self._room])
            self._room -= len(self._parts[-1])


class TypingRate:
    """How much faster than a person text comes: a count that time drains."""

    def __init__(self, now: float) -> None:
        """Begin with nothing typed, at this time in seconds."""
        self._level = 0.0
        self._drained = now
        self._last = ""
        self._cut = ""

    @property
    def is_burst(self) -> bool:
        """Return True if the text arrives faster than a person types."""
        return self._level > _BURST

    def add(self, text: str, now: float) -> int:
        """Count what was read; returns the number of characters in it that differ from the one before."""
        self._level = max(0.0, self._level - (now - self._drained) * _TYPED_PER_SECOND)
        self._drained = now
        characters, sequences = _SEQUENCE.subn("", self._whole_sequences(text))
        before = self._last + characters
        changes = sum(map(str.__ne__, before, before[1:])) + int(bool(characters) and not self._last)
        self._last = characters[-1:] or self._last
        repeated = len(characters) - changes
        self._level += changes + repeated * _REPEATED + sequences * _SEQUENCE_COUNTS
        return changes

    def _whole_sequences(self, text: str) -> str:
        """This text after what was cut off the text before it, and without a sequence that its end cuts."""
        text = self._cut + text
        start = text.rfind("\x1b")
        is_cut = start >= 0 and len(text) - start <= _CUT_CHARACTERS and _UNFINISHED.fullmatch(text, start)
        self._cut = text[start:] if is_cut else ""
        return text[:start] if is_cut else text
