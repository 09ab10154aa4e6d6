"""The bytes of a terminal as Textual's messages, whatever the bytes are.

Textual decodes strictly and lets its parser raise, and either ends the program. A terminal sends what another
program printed into it, half a character at a lost connection, or the answers to somebody else's questions; none
of that is a reason to stop. So: what is no UTF-8 becomes a replacement character, a sequence that the parser
chokes on is dropped by itself, and a paste that never ends is given up.
"""

from __future__ import annotations

import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable

from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.events import Resize
from textual.message import Message
from textual.messages import InBandWindowResize

PASTE_SECONDS = 1.0
"""A paste in which nothing came for so long has lost its end; without a limit no key would work ever again."""
PASTE_SECONDS_IN_ALL = 5.0
"""Nor may one take longer, so that somebody who presses key after key to be heard is heard."""
PASTE_CHARACTERS = 1 << 20
"""The most that is kept of one paste."""


class Keyboard:
    """Makes messages of bytes; keeps what is not complete yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Wait for the first key.

        Args:
            clock: seconds that only grow, to tell an escape key from the beginning of a sequence.
        """
        self._decode = getincrementaldecoder("utf-8")(errors="replace").decode
        self._parser = XTermParser()
        self._clock = clock
        self._tail = ""
        self._paste = 0  # characters of an open paste, its beginning among them
        self._heard = clock()
        self._paste_began = 0.0

    @property
    def waits(self) -> bool:
        """Whether `tick` may have something to say soon: a key came lately, or a paste is open."""
        return bool(self._paste) or self._clock() - self._heard < PASTE_SECONDS

    def feed(self, data: bytes) -> list[Message]:
        """Take in what was read, and return what is complete now."""
        self._heard = self._clock()
        found: list[Message] = []
        for character in self._decode(data):
            # One at a time, so that what breaks the parser costs nothing but itself.
            found += self._guarded(self._parser.feed(character))
            self._watch_paste(character)
        return found

    def tick(self) -> list[Message]:
        """Make a lone escape a key after a while, and give up an open paste; to be called often."""
        now = self._clock()
        if self._paste and (now - self._heard > PASTE_SECONDS or now - self._paste_began > PASTE_SECONDS_IN_ALL):
            self._renew()
        return self._guarded(self._parser.tick())

    def _guarded(self, parsed: Iterable[Message]) -> list[Message]:
        try:
            found = list(parsed)
        except Exception:  # noqa: BLE001  the parser is not ours, and any bytes may come
            self._renew()
            return []
        # The size is asked from the kernel, which cannot be typed; believing such a sequence would let anyone make
        # the screen a million columns wide, and turn the mouse's cells into pixels.
        if any(isinstance(message, (Resize, InBandWindowResize)) for message in found):
            self._renew()
            return []
        return found

    def _watch_paste(self, character: str) -> None:
        self._tail = (self._tail + character)[-len(BRACKETED_PASTE_START) :]
        if self._tail == BRACKETED_PASTE_END:
            self._paste = 0
        elif self._paste or self._tail == BRACKETED_PASTE_START:
            if not self._paste:
                self._paste_began = self._heard
            self._paste += 1
            if self._paste > PASTE_CHARACTERS:
                self._renew()

    def _renew(self) -> None:
        self._parser = XTermParser()
        self._tail, self._paste = "", 0
