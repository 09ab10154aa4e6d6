"""The socket of a training that is played by a test."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from llmtop.protocol import wire


@contextmanager
def training_at(path: Path) -> Iterator[Future[socket.socket]]:
    """Greet the first that connects; yields the training's end of its connection, once there is one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server, ThreadPoolExecutor() as pool:
        server.settimeout(60)
        server.bind(str(path))
        server.listen()

        def greet() -> socket.socket:
            training, _ = server.accept()
            training.sendall(wire.encode(wire.Hello()))
            return training

        yield pool.submit(greet)
