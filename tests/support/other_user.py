"""Another user's training on the wire: a fork that has given up root, since he may not read this interpreter."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llmtop.protocol import wire
from tests.support.processes import wait_for


class OtherUser:
    """A process of that uid, with a folder of its own (a context manager)."""

    def __init__(
        self,
        parent: Path,
        uid: int,
        frames: bytes,
        *,
        sockets: int = 1,
        then: Callable[[socket.socket], None] = lambda _: None,
    ) -> None:
        """Have it listen, and say `frames` to whoever connects.

        Args:
            parent: of its folder, which is made where it is missing.
            uid: not root's.
            frames: what it says.
            sockets: how many it makes.
            then: what it does with a connection after that.
        """
        self.folder = parent / f"llmtop-{uid}"
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setgid(uid)
                os.setuid(uid)
                _serve(self.folder, frames, sockets, then)
            finally:
                os._exit(1)
        wait_for(lambda: self.folder.is_dir() and len(list(self.folder.glob("*.sock"))) >= sockets)

    def __enter__(self) -> OtherUser:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _serve(folder: Path, frames: bytes, sockets: int, then: Callable[[socket.socket], None]) -> None:
    os.umask(0o077)
    folder.mkdir(exist_ok=True)
    listening = []
    for number in range(sockets):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fresh = folder / f"{number}.made"
        one.bind(str(fresh))
        one.listen(8)
        one.setblocking(False)
        fresh.rename(folder / f"{os.getpid() + number}-{number:08x}.sock")
        listening.append(one)
    held = []
    while True:
        for one in listening:
            try:
                connection, _ = one.accept()
            except BlockingIOError:
                continue
            connection.setblocking(True)
            connection.sendall(frames)
            held.append(connection)
            then(connection)
        time.sleep(0.02)


@contextmanager
def listening_as(uid: int, address: str, port: int, body: bytes) -> Iterator[None]:
    """A page over HTTP by a process of that uid, at that address of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    ready, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(uid)
            os.setuid(uid)
            with socket.socket(family, socket.SOCK_STREAM) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind((address, port))
                one.listen(8)
                os.write(done, b"r")
                while True:
                    connection, _ = one.accept()
                    with connection, suppress(OSError):  # it may hang up without a request
                        connection.recv(1 << 16)
                        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + body)
        finally:
            os._exit(1)
    os.close(done)
    try:
        assert os.read(ready, 1) == b"r", f"user {uid} cannot listen on {address}:{port}"
        yield
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def healthy(rank: int = 0, count: int = 6) -> bytes:
    """What a training says that has made some steps."""
    now = time.time_ns()
    steps = [
        wire.StepDone(i, now + i * 10**8, 9 * 10**7, 10**8, phases=[wire.PhaseTime("forward", 10**7)])
        for i in range(count)
    ]
    hello = wire.Hello(rank=rank, world_size=2, host="node", command="python train.py --token hunter2", pid=4242)
    return wire.encode(hello) + wire.encode(wire.Steps(steps=steps))
