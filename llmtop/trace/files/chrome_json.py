"""Read Chrome trace JSON as torch.profiler and the Kineto daemon write it, from 2021 on, and as jax.profiler does.

The file is read in pieces and each piece becomes columns at once, so that a trace of millions of events does not
have to fit into memory as objects. A piece ends between two events. One that cannot be parsed as a whole is read
event by event (`llmtop.trace.chrome.salvage`), so a damaged place costs the event that it lies in, and no time to
speak of.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

from llmtop.errors import UnusableInput
from llmtop.trace import model
from llmtop.trace.chrome import salvage as chrome_salvage
from llmtop.trace.chrome.events import Collector
from llmtop.trace.chrome.fields import Event, ExactEvent, ExactMemoryEvent
from llmtop.trace.chrome.parse import NO_JSON, TORCH, TORCH_MEMORY, loose_decoder
from llmtop.trace.files.foreign_files import CAPTURE, foreign_chrome_trace
from llmtop.trace.xla.events import XlaCollector
from llmtop.trace.xla.fields import XLA

PIECE_BYTES = 1 << 20
_LARGEST_EVENT = 16 << 20
"""Longest event. Kineto writes hundreds of bytes per event, with shapes thousands."""
_END = re.compile(rb"[}\s]\s*\]")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_OF_XLA = re.compile(rb'"name"\s*:\s*"/(?:host:CPU|device:)(?![^"]*(?:Compute|Tensors)")')
"""How XLA's profiler names its planes, before all other events; names of TensorFlow's old timeline go on."""
_WITH_MEMORY = re.compile(rb'"profile_memory"\s*:\s*(?:1|true)|"\[memory\]"')
"""Mark in the header of a trace with allocations; for older PyTorch the name of such an event."""
_FIRST_EVENT = re.compile(rb'\{\s*"ph"\s*:\s*"')
_HEADER_LIMIT = 64 << 20
_TAIL_LIMIT = 64 << 20
_SIGNS_LIMIT = 1 << 20
"""How much of what stands beside the events is searched for the program that wrote them."""
_TRIES = 2
"""How many places, from the end of the file backwards, are tried as the end of the events before the last piece is
read event by event."""

_BARE = b"{}"
"""Stands for the header of a file that is nothing but a list of events; no object begins like this."""


class EventStream(Protocol):
    """Source of the bytes of a trace: a file, or its decompressor."""

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes or, near the end only, fewer."""


class EventCollector(Protocol):
    """Consumer of the events of a file that makes a trace of them."""

    seen: int
    """Events so far."""
    deepest: int

    @property
    def names(self) -> model.Names:
        """All names so far."""

    @property
    def threads(self) -> int:
        """How many threads there are so far."""

    def add(self, events: list[Event]) -> None:
        """Take some events."""

    def trace(self, source: str, properties: dict[str, Any]) -> model.Trace:
        """Everything taken so far."""


def load(stream: EventStream, source: str, check: Callable[[EventCollector], None] | None = None) -> model.Trace:
    """Read one trace.

    Args:
        stream: the file, unpacked.
        source: what messages and the report call it.
        check: called after each piece with what has been read so far; may raise to end it.

    Raises:
        UnusableInput: no trace events are in it.
    """
    reading = _TraceReader(stream, source, check)
    reading.run()
    if not reading.collector.seen:
        raise UnusableInput(
            f"{source} holds no trace events: it is no trace, an empty one, or one that is cut before the first "
            f"event; next: a trace of the training: {CAPTURE}"
        )
    notes = reading.notes()
    properties: dict[str, Any] = {}
    for part in (reading.header, reading.tail):
        found = _properties(part)
        if found is None:
            notes.append("the fields beside the events are damaged and left out")
        properties |= found or {}
    trace = reading.collector.trace(source, properties)
    if isinstance(reading.collector, Collector) and is_without_rows(trace):
        beside = b"\n".join((reading.header, reading.tail))[:_SIGNS_LIMIT].decode("utf-8", "replace")
        foreign = foreign_chrome_trace(beside, *reading.collector.kinds_of_events())
        if foreign is not None:
            raise UnusableInput(foreign.sentence(source))
    trace.notes[:0] = notes
    return trace


