"""A monitor's end of the connection to one training process: blocking, for use in a thread of its own.

    for file in discover(socket_dir.runtime_dir()):
        connection = Connection.open(file.path)
        while True:
            for message in connection.receive(1.0):
                ...

Nothing that a training sends, or fails to send, can do more here than raise one of the errors named below.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.protocol import socket_dir, wire
from llmtop.protocol.peer import peer_allowed, peer_credentials
from llmtop.system import procfs
from llmtop.system.procfs import is_alive
from llmtop.version import __version__

_CHUNK = 1 << 18
_SEND_TIMEOUT_S = 5.0
_STALE_AFTER_S = 2.0
_QUEUE_POLL_S = 0.02


class SocketFile(NamedTuple):
    """A training's socket found by its name; whether a process listens there is not known yet."""

    path: Path
    pid: int
    """Pid in the namespace of the process that made it: inside a container another than this host's."""


class ConnectionClosed(ConnectionError):
    """The training hung up, has ended, or nothing listens at that path any more."""


class NoReply(NotPossibleHere):
    """The socket accepts but does not reply: a stopped process, or one that was just queried too often."""

    def __init__(self, sentence: str, host_pid: int) -> None:
        super().__init__(sentence)
        self.host_pid = host_pid
        """Pid from SO_PEERCRED; 0 when it is unknown."""


def discover(directory: Path, owner: int | None = None) -> list[SocketFile]:
    """Return the sockets of training processes, stale ones included, by pid.

    Args:
        directory: usually `socket_dir.runtime_dir()`.
        owner: uid that must own it; by default this user or root.

    Raises:
        NotPossibleHere: the directory is missing (no training has attached) or not to be trusted.
    """
    socket_dir.check_dir(directory, owner)
    found = []
    try:
        for entry in os.scandir(directory):
            match = wire.SOCKET_NAME.match(entry.name)
            if match:
                found.append(SocketFile(Path(entry.path), int(match["pid"])))
    except OSError as error:
        raise NotPossibleHere(f"{directory} cannot be read: {error.strerror}; check its permissions") from None
    return sorted(found, key=lambda file: (file.pid, file.path.name))


def remove_stale(path: Path) -> bool:
    """Remove a socket without a listening process; return True if it was stale.

    A killed process cannot remove its own. Refused means that no process has it open for listening; the pid or,
    where pids of another namespace mean nothing, the age keeps clear of a process between bind() and listen().
    """
    match = wire.SOCKET_NAME.match(path.name) or wire.UNFINISHED_NAME.match(path.name)
    if match is None:
        return False
    try:
        age_s = time.time() - os.lstat(path).st_mtime
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            refused = probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED
        if not refused or (is_alive(int(match["pid"])) and age_s < _STALE_AFTER_S):
            return False
        os.unlink(path)
    except OSError:
        return False
    return True


def remove_unfinished(directory: Path) -> None:
    """Remove files of ended processes that no monitor sees.

    These are sockets that never listened, and markers of a run that has printed its line.

    Raises:
        NotPossibleHere: as `discover`.
    """
    socket_dir.check_dir(directory)
    try:
        names = [name for name in os.listdir(directory) if _is_orphaned(name)]
    except OSError as error:
        raise NotPossibleHere(f"{directory} cannot be read: {error.strerror}; check its permissions") from None
    for name in names:
        if is_alive(int(name.partition("-")[0])):
            continue
        if wire.MESSAGE_PRINTED_NAME.match(name):
            with contextlib.suppress(OSError):
                os.unlink(directory / name)
        else:
            remove_stale(directory / name)


def _is_orphaned(name: str) -> bool:
    return bool(wire.UNFINISHED_NAME.match(name) or wire.MESSAGE_PRINTED_NAME.match(name))


