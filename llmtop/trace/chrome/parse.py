"""JSON to events of a Chrome trace, today's quickly and older or odd ones all the same."""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import islice
from typing import Any

import msgspec

from llmtop.trace.chrome.fields import (
    COARSE_US,
    Args,
    Event,
    ExactEvent,
    ExactMemoryEvent,
    MemoryArgs,
    MemoryEvent,
    lenient_event,
)

NO_NUMBER = re.compile(rb"(?<=[:\[,\s])[-+]?(?:inf|nan|Infinity|NaN)(?=\s*[,}\]])")
"""Kineto writes what C++ prints: JSON knows no inf and no nan."""

NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding for text that is not JSON, or is nested too deeply."""

loose_decoder = msgspec.json.Decoder()


def _number(text: str) -> float | Decimal:
    """Return a fraction in the file, exactly where a float would round it away."""
    value = float(text)
    return Decimal(text) if COARSE_US <= abs(value) < _BEYOND else value


_BEYOND = 1e300
_loose_exactly = msgspec.json.Decoder(float_hook=_number)
_LOOKED_AT = 200
"""Events whose times are checked: those of one file are all from one clock."""


def _coarse(event: Event) -> bool:
    """Return True if the time of an event was rounded when it was read."""
    return type(event.ts) is float and not -COARSE_US < event.ts < COARSE_US


class Parser:
    """Parses events of one kind of Chrome trace: those of one tool have the same fields and arguments."""

    def __init__(self, event: type[Event], exact: type[Event], args: type[msgspec.Struct]) -> None:
        """Parse into these types.

        Args:
            event: of an event.
            exact: the same with times as decimals.
            args: of an event's arguments.
        """
        self._event, self._args = event, args
        self._several = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]
        self._one = msgspec.json.Decoder(event)
        self._several_exactly = msgspec.json.Decoder(list[exact])  # type: ignore[valid-type]
        self._one_exactly = msgspec.json.Decoder(exact)

    def parse_objects(self, objects: bytes | memoryview, exactly: bool = False) -> list[Event] | None:
        """Return the events of a text of whole objects with commas between, as tools write them today; None if it
        is not.

        Args:
            objects: the text.
            exactly: read the times as decimals at once, which takes longer: for a file whose clock needs it.
        """
        text = b"".join((b"[", objects, b"]"))
        try:
            events = [] if exactly else self._several.decode(text)
            if exactly or any(_coarse(event) for event in islice(events, _LOOKED_AT)):
                return [*self._several_exactly.decode(text)]
            return events
        except NO_JSON:
            return None

    def parse_object(self, text: bytes) -> Event | None:
        """Parse the text of one event."""
        try:
            event = self._one.decode(text)
            return self._one_exactly.decode(text) if _coarse(event) else event
        except NO_JSON:
            return None

    def parse_loosely(self, text: bytes) -> Event | None:
        """Return one object with numbers that JSON has not, text that is not UTF-8, or fields of another type."""
        plain = NO_NUMBER.sub(b"null", text.decode("utf-8", "replace").encode())
        try:
            return lenient_event(_loose_exactly.decode(plain), self._event, self._args)
        except (*NO_JSON, TypeError):
            return None


TORCH = Parser(Event, ExactEvent, Args)
"""Parser of torch.profiler and Kineto."""
TORCH_MEMORY = Parser(MemoryEvent, ExactMemoryEvent, MemoryArgs)
"""The same with profile_memory."""


def is_event(value: Any) -> bool:
    """Return True if decoded JSON is an event, and not what stands within one."""
    return isinstance(value, dict) and "ph" in value
