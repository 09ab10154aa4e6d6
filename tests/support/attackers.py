"""Monitors that nobody wishes for, each in a process of its own: python -m tests.support.attackers NAME SOCKET

Each does one harmful thing as fast as it can until it is killed, and begins anew when it is hung up on.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from llmtop.protocol import wire

UNKNOWN = msgspec.msgpack.encode({"type": "wave"})
SUBSCRIBE = wire.encode(wire.Subscribe(history=0))
_PENDING = 64


def frame(body: bytes) -> bytes:
    """With its length in front."""
    return struct.pack("<I", len(body)) + body


def connect(path: str) -> socket.socket:
    """A bare connection; waits for room in the queue.

    Raises:
        OSError: nobody listens.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.connect(path)
    return channel


def _forever(path: str, data: bytes, *, reading: bool) -> None:
    """Send the same again and again, as fast as it is taken."""
    channel = connect(path)
    channel.setblocking(False)
    while True:
        writable_only = [] if not reading else [channel]
        readable, writable, _ = select.select(writable_only, [channel], [], 1.0)
        if readable and not channel.recv(1 << 16):
            raise ConnectionResetError
        if writable:
            with suppress(BlockingIOError):
                channel.send(data)


def tiny_frames(path: str) -> None:
    """Frames of a type that nobody knows, of a few bytes each."""
    _forever(path, frame(UNKNOWN) * 200, reading=True)


def empty_frames(path: str) -> None:
    """Frames without anything in them."""
    _forever(path, frame(b"") * 10_000, reading=True)


def large_frames(path: str) -> None:
    """Frames of a megabyte."""
    _forever(path, frame(msgspec.msgpack.encode({"type": "wave", "x": b"x" * ((1 << 20) - 40)})), reading=True)


def nested_frames(path: str) -> None:
    """Frames nested a thousand times too deep."""
    _forever(path, frame(b"\x82\xa4type\xa4wave\xa1x" + b"\x91" * 15_000 + b"\xc0"), reading=True)


def connects(path: str) -> None:
    """Connections that are closed at once."""
    while True:
        connect(path).close()


def greetings(path: str) -> None:
    """Connections that wait for the greeting and go."""
    while True:
        with connect(path) as channel:
            channel.recv(1 << 16)


def held_connections(path: str) -> None:
    """As many connections as can be had, which say nothing."""
    held: list[socket.socket] = []
    while True:
        held.append(connect(path))
        if len(held) > _PENDING:
            held.pop(0).close()


def histories(path: str) -> None:
    """Subscriptions to all that there is, given up once it comes."""
    while True:
        with connect(path) as channel:
            channel.sendall(wire.encode(wire.Subscribe(history=1 << 20)))
            channel.recv(1 << 16)
            channel.recv(1 << 16)


def pauses(path: str) -> None:
    """Pauses, each ended as soon as it has begun, and the next one asked for."""
    framer = wire.Framer()
    with connect(path) as channel:
        channel.sendall(SUBSCRIBE)
        channel.sendall(wire.encode(wire.Pause(id="0", seconds=10.0)))
        number = 0
        while data := channel.recv(1 << 16):
            for body in framer.feed(data):
                message = wire.decode_from_training(body)
                if not isinstance(message, wire.PauseState) or message.id != str(number):
                    continue
                if message.state == "paused":
                    channel.sendall(wire.encode(wire.Resume(id=str(number))))
                elif message.state != "armed":
                    number += 1
                    time.sleep(0.006)  # below what a monitor may send
                    channel.sendall(wire.encode(wire.Pause(id=str(number), seconds=10.0)))


def captures(path: str) -> None:
    """Captures, as fast as a monitor may ask."""
    with connect(path) as channel:
        channel.setblocking(False)
        number = 0
        while True:
            request = wire.CaptureRequest(id=str(number), engine="torch.profiler", path="/nowhere/trace.json")
            channel.send(wire.encode(request))
            number += 1
            time.sleep(0.006)
            with suppress(BlockingIOError):
                channel.recv(1 << 16)


def deaf(path: str) -> None:
    """Requests whose answers are long and never read."""
    with connect(path) as channel:
        channel.sendall(SUBSCRIBE)
        while True:
            channel.sendall(wire.encode(wire.Pause(id="x" * 100)))
            channel.sendall(wire.encode(wire.Resume(id="x" * 100)))
            time.sleep(0.012)


def watchers(path: str) -> None:
    """As many subscribers as there is room for, which all read."""
    channels = [connect(path) for _ in range(31)]
    for channel in channels:
        channel.sendall(SUBSCRIBE)
    while True:
        for channel in select.select(channels, [], [], 1.0)[0]:
            if not channel.recv(1 << 16):
                raise ConnectionResetError
        time.sleep(0.1)


ATTACKS: dict[str, Callable[[str], None]] = {
    attack.__name__: attack
    for attack in (
        tiny_frames,
        empty_frames,
        large_frames,
        nested_frames,
        connects,
        greetings,
        held_connections,
        histories,
        pauses,
        captures,
        deaf,
        watchers,
    )
}


def main(name: str, path: str) -> None:
    """Attack until killed."""
    print("attacking", flush=True)
    while True:
        with suppress(OSError):
            ATTACKS[name](path)


if __name__ == "__main__":
    main(*sys.argv[1:])