def is_without_rows(trace: model.Trace) -> bool:
    """Return True if no event of a file was of a kind that is read."""
    return not any(len(table) for table in (trace.ops, trace.calls, trace.ranges, trace.host, trace.memory))


class _TraceReader:
    """One pass over the bytes of a trace."""

    def __init__(self, stream: EventStream, source: str, check: Callable[[EventCollector], None] | None) -> None:
        self._stream, self._source, self._check = stream, source, check
        self.collector: EventCollector = Collector()
        self._parser = TORCH
        self.header = self.tail = b""
        self._lost: list[chrome_salvage.UnreadableBytes] = []
        self._places = self._bytes = self._events = 0
        self._exactly = False
        """True if the clock of this file needs more digits than a float has."""
        self._buffer = b""
        self._offset = 0
        """Where in the file the buffer begins."""
        self._ended = False
        """True if the stream is read to its end."""
        self._cut: int | None = None
        """How many bytes after the last whole event are no event, in a file without an end of its events."""

    def run(self) -> None:
        """Read to the end of the bytes, and collect all events."""
        self._read_header()
        if _OF_XLA.search(self._buffer, 0, PIECE_BYTES):
            self.collector, self._parser = XlaCollector(), XLA
        elif _WITH_MEMORY.search(self.header) or _WITH_MEMORY.search(self._buffer, 0, PIECE_BYTES):
            self._parser = TORCH_MEMORY
        wanted = PIECE_BYTES
        while True:
            self._fill(wanted)
            if not self._ended and not _has_content(self._buffer):
                self._drop(len(self._buffer))
                continue
            if self._ended and self._last_piece():
                return
            taken = 0 if self._ended else self._piece()
            if not taken:
                found = chrome_salvage.scan(
                    self._buffer, not self._ended and wanted < _LARGEST_EVENT, self._parser
                )
                self._take(found)
                if found.end is not None or self._ended:
                    self._finish(found)
                    return
                taken = found.consumed
            self._drop(taken)
            # What holds no event yet is read on, twice as far each time, so that no byte is parsed often.
            wanted = PIECE_BYTES if taken else 2 * wanted

    def notes(self) -> list[str]:
        """Return notes on the parts that could not be read."""
        notes = []
        if self._cut is not None and self._cut > 0:
            notes.append(f"the file is cut: its last {self._cut} bytes are no whole event and are left out")
        elif self._cut is not None:
            notes.append("the file is cut after its last event")
        if self._places:
            where = f"a place of the file is damaged, byte {self._lost[0].at:,}"
            if self._places > 1:
                where = f"{self._places:,} places of the file are damaged, the first at byte {self._lost[0].at:,}"
            what = "1 event" if self._events == 1 else f"{self._events:,} events"
            are = "is" if self._events == 1 else "are"
            notes.append(f"{where}: {what} ({self._bytes:,} bytes) could not be read and {are} left out")
        return notes

    def _fill(self, wanted: int) -> None:
        if not self._ended and len(self._buffer) < wanted:
            asked = wanted - len(self._buffer)
            more = self._stream.read(asked)
            self._ended = len(more) < asked
            self._buffer += more

    def _drop(self, taken: int) -> None:
        self._buffer = self._buffer[taken:]
        self._offset += taken

    def _read_header(self) -> None:
        """Read up to the array of events; the first bytes of the array stay in the buffer."""
        self._fill(PIECE_BYTES)
        blank = len(self._buffer) - len(self._buffer.lstrip())
        if self._buffer[blank : blank + 1] == b"[":
            self.header = _BARE
            self._drop(blank + 1)
            return
        searched = 0
        while (found := _EVENTS_KEY.search(self._buffer, searched)) is None:
            first = _FIRST_EVENT.search(self._buffer, searched)
            if first is not None:
                # What announces the events is damaged; they are still there.
                lost = self._buffer[: first.start()]
                self._count(chrome_salvage.UnreadableBytes(0, len(lost), 0))
                self._drop(first.start())
                return
            searched = max(0, len(self._buffer) - 100)
            if self._ended or len(self._buffer) > _HEADER_LIMIT:
                raise UnusableInput(
                    f'{self._source} has no "traceEvents": it is not a trace of torch.profiler or '
                    "jax.profiler, or it is cut before them"
                )
            self._fill(2 * len(self._buffer))
        self.header = self._buffer[: found.start()]
        self._drop(found.end())

    def _piece(self) -> int:
        """Take the whole events of the buffer at once; returns their bytes, 0 when that cannot be done."""
        places = list(chrome_salvage.NEXT.finditer(self._buffer, max(0, len(self._buffer) - (64 << 10))))
        whole = memoryview(self._buffer)[: places[-1].start() + 1] if places else None
        events = self._parser.parse_objects(whole, self._exactly) if whole is not None else None
        if events is None:
            return 0
        self._add(events)
        return places[-1].end()

    def _last_piece(self) -> bool:
        """Take all that is left, at once, if it is whole."""
        rest = self._buffer
        if rest.lstrip()[:1] == b"]":
            self.tail = rest.lstrip()[1:]
            return self._is_closed()
        closes = list(_END.finditer(rest, max(0, len(rest) - (64 << 10))))
        for close in closes[-1 : -1 - _TRIES : -1]:
            events = self._parser.parse_objects(rest[: close.end() - 1].rstrip().rstrip(b","), self._exactly)
            if events is not None:
                self._add(events)
                self.tail = rest[close.end() :]
                return self._is_closed()
        return False

    def _is_closed(self) -> bool:
        """The end of the events was seen; whether the end of the file was too is noted."""
        if self.header != _BARE and self.header and not self.tail.rstrip().endswith(b"}"):
            self._cut = 0
        return True

    def _finish(self, found: chrome_salvage.SalvagedEvents) -> None:
        """Read what follows the last event, or note how much of the file is no event."""
        if found.end is None:
            self._cut = None if self.header == _BARE and not found.rest else found.rest
            return
        self._drop(found.end)
        self._fill(_TAIL_LIMIT)
        self.tail = self._buffer
        self._is_closed()

    def _take(self, found: chrome_salvage.SalvagedEvents) -> None:
        self._add(found.events)
        for lost in found.lost:
            self._count(chrome_salvage.UnreadableBytes(self._offset + lost.at, lost.bytes, lost.events))

    def _count(self, lost: chrome_salvage.UnreadableBytes) -> None:
        if not self._lost:
            self._lost.append(lost)
        self._places += 1
        self._bytes += lost.bytes
        self._events += lost.events

    def _add(self, events: list[Any]) -> None:
        self._exactly = self._exactly or (
            len(events) > 0 and isinstance(events[0], (ExactEvent, ExactMemoryEvent))
        )
        self.collector.add(events)
        if self._check is not None:
            self._check(self.collector)


def _properties(part: bytes) -> dict[str, Any] | None:
    """Top-level fields that stand before or after the events; None when they cannot be read."""
    inside = part.strip().strip(b",").strip()
    if not inside.strip(b"{}, \n\r\t"):
        return {}
    inside = inside if inside.startswith(b"{") else b"{" + inside
    inside = inside if inside.endswith(b"}") and _has_balanced_brackets(inside) else inside + b"}"
    try:
        found = loose_decoder.decode(inside)
    except NO_JSON:
        return None
    return found if isinstance(found, dict) else None


def _has_content(text: bytes) -> bool:
    """Return True if there is more than blanks and commas."""
    blanks = b" \n\r\t,"
    return bool(text[:100].strip(blanks) or text.strip(blanks))


def _has_balanced_brackets(text: bytes) -> bool:
    return text.count(b"{") <= text.count(b"}")
