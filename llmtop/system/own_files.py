"""Files that llmtop opens in a training, whose script may close every descriptor and take the number for its own.

os.open(), os.fstat() and os.close() let the script's threads run before they return, so that a number may change
its owner between a check and what follows it. Here a check and the close after it hold Python's lock throughout
(ctypes.PyDLL): no code of the script runs between them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterator

Identity = tuple[int, int, int]
"""Identity of a file: major and minor number of its device, and its inode."""

_EMPTY_PATH, _INODE = 0x1000, 0x100
"""AT_EMPTY_PATH and STATX_INO of statx(2)."""
_INODE_AT, _DEVICE_AT, _BYTES = 32, 136, 256
"""Bytes before the inode and the device in struct statx, which is the same on all architectures; its size."""
_READ_BYTES = 1 << 16
_libc = ctypes.PyDLL(None)


def read_all(path: str) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: it cannot be read, or the script has closed its descriptor meanwhile.
    """
    with _open_own(path, os.O_RDONLY) as number:
        pieces = []
        while piece := os.read(number(), _READ_BYTES):
            pieces.append(piece)
        return b"".join(pieces)


def read_with_lock(path: bytes, size: int) -> bytes:
    """Return up to `size` bytes of a file of /proc without giving up Python's lock; empty where it cannot be read.

    For files that the kernel holds in memory alone: all threads of Python wait meanwhile.
    """
    number = _libc.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if number < 0:
        return b""
    content = ctypes.create_string_buffer(size)
    length = _libc.read(number, content, size)
    _libc.close(number)
    return content.raw[: max(0, length)]


def write(path: str, flags: int, data: bytes, mode: int = 0o600) -> None:
    """Write to a file; of what the disk does not take as a whole nothing stays.

    Args:
        path: of the file.
        flags: of open(2), besides O_CLOEXEC.
        data: what is written.
        mode: of a new file.

    Raises:
        OSError: it cannot be written, or the script has closed its descriptor meanwhile.
    """
    with _open_own(path, flags, mode) as number:
        size, done = os.fstat(number()).st_size, 0
        try:
            while done < len(data):
                done += os.write(number(), data[done:])
        except OSError:
            if done:
                os.ftruncate(number(), size)
            raise


@contextlib.contextmanager
def _open_own(path: str, flags: int, mode: int = 0o600) -> Iterator[Callable[[], int]]:
    """Open a file; what is yielded returns its number as long as it is the file's, else raises OSError."""
    number = os.open(path, flags | os.O_CLOEXEC, mode)
    identity = _identity_by_path(path, number)

    def checked() -> int:
        if identity is None or _identity(number) != identity:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return number

    try:
        yield checked
    finally:
        if identity is not None and _identity(number) == identity:
            _libc.close(number)


def _identity_by_path(path: str, number: int) -> Identity | None:
    """Return what a file that was just opened is, by its path: its number may be another file's already.

    Args:
        path: that was opened.
        number: its descriptor; where the path is gone, it is believed.
    """
    try:
        found = os.stat(path)
    except OSError:
        return _identity(number)
    return os.major(found.st_dev), os.minor(found.st_dev), found.st_ino


def _identity(number: int) -> Identity | None:
    """Return what the number is now; None where it is closed. Without giving up Python's lock."""
    found = ctypes.create_string_buffer(_BYTES)
    if _libc.statx(number, b"", _EMPTY_PATH, _INODE, found):
        return None
    (inode,) = struct.unpack_from("=Q", found, _INODE_AT)
    major, minor = struct.unpack_from("=II", found, _DEVICE_AT)
    return major, minor, inode
