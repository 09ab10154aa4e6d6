"""Trainings that pause at a step boundary while nsys starts and stops, because it harms some that do not.

From 13.0 on CUPTI, through which nsys records kernels, has trouble with being switched on or off while kernels are
in flight. Measured on H200s with nsys 2025.3.1 and a GPT that was collected from again and again: with CUPTI 13.0
(nsys's own, or PyTorch's 13.0.85) 21 of 21 trainings crashed in CUPTI's thread within 48 collections, whatever
settings of nsys were tried, many after collections that lacked kernels. With CUPTI 13.5 in its place two lived
through 255 collections, most of which lacked kernels. Of 18 trainings that paused, their GPU idle, while nsys
started and for at least the first 0.3 s of its stop, none crashed in 906 collections, and one of these lacked one
kernel. A pause for the stop alone is not enough.

`main` (NSYS SESSION [always]) stops what a killed llmtop collected.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from llmtop.capture.base.step_listener import step_seconds
from llmtop.errors import LlmtopError, NotPossibleHere
from llmtop.nsys_cli import tool as nsys
from llmtop.nsys_cli.tool import Nsys
from llmtop.protocol import client, socket_dir, wire
from llmtop.system import procfs

SETTLE_SECONDS = 0.5
"""How long after the call of `nsys stop` the training stays paused. 0.3 s were enough in 149 of 149 collections;
nsys takes 3 s, most of it for its report."""
PATIENCE_SECONDS = 10.0
"""How long to wait for the end of a step, or three median steps if that is longer."""
LONGEST_SECONDS = 5.0
"""Time after which a training goes on by itself: nsys start takes 0.2 s, with GPU metrics 1.0 s."""
DRAIN_SECONDS = 3.0
"""How long the GPU may take for what the host has launched ahead, or two median steps if that is longer."""
RESUME_SECONDS = 0.5
"""How long to wait for the reply of a training that may go on; a later one is read with the next messages."""
LEAD_SECONDS = 0.1
"""Time within which a request has certainly reached every rank."""
_TRIES = 3
STEPS_KEPT = 8
"""Steps of each training from which its pace is computed."""
_POLL = 0.005
_FRESH_NS = 50_000_000
STOP_SECONDS_SAMPLED = 600.0
"""nsys stop with CPU sampling; without, 3 s were the most (collection.STOP_SECONDS)."""
_ENDED = ("failed", "late", "resumed")

Sleep = Callable[[float], None]


def median_step_seconds(steps: Iterable[wire.StepDone]) -> float:
    """Return the median step in seconds; 0 where there is none."""
    lengths = [step_seconds(step) for step in steps]
    return statistics.median(lengths) if lengths else 0.0


def patience_seconds(usual: float) -> float:
    """Return how long to wait for the end of a step where a step usually takes `usual` seconds."""
    return max(PATIENCE_SECONDS, 3 * usual)


@dataclass
class _SessionProcess:
    """One attached process of the session."""

    pid: int
    name: str
    connection: client.Connection
    request: wire.Pause | None = None
    state: wire.PauseState | None = None
    steps: deque[wire.StepDone] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))
    """Its last ones."""
    finished: int = 0
    """Finished steps as of its last message."""
    offset_ns: int | None = None
    """Unix time minus CLOCK_MONOTONIC, as of its last steps."""
    is_gone: bool = False
    paused_ns: dict[str, int] = field(default_factory=dict)
    """Length of each pause that has ended, by the id of its request."""

    @property
    def is_paused(self) -> bool:
        return not self.is_gone and self.state is not None and self.state.state == "paused"

    @property
    def step_seconds(self) -> float:
        """The median of its last steps; 0 where it has sent none."""
        return median_step_seconds(self.steps)

    @property
    def has_ended(self) -> bool:
        return self.is_gone or (self.state is not None and self.state.state in _ENDED)

    def send(self, message: wire.FromMonitor) -> None:
        with suppress(client.ConnectionClosed, LlmtopError):  # the next read finds it gone
            self.connection.send(message)

    def read(self, seconds: float = 0.0) -> bool:
        """Take what has come; returns whether there was anything."""
        if self.is_gone:
            return False
        try:
            messages = self.connection.receive(seconds)
        except (LlmtopError, client.ConnectionClosed, OSError, ValueError):
            self.is_gone = True
            return False
        for message in messages:
            if isinstance(message, wire.Steps):
                self.steps.extend(message.steps)
                self.finished = message.first_ordinal + len(message.steps)
                self.offset_ns = message.unix_offset_ns
            elif isinstance(message, wire.PauseState):
                if message.paused_ns is not None:
                    self.paused_ns[message.id] = message.paused_ns
                if self.request and message.id == self.request.id:
                    self.state = message
        return bool(messages)

    @property
    def is_current(self) -> bool:
        """Return True if its last message is recent."""
        last = self.steps[-1] if self.steps else None
        if last is None:
            return False
        now = time.time_ns() if self.offset_ns is None else time.monotonic_ns() + self.offset_ns
        return now - last.started_unix_ns - last.host_ns < _FRESH_NS


class SessionPause:
    """The attached processes of nsys sessions, to be paused together. Empty where nothing needs a pause, and one
    that ends is left out from then on."""

    def __init__(self, session_ids: Iterable[str] = (), only_gpu: bool = True) -> None:
        """Find them.

        Args:
            session_ids: of nsys; a collection touches every process in its session.
            only_gpu: leave out those that use no GPU.
        """
        self._resumed: list[list[tuple[_SessionProcess, str]]] = []
        """Processes and their requests, for each call of `resume`."""
        self._members = _members(frozenset(session_ids), only_gpu)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def seconds(self) -> list[float]:
        """Length of each pause, that of its longest process, by their own clock, as far as they have replied."""
        self._read()
        lengths = [
            [member.paused_ns[request] for member, request in asked if request in member.paused_ns]
            for asked in self._resumed
        ]
        return [max(one) / 1e9 for one in lengths if one]

    @property
    def pids(self) -> frozenset[int]:
        """The pids of the trainings that are paused."""
        return frozenset(member.pid for member in self._members)

    @property
    def is_paused(self) -> bool:
        """Return True if all of them are paused, by what has come until now."""
        self._read()
        return all(member.is_paused for member in self._members)

    @property
    def is_any_paused(self) -> bool:
        """Return True if one of them is."""
        self._read()
        return any(member.is_paused for member in self._members)

    @property
    def step_seconds(self) -> float:
        """The median of their medians; 0 without a step."""
        paces = [member.step_seconds for member in self._members]
        return statistics.median(paces) if paces else 0.0

    def __enter__(self) -> SessionPause:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Resume the trainings, and close the connections."""
        self.resume()
        for member in self._members:
            member.connection.close()

    def pause(self, sleep: Sleep = time.sleep) -> None:
        """Pause all of them, after their present step or, where several must agree on one, soon after it.

        Args:
            sleep: may raise, to give up.

        Raises:
            NotPossibleHere: one did not pause in time, or could not, and so none is; a clause without a full stop.
        """
        late = ""
        for _ in range(_TRIES):
            self.resume()
            self._ask(self._common_step_count())
            if self.wait(sleep):
                return
            late = self._unpaused_names()
        raise NotPossibleHere(
            f"nsys captured nothing: {late} did not pause after the same step as the others. The training "
            "continues. Try again, or pass --option no-pause"
        )

    def schedule(self, steps: int) -> bool:
        """Request a pause that many steps after the last one; returns whether that is far enough ahead."""
        counts = {member.state.finished if member.state else 0 for member in self._members}
        paces = [member.step_seconds for member in self._members]
        in_step = len(counts) == 1 and max(paces) < 2 * min(paces)
        if not in_step or steps * self.step_seconds < 2 * LEAD_SECONDS:
            return False
        self._ask(counts.pop() + steps)
        return True

    def wait(self, sleep: Sleep = time.sleep) -> bool:
        """Wait until all of them are paused; returns False, with none let wait, when one was asked too late.

        Raises:
            NotPossibleHere: as `pause`.
        """
        patience = patience_seconds(self.step_seconds)
        deadline = time.monotonic() + patience
        try:
            while not self.is_paused:
                for member in self._members:
                    if member.is_gone:
                        raise NotPossibleHere(f"{member.name} disconnected")
                    if member.state is not None and member.state.state in ("failed", "resumed"):
                        reason = member.state.detail or "it continued too early"
                        raise NotPossibleHere(
                            f"nsys captured nothing: {member.name} could not be paused for the capture "
                            f"({reason}); "
                            "the training continues: try again, or pass --option no-pause"
                        )
                if any(member.state is not None and member.state.state == "late" for member in self._members):
                    self.resume()
                    return False
                if time.monotonic() > deadline:
                    raise NotPossibleHere(
                        f"nsys captured nothing: {self._unpaused_names()} did not end a step within "
                        f"{patience:.0f} s; "
                        "the training may hang: look at its stacks (key s)"
                    )
                sleep(_POLL)
        except BaseException:
            self.resume()
            raise
        return True

    def resume(self) -> None:
        """Resume all of them, and withdraw pending requests; waits for their replies, but not long."""
        asked = [member for member in self._members if member.request is not None]
        self._resumed.append([(member, member.request.id) for member in asked if member.request is not None])
        for member, request in self._resumed[-1]:
            member.send(wire.Resume(id=request))
        until = time.monotonic() + RESUME_SECONDS
        for member in asked:
            while not member.has_ended and time.monotonic() < until:
                member.read(_POLL)
        for member in asked:
            member.request = None

    def _ask(self, count: int | None) -> None:
        drain = max(DRAIN_SECONDS, 2 * self.step_seconds)
        for member in self._members:
            member.request = wire.Pause(
                id=os.urandom(8).hex(), finished=count, seconds=LONGEST_SECONDS, drain_seconds=drain
            )
            member.state = None
            member.send(member.request)

    def _common_step_count(self) -> int | None:
        """Return a count of steps that all of them have still before them, for those that run in step; None for
        one process alone, and for several that count differently: each then pauses after its present step."""
        behind = self._members if len(self._members) > 1 else []
        until = time.monotonic() + 3 * LEAD_SECONDS
        while behind and time.monotonic() < until:  # a training sends nothing to a reader that is far behind
            behind = [member for member in behind if member.read(0.02) and not member.is_current]
        self._read()
        counts = [member.finished for member in self._members]
        if len(counts) < 2 or not all(counts):
            return None
        lead = 2 + int(LEAD_SECONDS / max(self.step_seconds, 1e-4))  # the step in progress has no time left
        return None if max(counts) - min(counts) > lead else max(counts) + lead

    def _read(self) -> None:
        for member in self._members:
            member.read()
        for member in [one for one in self._members if one.is_gone and not procfs.is_alive(one.pid)]:
            member.connection.close()
            self._members.remove(member)

    def _unpaused_names(self) -> str:
        return ", ".join(member.name for member in self._members if not member.is_paused)