class Connection:
    """One subscribed connection. `receive` and `send` may be called from two threads, each from one."""

    hello: wire.Hello
    """The training's latest description of itself."""
    host_pid: int
    """The training's pid as this process sees it, from SO_PEERCRED; 0 when it is in a namespace out of sight."""
    uid: int | None
    """User id of the process, from there as well."""

    def __init__(self, channel: socket.socket, path: Path, host_pid: int, uid: int | None = None) -> None:
        """Take over a connected socket; `connect` is the way to get one.

        Args:
            channel: connected and non-blocking; closed by `close()`.
            path: of the training's socket.
            host_pid: pid of the training in this process's pid namespace; in a container it differs from its own.
            uid: effective user of the training by SO_PEERCRED; None where unknown.
        """
        self._socket = channel
        self._framer = wire.Framer()
        self._early: list[wire.FromTraining] = []
        self._broken: Exception | None = None
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self.path = path
        self.host_pid = host_pid
        self.uid = uid

    @classmethod
    def open(
        cls,
        path: Path,
        history: int = 512,
        timeout_s: float = 2.0,
        owner: int | None = None,
        every_ms: int = 0,
    ) -> Connection:
        """Connect, check the peer, read its Hello and subscribe.

        Args:
            path: the socket.
            history: how many finished steps to be sent at once.
            timeout_s: seconds that all of it may take, by the monotonic clock.
            owner: uid that must own the socket, its folder and the process, no link being followed, for root who
                monitors another user's; by default a process of this user or of root answers.
            every_ms: how long what is new may wait for what comes after it; 0: it comes within 20 ms.

        Raises:
            Closed: nothing listens there, or it hung up.
            NoAnswer: it listens but says nothing within `timeout_s`.
            NotPossibleHere: no permission, or the process belongs to another user.
            UnusableInput: what answers is no training, or speaks another protocol.
        """
        deadline = time.monotonic() + timeout_s
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            channel.settimeout(timeout_s)
            with contextlib.ExitStack() as opened:
                held = path if owner is None else opened.enter_context(_pinned_path(path, owner))
                _connect(channel, held, path.name, deadline)
            pid, uid = peer_credentials(channel)
            if not (peer_allowed(uid) if owner is None else uid == owner):
                raise NotPossibleHere(f"{path} belongs to a process of uid {uid}: run llmtop as that user")
            if owner is not None and pid == 0:
                raise NotPossibleHere(
                    f"{path} belongs to a process that cannot be seen from here, perhaps in "
                    "another container: run llmtop there"
                )
            connection = cls(channel, path, pid, uid)
            connection._read_hello(deadline)
            channel.settimeout(_SEND_TIMEOUT_S)
            connection.send(wire.Subscribe(version=__version__, history=history, every_ms=every_ms))
        except BaseException:
            channel.close()
            raise
        return connection

    def receive(self, timeout_s: float) -> list[wire.FromTraining]:
        """Wait for messages and return those that are whole, oldest first; [] when none came in time.

        A Hello that comes later replaces `hello` and is returned as well.

        Args:
            timeout_s: seconds to wait at most, by the monotonic clock.

        Raises:
            Closed: the training hung up or has gone. All that came before has been returned.
            UnusableInput: it sent garbage, too large a frame, or why it refuses; the connection is of no more use.
        """
        if self._early:
            early, self._early = self._early, []
            return early
        if self._broken is not None:
            raise self._broken
        if not self._poll.poll(max(0.0, timeout_s) * 1000):
            return []
        try:
            data = self._socket.recv(_CHUNK)
        except (BlockingIOError, TimeoutError, InterruptedError):
            return []
        except OSError as error:
            raise ConnectionClosed(f"the training at {self.path.name} is unreachable: {error.strerror}") from None
        if not data:
            raise ConnectionClosed(f"the training at {self.path.name} disconnected")
        return self._ingest(data)

    def send(self, message: wire.FromMonitor) -> None:
        """Send one message.

        Raises:
            Closed: the training hung up, has gone, or takes nothing for five seconds.
            UnusableInput: larger than a frame may be.
        """
        frame = wire.encode(message)
        try:
            self._socket.sendall(frame)
        except (OSError, TimeoutError) as error:
            raise ConnectionClosed(
                f"the training at {self.path.name} reads no message of llmtop ({error}): it hangs, or has ended"
            ) from None

    def fileno(self) -> int:
        """Return the descriptor for select() and poll(): readable when `receive` has something to do."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection; the training only notices that a monitor has gone."""
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_hello(self, deadline: float) -> None:
        """Read the Hello, which comes first and alone: nothing else is sent before Subscribe."""
        while True:
            messages = self.receive(deadline - time.monotonic())
            if messages:
                break
            if time.monotonic() >= deadline:
                raise NoReply(
                    f"process {self.host_pid} does not answer at {self.path.name}: it may be stopped; continue "
                    "it with kill -CONT PID",
                    self.host_pid,
                )
        if not isinstance(messages[0], wire.Hello):
            raise UnusableInput(
                f"the program that listens at {self.path.name} is not an attached training: remove the file"
            )
        self._early = messages[1:]

    def _ingest(self, data: bytes) -> list[wire.FromTraining]:
        """Decode what came; what is wrong is raised only after the messages before it were handed over."""
        messages: list[wire.FromTraining] = []
        try:
            for body in self._framer.feed(data):
                message = self._decode(body)
                if message is not None:
                    messages.append(message)
        except UnusableInput as error:
            self._broken = UnusableInput(f"{self.path.name}: {error}")
            if not messages:
                raise self._broken from None
        return messages

    def _decode(self, body: bytes) -> wire.FromTraining | None:
        try:
            kind, protocol, version = wire.message_opening(body)
            if kind == "hello" and protocol != wire.PROTOCOL:
                raise UnusableInput(_other_protocol(protocol, version))
            message = wire.decode_from_training(body)
        except msgspec.DecodeError:
            if wire.is_newer_type(body):
                return None
            raise UnusableInput(
                "the reply is not a message of llmtop: another program may listen on the socket of the training; "
                "restart the training"
            ) from None
        if isinstance(message, wire.Refused):
            raise UnusableInput(f"the training refused a request of this llmtop: {message.reason}")
        if isinstance(message, wire.Hello):
            message.command = self._command(message.command)
            self.hello = message
        return message

    def _command(self, text: str) -> str:
        """Return the training's command line without secrets, which monitors show and write to files.

        By its words where this machine's kernel has them: in what it sent, blanks within a word are lost.
        """
        from llmtop.redaction.secret_filter import without_secrets  # trainings load this file too, and never ask

        words = procfs.command(self.host_pid) if self.host_pid and text else None
        return (words or without_secrets(text))[: len(text)]


