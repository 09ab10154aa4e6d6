"""The thread that speaks with monitors. With nobody there it sleeps in one system call, for good.

While somebody is, the training thread wakes it at the end of a step through an eventfd, at most once every
`HOLD_S`; shorter steps go together. No socket blocks. A monitor that reads too slowly is sent nothing more until
it has taken what lies in its buffer, and what the ring has lost by then is counted as lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from llmtop import client, wire
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.publish import life
from llmtop.publish.gpu_times import gpu_time
from llmtop.publish.hello import captures, hello, pausing
from llmtop.publish.outbox import StepReader, encode_steps, message_of
from llmtop.publish.peer import Monitor
from llmtop.publish.values import complain

if TYPE_CHECKING:
    from llmtop.publish.state import State

HOLD_S = 0.016
"""Steps that finish within this time of a message go into one; within 20 ms a step is to be out."""
MAX_MONITORS = 32
_SUBSCRIBE_WITHIN_S = 10.0
_EXIT_WAIT_S = 1.0
_EXIT_PATIENCE_S = 0.2
_LOOK_AGAIN_S = 1.0
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
"""Raised by the faulting thread itself: blocked, they would hide a crash's stack."""

Send = Callable[[wire.CaptureState], None]
OnCapture = Callable[["wire.CaptureRequest | wire.CaptureCancel", Send], None]


class _Closable(Protocol):
    def close(self) -> None: ...


