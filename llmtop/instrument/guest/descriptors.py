"""Sockets whose number may be taken from them: a training may close every descriptor that it did not open.

The number then belongs to whatever the script opens next, and to write to it or close it would harm that. The
kernel numbers its sockets, and a number stays the same in forked children; so before each use of a descriptor the
socket's number (its cookie, or its inode where it has none) is checked. Python keeps its lock while it asks for a
cookie, and gives it up for an inode: a training that waits for the lock would take it then, and this thread would
wait. A `select.poll` is used rather than an epoll, because that has no descriptor to lose.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import stat
import sys
from typing import Any

_FIRST = 3
"""The lowest number for a socket of ours: a training started with a closed stderr has 2 free, and what C code
writes to stderr must not reach a monitor."""
_SO_COOKIE = 57
_COOKIE_BYTES = 8
"""From <asm-generic/socket.h>; Python's `socket` does not name it."""
_LOST = (errno.EBADF, errno.ENOTSOCK)


class Channel(socket.socket):
    """A socket that does nothing, and does not even close itself, once its number belongs to the script."""

    _identity: bytes | tuple[int, int] | None = None

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:
        """Open a socket, then move it to a descriptor of `_FIRST` or above: low numbers are the script's.

        Args:
            family: as of `socket.socket`, and so are the others.
            type: kind of socket; -1 with `fileno`: its own.
            proto: number of the protocol.
            fileno: an open descriptor to take over; closed if it is moved.

        Raises:
            OSError: no descriptor is left.
        """
        super().__init__(family, type, proto, fileno)
        if 0 <= self.fileno() < _FIRST:
            try:
                number = fcntl.fcntl(self.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST)
            finally:
                super().close()
            super().__init__(family, type, proto, number)

    def remember(self) -> Channel:
        """Take the number for this socket's own from now on; returns itself."""
        self._identity = self._identify()
        return self

    @property
    def is_ours(self) -> bool:
        """Return True if the number is still this socket's."""
        return self._identity is not None and self._identify() == self._identity

    def _identify(self) -> bytes | tuple[int, int] | None:
        """Return the identity of the socket behind the number; None where there is none."""
        if sys.platform == "linux":
            try:
                cookie = self.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, _COOKIE_BYTES)
                if cookie.strip(b"\0"):
                    return cookie
            except OSError as error:
                if error.errno in _LOST:
                    return None
            # A kernel before Linux 4.12, or one that only resembles Linux, gives none.
        return _inode_of(self.fileno())

    def take(self) -> Channel:
        """Accept one connection.

        Raises:
            OSError: as accept(), or the number is lost.
        """
        self._check()
        number, _ = self._accept()  # type: ignore[attr-defined]  # accept() would make a plain socket of it
        return Channel(self.family, self.type, self.proto, fileno=number).remember()

    def send(self, data: Any, flags: int = 0) -> int:
        """Send as socket.send does, once the number is known to be ours still."""
        self._check()
        return super().send(data, flags)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive as socket.recv does, once the number is known to be ours still."""
        self._check()
        return super().recv(size, flags)

    def close(self) -> None:
        """Close it if it is still ours, else only forget the number."""
        if self.is_ours:
            super().close()
        elif self.fileno() >= 0:
            self.detach()

    def __del__(self) -> None:
        """Replace socket's own destructor, which would close the number even if another file has it by now."""
        if self.fileno() >= 0:
            self.close()

    def _check(self) -> None:
        if not self.is_ours:
            raise OSError(errno.EBADF, "the training has closed it")


def pair() -> tuple[Channel, Channel]:
    """Two connected channels that never block."""
    both = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    first, second = (Channel(fileno=one.detach()).remember() for one in both)
    first.setblocking(False)
    second.setblocking(False)
    return first, second


class Poll:
    """Poll object of the server. Closed descriptors are returned as readable, so that they are noticed."""

    def __init__(self) -> None:
        self._poll = select.poll()

    def register(self, channel: socket.socket, events: int) -> None:
        """Wake for these events of a channel; called again, for these instead."""
        self._poll.register(channel.fileno(), events)

    def unregister(self, number: int) -> None:
        """Wake no longer for that descriptor, whether it was registered or not."""
        try:
            self._poll.unregister(number)
        except KeyError:
            return

    def poll(self, seconds: float | None) -> list[tuple[int, int]]:
        """Sleep until a descriptor is ready.

        Args:
            seconds: the longest sleep; None: until something is ready.

        Returns:
            (descriptor, events) of each ready one; those that have hung up come first, since what the others ask
            may be allowed only after these are dropped.
        """
        ready = self._poll.poll(None if seconds is None else max(0.0, seconds * 1000))
        return sorted(ready, key=lambda one: not one[1] & select.POLLHUP) if len(ready) > 1 else ready


def _inode_of(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None
