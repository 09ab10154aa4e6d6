"""Attached trainings as real processes, and what a monitor hears of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from llmtop.errors import NotPossibleHere
from llmtop.protocol import wire
from llmtop.protocol.client import Connection, SocketFile, discover
from tests.support.processes import environment, wait_for

STEPPING = """
import sys, time
import llmtop
while True:
    with llmtop.step(tokens=10):
        with llmtop.phase("forward"):
            time.sleep(0.002)
"""
"""Steps of about two milliseconds until it is ended."""

PATIENT_SERVER = """
from llmtop.instrument.serve import server
server.LISTEN_WAIT_S = server.EXIT_WAIT_S = server.EXIT_PATIENCE_S = 60.0
"""
"""Opening of a script that is to have its socket once it is attached, and to send its last messages, however long
its threads wait for a core."""


class Training(subprocess.Popen[str]):
    """A script in a child process, which is killed when the ``with`` is left."""

    def __init__(self, script: str, **extra: str) -> None:
        super().__init__(
            [sys.executable, "-c", script],
            env=environment(**extra),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __exit__(self, *error: object) -> None:
        self.kill()
        super().__exit__(None, None, None)

    def go(self) -> None:
        """Let the script's next ``input()`` return."""
        assert self.stdin is not None
        self.stdin.write("\n")
        self.stdin.flush()

    def hear(self, line: str) -> None:
        """Wait until it prints that line."""
        assert self.stdout is not None
        assert self.stdout.readline() == f"{line}\n"

    def finish(self, code: int = 0) -> tuple[str, str]:
        """Wait for its end, look at its exit code, and return what it wrote to stdout and stderr."""
        out, err = self.communicate(timeout=240)
        assert self.returncode == code, err
        return out, err


def sockets(directory: Path) -> list[SocketFile]:
    """The sockets that are there now."""
    try:
        return discover(directory)
    except NotPossibleHere:
        return []


def socket_of(directory: Path, pid: int) -> Path:
    """Wait for the socket of a process."""
    found = wait_for(lambda: [file for file in sockets(directory) if file.pid == pid], what=f"socket of {pid}")
    return found[0].path


def connect(directory: Path, process: subprocess.Popen[str], history: int = 512, every_ms: int = 0) -> Connection:
    """Subscribe to a training, waiting until it has attached."""
    path = socket_of(directory, process.pid)
    return Connection.open(path, history=history, timeout_s=60, every_ms=every_ms)


class Heard:
    """What came over one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.messages: list[wire.FromTraining] = []

    def until(self, condition: Callable[[], object], seconds: float = 120.0) -> Heard:
        """Receive until `condition()` holds; the limit is against hanging."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not heard within {seconds} s; last: {self.messages[-1:]}"
            self.messages += self.connection.receive(0.5)
        return self

    def to_the_end(self, seconds: float = 120.0) -> Heard:
        """Receive until the training hangs up."""
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                self.messages += self.connection.receive(0.5)
        except ConnectionError:
            return self
        raise AssertionError(f"the training has not hung up within {seconds} s")

    @property
    def batches(self) -> list[wire.Steps]:
        """The messages with steps."""
        return [message for message in self.messages if isinstance(message, wire.Steps)]

    @property
    def steps(self) -> list[wire.StepDone]:
        """All steps, in the order in which they came."""
        return [step for batch in self.batches for step in batch.steps]

    @property
    def ordinals(self) -> list[int]:
        """The number of each step since the training attached."""
        return [batch.first_ordinal + place for batch in self.batches for place in range(len(batch.steps))]

    @property
    def lost(self) -> int:
        """Steps that this monitor was told it lost."""
        return self.batches[-1].lost if self.batches else 0

    @property
    def metrics(self) -> dict[str, float]:
        """The latest metrics."""
        return next((batch.metrics for batch in reversed(self.batches) if batch.metrics), {})
