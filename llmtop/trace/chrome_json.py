"""Read Chrome trace JSON as torch.profiler and the Kineto daemon write it, from 2021 on, plain or gzipped.

The file is read in pieces and each piece becomes columns at once, so that a trace of millions of events does not
have to fit into memory as objects. A piece ends between two events: at a place where everything before it parses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from llmtop.errors import UnusableInput
from llmtop.trace import model
from llmtop.trace.chrome_events import Collector, Event, lenient

_PIECE_BYTES = 4 << 20
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
# Kineto writes what C++ prints: JSON knows no inf and no nan.
_NO_NUMBER = re.compile(rb"(?<=[:\[,\s])[-+]?(?:inf|nan|Infinity|NaN)(?=\s*[,}\]])")
_HEADER_LIMIT = 64 << 20
_TRIES = 400
"""Places at which a damaged end of a file is tried, from its end backwards."""

_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_BARE = b"{"
"""Stands for the header of a file that is nothing but a list of events."""

_typed = msgspec.json.Decoder(list[Event])
_loose = msgspec.json.Decoder()


class Stream(Protocol):
    """Where bytes come from."""

    def read(self, size: int) -> bytes:
        """So many bytes or, near the end only, fewer."""


def load(stream: Stream, source: str) -> model.Trace:
    """Read one trace.

    Args:
        stream: the file, unpacked.
        source: what messages and the report call it.

    Raises:
        UnusableInput: no trace events are in it.
    """
    notes: list[str] = []
    collector = Collector()
    header, buffer = _header(stream, source)
    rest = b""
    for events, remaining in _pieces(stream, buffer):
        collector.add(events)
        rest = remaining
    tail, damage = _last(rest, collector)
    if damage is None and header != _BARE and not tail.rstrip().endswith(b"}"):
        damage = "the file is cut after its last event"
    if damage:
        notes.append(damage)
    if not collector.seen:
        raise UnusableInput(f"{source} holds no trace events: it is empty or cut before the first one")
    trace = collector.trace(source, _properties(header) | _properties(tail))
    trace.notes[:0] = notes
    return trace


def _header(stream: Stream, source: str) -> tuple[bytes, bytes]:
    """(what stands before the array of events, the first piece of the array)."""
    buffer = stream.read(_PIECE_BYTES)
    if buffer.lstrip()[:1] == b"[":
        return _BARE, buffer.lstrip()[1:]
    while True:
        found = _EVENTS_KEY.search(buffer)
        if found:
            return buffer[: found.start()], buffer[found.end() :]
        more = stream.read(_PIECE_BYTES)
        if not more or len(buffer) > _HEADER_LIMIT:
            raise UnusableInput(
                f'{source} has no "traceEvents": it is not a trace of torch.profiler, or it is cut before them'
            )
        buffer += more


def _pieces(stream: Stream, buffer: bytes) -> Iterator[tuple[list[Any], bytes]]:
    """Yield (events, what is left of the buffer), until the stream is read to its end."""
    while True:
        if len(buffer) >= _PIECE_BYTES:
            for place in reversed(list(_BETWEEN.finditer(buffer, max(0, len(buffer) - (256 << 10))))):
                events = _parse(buffer[: place.start() + 1])
                if events is not None:
                    buffer = buffer[place.end() :]
                    yield events, buffer
                    break
        more = stream.read(_PIECE_BYTES)
        if not more:
            yield [], buffer
            return
        buffer += more


def _parse(objects: bytes) -> list[Any] | None:
    """The events of a text of whole objects with commas between; None if it is no such text."""
    text = b"[" + objects + b"]"
    try:
        return _typed.decode(text)
    except _NO_JSON:
        pass
    # Not what torch writes today: numbers that JSON has not, text that is not UTF-8, fields of another type.
    text = _NO_NUMBER.sub(b"null", text.decode("utf-8", "replace").encode())
    try:
        return [lenient(event) for event in _loose.decode(text)]
    except (*_NO_JSON, TypeError):
        return None


def _last(rest: bytes, collector: Collector) -> tuple[bytes, str | None]:
    """Take the events of the last piece; returns (what follows the array, a note when it is cut or damaged)."""
    if not rest.strip() or rest.lstrip()[:1] == b"]":
        return rest.lstrip()[1:], None
    for close in _from_end(rest, rb"[}\s]\s*\]"):
        end = rest.rindex(b"]", close.start(), close.end())
        events = _parse(rest[:end].rstrip().rstrip(b","))
        if events is not None:
            collector.add(events)
            return rest[end + 1 :], None
    # No end of the array: the file is cut. Take what is whole before the cut.
    for close in _from_end(rest, rb"\}"):
        events = _parse(rest[: close.end()])
        if events is not None:
            collector.add(events)
            lost = len(rest) - close.end()
            return b"", f"the file is cut: its last {lost} bytes are no whole event and are left out"
    return b"", f"the file is cut or damaged: its last {len(rest)} bytes could not be read and are left out"


def _from_end(text: bytes, pattern: bytes) -> list[re.Match[bytes]]:
    return list(reversed(list(re.finditer(pattern, text))))[:_TRIES]


def _properties(part: bytes) -> dict[str, Any]:
    """Top-level fields that stand before or after the events; none when they cannot be read."""
    inside = part.strip().strip(b",").strip()
    inside = inside if inside.startswith(b"{") else b"{" + inside
    inside = inside if inside.endswith(b"}") and _balanced(inside) else inside + b"}"
    try:
        found = _loose.decode(inside)
    except _NO_JSON:
        return {}
    return found if isinstance(found, dict) else {}


def _balanced(text: bytes) -> bool:
    return text.count(b"{") <= text.count(b"}")