@contextlib.contextmanager
def _pinned_path(path: Path, owner: int) -> Iterator[Path]:
    """Another name of a socket, by which no link is followed, nor another file put in its place meanwhile.

    Raises:
        Closed: there is no such file any more.
        NotPossibleHere: it or its folder is a link or belongs to another user, or it is no socket.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as opened:
        try:
            folder = os.open(path.parent, flags | os.O_DIRECTORY)
            opened.callback(os.close, folder)
            file = os.open(path.name, flags, dir_fd=folder)
            opened.callback(os.close, file)
        except FileNotFoundError:
            raise ConnectionClosed(f"the training has ended: nothing listens at {path.name}") from None
        except OSError as error:
            raise NotPossibleHere(f"{path} is skipped: {error.strerror}") from None
        info = os.fstat(file)
        if not stat.S_ISSOCK(info.st_mode) or (info.st_uid, os.fstat(folder).st_uid) != (owner, owner):
            raise NotPossibleHere(
                f"{path} is skipped, because it is not a socket that uid {owner} created in a folder of its own"
            )
        yield Path(procfs.descriptor_path(file))


def _other_protocol(protocol: int, version: str) -> str:
    named = f" (llmtop {version})" if version else ""
    if protocol > wire.PROTOCOL:
        return f"the training uses protocol {protocol}{named}, this monitor {wire.PROTOCOL}: upgrade this llmtop"
    return (
        f"the training uses protocol {protocol}{named}, this monitor {wire.PROTOCOL}: "
        "restart the training with this llmtop"
    )


def _connect(channel: socket.socket, path: Path, name: str, deadline: float) -> None:
    try:
        while True:
            try:
                channel.connect(os.fspath(path))
                return
            except BlockingIOError:  # noqa: PERF203 - what takes time here is the wait
                # The queue of connections is full: a flood of them, or none was accepted for a long time.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_QUEUE_POLL_S)
    except (BlockingIOError, TimeoutError):
        raise NoReply(
            f"connections are not accepted at {name}: the training may be stopped; continue it with kill -CONT "
            "PID",
            0,
        ) from None
    except (ConnectionRefusedError, FileNotFoundError, ConnectionResetError):
        raise ConnectionClosed(f"the training has ended: nothing listens at {name}") from None
    except OSError as error:
        raise NotPossibleHere(f"cannot connect to {name}: {error.strerror or error}") from None
