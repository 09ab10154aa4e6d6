"""Trainings that end while their first monitor connects. Shared by the tests and by tests/fuzz/random_ends.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from llmtop.errors import LlmtopError
from llmtop.protocol import wire
from llmtop.protocol.client import Connection
from tests.support.processes import REPOSITORY, environment
from tests.support.trainings import socket_of

LONG_SECONDS = 90.0
"""Against hanging; no claim of speed."""
PLANTED = REPOSITORY / "tests" / "support" / "planted_imports"
AT_FIRST_CONNECTION = (
    "llmtop.instrument.control",
    "llmtop.instrument.control.self_capture",
    "llmtop.instrument.control.recording",
    "llmtop.instrument.control.recordings",
    "llmtop.instrument.control.allocator_snapshot",
    "llmtop.instrument.control.cupti",
    "llmtop.instrument.control.out_of_memory",
    "llmtop.instrument.control.jax_profiler",
    "llmtop.instrument.control.op_ranges",
)
"""Modules of llmtop that a training's server thread imports when its first monitor connects, in this order."""
AT_REQUESTS = {
    "llmtop.instrument.control.pause": wire.Pause(id="p", seconds=0.1),
    "llmtop.instrument.serve.stacks.own_stacks": wire.SampleStacks(id="s", seconds=0.0, rate_hz=10.0),
}
"""And when a monitor first makes that request."""

SCRIPT = """
import os, select, sys
WAY = {way!r}
# Without the line: SIGINT may come before the read.
sys.excepthook = lambda kind, value, trace: sys.stderr.write(repr(value))
if os.environ.get("BY_HAND"):
    import llmtop
    llmtop.attach()
    for number in range(20):
        with llmtop.step():
            pass
elif os.environ.get("WITH_TORCH"):
    import torch
    from tests.support.light_optimizer import LightSGD
    model = torch.nn.Linear(2, 2)
    optimizer = LightSGD(model.parameters(), 0.1)
    for number in range(20):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
print("ready", flush=True)
while not select.select([0], [], [], 0.05)[0]:
    pass  # a signal that comes just before it does not end a wait
if WAY == "sys.exit":
    sys.exit(3)
if WAY == "raise":
    raise ValueError("the script's own")
"""


@dataclass(frozen=True)
class EarlyWay:
    """One way for a script to end."""

    name: str
    signal: int = 0
    """That it is sent; 0: it is told to end by a byte on stdin."""
    leaves_socket: bool = False
    """Whether nothing of Python runs at this end, so that the next process removes the socket."""


EARLY_WAYS = (
    EarlyWay("return"),
    EarlyWay("sys.exit"),
    EarlyWay("raise"),
    EarlyWay("SIGINT", signal.SIGINT),
    EarlyWay("SIGTERM", signal.SIGTERM, leaves_socket=True),
)


@dataclass(frozen=True)
class EarlyEnd:
    """What was seen of an end."""

    code: int
    stderr: str
    seconds: float
    """From the order to end until the process had gone."""


class EarlyTraining:
    """A script that waits for the order to end."""

    def __init__(self, process: subprocess.Popen[str], way: EarlyWay) -> None:
        self.process = process
        self.way = way

    def end(self) -> EarlyEnd:
        """Order the end, and wait for it."""
        assert self.process.stdin is not None
        begun = time.monotonic()
        if self.way.signal:
            self.process.send_signal(self.way.signal)
        else:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        code = self.process.wait(LONG_SECONDS)
        seconds = time.monotonic() - begun
        assert self.process.stderr is not None
        return EarlyEnd(code, self.process.stderr.read(), seconds)


@contextmanager
def early_training(way: EarlyWay, script: Path, how: str, **extra: str) -> Iterator[EarlyTraining]:
    """A training that is ready to end.

    Args:
        way: how it ends.
        script: where to write the script; the same one for endings that are compared.
        how: "plain": without llmtop, "by hand": attached, "run": with torch, below llmtop run.
        extra: more of its environment.
    """
    script.write_text(SCRIPT.format(way=way.name))
    command = [sys.executable, str(script)]
    if how == "run":
        command = [sys.executable, "-m", "llmtop", "run", "-q", "--", *command]
    variables = {"by hand": "BY_HAND", "run": "WITH_TORCH"}
    if how in variables:
        extra[variables[how]] = "1"
    env = environment(**extra)
    env["PYTHONPATH"] = os.pathsep.join([str(PLANTED), env["PYTHONPATH"]])
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.stderr and process.stderr.read()
            yield EarlyTraining(process, way)
        finally:
            process.kill()


def end_plain(way: EarlyWay, script: Path) -> EarlyEnd:
    """End the same script without llmtop."""
    with early_training(way, script, "plain") as training:
        return training.end()


class Caller:
    """A monitor that connects in a thread of its own and hears until the training hangs up."""

    def __init__(self, directory: Path, training: EarlyTraining, *requests: str) -> None:
        """Find the socket of a training.

        Args:
            directory: its LLMTOP_DIR.
            training: that is connected to.
            requests: keys of `AT_REQUESTS`, which follow at once.
        """
        self._path = socket_of(directory, training.process.pid)
        self._requests = requests
        self._thread = threading.Thread(target=self._call)

    def go(self) -> None:
        """Connect."""
        self._thread.start()

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join(LONG_SECONDS)

    def _call(self) -> None:
        with suppress(OSError, LlmtopError):  # it has ended already
            connection = Connection.open(self._path, timeout_s=LONG_SECONDS)
            for request in self._requests:
                connection.send(AT_REQUESTS[request])
            while True:
                connection.receive(1.0)
