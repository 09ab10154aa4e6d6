"""The bytes of a terminal as Textual's messages, whatever the bytes are.

Textual decodes strictly and lets its parser raise, and either ends the program. A terminal sends what another
program printed into it, half a character at a lost connection, or replies to another program's queries; none of
that is a reason to exit. So: what is no UTF-8 becomes a replacement character, a sequence that the parser chokes
on is dropped by itself, a control string (the reply to a query for a color) is dropped up to its end, and a paste
never acts as keys, however long it is and whether it is marked or not.
"""

from __future__ import annotations

import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable

from textual.events import Paste as PasteEvent
from textual.events import Resize
from textual.message import Message
from textual.messages import InBandWindowResize

from tui.terminal.pasting import PASTE_START, Paste, TypingRate
from tui.terminal.textual_private import XTermParser

_ESCAPE_SECONDS = 1.0
"""Time after the last byte from which no escape key is still undecided."""
_POLL_SECONDS = 0.1
_REST_SECONDS = 30.0
_HELD_SECONDS = 0.03
"""How long keys that came together wait for more, which would make them a paste."""
_HELD_FROM = 2
"""Different characters that come together: a person presses one key at a time. The keys of `tmux send-keys`, and
two that are pressed within `_TOGETHER_SECONDS`, act `_HELD_SECONDS` later."""
_TOGETHER_SECONDS = 0.01
_STRING_STARTS = frozenset("]P_^X")
"""Characters after an escape character that begin a control string (ECMA-48, 5.6: OSC, DCS, APC, PM, SOS)."""
_STRING_SECONDS = 0.1
"""A control string arrives at once. What comes so long after its last character is typed, though it had no end."""


class Keyboard:
    """Makes messages of bytes; keeps what is not complete yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Wait for the first key.

        Args:
            clock: seconds that only grow, to distinguish an escape key from the beginning of a sequence.
        """
        self._decode = getincrementaldecoder("utf-8")(errors="replace").decode
        self._parser = XTermParser()
        self._clock = clock
        self._last_input_at = clock()
        self._tail = ""  # the last typed characters: perhaps the beginning of a mark
        self._held = ""  # typed characters that may turn out to be the beginning of a paste
        self._together = 0  # different characters that came together
        self._differed = self._last_input_at  # when the last of them came
        self._paste: Paste | None = None
        self._before = ""  # the character before, of what is no control string
        self._before_at = self._last_input_at
        self._in_string = False
        self._rate = TypingRate(self._last_input_at)

    @property
    def wait_seconds(self) -> float:
        """The time after which `tick` may have a message, if nothing is read before."""
        if self._held:
            return _HELD_SECONDS
        return (
            _POLL_SECONDS
            if self._paste or self._clock() - self._last_input_at < _ESCAPE_SECONDS
            else _REST_SECONDS
        )

    def feed(self, data: bytes) -> list[Message]:
        """Take in what was read, and return what is complete now."""
        now = self._clock()
        found: list[Message] = self._end_of_paste(now)
        text = self._decode(data)
        while text:
            if self._paste is None:
                text, messages = self._type(text, now)
            else:
                text, messages = self._add_to_paste(self._paste, text, now)
            found += messages
        if data:
            self._last_input_at = now
        return found

    def tick(self) -> list[Message]:
        """Make a lone escape a key after a while, and end a paste of which no more comes; to be called often."""
        now = self._clock()
        found: list[Message] = self._end_of_paste(now)
        if self._held and now - self._differed >= _HELD_SECONDS:
            found += self._release()
        return [*found, *self._parse_safely(self._parser.tick())]

    # --- typed ------------------------------------------------------------------------------------------------

    def _type(self, text: str, now: float) -> tuple[str, list[Message]]:
        """Take in what is outside of a paste; returns what follows the start of one, and the messages."""
        joined = self._tail + text
        start = joined.find(PASTE_START)
        if start < 0:
            self._tail = joined[1 - len(PASTE_START) :]
            return "", self._type_unmarked(text, now)
        typed = joined[len(self._tail) : start]
        cut = max(len(self._tail) - start, 0)  # characters of the mark that were taken for typed ones
        self._held = self._held[: len(self._held) - cut] if cut else self._held
        found = self._type_unmarked(typed, now) if typed else []
        if self._paste is not None:  # what is typed is the end of a burst
            found.append(PasteEvent(self._paste.text))
        found += self._release()
        self._renew()
        self._paste = Paste(now, marked=True)
        return joined[start + len(PASTE_START) :], found

    def _type_unmarked(self, text: str, now: float) -> list[Message]:
        changes = self._rate.add(text, now)
        if self._rate.is_burst:
            self._paste = Paste(now, marked=False)
            self._paste.take(self._held + text, now)
            self._renew()
            return []
        self._together = changes + (self._together if now - self._last_input_at < _TOGETHER_SECONDS else 0)
        if changes:  # not by a key that is held down: it would hold back all that it repeats
            self._differed = now
        if self._held or self._together >= _HELD_FROM:
            self._held += text
            return []
        return self._parse(text)

    def _release(self) -> list[Message]:
        held, self._held = self._held, ""
        return self._parse(held)

    def _parse(self, text: str) -> list[Message]:
        # One at a time, so that what breaks the parser costs nothing but itself.
        return [
            message
            for character in text
            if not self._is_in_string(character)
            for message in self._parse_safely(self._parser.feed(character))
        ]

    def _is_in_string(self, character: str) -> bool:
        """Return True if this character belongs to a control string, whose text the parser would take for keys."""
        before, before_at = self._before, self._before_at
        self._before, self._before_at = character, self._clock()
        if self._before_at - before_at > _STRING_SECONDS:
            self._in_string, before = False, ""
        if self._in_string:
            self._in_string = not (character == "\a" or (before == "\x1b" and character == "\\"))
            return True
        if before == "\x1b" and character in _STRING_STARTS:
            self._in_string = True
            self._parser = XTermParser()  # which holds the escape character
            return True
        return False

    def _parse_safely(self, parsed: Iterable[Message]) -> list[Message]:
        try:
            found = list(parsed)
        except Exception:  # noqa: BLE001  the parser is not ours, and any bytes may come
            self._parser = XTermParser()
            return []
        # The size is asked from the kernel, which cannot be typed; believing such a sequence would let anyone make
        # the screen a million columns wide, and turn the mouse's cells into pixels.
        if any(isinstance(message, (Resize, InBandWindowResize)) for message in found):
            self._parser = XTermParser()
            return []
        return found

    # --- pasted -----------------------------------------------------------------------------------------------

    def _add_to_paste(self, paste: Paste, text: str, now: float) -> tuple[str, list[Message]]:
        """Take in what is inside of a paste; returns what follows its end, and the messages."""
        end = paste.take(text, now)
        if end is None:
            return "", []
        mark, rest = end
        self._close_paste(now)
        if mark == PASTE_START:
            self._paste = Paste(now, marked=True)
        return rest, [PasteEvent(paste.text)]

    def _end_of_paste(self, now: float) -> list[Message]:
        """Return the paste of which no more comes. What lost its end mark is dropped."""
        paste = self._paste
        if paste is None or not paste.is_over(now):
            return []
        self._close_paste(now)
        return [] if paste.marked else [PasteEvent(paste.text)]

    def _close_paste(self, now: float) -> None:
        self._paste = None
        self._rate = TypingRate(now)

    def _renew(self) -> None:
        self._parser = XTermParser()
        self._tail = self._held = ""
        self._together = 0
