"""A monitor as the training's server sees it: a socket that never blocks, and what it has been sent so far."""

from __future__ import annotations

import contextlib
import socket
import time

from llmtop.instrument.guest.descriptors import Channel
from llmtop.instrument.serve import limits
from llmtop.instrument.serve.collectives import CollectiveWatch
from llmtop.protocol import wire

_CHUNK = 1 << 16


class Monitor:
    """One connection. Every method that meets a dead socket raises OSError; the server then drops it."""

    __slots__ = (
        "_buffer",
        "_framer",
        "_intake",
        "arrivals_cursor",
        "arrivals_of",
        "channel",
        "collectives",
        "cursor",
        "facts_version",
        "gpu_cursor",
        "history_until",
        "hold_s",
        "is_closed",
        "lively_at",
        "lively_ns",
        "logged_cursor",
        "lost",
        "memory_version",
        "metrics",
        "outside_number",
        "overhead_version",
        "saved_version",
        "since",
        "stalled_at",
        "subscribed",
    )

    def __init__(self, channel: Channel) -> None:
        channel.setblocking(False)
        self.channel = channel
        self._framer = wire.Framer(limits.MAX_REQUEST, limits.MESSAGES_PER_S)
        self._intake = limits.Intake()
        self._buffer = b""
        self.subscribed = False
        self.is_closed = False
        """True if the connection has ended; read by other threads too."""
        self.since = time.monotonic()
        self.cursor = 0
        """The number of the first step that it has not been sent."""
        self.history_until = 0
        """Steps below this number had finished when it subscribed."""
        self.hold_s = 0.0
        """Seconds for which a message may be held back to be sent with the next ones, as the monitor asks."""
        self.lost = 0
        self.lively_at = float("-inf")
        """Monotonic seconds of the last check for a sign of life to send."""
        self.lively_ns = 0
        """`perf_counter_ns` of the last sign of life sent to it."""
        self.collectives = CollectiveWatch()
        self.facts_version = -1
        self.gpu_cursor = 0
        self.arrivals_cursor = 0
        self.arrivals_of: object = None
        """The sampler that the cursor is of."""
        self.memory_version = 0
        self.overhead_version = 0
        self.metrics: dict[str, float] = {}
        self.logged_cursor = 0
        """The number of the first logged value that it has not been sent."""
        self.saved_version = 0
        self.outside_number = 0
        """Number of the last `wire.Outside` that it was sent."""
        self.stalled_at = ""
        """Where the training waits for a person, as last sent."""

    @property
    def has_unsent(self) -> bool:
        """Return True if it has not yet taken what it was sent."""
        return bool(self._buffer)

    @property
    def ready(self) -> bool:
        """Return True if it wants steps and would take them now."""
        return self.subscribed and not self._buffer

    def write(self, data: bytes) -> None:
        """Send what the socket takes now and keep the rest; `write(b"")` sends of the rest.

        Raises:
            OSError: it has gone, or leaves too much unread.
        """
        if self._buffer and data and len(self._buffer) + len(data) > limits.MAX_UNREAD:
            raise BlockingIOError(f"{len(self._buffer)} bytes lie unread")
        data = self._buffer + data if self._buffer else data
        sent = 0
        with contextlib.suppress(BlockingIOError):
            sent = self.channel.send(data)
        self._buffer = data[sent:]

    def read(self) -> list[bytes] | None:
        """Return the bodies of the frames that have come; None when it disconnected.

        Raises:
            OSError: it has gone.
            UnusableInput: it announced too large a frame, or sends more than a monitor may.
        """
        try:
            data = self.channel.recv(_CHUNK)
        except BlockingIOError:
            return []
        if not data:
            return None
        bodies = self._framer.feed(data)
        self._intake.add(len(bodies), len(data))
        return bodies

    def has_hung_up(self) -> bool:
        """Return True if the other end closed before it sent anything, as in a flood of connections."""
        try:
            return not self.channel.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
