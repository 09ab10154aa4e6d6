"""What a monitor and the host of Kineto's fabric say to each other, and the bytes of it.

They speak frames of msgpack, as a training and a monitor do (llmtop/protocol/wire.py). Before that they spoke
lines of JSON, and a host lives for as long as its training does, which may be weeks. So both still speak lines
with whoever knows no frames: a monitor tells such a host by the name `FRAMES`, which it lacks, and a host tells
such a monitor by the first bytes that it sends.
"""

from __future__ import annotations

import msgspec

from llmtop.errors import UnusableInput
from llmtop.protocol import wire

CONTROL = "control"
"""The host's socket for monitors, in its directory."""
FRAMES = "frames"
"""Its second name: whoever connects by this one may speak frames."""
MAX_MESSAGE = 4096
"""Bytes of the longest message that a host takes: a path, and some numbers."""
_LINES_BEGIN_WITH = b'{"'
"""As the length of a frame that would be 8,827 bytes at least, which no host takes."""


class Wish(msgspec.Struct, tag="wish", kw_only=True, omit_defaults=True):
    """From a monitor: have that process trace. Hanging up before `Sent` takes it back."""

    pid: int
    path: str
    """Absolute; Kineto puts ``_<pid>`` before its suffix."""
    steps: int = 0
    milliseconds: int = 0


class WhoIsThere(msgspec.Struct, tag="look"):
    """From a monitor: who is there?"""


class Poller(msgspec.Struct, kw_only=True):
    """A process whose Kineto asks this host for work."""

    pid: int
    """On this host."""
    own_pid: int
    """As it knows itself."""
    ready: bool
    seconds_ago: float


class Pollers(msgspec.Struct, tag="pollers", kw_only=True):
    """The answer to a monitor: which processes ask this host for work."""

    pollers: list[Poller]


class Sent(msgspec.Struct, tag="sent", kw_only=True):
    """To a monitor: the process has been told. It never confirms; its file does."""

    own_pid: int


FromMonitor = Wish | WhoIsThere
FromHost = Pollers | Sent | wire.Refused


class Frames:
    """One end of a connection on which frames of msgpack are spoken."""

    from_monitor: msgspec.msgpack.Decoder[FromMonitor] = msgspec.msgpack.Decoder(FromMonitor)
    from_host: msgspec.msgpack.Decoder[FromHost] = msgspec.msgpack.Decoder(FromHost)

    def __init__(self, largest: int = wire.MAX_FRAME) -> None:
        """Prepare for a connection on which nothing has come.

        Args:
            largest: bytes that a message may have.
        """
        self.feed = wire.Framer(largest).feed

    def encode(self, message: FromMonitor | FromHost) -> bytes:
        """Encode one message."""
        return wire.add_length(msgspec.msgpack.encode(message))


class Lines:
    """One end of a connection on which lines of JSON are spoken."""

    from_monitor: msgspec.json.Decoder[FromMonitor] = msgspec.json.Decoder(FromMonitor)
    from_host: msgspec.json.Decoder[FromHost] = msgspec.json.Decoder(FromHost)

    def __init__(self, largest: int = wire.MAX_FRAME) -> None:
        """Prepare for a connection on which nothing has come.

        Args:
            largest: bytes that a message may have.
        """
        self._largest = largest
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return all lines that are now whole.

        Raises:
            UnusableInput: a line is over the largest.
        """
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if max(map(len, (*lines, self._buffer))) > self._largest:
            raise UnusableInput(f"a line is longer than the {self._largest} bytes that one may have")
        return lines

    def encode(self, message: FromMonitor | FromHost) -> bytes:
        """Encode one message."""
        return msgspec.json.encode(message) + b"\n"


class HostEnd:
    """A host's end of a connection: it answers as it is spoken to."""

    def __init__(self) -> None:
        self._spoken: Frames | Lines | None = None
        self._opening = b""

    def feed(self, data: bytes) -> list[FromMonitor]:
        """Add bytes and return all messages that are now whole.

        Raises:
            UnusableInput: a message is too long, or is none of llmtop; the connection is beyond repair.
        """
        if self._spoken is None:
            self._opening += data
            if len(self._opening) < len(_LINES_BEGIN_WITH):
                return []
            data = self._opening
            self._spoken = (Lines if data.startswith(_LINES_BEGIN_WITH) else Frames)(MAX_MESSAGE)
        try:
            return [wire.decode_checked(self._spoken.from_monitor, body) for body in self._spoken.feed(data)]
        except msgspec.DecodeError:
            raise UnusableInput("not a message of llmtop") from None

    def encode(self, message: FromHost) -> bytes:
        """Encode one answer."""
        return (self._spoken or Frames()).encode(message)
