"""Kineto's on-demand tracing: capture a PyTorch process that imports nothing of llmtop.

A process started with ``KINETO_USE_DAEMON=1`` polls a datagram socket once per second for a request to trace. That
socket is hosted here, in a directory of its own; spawn.py does so beside each `llmtop run`. A monitor sends its
request to the host over a second, stream socket beside it (engine.py).

What the training's C++ side does not survive decides the shape of this: a datagram from outside its own directory
aborts it, so the host binds by absolute path inside and answers from that socket alone; an answer is at most one a
question; a name that is too long overruns a buffer, so the directory is short. Only processes of this user are
answered. The protocol is that of dynolog's IPC fabric (``struct "@Q32s"``: size and type, then the body).
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import struct
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from llmtop.capture.kineto import messages
from llmtop.errors import LlmtopError, NotPossibleHere, UnusableInput
from llmtop.naming import variable_names
from llmtop.protocol import socket_dir, wire
from llmtop.protocol.peer import peer_allowed, peer_credentials
from llmtop.system import procfs

SERVICE = "dynolog"
"""The name that Kineto asks for."""
CONFIG = "kineto.conf"
REQUESTED_PREFIX = "told-"
"""Name of a file with the pid of a process that was configured to trace; ending.py searches for its own."""
MAX_DIRECTORY = 54
"""Kineto adds "/dynoconfigclient" and a UUID, and a socket's path has 107 characters."""
ACTIVITIES = 2
"""Bit of a poll's kind: no trace runs here, one may begin."""

_HEADER = struct.Struct("@Q32s")
_QUESTION = struct.Struct("@iiq")
_CONTEXT = struct.Struct("@iiq")
_CREDENTIALS = struct.Struct("3i")
_LARGEST = 4096
_MAX_CALLERS = 64
"""Monitors that may be connected at once; each of them asks for a moment."""


@dataclass
class _KnownProcess:
    own_pid: int
    ready: bool
    asked_at: float


@dataclass
class _Caller:
    channel: socket.socket
    frames: messages.Frames = field(default_factory=lambda: messages.Frames(messages.MAX_MESSAGE))
    request: messages.TraceRequest | None = None


def environment(directory: Path) -> dict[str, str]:
    """Environment that a training needs to register there."""
    return {
        variable_names.KINETO_DAEMON: "1",
        variable_names.KINETO_SOCKET_DIR: str(directory),
        variable_names.KINETO_CONFIG: str(directory / CONFIG),
        # if the host dies before the training, Kineto would print an error every ten seconds
        "KINETO_LOG_LEVEL": "99",
    }


def bind() -> tuple[Path, socket.socket, socket.socket]:
    """Make a private directory with both sockets in it: trainings that start now find them, served or not yet.

    Raises:
        NotPossibleHere: no directory that is short enough can be made.
    """
    directory = _new_directory()
    service = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # so that each question comes with the pid and uid that the kernel saw
        service.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        service.bind(str(directory / SERVICE))
        control.bind(str(directory / messages.CONTROL))
        control.listen(_MAX_CALLERS)
        (directory / CONFIG).write_text(f"ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS={messages.POLL_SECONDS}\n")
    except OSError as error:
        service.close()
        control.close()
        shutil.rmtree(directory, ignore_errors=True)
        raise NotPossibleHere(f"{directory} cannot be read: {error.strerror}; check its permissions") from None
    return directory, service, control


def kineto_config(request: messages.TraceRequest) -> bytes:
    """Return the text that makes Kineto record so many steps, or so long."""
    lines = [f"ACTIVITIES_LOG_FILE={request.path}", "ACTIVITIES_WARMUP_PERIOD_SECS=0"]
    if request.steps:
        lines += [
            "PROFILE_START_ITERATION=0",
            "PROFILE_START_ITERATION_ROUNDUP=1",
            f"ACTIVITIES_ITERATIONS={request.steps}",
        ]
    else:
        lines.append(f"ACTIVITIES_DURATION_MSECS={request.milliseconds}")
    return "\n".join([*lines, ""]).encode()


