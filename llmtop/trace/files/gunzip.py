"""Unpack a gzip file that may break off: what lies before the break is handed over; the gzip module loses it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import BinaryIO

_PACKED_BYTES = 1 << 18
_GZIP_WINDOW = 31
"""zlib's code for a gzip header and the largest window."""


class Gunzip:
    """Reads the members of a gzip file one after another."""

    def __init__(self, file: BinaryIO, check: Callable[[int], None] | None = None) -> None:
        """Read from `file`; `check` is called with the number of unpacked bytes so far, and may raise."""
        self._file, self._check = file, check
        self._unpacked = 0
        self._unpacker = zlib.decompressobj(_GZIP_WINDOW)
        self._done = False
        self.cut = False
        """True if the file ended within a member, or was damaged."""

    def read(self, size: int) -> bytes:
        """Return that many bytes; fewer only at the end, or at the break."""
        parts: list[bytes] = []
        wanted = size
        while wanted > 0 and not self._done:
            part = self._next(wanted)
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)

    def _next(self, most: int) -> bytes:
        packed = self._unpacker.unconsumed_tail or self._unpacker.unused_data or self._file.read(_PACKED_BYTES)
        if self._unpacker.eof:
            # Another member follows, or padding, or nothing.
            self._done = not packed.startswith(b"\x1f\x8b")
            self._unpacker = zlib.decompressobj(_GZIP_WINDOW)
        elif not packed:
            self._done = self.cut = True
        if self._done:
            return b""
        try:
            part = self._unpacker.decompress(packed, most)
        except zlib.error:
            self._done = self.cut = True
            return b""
        self._unpacked += len(part)
        if self._check is not None:
            self._check(self._unpacked)
        return part
