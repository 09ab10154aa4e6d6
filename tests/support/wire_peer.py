"""A process that talks on a training's socket, byte by byte as a test wants it: for what no real training does.

Run as a program it listens at argv[1], prints "ready", and sends the bytes given as hex in argv[2] to whoever
connects. Then it does as argv[3] says: "hold" the connection, "close" it, or send more bytes, given as hex. Bytes
may also be given as "@" and the path of a file that has them.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.support.processes import environment


def start(path: Path, data: bytes, then: str = "hold") -> subprocess.Popen[str]:
    """Start it and wait until it listens; the caller kills it."""
    peer = subprocess.Popen(
        [sys.executable, "-m", "tests.support.wire_peer", str(path), data.hex(), then],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert peer.stdout is not None
    assert peer.stdout.readline() == "ready\n"
    return peer


def start_file(path: Path, file: Path) -> subprocess.Popen[str]:
    """The same with bytes that are too many for an argument; it holds the connection."""
    peer = subprocess.Popen(
        [sys.executable, "-m", "tests.support.wire_peer", str(path), f"@{file}", "hold"],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert peer.stdout is not None
    assert peer.stdout.readline() == "ready\n"
    return peer


def _bytes(given: str) -> bytes:
    return Path(given[1:]).read_bytes() if given.startswith("@") else bytes.fromhex(given)


def _serve(path: str, data: bytes, then: str) -> None:
    held = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen()
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            try:
                connection.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                continue  # a monitor that would not wait
            held.append(connection)
            if then == "hold":
                continue
            time.sleep(0.3)
            if then == "close":
                held.pop().close()
            else:
                connection.sendall(bytes.fromhex(then))


if __name__ == "__main__":
    _serve(sys.argv[1], _bytes(sys.argv[2]), sys.argv[3])
