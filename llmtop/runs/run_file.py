"""The records in one file of a run. Damage costs the members that it is in."""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

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
_PROBE_BYTES = 16 << 10
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
    """One file, read as a whole or in part."""

    def __init__(
        self, path: Path, *, ends_only: bool = False, end_bytes: int = END_BYTES, around: float | None = None
    ) -> None:
        """Read a file.

        Args:
            path: of the file.
            ends_only: read only the first `END_BYTES` and the end: who it was, and the newest sums.
            end_bytes: how much of the end.
            around: read only `end_bytes` around this unix time; infinity: the last ones.

        Raises:
            OSError: it cannot be read.
        """
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            is_part = around is not None and size > end_bytes
            self.is_whole = not is_part and (not ends_only or size <= END_BYTES + end_bytes)
            """True if all of it was read."""
            self.reaches_begin = self.reaches_end = True
            """True if its first members were read, and its last ones."""
            if is_part and around is not None:
                self._raw = self._read_around(file, size, around, end_bytes)
            elif not self.is_whole:
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

    def _read_around(self, file: BinaryIO, size: int, at: float, length: int) -> bytes:
        first = 0 if at < math.inf else size
        beyond = size
        while beyond - first > length // 4:
            middle = (first + beyond) // 2
            last = _next_time(file, middle)
            if last is None or last >= at:
                beyond = middle
            else:
                first = middle
        first = min(max(0, first - length // 2), size - length)
        self.reaches_begin, self.reaches_end = first == 0, first + length >= size
        file.seek(first)
        raw = file.read(length)
        return raw[max(0, raw.find(MEMBER_BEGINS)) :]

    def covers(self, at: float) -> bool:
        """Return True if the member that holds an instant (unix time) was read, where the file has one."""
        if not self.members:
            return self.reaches_begin and self.reaches_end
        is_late_enough = self.reaches_begin or self.members[0].last < at
        return is_late_enough and (self.reaches_end or at <= self.members[-1].last)

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


def _next_time(file: BinaryIO, offset: int) -> float | None:
    """Return the last unix time of the first member at or after an offset; None where there is none near."""
    file.seek(offset)
    raw = file.read(_PROBE_BYTES)
    place = raw.find(MEMBER_BEGINS)
    while 0 <= place <= len(raw) - HEAD_BYTES:
        if zlib.crc32(raw[place : place + HEAD_BYTES - 8]) == _CRC.unpack_from(raw, place + HEAD_BYTES - 4)[0]:
            return float(_EXTRA.unpack_from(raw, place + _EXTRA_AT)[2])
        place = raw.find(MEMBER_BEGINS, place + 1)
    return None


def _decode_record(line: bytes) -> Record | None:
    """Return a record; None where this version does not know its type, or it is damaged."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
