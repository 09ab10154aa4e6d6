"""Messages between a monitor and the host of Kineto's fabric, and their encoding.

They are frames of msgpack, as between a training and a monitor (llmtop/protocol/wire.py).
"""

from __future__ import annotations

import msgspec

from llmtop.errors import UnusableInput
from llmtop.model.decoding import decode_checked
from llmtop.protocol import wire

CONTROL = "control"
"""The host's socket for monitors, in its directory."""
POLL_SECONDS = 1
"""How often a training asks its host; its own default is five."""
FRESH_SECONDS = 5.0
"""A process that has not polled for this time is gone, or too busy to be configured."""
MAX_MESSAGE = 4096
"""Bytes of the longest message that a host takes: a path, and some numbers."""


class TraceRequest(msgspec.Struct, tag="wish", kw_only=True, omit_defaults=True):
    """Message from a monitor: trace that process. Hanging up before `Sent` withdraws it."""

    pid: int
    path: str
    """Absolute; Kineto puts ``_<pid>`` before its suffix."""
    steps: int = 0
    milliseconds: int = 0


class ListPollers(msgspec.Struct, tag="look"):
    """Message from a monitor: list the processes."""


class Poller(msgspec.Struct, kw_only=True):
    """A process whose Kineto asks this host for work."""

    pid: int
    """Pid on this host."""
    own_pid: int
    """Pid in its own namespace."""
    ready: bool
    seconds_ago: float


class Pollers(msgspec.Struct, tag="pollers", kw_only=True):
    """The answer to a monitor: which processes ask this host for work."""

    pollers: list[Poller]


class Sent(msgspec.Struct, tag="sent", kw_only=True):
    """To a monitor: the configuration was sent. The process never confirms it; its file does."""

    own_pid: int


FromMonitor = TraceRequest | ListPollers
FromHost = Pollers | Sent | wire.Refused


class Frames:
    """One end of a connection."""

    from_monitor: msgspec.msgpack.Decoder[FromMonitor] = msgspec.msgpack.Decoder(FromMonitor)
    from_host: msgspec.msgpack.Decoder[FromHost] = msgspec.msgpack.Decoder(FromHost)

    def __init__(self, largest: int = wire.MAX_FRAME) -> None:
        """Prepare for a connection on which nothing has come.

        Args:
            largest: bytes that a message may have.
        """
        self.feed = wire.Framer(largest).feed

    def requests(self, data: bytes) -> list[FromMonitor]:
        """Add bytes of a monitor and return all messages that are now whole.

        Raises:
            UnusableInput: a message is too long, or is none of llmtop; the connection is beyond repair.
        """
        try:
            return [decode_checked(self.from_monitor, body) for body in self.feed(data)]
        except msgspec.DecodeError:
            raise UnusableInput("not a message of llmtop") from None

    def encode(self, message: FromMonitor | FromHost) -> bytes:
        """Encode one message."""
        return wire.add_length(msgspec.msgpack.encode(message))
