"""Read a damaged stretch of a Chrome trace event by event: what is whole is kept, whatever stands between.

An event is tried at each place where one can begin, and read from there by a parser that stops where the object
ends, so neither a stray quote nor a lost brace reaches further than the next event. Each byte is parsed a few
times at most: attempts that fail are paid from a budget that grows with the length of the stretch.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from llmtop.trace.chrome.fields import Event
from llmtop.trace.chrome.parse import NO_NUMBER, TORCH, Parser, is_event

_START = re.compile(rb'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:')
"""How an event begins: with a field of the trace event format."""
NEXT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|s|bp)"\s*:)')
"""Where one event ends and the next begins."""
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_COMMA = re.compile(rb"[\s,]*")
_ARRAY_ENDS = re.compile(rb"[\s,]*\]")
_END_AFTER_DAMAGE = re.compile(rb'\}\s*\](?=\s*(?:,\s*"|\}))')
_PH = re.compile(rb'"ph"\s*:')
_ATTEMPTS = 8
"""Times the length of the stretch: what all failed attempts together may read."""
_WINDOW = 8 << 10
"""Bytes parsed for an event at first; sixteen times as many if the event does not end within them."""
_NEAR_END = 16
"""A literal that breaks off (tru) is reported so many characters before the end at most."""

_decoder = json.JSONDecoder(strict=False)


class UnreadableBytes(NamedTuple):
    """A stretch that holds no event that can be read."""

    at: int
    """The byte at which it begins."""
    bytes: int
    events: int
    """How many began in it; at least one, if not the beginning of the file is meant."""


class SalvagedEvents(NamedTuple):
    """Events recovered from a damaged stretch."""

    events: list[Event]
    consumed: int
    """Bytes that need not be parsed again."""
    end: int | None
    """Behind the bracket that ends the array of events; None if it is not there."""
    lost: list[UnreadableBytes]
    rest: int
    """Bytes after the last whole event, where the stretch was to hold all that is left and no end is in it."""


def scan(data: bytes, hold: bool, parser: Parser = TORCH) -> SalvagedEvents:
    """Read events one by one.

    Args:
        data: begins with an event or with the comma before one.
        hold: whether more follows: an event that breaks off at the end is left for the next time.
        parser: of the tool's events.
    """
    return _Scan(data, hold, parser).run()


class _Scan:
    def __init__(self, data: bytes, hold: bool, parser: Parser) -> None:
        self._data, self._hold, self._parser = data, hold, parser
        self._budget = _ATTEMPTS * len(data) + (64 << 10)
        self._events: list[Event] = []
        self._lost: list[UnreadableBytes] = []
        self._good = 0
        """Behind the last thing that was understood."""

    def run(self) -> SalvagedEvents:
        data = self._data
        between = iter(_BETWEEN.finditer(data))
        place = next(between, None)
        at = self._next_event(0)
        while at is not None:
            while place is not None and place.start() < at:
                place = next(between, None)
            event = None
            if place is not None and self._good == at:
                # As a rule the event ends where the next one begins.
                text = data[at : place.start() + 1]
                event = self._parser.parse_object(text) or self._parser.parse_loosely(text)
            if event is not None and place is not None:
                self._events.append(event)
                self._good = at = place.end()
                continue
            after = self._attempt(at)
            if after is None:
                break
            if after > at:  # an event was read
                ended = _ARRAY_ENDS.match(data, after)
                if ended is not None:
                    return SalvagedEvents(self._events, ended.end(), ended.end(), self._lost, 0)
            at = self._next_event(after) if after > at else self._resume(at)
        return self._broken_off(at)

    def _next_event(self, good: int) -> int | None:
        """Return where the next event begins, behind a place up to which all was understood."""
        follows = _COMMA.match(self._data, good)
        self._good = good if follows is None else follows.end()
        return self._good if self._data[self._good : self._good + 1] == b"{" else self._resume(self._good - 1)

    def _resume(self, failed: int) -> int | None:
        """Return where an event can begin next; None if nowhere."""
        found = _START.search(self._data, failed + 1)
        return None if found is None else found.start()

    def _attempt(self, at: int) -> int | None:
        """Read an event at `at`: returns where it ends, `at` itself if there is none, None to stop here."""
        window = _WINDOW
        while True:
            # One character a byte, so that places are the same in both; what is no JSON number becomes one.
            part = self._data[at : at + window]
            text = NO_NUMBER.sub(lambda odd: b"1" * len(odd[0]), part).decode("latin-1")
            whole = at + window >= len(self._data)
            try:
                value, length = _decoder.raw_decode(text)
                break
            except json.JSONDecodeError as error:
                broken_off = error.msg.startswith("Unterminated") or error.pos >= len(text) - _NEAR_END
                self._budget -= len(text) if broken_off else error.pos
            except RecursionError:
                return self._past_nesting(at)
            except ValueError:  # a number of more digits than Python takes
                broken_off = False
                self._budget -= len(text)
            if self._budget < 0 or (broken_off and whole and self._hold):
                return None
            if not broken_off or whole:
                return at
            window *= 16
        event = None
        if is_event(value):
            event = self._parser.parse_object(part[:length]) or self._parser.parse_loosely(part[:length])
        if event is None:
            self._budget -= length
            return None if self._budget < 0 else at
        self._mark_good(at, at + length)
        self._events.append(event)
        return at + length

    def _past_nesting(self, at: int) -> int | None:
        """Skip a value that is nested too deeply, up to the probable next event."""
        self._budget -= len(self._data) - at
        following = NEXT.search(self._data, at)
        if following is None or self._budget < 0:
            return None
        end = following.start() + 1
        self._leave_out(self._good, end)
        self._good = end
        return end

    def _mark_good(self, start: int, end: int) -> None:
        if start > self._good:
            self._leave_out(self._good, start)
        self._good = end

    def _leave_out(self, start: int, end: int) -> None:
        stretch = self._data[start:end]
        if stretch.strip(b" \n\r\t,"):
            whole = stretch.rstrip(b" \n\r\t,")
            self._lost.append(UnreadableBytes(start, len(whole), max(1, len(_PH.findall(stretch)))))

    def _broken_off(self, at: int | None) -> SalvagedEvents:
        """No further event: the end of the stretch, of the array behind a damaged event, or of patience."""
        data, good = self._data, self._good
        if self._hold and at is not None and self._budget >= 0:
            if at > good:
                self._leave_out(good, at)
            return SalvagedEvents(self._events, at, None, self._lost, 0)
        if self._hold:
            # Between the last start that failed and the end nothing begins: an event's head may be cut there.
            keep = max(good, data.rfind(b"{", good)) if self._budget >= 0 else len(data)
            self._leave_out(good, keep)
            return SalvagedEvents(self._events, keep, None, self._lost, 0)
        closes = list(_END_AFTER_DAMAGE.finditer(data, good))
        if closes:
            self._leave_out(good, closes[-1].start() + 1)
            return SalvagedEvents(self._events, closes[-1].end(), closes[-1].end(), self._lost, 0)
        rest = data[good:].strip(b" \n\r\t,")
        return SalvagedEvents(self._events, len(data), None, self._lost, len(data) - good if rest else 0)
