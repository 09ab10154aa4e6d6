"""`llmtop` and its screen in forks of a process that has imported them, which takes longer than most commands.

What depends on how Python starts (variables that it reads then, foreign packages, closed outputs, what is imported
when) is for a process of its own. `python -m tests.support.preloaded FD` is that process: each message on the
socket asks for a command and brings its three files; its answers are the pid, and with which status it has ended.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.support.processes import REPOSITORY, environment

MODULES = (
    *(
        "llmtop.__main__",
        "llmtop.cli.doctor.command",
        "llmtop.cli.cluster.export",
        "llmtop.cli.live.command",
        "llmtop.cli.report.command",
    ),
    *("llmtop.cli.live.stream", "llmtop.cli.examples", "llmtop.config", "llmtop.analysis.load_report"),
    *("llmtop.analysis.analyze", "llmtop.compare.compare", "llmtop.compare.document"),
    *("llmtop.document.html", "llmtop.document.markdown", "llmtop.document.text", "llmtop.report.document"),
    *(
        "llmtop.trace.files.chrome_json",
        "llmtop.trace.nsys.load",
        "llmtop.trace.nsys.database",
        "llmtop.recording.reader_writer",
    ),
    *("collectors.hub", "collectors.replay", "tests.support.screen", "tui.show", "tui.app", "tui.screens.main"),
    "textual.drivers.linux_driver",
)
_PROGRAMS = {"llmtop": "llmtop.__main__", "screen": "tests.support.screen"}


def serve(control: socket.socket) -> None:
    """Fork for each message until there is nobody to ask; returns in the children, as the program to be run."""
    from llmtop.system import one_blas_thread

    one_blas_thread.prepare()
    for module in MODULES:
        importlib.import_module(module)
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                status = os.waitstatus_to_exitcode(os.waitpid(key.data, 0)[1])
                selector.unregister(key.fd)
                os.close(key.fd)
                control.send(json.dumps(["ended", key.data, status]).encode())
                continue
            message, files, _, _ = socket.recv_fds(control, 1 << 18, 3)
            if not message:
                os._exit(0)
            child = os.fork()
            if child == 0:
                selector.close()
                control.close()
                _become(json.loads(message), files)
                return
            for file in files:
                os.close(file)
            selector.register(os.pidfd_open(child), selectors.EVENT_READ, child)
            control.send(json.dumps(["began", child, 0]).encode())


def _become(wanted: dict[str, Any], files: Sequence[int]) -> None:
    """In the child: have the files, variables and terminal that are wanted."""
    if wanted["session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if wanted["controlling"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if wanted["data_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted["data_bytes"],) * 2)
    os.environ.clear()
    os.environ.update(wanted["env"])
    os.chdir(wanted["cwd"])
    sys.argv = wanted["argv"]


class Fork:
    """A command in a fork, with what the tests use of `subprocess.Popen`."""

    def __init__(self, server: _Server, pid: int) -> None:
        self._server, self.pid = server, pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, or minus the signal's number; None while it runs, as far as anybody has looked."""
        return self._server.ended.get(self.pid)

    def poll(self) -> int | None:
        """Look whether it has ended."""
        self._server.hear(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it did not end in that time.
        """
        deadline = time.monotonic() + (600 if timeout is None else timeout)
        while self.returncode is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 600)
            self._server.hear(left)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


class _Server:
    """The other end of the socket."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.preloaded", str(theirs.fileno())]
        variables = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8"}
        self._process = subprocess.Popen(
            command,
            env=environment(**variables),
            cwd=REPOSITORY,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self.ended: dict[int, int] = {}
        self._began: list[int] = []
        atexit.register(self.close)

    def hear(self, seconds: float) -> None:
        """Take in one answer, if one comes in that time."""
        self._socket.settimeout(seconds)
        try:
            answer = self._socket.recv(4096)
        except (TimeoutError, BlockingIOError):
            return
        assert answer, "the process that forks has died"
        what, pid, status = json.loads(answer)
        if what == "began":
            self._began.append(pid)
            self.ended.pop(pid, None)  # of another that had this number
        else:
            self.ended[pid] = status

    def fork(self, message: dict[str, Any], files: Sequence[int]) -> Fork:
        """Have a command run."""
        self._socket.settimeout(60)
        socket.send_fds(self._socket, [json.dumps(message).encode()], files)
        while not self._began:
            self.hear(60)
        return Fork(self, self._began.pop())

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.wait(10)


@functools.cache
def _server(_process: int) -> _Server:
    return _Server()


def start(
    program: str,
    arguments: Sequence[str],
    files: Sequence[int],
    env: Mapping[str, str],
    *,
    session: bool = False,
    controlling: bool = False,
    data_bytes: int | None = None,
) -> Fork:
    """Start a command in a fork.

    Args:
        program: "llmtop", or "screen" for tests.support.screen.
        arguments: those behind its name.
        files: what its stdin, stdout and stderr are.
        env: all its variables.
        session: whether it leads a session of its own.
        controlling: whether its stdin is the terminal of that session.
        data_bytes: how much memory it may have.
    """
    message = {
        "argv": [program, *arguments],
        "env": dict(env),
        "cwd": str(REPOSITORY) if program == "screen" else os.getcwd(),
        "session": session,
        "controlling": controlling,
        "data_bytes": data_bytes,
    }
    return _server(os.getpid()).fork(message, files)


def llmtop(
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    data_bytes: int | None = None,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """Run `llmtop ARGUMENTS` to its end and return what it printed; as `subprocess.run` with text and captured."""
    words = [str(one) for one in arguments]
    with open(os.devnull) as nothing, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        numbers = [nothing.fileno(), out.fileno(), err.fileno()]
        process = start("llmtop", words, numbers, environment() if env is None else env, data_bytes=data_bytes)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()

        def written(file: IO[str]) -> str:
            file.seek(0)
            return file.read()

        return subprocess.CompletedProcess(["llmtop", *words], code, written(out), written(err))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        code = importlib.import_module(_PROGRAMS[sys.argv[0]]).main()
    except SystemExit as left:
        code = left.code
    # All that Python does at its end, but for taking every module apart.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
