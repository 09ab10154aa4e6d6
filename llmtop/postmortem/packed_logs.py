"""Logs packed by gzip, bzip2, xz or zstd: their first and last part, as far as a bounded time unpacks them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import time
import zlib
from collections import deque
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NamedTuple, cast

from llmtop.errors import UnusableInput
from llmtop.format import size
from llmtop.system.inputs import open_input

_MAGICS = (
    (b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ\x00", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"),
)  # fmt: skip
PACKERS = tuple(name for _, name in _MAGICS)
_CHUNK = 256 << 10
_MOST_BYTES = 4 << 30
_SECONDS = 0.25
"""Processor time; some 60 MB of a usual log."""
_MOST_DICTIONARY = 128 << 20
"""Memory for xz: what `xz -9` needs is 65 MiB."""
_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, ValueError)


class UnpackedLog(NamedTuple):
    """Text of a packed log."""

    head: bytes
    tail: bytes
    """Its end, or that of what was unpacked, where the middle is left out."""
    note: str
    """Skipped part; "" if all was read."""


def packer_of(head: bytes) -> str:
    """Return what has packed a file, by its first bytes; "" for none of those that are known."""
    return next((name for magic, name in _MAGICS if head.startswith(magic)), "")


def is_archive(head: bytes) -> bool:
    """Return True if a file or what it unpacks to is a tar archive."""
    return head[257:262] == b"ustar"


def unpack_log(path: Path, packer: str, most: int) -> UnpackedLog:
    """Unpack a log.

    Args:
        path: the file.
        packer: as `packer_of` names it.
        most: bytes of it that are kept.

    Raises:
        UnusableInput: it cannot be read, nothing can unpack it, or it is an archive.
    """
    until = time.process_time() + _SECONDS
    head, last, note = bytearray(), deque[bytes](), ""
    total = kept = 0
    with open_input(path) as raw:
        unpacked = _open_unpacked(cast("IO[bytes]", raw), packer)
        try:
            while chunk := unpacked.read(_CHUNK):
                total += len(chunk)
                if len(head) < most // 4:
                    head += chunk
                else:
                    last.append(chunk)
                    kept += len(chunk)
                while kept > most:
                    kept -= len(last.popleft())
                if time.process_time() > until or total > _MOST_BYTES:
                    note = f"only the first {size(total)} that it unpacks to were read: unpack it to have its end"
                    break
        except _DAMAGED as error:
            note = (
                f"its packed data is cut off or damaged after {size(total)} ({error}); what comes before was read"
            )
    if not head:
        raise UnusableInput(note or "it unpacks to nothing")
    if is_archive(bytes(head[:512])):
        raise UnusableInput("it is an archive: unpack it with tar -xf and pass the folder")
    if total == len(head) + kept:
        return UnpackedLog(bytes(head) + b"".join(last), b"", note)
    return UnpackedLog(bytes(head), b"".join(last), note)


def _open_unpacked(raw: IO[bytes], packer: str) -> IO[bytes]:
    if packer == "gzip":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if packer == "bzip2":
        return cast("IO[bytes]", bz2.BZ2File(raw))
    if packer == "xz":
        return cast("IO[bytes]", _Xz(raw))
    for module in ("compression.zstd", "zstandard"):  # Python 3.14's own, or the package where it is there
        if _is_installed(module):
            return cast("IO[bytes]", import_module(module).open(raw, "rb"))
    raise UnusableInput("no library here unpacks zstd: unpack it with zstd -d")


def _is_installed(module: str) -> bool:
    """Return True if a module is installed."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is not there
        return False


class _Xz:
    """`lzma.LZMAFile` has no limit on memory."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._unpacker = lzma.LZMADecompressor(memlimit=_MOST_DICTIONARY)

    def read(self, most: int) -> bytes:
        """Return the next bytes; none at its end."""
        while not self._unpacker.eof:
            data = self._raw.read(_CHUNK) if self._unpacker.needs_input else b""
            if not data and self._unpacker.needs_input:
                raise EOFError("its end is missing")
            found = self._unpacker.decompress(data, most)
            if found:
                return found
        return b""
