"""The bytes of a recording: gzip members that say in their heads which stretch of time they hold.

A member carries its compressed length, the times of its first and last snapshot, their number and a checksum of
these in its gzip header (an extra field, RFC 1952, 2.3.1.1). So a reader can seek without unpacking what lies
before. gzip's own checksum of a header is not used: older gzip programs take its flag for another and refuse it.
"""

from __future__ import annotations

import struct
import zlib
from typing import BinaryIO, NamedTuple

MAX_MEMBER_BYTES = 64 << 20
"""Unpacked; a member that is larger is not one of ours: a snapshot of a node takes some 10 KB."""

_GZIP = struct.Struct("<2sBBIBBH2sH")  # magic, method, flags, mtime, xfl, os, XLEN, subfield id, its length
_EXTRA = struct.Struct("<IddI")  # deflated length, first time, last time, snapshots
_CHECK = struct.Struct("<2sHI")  # subfield id, its length, CRC-32 of all of the head before
_TRAILER = struct.Struct("<II")  # CRC-32 and length of what was packed
_SUBFIELD = b"LT"
_CHECK_SUBFIELD = b"LC"
_FEXTRA = 4
_UNCHECKED_BYTES = _GZIP.size + _EXTRA.size
HEAD_BYTES = _UNCHECKED_BYTES + _CHECK.size
"""Bytes from the beginning of a member to its deflated data."""
_PIECE_BYTES = 1 << 16
_ALIKE_BYTES = 12
"""Bytes that must be equal among the 16 with which a recording begins. Gzip files of other programs have 8 of
them or fewer."""


def _begins(head_bytes: int) -> bytes:
    """Return the bytes before the first numbers that differ, of a head of that size."""
    extra = head_bytes - _GZIP.size + len(_SUBFIELD) + 2
    return _GZIP.pack(b"\x1f\x8b", 8, _FEXTRA, 0, 0, 255, extra, _SUBFIELD, _EXTRA.size)


_HEADS = {_begins(size): size for size in (HEAD_BYTES, _UNCHECKED_BYTES)}
"""Size of a head by its first bytes. The shorter one has no checksum; recordings with it are read as well."""
MEMBER_BEGINS = _begins(HEAD_BYTES)[:10]
"""The bytes with which each member begins: gzip, deflated, with an extra field, without a time."""


class Head(NamedTuple):
    """Head of a member."""

    head_bytes: int
    """Bytes from the beginning of the member to its deflated data."""
    packed: int
    """Bytes of deflated data."""
    first: float
    """Unix seconds of its first snapshot, without any setting of the wall clock since the recording began."""
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
    head_bytes: int
    packed: int
    first: float
    last: float
    number: int
    """The five fields of its `Head`."""

    @property
    def end(self) -> int:
        """The byte of the file at which what follows this member begins."""
        return self.offset + self.head_bytes + self.packed + _TRAILER.size

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
    head = _begins(HEAD_BYTES) + _EXTRA.pack(len(deflated), first, last, number)
    return head + _CHECK.pack(_CHECK_SUBFIELD, 4, zlib.crc32(head)) + deflated + trailer


def head_at(file: BinaryIO, offset: int, size: int) -> Head | None:
    """Return the head of the member at byte `offset` of a file of `size` bytes; None where there is no whole
    one."""
    file.seek(offset)
    raw = file.read(HEAD_BYTES)
    head_bytes = _HEADS.get(raw[: _GZIP.size])
    if head_bytes is None or len(raw) < head_bytes:
        return None
    check = _CHECK.pack(_CHECK_SUBFIELD, 4, zlib.crc32(raw[:_UNCHECKED_BYTES]))
    if head_bytes == HEAD_BYTES and raw[_UNCHECKED_BYTES:] != check:
        return None
    head = Head(head_bytes, *_EXTRA.unpack_from(raw, _GZIP.size))
    whole = offset + head_bytes + head.packed + _TRAILER.size <= size
    return head if whole and is_time(head.first) and is_time(head.last) else None