class FabricHost:
    """Answers the trainings of one directory. Make it before they start; close it when they have ended."""

    def __init__(self, directory: Path, service: socket.socket, control: socket.socket) -> None:
        """Take over what `bind` made."""
        self.directory = directory
        self._service, self._control = service, control
        self._known: dict[int, _KnownProcess] = {}
        self._callers: dict[int, _Caller] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Answer Kineto and monitors in a thread of its own."""
        self._thread = threading.Thread(target=self.serve, name="llmtop-kineto", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and remove the directory."""
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")
        if self._thread is not None:
            self._thread.join(timeout=2.0)
        for caller in self._callers.values():
            caller.channel.close()
        self._callers.clear()
        self._service.close()
        self._control.close()
        for fd in (self._wake_read, self._wake_write):
            with contextlib.suppress(OSError):
                os.close(fd)
        shutil.rmtree(self.directory, ignore_errors=True)

    def serve(self) -> None:
        """Answer Kineto and monitors in this thread, until `close()` is called."""
        while self.serve_once(None):
            pass

    def serve_once(self, seconds: float | None) -> bool:
        """Wait for messages and answer them.

        Args:
            seconds: the longest wait; None: until something arrives.

        Returns:
            False after `close()`, else True.
        """
        service, control = self._service.fileno(), self._control.fileno()
        readable, _, _ = select.select([service, control, self._wake_read, *self._callers], [], [], seconds)
        if self._wake_read in readable:
            return False
        if service in readable:
            self._answer()
        for fd in readable:
            if fd in self._callers:
                self._read_caller(self._callers[fd])
        if control in readable:  # after those that hung up
            self._accept()
        return True

    def has_recent_pollers(self) -> bool:
        """Return True if any process still asks: trainings may outlive the one that started them."""
        fresh = time.monotonic() - messages.FRESH_SECONDS
        return any(known.asked_at > fresh and procfs.is_alive(pid) for pid, known in self._known.items())

    def _answer(self) -> None:
        """Answer one question of a training."""
        try:
            data, ancillary, _, address = self._service.recvmsg(_LARGEST, socket.CMSG_SPACE(_CREDENTIALS.size))
        except OSError:
            return
        pid = _sender(ancillary)
        if pid is None or not _is_client(address, self.directory) or len(data) < _HEADER.size:
            return
        body = data[_HEADER.size :]
        kind = _HEADER.unpack_from(data)[1].split(b"\0")[0]
        if kind == b"ctxt" and len(body) >= _CONTEXT.size:
            # one more context on a GPU: Kineto wants to know how many there are, and uses it for nothing here
            self._reply(address, b"ctxt", struct.pack("@i", 1))
        elif kind == b"req" and len(body) >= _QUESTION.size:
            wanted, count, _ = _QUESTION.unpack_from(body)
            pids = body[_QUESTION.size :][: 4 * max(count, 0)]
            own = struct.unpack_from("@i", pids)[0] if len(pids) >= 4 else pid
            self._known[pid] = _KnownProcess(own, bool(wanted & ACTIVITIES), time.monotonic())
            self._deliver_request(pid, address)

    def _deliver_request(self, pid: int, address: str) -> None:
        known = self._known[pid]
        waiting = [c for c in self._callers.values() if c.request is not None and c.request.pid == pid]
        if not waiting or not known.ready:
            self._reply(address, b"req", b"")
            return
        request, waiting[0].request = waiting[0].request, None
        with contextlib.suppress(OSError):  # a full disk: its exit goes unguarded then
            (self.directory / f"{REQUESTED_PREFIX}{known.own_pid}").touch()
        if request is not None and self._reply(address, b"req", kineto_config(request)):
            known.ready = False
            self._send(waiting[0], messages.Sent(own_pid=known.own_pid))
        else:
            waiting[0].request = request

    def _reply(self, address: str, kind: bytes, body: bytes) -> bool:
        try:
            self._service.sendto(_HEADER.pack(len(body), kind) + body, address)
        except OSError:
            return False  # it has gone, or does not read: it will ask again
        return True

    def _accept(self) -> None:
        try:
            channel, _ = self._control.accept()
        except OSError:
            return
        channel.setblocking(False)
        many = len(self._callers) >= _MAX_CALLERS
        if many or not peer_allowed(peer_credentials(channel)[1]):
            channel.close()
            return
        self._callers[channel.fileno()] = _Caller(channel)

    def _read_caller(self, caller: _Caller) -> None:
        try:
            data = caller.channel.recv(messages.MAX_MESSAGE)
        except OSError:
            data = b""
        if not data:
            self._drop(caller)
            return
        try:
            for message in caller.frames.requests(data):
                self._handle_message(caller, message)
        except UnusableInput as unusable:
            self._send(caller, wire.Refused(reason=str(unusable)))
            self._drop(caller)

    def _handle_message(self, caller: _Caller, message: messages.FromMonitor) -> None:
        if isinstance(message, messages.ListPollers):
            now = time.monotonic()
            self._known = {pid: k for pid, k in self._known.items() if procfs.is_alive(pid)}
            pollers = [
                messages.Poller(pid=pid, own_pid=k.own_pid, ready=k.ready, seconds_ago=round(now - k.asked_at, 3))
                for pid, k in self._known.items()
            ]
            self._send(caller, messages.Pollers(pollers=pollers))
        elif (
            "\n" in message.path or not os.path.isabs(message.path) or not (message.steps or message.milliseconds)
        ):
            self._send(caller, wire.Refused(reason="a request needs an absolute path and a length"))
        else:
            caller.request = message

    def _send(self, caller: _Caller, message: messages.FromHost) -> None:
        try:
            caller.channel.sendall(caller.frames.encode(message))
        except OSError:
            self._drop(caller)

    def _drop(self, caller: _Caller) -> None:
        self._callers = {fd: known for fd, known in self._callers.items() if known is not caller}
        caller.channel.close()


def _new_directory() -> Path:
    with contextlib.suppress(LlmtopError, OSError):
        base = socket_dir.runtime_dir().absolute()
        socket_dir.make_dir(base)
        if len(str(base)) + len("/k-12345678") <= MAX_DIRECTORY:
            return Path(tempfile.mkdtemp(prefix="k-", dir=base))
    try:
        return Path(tempfile.mkdtemp(prefix="llmtop-k-", dir="/tmp"))
    except OSError as error:
        raise NotPossibleHere(
            f"/tmp cannot be written ({error.strerror}): set LLMTOP_DIR to a short path"
        ) from None


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """Return the pid that the kernel vouches for, if it is this user's (or root's)."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) >= _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack_from(data)
            return pid if peer_allowed(uid) else None
    return None


def _is_client(address: object, directory: Path) -> bool:
    return isinstance(address, str) and os.path.dirname(address) == str(directory)