def _members(session_ids: frozenset[str], only_gpu: bool) -> list[_SessionProcess]:
    found: list[_SessionProcess] = []
    if not session_ids:
        return found
    with suppress(NotPossibleHere):
        for file in client.discover(socket_dir.runtime_dir()):
            with suppress(LlmtopError, client.ConnectionClosed):
                connection = client.Connection.open(file.path, history=STEPS_KEPT)
                if _belongs(connection, session_ids, only_gpu):
                    rank, pid = connection.hello.rank, connection.host_pid
                    found.append(
                        _SessionProcess(pid, f"pid {pid}" if rank is None else f"rank {rank}", connection)
                    )
                else:
                    connection.close()
    return found


def _belongs(connection: client.Connection, session_ids: frozenset[str], only_gpu: bool) -> bool:
    pid = connection.host_pid
    if not pid or not can_pause(connection.hello, pid) or (only_gpu and not procfs.uses_gpu(pid)):
        return False
    with suppress(NotPossibleHere):
        return nsys.session_of(pid) in session_ids
    return False


def can_pause(hello: wire.Hello | None, pid: int) -> bool:
    """Return True if it supports pauses and, unless it uses no GPU, has PyTorch: else an idle GPU is not
    detected."""
    return hello is not None and hello.pauses and (hello.torch is not None or not procfs.uses_gpu(pid))


