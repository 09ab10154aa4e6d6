"""Locks: one capture per process at a time, and detection of captures cut short by a killed monitor.

A lock is a file in the runtime directory, held by flock(): it goes with the process that holds it, however that
ends. Its text names the holder. A file with text but without a holder is a capture that was cut short.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec

from llmtop.errors import NotPossibleHere
from llmtop.format import encode_json
from llmtop.protocol import socket_dir

PREFIX = "capture-"
_TRIES = 5


class Holder(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Content of a lock file: the capturing process, the captured one, and the begin."""

    pid: int
    engine: str
    since: float
    """Unix time."""
    began: float
    """The same in monotonic seconds of this machine."""
    folder: str = ""
    session: str = ""
    """nsys's session id."""
    target: int = 0
    """The pid under capture."""

    def held_seconds(self) -> float:
        """Return how long it has captured."""
        now = time.monotonic()
        if self.began > now:  # of before the machine was started
            return max(0.0, time.time() - self.since)
        return now - self.began


_decoder = msgspec.json.Decoder(Holder)


class CaptureLock:
    """The right to capture one process, or one nsys session. A context manager."""

    def __init__(self, key: str, holder: Holder) -> None:
        """Take it.

        Args:
            key: "pid-123" or "nsys-1010078".
            holder: who takes it.

        Raises:
            NotPossibleHere: another llmtop has it; the sentence names it and the begin.
        """
        directory = socket_dir.runtime_dir()
        socket_dir.make_dir(directory)
        self.path = directory / f"{PREFIX}{key}.lock"
        self.orphan: Holder | None = None
        """The holder before, if it was killed in the middle."""
        self._fd = self._take()
        self.orphan = _read_holder(self._fd)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, encode_json(holder), 0)

    def _take(self) -> int:
        for attempt in range(_TRIES):
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _read_holder(fd)
                os.close(fd)
                # `orphaned_captures()` of another llmtop holds it for an instant without being a capture
                if holder is None or attempt < _TRIES - 1:
                    time.sleep(0.02)
                    continue
                raise NotPossibleHere(_refusal_text(holder)) from None
            # The last holder may have removed the file between open() and flock().
            if os.path.exists(self.path) and os.path.samestat(os.fstat(fd), os.stat(self.path)):
                return fd
            os.close(fd)
        raise NotPossibleHere(
            "another llmtop is starting a capture of the same process: try again in some seconds"
        )

    def release(self) -> None:
        """Release the lock; nothing stays behind. A second call does nothing."""
        if self._fd < 0:
            return
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> CaptureLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def orphaned_captures() -> list[tuple[Path, Holder]]:
    """Return the captures that were cut short: lock files with the text of a holder that has gone."""
    found = []
    for path in sorted(socket_dir.runtime_dir().glob(f"{PREFIX}*.lock")):
        holder = _read_if_unheld(path)
        if holder is not None:
            found.append((path, holder))
    return found


def running_captures() -> list[Holder]:
    """Return the captures that run now, of this user."""
    found = []
    for path in sorted(socket_dir.runtime_dir().glob(f"{PREFIX}*.lock")):
        if _read_if_unheld(path) is None:
            with suppress(OSError, msgspec.DecodeError):
                found.append(_decoder.decode(path.read_bytes()))
    return found


def _read_if_unheld(path: Path) -> Holder | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _read_holder(fd)
    except BlockingIOError:
        return None
    finally:
        os.close(fd)


def _read_holder(fd: int) -> Holder | None:
    try:
        return _decoder.decode(os.pread(fd, 4096, 0))
    except msgspec.DecodeError:
        return None


def _refusal_text(holder: Holder) -> str:
    return (
        f"another llmtop (pid {holder.pid}) has been capturing this process with {holder.engine} for "
        f"{holder.held_seconds():.0f} s: wait until it is done, or cancel it there"
    )
