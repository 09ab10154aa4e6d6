"""Trainings that pause at a step boundary while nsys starts and stops, because it harms some that do not.

From 13.0 on CUPTI, through which nsys records kernels, has trouble with being switched on or off while kernels are
in flight. Measured on H200s with nsys 2025.3.1 and a GPT that was collected from again and again: with CUPTI 13.0
(nsys's own, or PyTorch's 13.0.85) 21 of 21 trainings crashed in CUPTI's thread within 48 collections, whatever
settings of nsys were tried, many after collections that lacked kernels. With CUPTI 13.5 in its place two lived
through 255 collections, most of which lacked kernels. Of 18 trainings that paused, their GPU idle, while nsys
started and for at least the first 0.3 s of its stop, none crashed in 906 collections, and one of these lacked one
kernel. A pause for the stop alone is not enough.

As a program (`python -m llmtop.capture.pausing NSYS SESSION [always]`) it stops what a killed llmtop collected.
"""

from __future__ import annotations

import secrets
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

from llmtop import client, wire
from llmtop.capture import nsys, proc
from llmtop.capture.nsys import Nsys
from llmtop.capture.steps import StepWatch, duration
from llmtop.errors import LlmtopError, NotPossibleHere

SETTLE_SECONDS = 0.5
"""How long after the call of `nsys stop` the training stays paused. 0.3 s were enough in 149 of 149 collections;
nsys takes 3 s, most of it for its report."""
PATIENCE_SECONDS = 10.0
"""How long to wait for the end of a step, or three median steps if that is longer."""
LONGEST_SECONDS = 5.0
"""After so long a training goes on by itself: nsys start takes 0.2 s, with GPU metrics 1.0 s."""
_LEAD_SECONDS = 0.1
"""In so long a request has certainly reached every rank."""
_HISTORY = 8
_POLL = 0.005
_STOP_SECONDS = 600.0
_ENDED = ("failed", "resumed")

Sleep = Callable[[float], None]


@dataclass
class _Member:
    """One attached process of the session."""

    pid: int
    name: str
    connection: client.Connection
    request: wire.Pause | None = None
    state: wire.PauseState | None = None
    steps: deque[wire.StepDone] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    """Its last ones."""


