"""JSON to events of a Chrome trace, today's quickly and older or odd ones all the same."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from llmtop.trace.chrome_fields import Event, lenient

NO_NUMBER = re.compile(rb"(?<=[:\[,\s])[-+]?(?:inf|nan|Infinity|NaN)(?=\s*[,}\]])")
"""Kineto writes what C++ prints: JSON knows no inf and no nan."""

NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for what is no JSON, or is nested too deep."""

_several = msgspec.json.Decoder(list[Event])
_one = msgspec.json.Decoder(Event)
loose = msgspec.json.Decoder()


def parse(objects: bytes) -> list[Event] | None:
    """The events of a text of whole objects with commas between, as torch writes them today; None if it is not."""
    try:
        return _several.decode(b"[" + objects + b"]")
    except NO_JSON:
        return None


def parse_one(text: bytes) -> Event | None:
    """Parse the text of one event."""
    try:
        return _one.decode(text)
    except NO_JSON:
        return None


def parse_loosely(text: bytes) -> Event | None:
    """One object with numbers that JSON has not, text that is not UTF-8, or fields of another type."""
    plain = NO_NUMBER.sub(b"null", text.decode("utf-8", "replace").encode())
    try:
        return lenient(loose.decode(plain))
    except (*NO_JSON, TypeError):
        return None


def is_event(value: Any) -> bool:
    """Whether decoded JSON is an event, and not what stands within one."""
    return isinstance(value, dict) and "ph" in value
