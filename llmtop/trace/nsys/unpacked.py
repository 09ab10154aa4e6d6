"""A gzipped SQLite export, unpacked into memory: nothing of it is written to a disk, nothing is left behind.

SQLite opens files by name and follows links, so a memfd's name in /proc is of no use to it. It opens an empty file
of /dev/shm, whose name is removed before anything is written. Where /dev/shm is missing or too small (containers
have 64 MiB of it), the export is unpacked into a memfd, and SQLite gets a copy of it.
"""

from __future__ import annotations

import errno
import mmap
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from llmtop.errors import NotPossibleHere
from llmtop.format import size

SHARED_MEMORY = Path("/dev/shm")
_PART_OF_MEMORY = 2
"""An export takes at most this part of the available memory: its columns, and a copy, may need as much again."""
_HEADER_BYTES, _JOURNAL_MODE, _NO_JOURNAL = 100, 18, b"\1\1"
"""Where the header says that a -wal file may lie beside the database, and that none does
(sqlite.org/fileformat2.html): SQLite would look for one."""


@dataclass
class UnpackedDatabase:
    """An export in memory."""

    descriptor: int
    """Descriptor of a file without a name, with all bytes."""
    opened: sqlite3.Connection | None = None
    """The connection that has it open already; None: SQLite takes a copy."""

    def connect(self) -> sqlite3.Connection:
        """Return the connection to it; called once it is whole."""
        if self.opened is not None:
            return self.opened
        connection = sqlite3.connect(":memory:")
        with closing(mmap.mmap(self.descriptor, 0)) as content:
            if sys.version_info >= (3, 11):  # else no file without an open connection is made
                connection.deserialize(content)
        return connection

    def close(self) -> None:
        """Release its memory."""
        if self.opened is not None:
            self.opened.close()
        os.close(self.descriptor)


@contextmanager
def unpack_into_memory(
    path: Path, unpack: Callable[[Callable[[int], None]], Iterator[bytes]]
) -> Iterator[UnpackedDatabase]:
    """Unpack an export, and release its memory at the end.

    Args:
        path: a gzipped export of nsys.
        unpack: yields its content in pieces, from the beginning at each call, and calls its argument with the
            number of bytes so far before each; an OSError of it becomes a NotPossibleHere.

    Raises:
        NotPossibleHere: it unpacks to more than half of the available memory.
    """
    most = _available_memory() // _PART_OF_MEMORY

    def check(unpacked: int) -> None:
        if unpacked > most:
            raise NotPossibleHere(
                f"{path} unpacks to more than {size(most)}, half of the available memory; {_advice(path)}"
            )

    for is_shared in (True, False):
        file = _in_shared_memory() if is_shared else _in_own_memory(path)
        if file is None:
            continue
        try:
            try:
                _write(file.descriptor, unpack(check))
            except OSError as error:
                if is_shared and error.errno == errno.ENOSPC:
                    continue
                raise NotPossibleHere(
                    f"{path} cannot be unpacked into memory: {error.strerror}; {_advice(path)}"
                ) from None
            yield file
            return
        finally:
            file.close()


def _advice(path: Path) -> str:
    return f"unpack it to a disk and report on that: gunzip --keep {path}"


def _available_memory() -> int:
    """Return the bytes that this process may still take; a great number where nothing tells."""
    from llmtop.system import cgroups, procfs

    own = cgroups.read_limits().memory
    known = [procfs.memory().get("MemAvailable"), own]
    return min((number for number in known if number is not None), default=sys.maxsize)


def _write(descriptor: int, pieces: Iterator[bytes]) -> None:
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    if os.fstat(descriptor).st_size >= _HEADER_BYTES:
        os.pwrite(descriptor, _NO_JOURNAL, _JOURNAL_MODE)


def _in_shared_memory() -> UnpackedDatabase | None:
    """Return an empty file of /dev/shm without a name that SQLite has open; None where there is no such folder."""
    from llmtop.system.procfs import mounts

    if mounts().get(str(SHARED_MEMORY)) != "tmpfs":
        return None
    try:
        descriptor, name = tempfile.mkstemp(prefix="llmtop-", dir=SHARED_MEMORY)
    except OSError:
        return None
    try:
        # SQLite opens the file here and reads it at the first query; of an immutable file it keeps the size too.
        connection = sqlite3.connect(f"{Path(name).as_uri()}?mode=ro", uri=True)
    except sqlite3.Error:
        os.close(descriptor)
        return None
    finally:
        os.unlink(name)
    return UnpackedDatabase(descriptor, connection)


def _in_own_memory(path: Path) -> UnpackedDatabase:
    """Return an empty memfd, of which SQLite will get a copy.

    Raises:
        NotPossibleHere: Python is older than 3.11, whose SQLite takes no copy.
    """
    if sys.version_info < (3, 11):
        raise NotPossibleHere(f"{path} does not fit into {SHARED_MEMORY}; {_advice(path)}")
    return UnpackedDatabase(os.memfd_create("llmtop", os.MFD_CLOEXEC))
