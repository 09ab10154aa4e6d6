"""The thread that serves monitors. Without a monitor it sleeps in one system call.

With one, the training thread wakes it at the end of a step through a pair of sockets, at most once every `HOLD_S`;
shorter steps go together. No socket blocks. A monitor that reads too slowly is sent nothing more until it has
taken what lies in its buffer, and what the ring has lost by then is counted as lost.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.instrument.guest import descriptors, sanitize, threads
from llmtop.instrument.guest.descriptors import Channel
from llmtop.instrument.guest.interrupts import raised_by_handler
from llmtop.instrument.guest.sanitize import log_once
from llmtop.instrument.record.taken_time import TakenTime
from llmtop.instrument.serve import limits, signs_of_life
from llmtop.instrument.serve.connection import Monitor
from llmtop.instrument.serve.hello import Controls
from llmtop.instrument.serve.publisher import Publisher
from llmtop.instrument.serve.stack_sampling import odd_fraction
from llmtop.instrument.steps.ring import SIZE
from llmtop.model.stall_thresholds import COUNTS_LOOK_S
from llmtop.protocol import client, socket_dir, wire
from llmtop.protocol.peer import peer_allowed, peer_credentials
from llmtop.system.procfs import is_alive

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State

HOLD_S = 0.016
"""Steps that finish within this time of a message go into one; within 20 ms a step is to be out, unless all
monitors accept a delay."""
MOST_HOLD_S = 0.5
"""Longest delay, however long a monitor can wait: with the second in which it reads, a step is shown within
two."""
HOLD_VARIES_BY = 0.25
"""Share by which a hold may be shorter. The stack of the training is sampled when it ends, and samples at even
distances see steps of that length at one place only."""
MOST_HELD = SIZE // 4
"""A hold is as short as so many steps take, by the pace since the last sending: the ring is to lose none."""
MAX_MONITORS = 32
_SUBSCRIBE_WITHIN_S = 10.0
_MAKES_ROOM_AFTER_S = 2.0
EXIT_WAIT_S = 1.0
"""How long an exit waits for the thread, in seconds."""
EXIT_PATIENCE_S = 0.2
"""How long an exit waits for a monitor that takes nothing, in seconds."""
_RETRY_S = 1.0
_CHECK_DESCRIPTORS_S = 5.0
"""While monitors are there: a training that closes all descriptors closes also what would wake the thread."""
_LONG_STEP_S = 0.025
"""Stack samples of shorter steps wait for the next message. Of longer ones they wake the thread themselves: a
message comes right after a step's end, and no sample would be of what follows it within the hold."""
LISTEN_WAIT_S = 1.0
"""How long attach() waits until there is a socket; on a slow disk it comes later."""
_KNOCKS = 4096
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Send = Callable[[wire.CaptureState], None]
OnCapture = Callable[["wire.CaptureRequest | wire.CaptureCancel", Send], None]


