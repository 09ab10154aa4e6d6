"""The records in one file of a run. Damage costs the members that it is in."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from llmtop.recording.members import HEAD_BYTES, MAX_MEMBER_BYTES, MEMBER_BEGINS
from llmtop.runs.records import Record, Start

_EXTRA = struct.Struct("<IddI")
_EXTRA_AT = 16
_CRC = struct.Struct("<I")
_TRAILER_BYTES = 8
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_START_MEMBERS = 8
"""The writer of a file is known within its first members."""
END_BYTES = 16 << 10
"""The newest sums are at most ten minutes of members before the end, some 10 KiB unless many steps are in full."""
MAX_FILE_BYTES = 512 << 20
"""A rank writes some 1 MiB a day; what is larger than this is read up to here."""


class FileMember(NamedTuple):
    """A member of a file that is in memory."""

    first: float
    """Unix seconds of its first record."""
    last: float
    data: memoryview
    """Deflated."""


class RunFile:
    """One file, read as a whole."""

    def __init__(self, path: Path, *, ends_only: bool = False, end_bytes: int = END_BYTES) -> None:
        """Read a file.

        Args:
            path: of the file.
            ends_only: read only the first `END_BYTES` and the end: who it was, and the newest sums.
            end_bytes: how much of the end.

        Raises:
            OSError: it cannot be read.
        """
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self.is_whole = not ends_only or size <= END_BYTES + end_bytes
            """True if all of it was read."""
            if not self.is_whole:
                first = file.read(END_BYTES)
                file.seek(size - end_bytes)
                last = file.read(end_bytes)
                self._raw = first[: first.rfind(MEMBER_BEGINS)] + last[last.find(MEMBER_BEGINS) :]
            else:
                self._raw = file.read(MAX_FILE_BYTES)
        self.damaged_bytes = 0
        """How many bytes are in no whole member: the last one was cut, or the disk has lost some."""
        self.unreadable_records = 0
        """Records of types that this version does not know, or damaged."""
        self.members = list(self._members())

    def records(self, wanted: Callable[[FileMember], bool] | None = None) -> Iterator[Record]:
        """Yield the records in the order in which they were written.

        Args:
            wanted: passes over the members for which it returns False.
        """
        for member in self.members:
            if wanted is None or wanted(member):
                yield from self._decode(member)

    def records_of(self, place: int) -> Iterator[Record]:
        """Yield the records of one of `members`."""
        yield from self._decode(self.members[place])

    def newest(self, kind: type[Any]) -> Any | None:
        """Return the last record of that class; None without any."""
        for member in self.members[::-1] if kind is not Start else self.members[:_START_MEMBERS][::-1]:
            found = [record for record in self._decode(member) if isinstance(record, kind)]
            if found:
                return found[-1]
        return None

    def _members(self) -> Iterator[FileMember]:
        raw, place, size = self._raw, 0, len(self._raw)
        view = memoryview(raw)
        while 0 <= place < size:
            head = raw[place : place + HEAD_BYTES]
            whole = len(head) == HEAD_BYTES and head.startswith(MEMBER_BEGINS)
            if whole and zlib.crc32(head[: HEAD_BYTES - 8]) == _CRC.unpack_from(head, HEAD_BYTES - 4)[0]:
                packed, first, last, _ = _EXTRA.unpack_from(head, _EXTRA_AT)
                end = place + HEAD_BYTES + packed + _TRAILER_BYTES
                if end <= size:
                    yield FileMember(first, last, view[place + HEAD_BYTES : end])
                    place = end
                    continue
            following = raw.find(MEMBER_BEGINS, place + 1)
            self.damaged_bytes += (size if following < 0 else following) - place
            place = following

    def _decode(self, member: FileMember) -> Iterator[Record]:
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            lines = unpacker.decompress(member.data[:-_TRAILER_BYTES], MAX_MEMBER_BYTES)
        except zlib.error:
            lines = b""
        crc = _CRC.unpack_from(member.data, len(member.data) - _TRAILER_BYTES)[0]
        if not unpacker.eof or zlib.crc32(lines) != crc:
            self.damaged_bytes += len(member.data)
            return
        for line in lines.splitlines():
            record = _decode_record(line)
            if record is None:
                self.unreadable_records += 1
            else:
                yield record


def _decode_record(line: bytes) -> Record | None:
    """Return a record; None where this version does not know its type, or it is damaged."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
