"""A client of torch's TCPStore without torch: five questions, over one socket that never blocks.

torch's own client prints a C++ stack trace into the training's log when the server ends during a query, and its
`get` waits until there is a value. This one waits `seconds` at most, in a poll of its own, prints nothing, and
sends only requests that are answered at once. The bytes are those of torch 2.2 and later, of both its servers: a
request is a byte that names it and what it is about, little-endian; a text has its length in 8 bytes before it.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from collections.abc import Callable
from types import TracebackType

FIRST_TORCH = (2, 2)
"""First version of torch whose server knows the bytes with which a client begins."""
MOST_BYTES = 1 << 20
"""Limit of a requested value."""
_MAGIC = 0x3C85F7CE
_VALIDATE, _SET, _COMPARE_SET, _GET, _ADD, _CHECK, _DELETE = 0, 1, 2, 3, 4, 5, 8
_READY = 0
_LENGTH = struct.Struct("<Q")
_NUMBER = struct.Struct("<q")

Make = Callable[[int, int], socket.socket]


class StoreError(Exception):
    """The server has gone, does not answer in time, or is no TCPStore; the connection is useless."""


class TcpStore:
    """One connection to a server. For one thread."""

    def __init__(self, channel: socket.socket, seconds: float) -> None:
        """Take over a connected socket; `connect` is the way to get one.

        Args:
            channel: connected to the TCPStore of the job.
            seconds: the longest wait for one reply. Later the connection is useless, since a late reply would be
                taken for that of the next request.
        """
        self._channel = channel
        self._seconds = seconds

    @classmethod
    def open(cls, address: str, seconds: float = 2.0, make: Make = socket.socket) -> TcpStore:
        """Connect.

        Args:
            address: "host:port"; the name of the host is looked up, which can take the resolver's time.
            seconds: that each answer, and the connection, may take.
            make: makes the socket, of a family and a type.

        Raises:
            StoreError: no server answers there.
        """
        host, _, port = address.rpartition(":")
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except (OSError, ValueError, UnicodeError) as error:
            raise StoreError(f"the host of {address} is unknown: {error}") from None
        failed: Exception = StoreError(f"the host of {address} is unknown")
        for family, kind, _, _, where in found:
            channel = make(family, kind)
            try:
                channel.setblocking(False)
                _connect(channel, where, seconds)
                channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                store = cls(channel, seconds)
                store._send(struct.pack("<BI", _VALIDATE, _MAGIC))
            except (OSError, StoreError) as error:
                channel.close()
                failed = error
            else:
                return store
        raise StoreError(f"no TCPStore answers at {address}: {failed}")

    def check(self, key: str) -> bool:
        """Return True if there is a value."""
        self._send(struct.pack("<BQ", _CHECK, 1) + _text(key.encode()))
        said = self._receive(1)[0]
        if said > 1:
            raise StoreError("another program than a TCPStore answers there")
        return said == _READY

    def get(self, key: str) -> bytes | None:
        """Return the value; None where there is none. Nothing waits for one."""
        if not self.check(key):
            return None
        self._send(bytes([_GET]) + _text(key.encode()))
        return self._value()

    def set(self, key: str, value: bytes) -> None:
        """Write a value."""
        self._send(bytes([_SET]) + _text(key.encode()) + _text(value))

    def put(self, key: str, value: bytes) -> bool:
        """Write a value where there is none yet; returns whether there was none."""
        self._send(bytes([_COMPARE_SET]) + _text(key.encode()) + _text(b"") + _text(value))
        return self._value() == value

    def add(self, key: str, by: int) -> int:
        """Add to a counter, which begins at 0, and return what it is then."""
        self._send(bytes([_ADD]) + _text(key.encode()) + _NUMBER.pack(by))
        return int(_NUMBER.unpack(self._receive(_NUMBER.size))[0])

    def delete(self, key: str) -> None:
        """Remove a value, if there is one."""
        self._send(bytes([_DELETE]) + _text(key.encode()))
        self._receive(_NUMBER.size)

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def __enter__(self) -> TcpStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _value(self) -> bytes:
        (length,) = _LENGTH.unpack(self._receive(_LENGTH.size))
        if length > MOST_BYTES:
            raise StoreError(f"it holds a value of {length} bytes, which llmtop did not write")
        return self._receive(length)

    def _send(self, data: bytes) -> None:
        until = time.monotonic() + self._seconds
        while data:
            data = data[self._send_some(data, until) :]

    def _send_some(self, data: bytes, until: float) -> int:
        try:
            return self._channel.send(data)
        except BlockingIOError:
            _wait(self._channel, select.POLLOUT, until)
        except OSError as error:
            raise StoreError(f"the connection to the TCPStore failed: {error.strerror}") from None
        return 0

    def _receive(self, size: int) -> bytes:
        until = time.monotonic() + self._seconds
        data = bytearray()
        while len(data) < size:
            try:
                piece = self._channel.recv(size - len(data))
            except BlockingIOError:
                _wait(self._channel, select.POLLIN, until)
                continue
            except OSError as error:
                raise StoreError(f"the connection to the TCPStore failed: {error.strerror}") from None
            if not piece:
                raise StoreError("the TCPStore has disconnected")
            data += piece
        return bytes(data)


def _connect(channel: socket.socket, where: tuple[object, ...], seconds: float) -> None:
    failed = channel.connect_ex(where)
    if failed == errno.EINPROGRESS:
        _wait(channel, select.POLLOUT, time.monotonic() + seconds)
        failed = channel.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if failed:
        raise OSError(failed, errno.errorcode.get(failed, str(failed)))


def _wait(channel: socket.socket, events: int, until: float) -> None:
    poll = select.poll()
    poll.register(channel.fileno(), events)
    if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
        raise StoreError("the TCPStore does not answer in time")


def _text(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data