class Server:
    """Listens at ``<pid>-<8 hex>.sock`` in `socket_dir.runtime_dir()` from `start` until `stop`."""

    def __init__(self, recorder: State, controls: Controls) -> None:
        self._recorder = recorder
        self._controls = controls
        self._publisher = Publisher(recorder, controls, self._write)
        self._taken = TakenTime(recorder)
        self._monitors: dict[int, Monitor] = {}
        self._states: deque[wire.CaptureState | wire.PauseState | wire.OpRangesState] = deque()
        self._stacks: deque[tuple[Monitor, wire.SampledStacks]] = deque()
        """For the one monitor that has asked."""
        self._stopping = False
        self._sent_at = 0.0
        self._due_at = 0.0
        """When what is new is to be sent."""
        self._sent_count = 0
        """Count of the ring at the last sending."""
        self._counted_at = 0.0
        self._step_s = 0.0
        """Time from step to step, by the pace since the last sending that had steps."""
        self._listen_again_at: float | None = None
        self._path: Path | None = None
        self._placing = _thread.allocate_lock()
        """Held while the socket gets its name, and from `stop` on: none appears after that."""
        self._thread = threads.Thread(self._run, "llmtop-server")
        self._begun = _thread.allocate_lock()
        """Held until it listens, or cannot."""
        self._begun.acquire()
        self._listener: Channel | None = None
        self._knock: Channel | None = None
        """Socket that the training thread writes to and `_knocked` reads."""
        self._knocked: Channel | None = None
        self._poll = descriptors.Poll()
        self._knocks = descriptors.Poll()
        """Poll object without the sockets of monitors."""
        self._pace = limits.Pace()
        self._captures_allowed = limits.Allowance(limits.CAPTURES_PER_S, limits.CAPTURES_AT_ONCE)
        self._stacks_allowed = limits.Allowance(limits.STACKS_PER_S, limits.STACKS_AT_ONCE)
        self.on_capture: OnCapture | None = None
        """Called in the server thread with what a monitor asked for; None: the controls are."""

    def start(self) -> None:
        """Start the thread, and wait a moment until it listens; a second call only waits.

        All that may fail is done in that thread, where no signal's handler of the script's can be called.

        Raises:
            RuntimeError: there is no thread to be had.
        """
        self._thread.start()
        threads.wait_until(lambda: not self._begun.locked(), LISTEN_WAIT_S)

    def wake(self) -> None:
        """Wake the thread to send what is new; from any thread, never blocks."""
        try:
            if self._knock is not None:
                self._knock.send(b"!")
        except OSError as error:  # closed meanwhile, or already as awake as can be
            if raised_by_handler(error):
                raise

    def send_state(self, state: wire.CaptureState | wire.PauseState | wire.OpRangesState) -> None:
        """Send the state of a request to all monitors; from any thread."""
        self._states.append(state)
        self.wake()

    def stop(self) -> None:
        """Send what is left, remove the socket, end the thread."""
        first, self._stopping = not self._stopping, True
        self.wake()
        if self._knock is not None and self._knock.is_ours:
            self._thread.join(EXIT_WAIT_S)
        if first:
            threads.wait_until(lambda: self._placing.acquire(blocking=False), EXIT_WAIT_S)
        self._unlink()
        self._forget_lost()

    def forget_after_fork(self) -> None:
        """In a forked child: close the inherited descriptors; the socket file stays the parent's."""
        self._path = None
        for channel in self._channels():
            channel.close()

    def _channels(self) -> list[Channel]:
        own = [self._listener, self._knock, self._knocked]
        return [one for one in own if one is not None] + [
            monitor.channel for monitor in list(self._monitors.values())
        ]

    def _forget_lost(self) -> None:
        """Keep Python from closing descriptors that are the script's by now."""
        for channel in self._channels():
            if not channel.is_ours:
                channel.close()

    def _listen(self) -> bool:
        """Make the socket; returns whether there is one: not where the process ends already."""
        directory = socket_dir.runtime_dir()
        socket_dir.make_dir(directory)
        # Those of killed processes, which could not remove their own. The living are not knocked at.
        with contextlib.suppress(NotPossibleHere):
            for file in client.discover(directory):
                if file.pid == os.getpid() or not is_alive(file.pid):
                    client.remove_stale(file.path)
            client.remove_unfinished(directory)
        path = directory / f"{os.getpid()}-{secrets.token_hex(4)}.sock"
        self._knock, self._knocked = descriptors.pair()
        self._listener = Channel(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK).remember()
        self._listener.setblocking(False)
        with contextlib.ExitStack() as placing:
            if not self._placing.acquire(blocking=False):
                return False
            placing.callback(self._placing.release)
            # Under its name only when it listens: a monitor takes one that refuses for a dead process's.
            self._path = path.with_suffix(".new")
            try:
                self._listener.bind(os.fspath(self._path))
                self._listener.listen(MAX_MONITORS)
                os.rename(self._path, path)
            except OSError as error:
                raise NotPossibleHere(socket_dir.no_socket_message(directory, error)) from None
            self._path = path
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(self._knocked, select.POLLIN)
        self._knocks.register(self._knocked, select.POLLIN)
        return True

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if not self._listen():
                return
            self._begun.release()
            _announce()
            while not self._stopping and self._has_descriptors():
                self._turn(self._timeout())
            self._finish()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training
            log_once(error, aloud=not self._recorder.facts.local_rank)
        finally:
            self._recorder.waiting = False
            self._unlink()
            for monitor in list(self._monitors.values()):
                self._drop(monitor)
            for channel in self._channels():
                channel.close()
            if self._begun.locked():
                self._begun.release()

    def _has_descriptors(self) -> bool:
        """Return True if the training has left us ours."""
        return self._listener is not None and self._listener.is_ours and self._knock_is_ours()

    def _knock_is_ours(self) -> bool:
        return self._knock is not None and self._knock.is_ours

    def _finish(self) -> None:
        """Send the rest; a monitor that takes none of it for a moment holds up no exit."""
        self._turn(0)  # a monitor that has just subscribed
        self._send_all()
        while any(monitor.has_unsent for monitor in self._monitors.values()):
            if not any(events & select.POLLOUT for _, events in self._poll.poll(EXIT_PATIENCE_S)):
                return
            self._turn(0)
            self._send_all()

    def _turn(self, timeout_s: float | None) -> None:
        """Do what sockets, the training and the clock ask for, after sleeping until there is something."""
        listener, knocked = self._listener, self._knocked
        assert listener is not None
        assert knocked is not None
        asked = False
        for descriptor, events in self._events(timeout_s):
            if descriptor == knocked.fileno():
                knocked.recv(_KNOCKS)
                continue
            if not asked:
                asked = True
                self._pace.begin()
            if descriptor == listener.fileno():
                self._accept_some(listener)
            elif descriptor in self._monitors:
                self._serve(self._monitors[descriptor], events)
        self._publisher.sample_stack(self._monitors.values())
        now = time.monotonic()
        if now >= self._due_at or self._states or self._stacks:
            self._send_all()
        if self._listen_again_at is not None and now >= self._listen_again_at:
            self._listen_again_at = None
            self._poll.register(listener, select.POLLIN)
        for monitor in list(self._monitors.values()):
            if not monitor.subscribed and now - monitor.since > _SUBSCRIBE_WITHIN_S:
                self._drop(monitor)
        if asked:
            self._pace.end()

    def _events(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Sleep until the training or a socket asks for something; sockets wait for the pace of requests."""
        rest = 0.0 if self._stopping else self._pace.rest()
        poll = self._poll
        if rest > 0:
            poll, timeout_s = self._knocks, rest if timeout_s is None else min(rest, timeout_s)
        lock_wait = self._publisher.stack_sampler.lock_wait
        self._taken.end()
        lock_wait.begin(timeout_s)
        events = poll.poll(timeout_s)
        lock_wait.end(timed_out=not events)
        self._taken.begin()
        return events

    def _timeout(self) -> float | None:
        """Seconds to sleep at most; asks the training thread to wake us when there is nothing to be sent yet."""
        due: list[float] = []
        if any(monitor.ready for monitor in self._monitors.values()):
            due += signs_of_life.LIFE_S, COUNTS_LOOK_S
            rest = self._due_at - time.monotonic()
            if rest > 0:
                due.append(rest)
            if rest <= 0 or self._step_s > _LONG_STEP_S:
                due.append(self._publisher.stack_sampler.rest_s())
            aim = self._publisher.stack_sampler.aim_s()
            if aim is not None:
                due.append(aim)
            if rest <= 0:
                self._recorder.waiting = True
                # A step that ended before this line has not woken this thread.
                told = self._states or self._stacks
                if told or any(self._publisher.waits_for(monitor) for monitor in self._monitors.values()):
                    self._recorder.waiting = False
                    due.append(0.0)
        if self._listen_again_at is not None or any(not monitor.subscribed for monitor in self._monitors.values()):
            due.append(_RETRY_S)
        if self._monitors:
            due.append(_CHECK_DESCRIPTORS_S)
        return min(due) if due else None

    def _accept_some(self, listener: Channel) -> None:
        for _ in range(limits.ACCEPTED_AT_ONCE):
            try:
                channel = listener.take()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    # No descriptor to be had: the pending connection would wake us without end.
                    self._poll.unregister(listener.fileno())
                    self._listen_again_at = time.monotonic() + _RETRY_S
                return
            self._accept(channel)

    def _accept(self, channel: Channel) -> None:
        monitor = Monitor(channel)
        if not peer_allowed(peer_credentials(channel)[1]) or monitor.has_hung_up():
            channel.close()
            return
        oldest = next((known for known in self._monitors.values() if not known.subscribed), monitor)
        if len(self._monitors) >= MAX_MONITORS and monitor.since - oldest.since > _MAKES_ROOM_AFTER_S:
            self._drop(oldest)  # which has not subscribed yet
        if len(self._monitors) >= MAX_MONITORS:
            self._refuse(monitor, f"{MAX_MONITORS} monitors are connected already; close one")
        else:
            self._monitors[channel.fileno()] = monitor
            self._poll.register(channel, select.POLLIN)
            self._publisher.greet(monitor)

    def _serve(self, monitor: Monitor, events: int) -> None:
        try:
            if events & select.POLLOUT:
                self._write(monitor, b"")
            if not events & ~select.POLLOUT:
                return
            bodies = monitor.read()
            if bodies is None:
                self._drop(monitor)
                return
            for body in bodies:
                self._handle(monitor, body)
        except limits.TooMuch as error:
            self._refuse(monitor, str(error))
        except (UnusableInput, msgspec.DecodeError) as error:
            self._refuse(monitor, f"what came is not a message of llmtop ({error})")
        except OSError:
            self._drop(monitor)

    def _handle(self, monitor: Monitor, body: bytes) -> None:
        kind, protocol, version = wire.message_opening(body)
        if kind == "subscribe" and protocol != wire.PROTOCOL:
            self._refuse(
                monitor, f"it speaks protocol {wire.PROTOCOL}, this monitor (llmtop {version or '?'}) {protocol}"
            )
            return
        if not wire.is_known(kind):
            return
        message = wire.decode_from_monitor(body)
        limits.check(message)
        if isinstance(message, wire.Subscribe):
            self._subscribe(monitor, message)
        elif isinstance(message, wire.Refused):
            self._drop(monitor)
        elif isinstance(message, wire.Pause | wire.Resume):
            self._pause(monitor, message)
        elif isinstance(message, wire.OpRanges):
            self._mark_operators(monitor, message)
        elif isinstance(message, wire.SampleStacks | wire.StopSampling):
            self._sample_stacks(monitor, message)
        else:
            self._capture(monitor, message)

    def _subscribe(self, monitor: Monitor, message: wire.Subscribe) -> None:
        if not monitor.subscribed:
            ring = self._recorder.ring
            monitor.subscribed = True
            monitor.history_until = ring.count
            monitor.cursor = max(ring.oldest(), ring.count - max(0, message.history))
            monitor.hold_s = min(max(message.every_ms / 1000, 0.0), MOST_HOLD_S)
            self._schedule()
            self._send_all()

    def _capture(self, monitor: Monitor, message: wire.CaptureRequest | wire.CaptureCancel) -> None:
        if isinstance(message, wire.CaptureRequest) and not self._captures_allowed.take():
            detail = "captures are asked for too often: wait a few seconds"
            self._write(
                monitor, self._publisher.encoded(wire.CaptureState(id=message.id, state="failed", detail=detail))
            )
            return
        try:
            if self.on_capture is not None:
                self.on_capture(message, self.send_state)
            else:
                self._controls.captures().handle(message, self._recorder, self.send_state, monitor)
        except Exception as error:  # noqa: BLE001 - a capture that cannot start must not end the publishing
            self.send_state(wire.CaptureState(id=message.id, state="failed", detail=f"cannot capture: {error}"))

    def _pause(self, monitor: Monitor, message: wire.Pause | wire.Resume) -> None:
        try:
            self._controls.pauses().handle(message, self._recorder, self.send_state, monitor)
        except Exception as error:  # noqa: BLE001 - as for a capture
            self.send_state(wire.PauseState(id=message.id, state="failed", detail=f"cannot pause: {error}"))

    def _mark_operators(self, monitor: Monitor, message: wire.OpRanges) -> None:
        """The request scans all objects of the process, as one for a capture does."""
        refusal = ""
        if message.want == "ready" and not self._captures_allowed.take():
            refusal = "captures are asked for too often: wait a few seconds"
        try:
            if not refusal:
                self._controls.operators().handle(message, self._recorder, self.send_state, monitor)
        except Exception as error:  # noqa: BLE001 - as for a capture
            refusal = f"cannot mark operators: {error}"
        if refusal:
            self.send_state(wire.OpRangesState(id=message.id, state="failed", detail=refusal))

    def _sample_stacks(self, monitor: Monitor, message: wire.SampleStacks | wire.StopSampling) -> None:
        def send_samples(answer: wire.SampledStacks) -> None:
            self._stacks.append((monitor, answer))
            self.wake()

        if isinstance(message, wire.SampleStacks) and not self._stacks_allowed.take():
            send_samples(
                wire.SampledStacks(id=message.id, refused="its stacks are asked for too often: wait a few seconds")
            )
            return
        try:
            # Imported when a monitor first asks for stacks.
            from llmtop.instrument.serve.stacks import own_stacks

            own_stacks.handle(message, send_samples, lambda: monitor.is_closed or self._stopping)
        except ImportError as error:
            send_samples(wire.SampledStacks(id=message.id, refused=f"it cannot look: {error}"))

    # --- sending -------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Set how long what is new waits for what comes after it: as long as the monitor may that may least."""
        holds = [monitor.hold_s for monitor in self._monitors.values() if monitor.subscribed]
        most = min(MOST_HELD * self._step_s, self._publisher.stack_sampler.longest_hold_s())
        hold = max(HOLD_S, min(most, *holds) if holds else HOLD_S)
        self._due_at = self._sent_at + hold * (1 - HOLD_VARIES_BY * odd_fraction(time.perf_counter_ns()))

    def _send_all(self) -> None:
        """Send all new data to every monitor that can take it.

        Steps that end meanwhile go with the next message: to send gives up Python's lock, and a training of short
        steps may finish one each time, so that the sending had no end.
        """
        if self._monitors and self._recorder.hooks.refresh is not None:
            self._recorder.hooks.refresh(self._stopping)
        count = self._recorder.ring.count
        self._measure_pace(count)
        sent_at = self._sent_at
        self._publisher.begin_round(self._stopping)
        states = b"".join(self._publisher.encoded(self._states.popleft()) for _ in range(len(self._states)))
        for _ in range(len(self._stacks)):
            asked, answer = self._stacks.popleft()
            if not asked.is_closed:
                self._write(asked, self._publisher.encoded(answer))
        for monitor in list(self._monitors.values()):
            if not monitor.subscribed:
                continue
            if states:
                self._write(monitor, states)
            self._publisher.greet_again(monitor)
            is_new = monitor.lively_at < 0.0
            if is_new:  # before the steps: a monitor that has these alone reports a stall
                self._publisher.send_sign_of_life(monitor)
            while self._publisher.has_steps(monitor) and monitor.channel.fileno() in self._monitors:
                # Only then: after a turn without news the next step is to wake us, not the clock.
                self._sent_at = time.monotonic()
                self._publisher.send_steps(monitor)
                if monitor.cursor >= count:
                    break
            self._publisher.send_gpu(monitor)
            self._publisher.send_arrivals(monitor)
            self._publisher.send_checkpoints(monitor)
            self._publisher.send_rare(monitor, at_once=is_new)
            self._publisher.send_stack_samples(monitor)
        self._publisher.end_round()
        if self._sent_at != sent_at:
            self._schedule()

    def _measure_pace(self, count: int) -> None:
        """Measure the time from step to step; `count`: of the ring."""
        now = time.monotonic()
        if count != self._sent_count:
            self._step_s = (now - self._counted_at) / (count - self._sent_count)
            self._sent_count, self._counted_at = count, now

    def _write(self, monitor: Monitor, data: bytes) -> None:
        had_unsent = monitor.has_unsent
        try:
            monitor.write(data)
        except OSError:
            self._drop(monitor)
            return
        if monitor.has_unsent != had_unsent:
            self._poll.register(monitor.channel, select.POLLIN | (select.POLLOUT if monitor.has_unsent else 0))

    def _refuse(self, monitor: Monitor, reason: str) -> None:
        with contextlib.suppress(OSError):  # it will see that it was hung up on
            monitor.channel.send(wire.encode(wire.Refused(reason=reason)))
        self._drop(monitor)

    def _drop(self, monitor: Monitor) -> None:
        descriptor = monitor.channel.fileno()
        if self._monitors.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)
            self._schedule()
        monitor.is_closed = True
        monitor.channel.close()

    def _unlink(self) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):  # another user by now, or a disk that has become read-only
                self._path.unlink(missing_ok=True)


def _announce() -> None:
    """Print that the run is attached, if this process was started by `llmtop run`, which provides the launcher."""
    watch = sanitize.launcher()
    if watch is not None:
        watch.attached()
