"""A monitor as the training's server sees it: a socket that never blocks, and what it has been sent so far."""

from __future__ import annotations

import contextlib
import socket
import time

from llmtop import wire

_CHUNK = 1 << 16


class Monitor:
    """One connection. Every method that meets a dead socket raises OSError; the server then drops it."""

    __slots__ = (
        "_buffer",
        "_framer",
        "channel",
        "cursor",
        "facts_version",
        "gone",
        "gpu_cursor",
        "history_until",
        "lively_at",
        "lively_ns",
        "lost",
        "memory_version",
        "metrics",
        "since",
        "subscribed",
    )

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.channel = channel
        self._framer = wire.Framer()
        self._buffer = b""
        self.subscribed = False
        self.gone = False
        """Whether the connection has ended; read by other threads too."""
        self.since = time.monotonic()
        self.cursor = 0
        """The number of the first step that it has not been sent."""
        self.history_until = 0
        """Steps below this number had finished when it subscribed."""
        self.lost = 0
        self.lively_at = float("-inf")
        """When it was last looked whether it is to be told of a sign of life; monotonic seconds."""
        self.lively_ns = 0
        """The last sign of life that it was told of, as perf_counter."""
        self.facts_version = -1
        self.gpu_cursor = 0
        self.memory_version = 0
        self.metrics: dict[str, float] = {}

    @property
    def behind(self) -> bool:
        """Whether it has not yet taken what it was sent."""
        return bool(self._buffer)

    @property
    def ready(self) -> bool:
        """Whether it wants steps and would take them now."""
        return self.subscribed and not self._buffer

    def write(self, data: bytes) -> None:
        """Send what the socket takes now and keep the rest; `write(b"")` sends of the rest.

        Raises:
            OSError: it has gone.
        """
        data = self._buffer + data if self._buffer else data
        sent = 0
        with contextlib.suppress(BlockingIOError):
            sent = self.channel.send(data)
        self._buffer = data[sent:]

    def read(self) -> list[bytes] | None:
        """The bodies of the frames that have come; None when it has hung up.

        Raises:
            OSError: it has gone.
            UnusableInput: it announced too large a frame.
        """
        try:
            data = self.channel.recv(_CHUNK)
        except BlockingIOError:
            return []
        return self._framer.feed(data) if data else None
