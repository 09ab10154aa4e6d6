"""A training of an earlier version, played from what `record_wire` recorded of one.

    python -m tests.support.wire_player SOCKET FOLDER TALK...

It listens at SOCKET, prints "ready", greets whoever connects, and gives each message the answer that the training
gave to one of that type in the first of these TALKs in FOLDER that has one: its very bytes, but for the id and the
path of what was asked for; what it does not know of it passes over. It ends where the training ended.
"""

from __future__ import annotations

import base64
import json
import lzma
import os
import socket
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from llmtop.protocol import wire
from tests.support.processes import environment


class Said(NamedTuple):
    """One message, or the end of one direction of a connection."""

    connection: int
    by_training: bool
    body: bytes
    """Without its length; empty at the end."""

    @property
    def fields(self) -> dict[str, Any]:
        """What is in it, as no version in particular understands it."""
        fields: dict[str, Any] = msgspec.msgpack.decode(self.body)
        return fields

    @property
    def kind(self) -> str:
        """The type of the message; "" at the end."""
        return str(self.fields["type"]) if self.body else ""


def talk(path: Path) -> list[Said]:
    """All that was said in a recorded talk, in the order in which it was heard."""
    said: list[Said] = []
    framers: dict[tuple[int, bool], wire.Framer] = {}
    with lzma.open(path, "rt") as lines:
        for line in map(json.loads, lines):
            way = (line["connection"], line["from"] == "training")
            data = base64.b64decode(line["bytes"])
            bodies = framers.setdefault(way, wire.Framer()).feed(data) if data else [b""]
            said += (Said(*way, body) for body in bodies)
    return said


def framed(body: bytes) -> bytes:
    """With its length in front."""
    return len(body).to_bytes(4, "little") + body


def start(path: Path, folder: Path, *talks: str) -> subprocess.Popen[str]:
    """Start it and wait until it listens; the caller kills it."""
    player = subprocess.Popen(
        [sys.executable, "-m", "tests.support.wire_player", str(path), str(folder), *talks],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert player.stdout is not None
    assert player.stdout.readline() == "ready\n"
    return player


class _Player:
    def __init__(self, folder: Path, talks: list[str]) -> None:
        self._folder = folder
        self._answers: dict[str, list[bytes]] = {}
        """By the type of what they answer; "" is what is said unasked."""
        for name in talks:
            for kind, bodies in _answers(talk(folder / f"{name}.jsonl.xz")):
                self._answers.setdefault(kind, bodies)

    def serve(self, monitor: socket.socket) -> None:
        framer = wire.Framer()
        self._say(monitor, self._answers[""], {})
        while data := monitor.recv(1 << 16):
            for body in framer.feed(data):
                asked = msgspec.msgpack.decode(body)
                self._say(monitor, self._answers.get(asked["type"], []), asked)

    def _say(self, monitor: socket.socket, bodies: list[bytes], asked: dict[str, Any]) -> None:
        for body in bodies:
            if not body:
                monitor.shutdown(socket.SHUT_RDWR)
                os._exit(0)
            monitor.sendall(framed(self._about(body, asked)))

    def _about(self, body: bytes, asked: dict[str, Any]) -> bytes:
        fields = msgspec.msgpack.decode(body)
        if "id" not in fields or "id" not in asked:
            return body
        fields["id"] = asked["id"]
        if fields.get("path"):
            fields["path"] = asked["path"]
            Path(asked["path"]).write_bytes(trace(self._folder))
        return msgspec.msgpack.encode(fields)


def trace(folder: Path) -> bytes:
    """The trace of the recorded capture."""
    with tarfile.open(folder / "captures.tar.xz") as packed:
        (member,) = (name for name in packed.getnames() if name.endswith("/rank1.json"))
        file = packed.extractfile(member)
        assert file is not None
        return file.read()


def _answers(said: list[Said]) -> list[tuple[str, list[bytes]]]:
    """What the training said until the monitor's next message, and to which type of message; no empty ones."""
    answers: list[tuple[str, list[bytes]]] = []
    latest: dict[int, list[bytes]] = {}
    for one in said:
        if one.connection not in latest or not one.by_training:
            latest[one.connection] = []
            answers.append(("" if one.by_training else one.kind, latest[one.connection]))
        if one.by_training:
            latest[one.connection].append(one.body)
    return [(kind, bodies) for kind, bodies in answers if any(bodies)]


def _play(path: str, folder: str, *talks: str) -> None:
    player = _Player(Path(folder), list(talks))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen()
        print("ready", flush=True)
        while True:
            monitor, _ = server.accept()
            threading.Thread(target=player.serve, args=(monitor,), daemon=True).start()


if __name__ == "__main__":
    _play(*sys.argv[1:])