class Pauses:
    """The attached processes of nsys sessions, to be paused together. Empty where nothing needs a pause."""

    def __init__(self, session_ids: Iterable[str] = (), only_gpu: bool = True) -> None:
        """Find them.

        Args:
            session_ids: of nsys; a collection touches every process in its session.
            only_gpu: leave out those that use no GPU.
        """
        self.seconds: list[float] = []
        """How long each pause was, the longest of its processes, by their own clock."""
        self._members = _members(frozenset(session_ids), only_gpu)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def pids(self) -> frozenset[int]:
        """Whose they are."""
        return frozenset(member.pid for member in self._members)

    def __enter__(self) -> Pauses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let them go on, and hang up."""
        self.resume()
        for member in self._members:
            member.connection.close()

    def ask(self, steps: int = 0) -> None:
        """Ask for a pause; returns at once. Ranks that wait for each other pause after the same step.

        Args:
            steps: after so many steps since the last pause; 0 for as soon as can be.
        """
        self.resume()
        common = None if steps else _common_step(self._members)
        for member in self._members:
            paused_at = member.state.step if member.state is not None else None
            after = paused_at + steps if steps and paused_at is not None else common
            member.request = wire.Pause(id=secrets.token_hex(8), after=after, seconds=LONGEST_SECONDS)
            member.state = None
            _send(member, member.request)

    def wait(self, patience: float, sleep: Sleep = time.sleep) -> None:
        """Wait until all of them are paused; none is when this raises.

        Args:
            patience: in seconds.
            sleep: may raise, to give up.

        Raises:
            NotPossibleHere: one did not pause in time, or could not; a clause without a full stop.
        """
        deadline = time.monotonic() + patience
        try:
            while not all(_is_paused(member) for member in self._members):
                if time.monotonic() > deadline:
                    raise NotPossibleHere(f"{self._late()} did not end a step within {patience:.0f} s")
                sleep(_POLL)
        except BaseException:
            self.resume()
            raise

    def resume(self) -> None:
        """Let all of them go on, and take back what is only asked for; waits until they say so, but not long."""
        asked = [member for member in self._members if member.request is not None]
        held = [member for member in asked if member.state is not None and member.state.state == "paused"]
        for member in asked:
            if member.request is not None:
                _send(member, wire.Resume(id=member.request.id))
        for member in asked:
            _await_end(member)
        lengths = [m.state.paused_ns for m in held if m.state is not None and m.state.paused_ns is not None]
        if lengths:
            self.seconds.append(max(lengths) / 1e9)
        for member in asked:
            member.request = None

    @property
    def over(self) -> bool:
        """Whether one of them runs."""
        try:
            return not all(_is_paused(member) for member in self._members)
        except NotPossibleHere:
            return True

    def _late(self) -> str:
        return ", ".join(m.name for m in self._members if m.state is None or m.state.state != "paused")


def patience(watch: StepWatch) -> float:
    """How long to wait for the end of a step, in seconds."""
    return max(PATIENCE_SECONDS, 3 * (watch.median_seconds() or 0.0))


def _members(session_ids: frozenset[str], only_gpu: bool) -> list[_Member]:
    found: list[_Member] = []
    if not session_ids:
        return found
    with suppress(NotPossibleHere):
        for file in client.discover(wire.runtime_dir()):
            with suppress(LlmtopError, client.Closed):
                connection = client.Connection.open(file.path, history=_HISTORY)
                if _belongs(connection, session_ids, only_gpu):
                    rank, pid = connection.hello.rank, connection.host_pid
                    found.append(_Member(pid, f"pid {pid}" if rank is None else f"rank {rank}", connection))
                else:
                    connection.close()
    return found


def _belongs(connection: client.Connection, session_ids: frozenset[str], only_gpu: bool) -> bool:
    pid = connection.host_pid
    if not connection.hello.pauses or not pid or (only_gpu and not proc.uses_gpu(pid)):
        return False
    with suppress(NotPossibleHere):
        return nsys.session_of(pid) in session_ids
    return False


def _common_step(members: list[_Member]) -> int | None:
    """A step that all of them have still before them, for those that run in step; None for one process alone, and
    for several that count differently: each then pauses after its present step."""
    if len(members) < 2:
        return None
    for member in members:
        with suppress(NotPossibleHere):  # `wait` will meet it
            _read(member, 0.0 if member.steps else _LEAD_SECONDS)
    latest = [member.steps[-1].index for member in members if member.steps]
    if len(latest) < len(members):
        return None
    usual = statistics.median(duration(step) for member in members for step in member.steps)
    lead = 1 + int(_LEAD_SECONDS / max(usual, 1e-4))
    return None if max(latest) - min(latest) > lead + 1 else max(latest) + lead


def _is_paused(member: _Member) -> bool:
    """Whether it is, by what has come until now.

    Raises:
        NotPossibleHere: it will not be.
    """
    _read(member, 0.0)
    state = member.state.state if member.state is not None else ""
    if state in _ENDED:
        reason = (member.state.detail if member.state is not None else "") or "it went on"
        raise NotPossibleHere(f"{member.name} did not pause: {reason}")
    return state == "paused"


def _await_end(member: _Member) -> None:
    """Give it a moment to say how long it was paused, and to be ready for the next."""
    deadline = time.monotonic() + 0.5
    with suppress(NotPossibleHere):
        while (member.state is None or member.state.state not in _ENDED) and time.monotonic() < deadline:
            _read(member, 0.05)


def _read(member: _Member, seconds: float) -> None:
    try:
        messages = member.connection.receive(seconds)
    except (LlmtopError, client.Closed, OSError, ValueError):
        raise NotPossibleHere(f"{member.name} has ended") from None
    for message in messages:
        if isinstance(message, wire.Steps):
            member.steps.extend(message.steps)
        elif isinstance(message, wire.PauseState) and member.request and message.id == member.request.id:
            member.state = message


def _send(member: _Member, message: wire.FromMonitor) -> None:
    with suppress(client.Closed, LlmtopError):  # `wait` will see that it has gone
        member.connection.send(message)


def stop(tool: Nsys, session_id: str, seconds: float, always: bool = False) -> subprocess.CompletedProcess[str]:
    """`nsys stop`, with the processes of the session paused for its beginning where that is needed and possible.

    Args:
        tool: which nsys.
        session_id: its session.
        seconds: for nsys.
        always: pause them whether they need it or not.

    Raises:
        NotPossibleHere: as `Nsys.run`.
    """
    with Pauses([session_id] if always or tool.needs_pause else (), only_gpu=not always) as pauses:
        with suppress(NotPossibleHere):
            pauses.ask()
            pauses.wait(PATIENCE_SECONDS)
        going_on = threading.Timer(SETTLE_SECONDS, pauses.resume)
        going_on.start()
        try:
            return tool.run("stop", f"--session={session_id}", seconds=seconds)
        finally:
            going_on.join()


def main() -> int:
    """Stop that collection; returns nsys's exit code."""
    path, session, *always = sys.argv[1:]
    done = stop(nsys.at(Path(path)), session, _STOP_SECONDS, bool(always))
    print(done.stdout + done.stderr, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
