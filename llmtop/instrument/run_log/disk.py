"""Appends to the files of a run. A file is open only while it is written to.

So no descriptor of ours is there when the script closes all that it did not open, forks or executes a program; a
child that inherits one within that moment gets one that is closed on exec and that has no user.

A disk that hangs holds the writer's thread. On a disk of this node that ends with the disk's trouble. A thread in
a request to a network's or a FUSE file system that never answers would keep the whole process from ending: the
kernel lets nothing interrupt it (seen with Linux 6.18). There a process of its own writes, which gets what it is
to write through a socket that never blocks.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Protocol

from llmtop.instrument.guest import descriptors
from llmtop.instrument.run_log import append_program
from llmtop.runs.folder import RunsFolder, make_folder
from llmtop.system import own_files

_LENGTHS = struct.Struct("<BHI")
_START_S = 10.0
_ANSWER_BYTES = 4096
_QUEUE_BYTES = 4 << 20
"""How much may wait for the process that writes: a minute or more."""


class DiskTrouble(Exception):
    """Data was dropped; the text says why."""


class Disk(Protocol):
    """Where the files of a run go."""

    def append(self, name: str, data: bytes, *, anew: bool = False) -> None:
        """Append to a file, or write it anew.

        Raises:
            DiskTrouble: nothing of it was written.
        """

    def close(self) -> None:
        """Close the descriptors; handed-over data is still written."""


class OwnDisk:
    """Writes in the calling thread, which waits for the disk."""

    def __init__(self, folder: Path) -> None:
        """Create the folder.

        Raises:
            NotPossibleHere: it cannot be created or is not this user's own.
        """
        make_folder(folder.parent)
        make_folder(folder)
        self._folder = os.fspath(folder)

    def append(self, name: str, data: bytes, *, anew: bool = False) -> None:
        """Append to a file, or write it anew.

        Raises:
            DiskTrouble: nothing of it was written.
        """
        try:
            flags = append_program.FLAGS | (os.O_TRUNC if anew else 0)
            own_files.write(f"{self._folder}/{name}", flags, data)
        except OSError as error:
            raise DiskTrouble(error.strerror or str(error)) from None

    def close(self) -> None:
        """Nothing is open."""


class ForeignDisk:
    """Hands over to a process of its own; never waits."""

    def __init__(self, folder: Path) -> None:
        """Start the process, which is not this one's child.

        Raises:
            OSError: it cannot be started.
        """
        import subprocess  # seldom needed, and no training shall load it for nothing

        self._socket, theirs = descriptors.pair()
        theirs.setblocking(True)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _QUEUE_BYTES)
        self._waiting = b""
        try:
            starter = subprocess.Popen(
                [sys.executable, "-I", "-S", append_program.__file__, os.fspath(folder)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
            starter.wait(_START_S)  # it goes on in a child of its own
        finally:
            theirs.close()

    def append(self, name: str, data: bytes, *, anew: bool = False) -> None:
        """Append to a file, or write it anew.

        Raises:
            DiskTrouble: the process that writes is behind by more than may wait, has ended, or could not write
                what it got before.
        """
        called = name.encode()
        self._send()
        failed = self._failed()
        if len(self._waiting) + len(data) > _QUEUE_BYTES:
            raise DiskTrouble("the disk of the run's files does not reply")
        self._waiting += _LENGTHS.pack(anew, len(called), len(data)) + called + data
        self._send()
        if failed is not None:
            raise DiskTrouble(os.strerror(failed) if failed else "the disk failed")

    def _failed(self) -> int | None:
        """Return the errno of the last write that failed, of those whose answers have come; None without any."""
        try:
            answers = self._socket.recv(_ANSWER_BYTES)
        except OSError:
            return None
        whole = len(answers) // append_program.ERROR.size
        last = answers[(whole - 1) * append_program.ERROR.size : whole * append_program.ERROR.size]
        return int(append_program.ERROR.unpack(last)[0]) if whole else None

    def _send(self) -> None:
        try:
            while self._waiting:
                self._waiting = self._waiting[self._socket.send(self._waiting) :]
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                self._waiting = b""
                raise DiskTrouble("the process that writes the log has ended") from None

    def close(self) -> None:
        """Close the socket: the process writes what it has, and ends."""
        self._socket.close()


def open_disk(runs: RunsFolder, name: str) -> Disk:
    """Return where the files of a run go.

    Args:
        runs: the folder of all runs.
        name: of the run's own folder below it.

    Raises:
        NotPossibleHere: the folder cannot be had.
        OSError: no process can be started.
    """
    return OwnDisk(runs.path / name) if runs.is_local else ForeignDisk(runs.path / name)
