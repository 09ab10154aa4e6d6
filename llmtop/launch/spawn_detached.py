"""Starts a program beside the training: without a terminal, and not as its child.

The training must not find a child that it has not started (it may wait for all of them), nor may ctrl+c or a
closed pane reach what serves it. The program reports that it is ready by handing over an environment.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

from llmtop.errors import NotPossibleHere

START_SECONDS = 30.0
"""How long it may take to hand over; nsys took 0.2 to 0.6 s."""
_LAST_LINES = 3
"""nsys ends its error messages with the address of its manual."""


class EndedEarly(NotPossibleHere):
    """The program ended before it handed anything over. What it does at once it may do better a moment later."""

    def __init__(self, sentence: str, output: str) -> None:
        """Raise with a sentence and with all that the program wrote."""
        super().__init__(sentence)
        self.output = output


def start(name: str, command: Callable[[str], Sequence[str]], environment: Mapping[str, str]) -> dict[str, str]:
    """Start a program in a session of its own and return what it handed over.

    Args:
        name: what to call it in a sentence.
        command: makes its command line from the address that it is to `hand_over` to.
        environment: what it is started with.

    Raises:
        EndedEarly: it ended; its last output is in the sentence.
        NotPossibleHere: it handed nothing over in time.
    """
    with tempfile.TemporaryDirectory(prefix="llmtop-") as folder, tempfile.TemporaryFile() as said:
        address = str(Path(folder) / "ready")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(address)
            listener.listen(1)
            starter = os.fork()
            if starter == 0:
                _run_and_exit(command(address), environment, said)
            try:
                return _receive(name, listener, starter, said)
            finally:
                # With the starter gone the program belongs to init: the training will have no child of ours.
                os.kill(starter, signal.SIGKILL)
                os.waitpid(starter, 0)


def hand_over(address: str, environment: Mapping[str, str]) -> None:
    """Called in the program: say that it is ready, and what the training's environment must have."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(START_SECONDS)
        connection.connect(address)
        connection.sendall(json.dumps(dict(environment)).encode())


def _run_and_exit(command: Sequence[str], environment: Mapping[str, str], said: IO[bytes]) -> NoReturn:
    code = 127
    try:
        os.setsid()
        program = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=dict(environment), cwd="/"
        )
        code = program.wait()
    finally:
        os._exit(code & 0xFF)  # this is a copy of the parent: none of its exit handlers may run


def _receive(name: str, listener: socket.socket, starter: int, said: IO[bytes]) -> dict[str, str]:
    deadline = time.monotonic() + START_SECONDS
    while not select.select([listener], [], [], 0.05)[0]:
        if os.waitid(os.P_PID, starter, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            output = _output(said)
            raise EndedEarly(f"{name} ended before the training was started: {_last_words(output)}", output)
        if time.monotonic() > deadline:
            os.killpg(starter, signal.SIGKILL)
            last = _last_words(_output(said))
            raise NotPossibleHere(
                f"{name} was not ready within {START_SECONDS:.0f} s ({last}); start the command again"
            )
    connection, _ = listener.accept()
    connection.settimeout(START_SECONDS)
    try:
        with connection, connection.makefile("rb") as stream:
            handed: dict[str, str] = json.loads(stream.read())
    except TimeoutError:
        os.killpg(starter, signal.SIGKILL)
        last = _last_words(_output(said))
        raise NotPossibleHere(
            f"{name} was not ready within {START_SECONDS:.0f} s ({last}); start the command again"
        ) from None
    return handed


def _output(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read().decode(errors="replace")


def _last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " ".join(lines[-_LAST_LINES:]) if lines else "no output"