class Server:
    """Listens at ``<runtime_dir>/<pid>-<8 hex>.sock`` from `start` until `stop`."""

    def __init__(self, recorder: State) -> None:
        self._recorder = recorder
        self._reader = StepReader(recorder)
        self._monitors: dict[int, Monitor] = {}
        self._states: deque[wire.CaptureState | wire.PauseState] = deque()
        self._stopping = False
        self._sent_at = 0.0
        self._listen_again_at: float | None = None
        self._path: Path | None = None
        self._thread: threading.Thread | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.on_capture: OnCapture | None = None
        """Called in the server thread with what a monitor asked for; by default `llmtop.publish.captures`."""

    def start(self) -> None:
        """Listen, and start the thread.

        Raises:
            NotPossibleHere: the directory cannot be had or trusted.
            OSError, RuntimeError: no socket, no thread.
        """
        try:
            self._listen()
            self._epoll.register(self._listener, select.EPOLLIN)
            self._epoll.register(self._wake_fd, select.EPOLLIN)
            self._thread = threading.Thread(target=self._run, name="llmtop-server", daemon=True)
            # A signal that this thread took would not interrupt the training's sleep or read: it shall take none.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
            try:
                self._thread.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except BaseException:
            self._unlink()
            self.forget_after_fork()
            raise
        self._recorder.wake = self.wake

    def wake(self) -> None:
        """Have the thread look for something to send; from any thread, never blocks."""
        with contextlib.suppress(OSError):  # closed meanwhile, or already as awake as can be
            os.eventfd_write(self._wake_fd, 1)

    def send_state(self, state: wire.CaptureState | wire.PauseState) -> None:
        """Tell all monitors how a capture or a pause goes; from any thread."""
        self._states.append(state)
        self.wake()

    def stop(self) -> None:
        """Send what is left, remove the socket, end the thread."""
        if self._path is None or self._thread is None:
            return
        self._stopping = True
        self.wake()
        self._thread.join(_EXIT_WAIT_S)
        self._unlink()

    def forget_after_fork(self) -> None:
        """In a forked child: close the inherited descriptors; the socket file stays the parent's."""
        self._path = None
        for monitor in self._monitors.values():
            _close(monitor.channel)
        _close(self._listener)
        _close(self._epoll)
        with contextlib.suppress(OSError):  # the parent was closing it
            os.close(self._wake_fd)

    def _listen(self) -> None:
        directory = wire.runtime_dir()
        wire.make_dir(directory)
        # Those of killed processes, which could not remove their own. The living are not knocked at.
        with contextlib.suppress(NotPossibleHere):
            for file in client.discover(directory):
                if not client.is_alive(file.pid):
                    client.remove_stale(file.path)
        path = directory / f"{os.getpid()}-{secrets.token_hex(4)}.sock"
        # Under its name only when it listens: a monitor takes one that refuses for a dead process's.
        self._path = path.with_suffix(".new")
        self._listener.bind(os.fspath(self._path))
        self._listener.listen(MAX_MONITORS)
        os.rename(self._path, path)
        self._path = path

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn(self._timeout())
            self._finish()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training's stderr
            complain(error)
        finally:
            self._recorder.waiting = False
            self._unlink()
            for monitor in list(self._monitors.values()):
                self._drop(monitor)
            _close(self._epoll)
            _close(self._listener)

    def _finish(self) -> None:
        """Send the rest; a monitor that takes none of it for a moment holds up no exit."""
        self._turn(0)  # a monitor that has just subscribed
        self._send_all()
        while any(monitor.behind for monitor in self._monitors.values()):
            if not any(events & select.EPOLLOUT for _, events in self._epoll.poll(_EXIT_PATIENCE_S)):
                return
            self._turn(0)
            self._send_all()

    def _turn(self, timeout_s: float | None) -> None:
        """Do what sockets, the training and the clock ask for, after sleeping until there is something."""
        for descriptor, events in self._epoll.poll(timeout_s):
            if descriptor == self._wake_fd:
                os.eventfd_read(self._wake_fd)
            elif descriptor == self._listener.fileno():
                self._accept()
            elif descriptor in self._monitors:
                self._serve(self._monitors[descriptor], events)
        now = time.monotonic()
        if now - self._sent_at >= HOLD_S:
            self._send_all()
        if self._listen_again_at is not None and now >= self._listen_again_at:
            self._listen_again_at = None
            self._epoll.register(self._listener, select.EPOLLIN)
        for monitor in list(self._monitors.values()):
            if not monitor.subscribed and now - monitor.since > _SUBSCRIBE_WITHIN_S:
                self._drop(monitor)

    def _timeout(self) -> float | None:
        """Seconds to sleep at most; asks the training thread to wake us when there is nothing to be sent yet."""
        due: list[float] = []
        if any(monitor.ready for monitor in self._monitors.values()):
            due.append(life.LIFE_S)
            rest = HOLD_S - (time.monotonic() - self._sent_at)
            if rest > 0:
                due.append(rest)
            else:
                self._recorder.waiting = True
                # A step that ended before this line was reached has woken nobody.
                if self._states or any(self._has_news(monitor) for monitor in self._monitors.values()):
                    self._recorder.waiting = False
                    due.append(0.0)
        if self._listen_again_at is not None or any(not monitor.subscribed for monitor in self._monitors.values()):
            due.append(_LOOK_AGAIN_S)
        return min(due) if due else None

    def _has_news(self, monitor: Monitor) -> bool:
        # Figures of the GPU come after steps and are no reason of their own to wake.
        return self._has_steps(monitor) or (
            monitor.ready and monitor.facts_version != self._recorder.facts.version
        )

    def _has_steps(self, monitor: Monitor) -> bool:
        """Whether there is what `_send_steps` sends."""
        recorder = self._recorder
        return monitor.ready and (monitor.cursor < recorder.ring.count or monitor.metrics != recorder.metrics)

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                # No descriptor to be had: the pending connection would wake us without end.
                self._epoll.unregister(self._listener)
                self._listen_again_at = time.monotonic() + _LOOK_AGAIN_S
            return
        monitor = Monitor(channel)
        if not wire.peer_allowed(wire.peer_credentials(channel)[1]):
            _close(channel)
        elif len(self._monitors) >= MAX_MONITORS:
            self._refuse(monitor, f"{MAX_MONITORS} monitors are connected already; close one")
        else:
            self._monitors[channel.fileno()] = monitor
            self._epoll.register(channel, select.EPOLLIN)
            self._greet(monitor)

    def _serve(self, monitor: Monitor, events: int) -> None:
        try:
            if events & select.EPOLLOUT:
                self._write(monitor, b"")
            if not events & ~select.EPOLLOUT:
                return
            bodies = monitor.read()
            if bodies is None:
                self._drop(monitor)
                return
            for body in bodies:
                self._handle(monitor, body)
        except (UnusableInput, msgspec.DecodeError) as error:
            self._refuse(monitor, f"what came is not a message of llmtop ({error})")
        except OSError:
            self._drop(monitor)

    def _handle(self, monitor: Monitor, body: bytes) -> None:
        kind, protocol, version = wire.opening(body)
        if kind == "subscribe" and protocol != wire.PROTOCOL:
            self._refuse(
                monitor, f"it speaks protocol {wire.PROTOCOL}, this monitor (llmtop {version or '?'}) {protocol}"
            )
            return
        try:
            message = wire.decode_from_monitor(body)
        except msgspec.DecodeError:
            if wire.is_newer_type(body):
                return
            raise
        if isinstance(message, wire.Subscribe):
            self._subscribe(monitor, message)
        elif isinstance(message, wire.Refused):
            self._drop(monitor)
        elif isinstance(message, wire.Pause | wire.Resume):
            self._pause(monitor, message)
        else:
            self._capture(message)

    def _subscribe(self, monitor: Monitor, message: wire.Subscribe) -> None:
        if not monitor.subscribed:
            ring = self._recorder.ring
            monitor.subscribed = True
            monitor.history_until = ring.count
            monitor.cursor = max(ring.oldest(), ring.count - max(0, message.history))
            self._send_all()

    def _capture(self, message: wire.CaptureRequest | wire.CaptureCancel) -> None:
        try:
            if self.on_capture is None:
                handle, recorder = captures().handle, self._recorder
                self.on_capture = lambda request, send: handle(request, recorder, send)
            self.on_capture(message, self.send_state)
        except Exception as error:  # noqa: BLE001 - a capture that cannot start must not end the publishing
            self.send_state(wire.CaptureState(id=message.id, state="failed", detail=f"cannot capture: {error}"))

    def _pause(self, monitor: Monitor, message: wire.Pause | wire.Resume) -> None:
        try:
            pausing().handle(message, self._recorder, self.send_state, monitor)
        except Exception as error:  # noqa: BLE001 - as for a capture
            self.send_state(wire.PauseState(id=message.id, state="failed", detail=f"cannot pause: {error}"))

    # --- sending -------------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        """Give every monitor that is able to take it all that is new."""
        states = b"".join(wire.encode(self._states.popleft()) for _ in range(len(self._states)))
        for monitor in list(self._monitors.values()):
            if not monitor.subscribed:
                continue
            if states:
                self._write(monitor, states)
            if monitor.ready and monitor.facts_version != self._recorder.facts.version:
                self._greet(monitor)
            while self._has_steps(monitor) and monitor.channel.fileno() in self._monitors:
                # Only then: after a turn without news the next step is to wake us, not the clock.
                self._sent_at = time.monotonic()
                self._send_steps(monitor)
            if monitor.ready:
                self._send_gpu(monitor)
            if monitor.ready and (alive := life.news(monitor, self._recorder)) is not None:
                self._write(monitor, wire.encode(alive))

    def _send_steps(self, monitor: Monitor) -> None:
        """Send the next few steps, and the metrics if they changed."""
        first, steps = self._reader.read(monitor.cursor)
        history = first < monitor.history_until
        if history:
            steps = steps[: monitor.history_until - first]
        monitor.lost += first - monitor.cursor
        monitor.cursor = first + len(steps)
        metrics = self._recorder.metrics
        fresh = monitor.metrics != metrics
        if fresh:
            monitor.metrics = metrics.copy()
        message = message_of(
            steps,
            lost=monitor.lost,
            metrics=monitor.metrics if fresh else {},
            history=history,
            first_ordinal=first,
            unix_offset_ns=self._reader.unix_offset_ns,
        )
        self._write(monitor, encode_steps(message))

    def _send_gpu(self, monitor: Monitor) -> None:
        """Send what the training thread read of the GPU. It comes after the steps that it is about."""
        recorder = self._recorder
        if monitor.memory_version != recorder.memory_version and recorder.memory is not None:
            monitor.memory_version = recorder.memory_version
            self._write(monitor, wire.encode(wire.Memory(**recorder.memory._asdict())))
        clock = recorder.clock
        if clock is not None and monitor.gpu_cursor < clock.timed.count and monitor.ready:
            monitor.gpu_cursor, timed = clock.timed.read(monitor.gpu_cursor)
            names = recorder.paths.names
            self._write(monitor, wire.encode(wire.GpuTimes(times=[gpu_time(step, names) for step in timed])))

    def _greet(self, monitor: Monitor) -> None:
        monitor.facts_version = self._recorder.facts.version
        self._write(monitor, wire.encode(hello(self._recorder)))

    def _write(self, monitor: Monitor, data: bytes) -> None:
        was_behind = monitor.behind
        try:
            monitor.write(data)
        except OSError:
            self._drop(monitor)
            return
        if monitor.behind != was_behind:
            self._epoll.modify(monitor.channel, select.EPOLLIN | (select.EPOLLOUT if monitor.behind else 0))

    def _refuse(self, monitor: Monitor, reason: str) -> None:
        with contextlib.suppress(OSError):  # it will see that it was hung up on
            monitor.channel.send(wire.encode(wire.Refused(reason=reason)))
        self._drop(monitor)

    def _drop(self, monitor: Monitor) -> None:
        descriptor = monitor.channel.fileno()
        if self._monitors.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)
        monitor.gone = True
        _close(monitor.channel)

    def _unlink(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _close(thing: _Closable) -> None:
    with contextlib.suppress(OSError):  # gone is what was wanted
        thing.close()
