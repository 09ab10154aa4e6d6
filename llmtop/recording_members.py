"""The bytes of a recording: gzip members that say in their heads which stretch of time they hold.

A member carries its compressed length, the times of its first and last snapshot and their number in its gzip
header (an extra field, RFC 1952, 2.3.1.1). So a reader can seek without unpacking what lies before.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, BinaryIO, NamedTuple

import msgspec

from llmtop.snapshot import SCHEMA
from llmtop.version import __version__

MAGIC = "llmtop-recording"
FORMAT = 1
MAX_MEMBER_BYTES = 64 << 20
"""Unpacked; a member that is larger is not one of ours: a snapshot of a node takes some 10 KB."""
MEMBER_BEGINS = b"\x1f\x8b\x08\x04"
"""The bytes with which each member begins: gzip, deflated, with an extra field."""

_GZIP = struct.Struct("<2sBBIBBH2sH")  # magic, method, flags, mtime, xfl, os, XLEN, subfield id, its length
_EXTRA = struct.Struct("<IddI")  # deflated length, first time, last time, snapshots
_TRAILER = struct.Struct("<II")  # CRC-32 and length of what was packed
_SUBFIELD = b"LT"
_FEXTRA = 4
HEAD_BYTES = _GZIP.size + _EXTRA.size
"""From the beginning of a member to its deflated data."""
_FILE_BEGINS = _GZIP.pack(
    b"\x1f\x8b", 8, _FEXTRA, 0, 0, 255, len(_SUBFIELD) + 2 + _EXTRA.size, _SUBFIELD, _EXTRA.size
)
"""What every recording begins with, before the first numbers that differ."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording says about itself, in its first member."""

    magic: str = MAGIC
    format: int = FORMAT
    schema: int = SCHEMA
    """Of the snapshots (`llmtop.snapshot.SCHEMA`)."""
    version: str = __version__
    created: float
    """Unix time."""
    host: str = ""
    environment: dict[str, Any] | None = None
    """What was recorded on and in, as far as it was known at the start (`llmtop/environment/model.py`)."""


class Head(NamedTuple):
    """What the head of a member says about it."""

    packed: int
    """Bytes of deflated data."""
    first: float
    """Unix seconds of its first snapshot, had nobody set the wall clock since the recording began."""
    last: float
    """Unix seconds of its last snapshot, in the same way."""
    number: int
    """How many snapshots it holds."""


class RecordingMember(NamedTuple):
    """Where some consecutive snapshots lie in the file and in time."""

    offset: int
    """Byte of the file at which the gzip member begins."""
    position: float
    """Seconds of the recording before its first snapshot."""
    packed: int
    first: float
    last: float
    number: int
    """The four fields of its `Head`."""

    @property
    def end(self) -> int:
        """The byte of the file at which what follows this member begins."""
        return self.offset + HEAD_BYTES + self.packed + _TRAILER.size

    @property
    def seconds(self) -> float:
        """Seconds from its first snapshot to its last; 0 where the clock went backwards."""
        return max(self.last - self.first, 0.0)


def pack(lines: bytes, first: float, last: float, number: int, effort: int = 6) -> bytes:
    """Make a member.

    Args:
        lines: its snapshots, one JSON object a line.
        first: unix seconds of the first of them.
        last: unix seconds of the last.
        number: how many they are.
        effort: of the packing, 1 to 9.
    """
    packer = zlib.compressobj(effort, zlib.DEFLATED, -zlib.MAX_WBITS)
    deflated = packer.compress(lines) + packer.flush()
    trailer = _TRAILER.pack(zlib.crc32(lines), len(lines) & 0xFFFFFFFF)
    return _FILE_BEGINS + _EXTRA.pack(len(deflated), first, last, number) + deflated + trailer


def head_at(file: BinaryIO, offset: int, size: int) -> Head | None:
    """What the head of the member at byte `offset` says, in a file of `size` bytes; None where no whole one is."""
    file.seek(offset)
    raw = file.read(HEAD_BYTES)
    if len(raw) < HEAD_BYTES:
        return None
    magic, method, flags, _, _, _, _, subfield, length = _GZIP.unpack_from(raw)
    if (magic, method, flags, subfield, length) != (b"\x1f\x8b", 8, _FEXTRA, _SUBFIELD, _EXTRA.size):
        return None
    head = Head(*_EXTRA.unpack_from(raw, _GZIP.size))
    whole = offset + HEAD_BYTES + head.packed + _TRAILER.size <= size
    return head if whole and is_time(head.first) and is_time(head.last) else None


def is_cut_in_its_head(file: BinaryIO, size: int) -> bool:
    """Whether a file of `size` bytes is like a recording so far, but ends before its first member does."""
    file.seek(0)
    raw = file.read(HEAD_BYTES)
    if not _FILE_BEGINS.startswith(raw[: len(_FILE_BEGINS)]):
        return False
    return len(raw) < HEAD_BYTES or HEAD_BYTES + _EXTRA.unpack_from(raw, _GZIP.size)[0] + _TRAILER.size > size


def unpack(file: BinaryIO, member: RecordingMember, *, lifted: bool = False) -> bytes:
    """The lines of a member.

    Args:
        file: the recording.
        member: where it lies in the file.
        lifted: unpack also what is larger than any of ours.

    Raises:
        ValueError: the checksum is wrong, or it is larger than any of ours.
        zlib.error: damaged.
        struct.error: the file ends before it does.
    """
    file.seek(member.offset + HEAD_BYTES)
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    # 0 is no limit to zlib.
    lines = unpacker.decompress(file.read(member.packed), 0 if lifted else MAX_MEMBER_BYTES)
    crc, length = _TRAILER.unpack(file.read(_TRAILER.size))
    if not unpacker.eof or crc != zlib.crc32(lines) or length != len(lines) & 0xFFFFFFFF:
        raise ValueError("checksum")
    return lines


def is_time(value: float) -> bool:
    """Whether it can be a unix time of a snapshot, in seconds; NaN is none."""
    return 0.0 <= value < 1e12