def is_head_doubtful(file: BinaryIO, offset: int, head: Head, size: int) -> bool:
    """Return True if a head without a checksum leads to no place where a member begins or the file ends.

    Args:
        file: seekable; its position is moved.
        offset: byte offset of the head in the file.
        head: as read; one with a checksum is never doubtful.
        size: bytes of the whole file.
    """
    end = offset + head.head_bytes + head.packed + _TRAILER.size
    if head.head_bytes == HEAD_BYTES or end == size:
        return False
    file.seek(end)
    return file.read(len(MEMBER_BEGINS)) != MEMBER_BEGINS


def is_recording(piece: bytes) -> bool:
    """Return True if a file that begins with this piece is a recording, also if its first member is damaged."""
    return has_similar_beginning(piece) and any(begins in piece for begins in _HEADS)


def has_similar_beginning(piece: bytes) -> bool:
    """Return True if a file begins as a damaged recording may: most of the first 16 bytes are right, or all are
    zero.

    A recording within an archive begins with the archive's own bytes.
    """
    found = piece[: _GZIP.size]
    alike = max(sum(one == other for one, other in zip(begins, found, strict=False)) for begins in _HEADS)
    return alike >= _ALIKE_BYTES or found == bytes(_GZIP.size)


def salvage(file: BinaryIO, offset: int) -> tuple[int, int, bytes] | None:
    """Read the member at byte `offset`, whose head is damaged. Its data shows where it ends.

    Returns:
        Bytes of its head, bytes of its deflated data, and its lines; None if the data is not whole either.
    """
    for head_bytes in _HEADS.values():
        file.seek(offset + head_bytes)
        unpacker, lines = zlib.decompressobj(-zlib.MAX_WBITS), b""
        try:
            while not unpacker.eof and len(lines) < MAX_MEMBER_BYTES:
                piece = unpacker.unconsumed_tail + file.read(_PIECE_BYTES)
                if not piece:
                    break
                lines += unpacker.decompress(piece, MAX_MEMBER_BYTES - len(lines))
        except zlib.error:
            continue
        packed = file.tell() - len(unpacker.unused_data) - offset - head_bytes
        file.seek(offset + head_bytes + packed)
        trailer = _TRAILER.pack(zlib.crc32(lines), len(lines) & 0xFFFFFFFF)
        if unpacker.eof and file.read(_TRAILER.size) == trailer:
            return head_bytes, packed, lines
    return None


def is_cut_in_head(file: BinaryIO, size: int) -> bool:
    """Return True if a file of `size` bytes is like a recording so far, but ends before its first member does."""
    file.seek(0)
    raw = file.read(HEAD_BYTES)
    fitting = [of for begins, of in _HEADS.items() if begins.startswith(raw[: _GZIP.size])]
    if not fitting:
        return False
    head_bytes = max(fitting)
    return len(raw) < head_bytes or head_bytes + _EXTRA.unpack_from(raw, _GZIP.size)[0] + _TRAILER.size > size


def unpack(file: BinaryIO, member: RecordingMember, *, lifted: bool = False) -> bytes:
    """Return the lines of a member.

    Args:
        file: the recording.
        member: where it lies in the file.
        lifted: unpack also what is larger than any of ours.

    Raises:
        ValueError: the checksum is wrong, or it is larger than any of ours.
        zlib.error: damaged.
        struct.error: the file ends before it does.
    """
    file.seek(member.offset + member.head_bytes)
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    # 0 is no limit to zlib.
    lines = unpacker.decompress(file.read(member.packed), 0 if lifted else MAX_MEMBER_BYTES)
    crc, length = _TRAILER.unpack(file.read(_TRAILER.size))
    if not unpacker.eof or crc != zlib.crc32(lines) or length != len(lines) & 0xFFFFFFFF:
        raise ValueError("checksum")
    return lines


def is_time(value: float) -> bool:
    """Return True if it can be a unix time of a snapshot, in seconds; NaN is none."""
    return 0.0 <= value < 1e12
