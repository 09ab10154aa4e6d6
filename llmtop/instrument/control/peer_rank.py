"""Another rank of the same node, or this one, asked for a capture over its own socket as a monitor would."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from llmtop.errors import UnusableInput
from llmtop.instrument.guest.descriptors import Channel
from llmtop.protocol import wire
from llmtop.protocol.peer import peer_allowed, peer_credentials
from llmtop.version import __version__

_CHUNK = 1 << 16
_HEARD = frozenset({"hello", "capture_state", "stacks_seen", "refused"})
"""All else that it sends is passed over undecoded."""


class Gone(Exception):
    """It disconnected, or is no training of this user."""


class PeerRank:
    """One connection. Nothing of it blocks."""

    def __init__(self, path: Path) -> None:
        """Connect.

        Raises:
            Gone: no process listens there, or it belongs to another user.
        """
        self.hello: wire.Hello | None = None
        self.stacks: wire.SampledStacks | None = None
        """Reply to `ask_stacks`."""
        self.channel = Channel(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK).remember()
        self.channel.setblocking(False)
        self._framer = wire.Framer()
        try:
            self.channel.connect(os.fspath(path))
            self.pid, uid = peer_credentials(self.channel)
        except OSError as error:
            self.channel.close()
            raise Gone(str(error)) from None
        if not peer_allowed(uid):
            self.channel.close()
            raise Gone(f"its process belongs to another user (uid {uid})")

    def ask(self, request: wire.CaptureRequest) -> None:
        """Subscribe, and send the request.

        Raises:
            Gone: it takes nothing more.
        """
        self._send(wire.encode(wire.Subscribe(version=__version__, history=0)) + wire.encode(request))

    def ask_stacks(self, number: str) -> None:
        """Request one sample of its stacks; it subscribes to nothing.

        Raises:
            Gone: it takes nothing more.
        """
        self._send(wire.encode(wire.SampleStacks(id=number)))

    def cancel(self, number: str) -> None:
        """Call the capture of that id off.

        Raises:
            Gone: it takes nothing more.
        """
        self._send(wire.encode(wire.CaptureCancel(id=number)))

    def states(self) -> list[wire.CaptureState]:
        """Return its messages on captures since the last call; updates its Hello and its stacks.

        Raises:
            Gone: it has hung up.
        """
        found: list[wire.CaptureState] = []
        try:
            while data := self.channel.recv(_CHUNK):
                for body in self._framer.feed(data):
                    if wire.message_opening(body)[0] not in _HEARD:
                        continue
                    message = wire.decode_from_training(body)
                    if isinstance(message, wire.Hello):
                        self.hello = message
                    elif isinstance(message, wire.CaptureState):
                        found.append(message)
                    elif isinstance(message, wire.SampledStacks):
                        self.stacks = message
                    elif isinstance(message, wire.Refused):
                        raise Gone(message.reason)
        except BlockingIOError:
            return found
        except (OSError, UnusableInput, msgspec.DecodeError) as error:
            raise Gone(str(error)) from None
        if found:
            return found  # that it has hung up is met the next time
        raise Gone("it disconnected")

    def close(self) -> None:
        """Hang up: what was asked for to begin at a step is called off then."""
        self.channel.close()

    def _send(self, data: bytes) -> None:
        try:
            self.channel.send(data)  # a few hundred bytes into an empty buffer
        except OSError as error:
            raise Gone(str(error)) from None