def stop_session(
    tool: Nsys, session_id: str, seconds: float, always: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `nsys stop` and pause the processes of the session while it begins, where needed and possible.

    Args:
        tool: the nsys that launched the session.
        session_id: as `nsys sessions list` prints it.
        seconds: limit for `nsys stop`.
        always: True: pause whether this version of nsys needs it or not, and processes without a GPU as well.

    Returns:
        The ended command; its exit code is not checked.

    Raises:
        NotPossibleHere: as `Nsys.run`.
    """
    with SessionPause([session_id] if always or tool.needs_pause else (), only_gpu=not always) as pauses:
        with suppress(NotPossibleHere):  # then it has to do without
            pauses.pause()
        timer = threading.Timer(SETTLE_SECONDS, pauses.resume)
        timer.start()
        try:
            return tool.run("stop", f"--session={session_id}", seconds=seconds)
        finally:
            timer.join(SETTLE_SECONDS + LONGEST_SECONDS)  # a training that pauses goes on by itself by then


def main() -> int:
    """Stop that collection; returns nsys's exit code."""
    path, session, *always = sys.argv[1:]
    done = stop_session(nsys.nsys_at(Path(path)), session, STOP_SECONDS_SAMPLED, bool(always))
    print(done.stdout + done.stderr, end="")
    return done.returncode
