"""The Kineto engine: hand a wish to the host of the fabric, then watch for the file."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from llmtop import procfs, wire
from llmtop.capture import traces
from llmtop.capture.engine import Engine, Refusal
from llmtop.capture.job import CaptureJob, Recorded, Target
from llmtop.capture.kineto import daemon as kineto
from llmtop.capture.kineto import messages
from llmtop.capture.nsys import sessions
from llmtop.capture.wait_for_window import SILENCE_SECONDS, SPARE_STEPS, seconds_for
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.format import duration

WRITE_SECONDS = 120.0
"""How long Kineto may take to write its file once it has begun to record; five steps took two seconds."""
HOST_SECONDS = 5.0
_GONE = (
    "the process beside `llmtop run` that reaches Kineto has ended; another engine may still capture the training"
)
_NOT_OURS = "what answers as Kineto host is not llmtop"


class HostConnection:
    """A monitor's line to the host of one directory."""

    def __init__(self, directory: Path) -> None:
        """Connect.

        Raises:
            NotPossibleHere: nobody hosts there any more, or somebody else does.
        """
        frames = os.path.exists(directory / messages.FRAMES)
        self._spoken = messages.Frames() if frames else messages.Lines()
        self._heard: deque[bytes] = deque()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(HOST_SECONDS)
        try:
            self._socket.connect(str(directory / (messages.FRAMES if frames else messages.CONTROL)))
            _, uid = wire.peer_credentials(self._socket)
        except OSError as error:
            self._socket.close()
            raise NotPossibleHere(f"{_GONE} ({error.strerror} at {directory})") from None
        if not wire.peer_allowed(uid):
            self._socket.close()
            raise NotPossibleHere(f"{directory} is hosted by uid {uid}: run llmtop as that user")

    def close(self) -> None:
        """Hang up; a wish not yet sent on is taken back."""
        self._socket.close()

    def send(self, message: messages.FromMonitor) -> None:
        """Send one message.

        Raises:
            NotPossibleHere: the host has gone.
        """
        try:
            self._socket.sendall(self._spoken.encode(message))
        except OSError as error:
            raise NotPossibleHere(f"{_GONE} ({error.strerror})") from None

    def receive(self, seconds: float) -> messages.Pollers | messages.Sent | None:
        """Wait for one answer; None if none came in time.

        Raises:
            NotPossibleHere: the host has gone, or refused.
        """
        self._socket.settimeout(max(seconds, 0.001))
        while not self._heard:
            try:
                data = self._socket.recv(4096)
            except (TimeoutError, BlockingIOError):
                return None
            except OSError as error:
                raise NotPossibleHere(f"{_GONE} ({error.strerror})") from None
            if not data:
                raise NotPossibleHere(f"{_GONE} (it hung up)")
            try:
                self._heard += self._spoken.feed(data)
            except UnusableInput:
                raise NotPossibleHere(_NOT_OURS) from None
        try:
            answer = wire.decoded(self._spoken.from_host, self._heard.popleft())
        except msgspec.DecodeError:
            raise NotPossibleHere(_NOT_OURS) from None
        if isinstance(answer, wire.Refused):
            raise NotPossibleHere(f"the Kineto host refused: {answer.reason}")
        return answer


def directory_of(pid: int) -> Path | None:
    """Where a process asks for traces; None when it was not started for that.

    Raises:
        NotPossibleHere: it is gone, or belongs to somebody else.
    """
    environ = procfs.environ(pid)
    text = environ.get(kineto.DIRECTORY_VARIABLE)
    return Path(text) if text and environ.get("KINETO_USE_DAEMON") else None


def pollers(directory: Path) -> list[messages.Poller]:
    """The processes that asked there lately.

    Raises:
        NotPossibleHere: nobody hosts there.
    """
    host = HostConnection(directory)
    try:
        host.send(messages.WhoIsThere())
        answer = host.receive(HOST_SECONDS)
    finally:
        host.close()
    return answer.pollers if isinstance(answer, messages.Pollers) else []


def trainings(directory: Path) -> list[int]:
    """The pids among them that train: no launcher, no worker that was spawned to load data.

    Raises:
        NotPossibleHere: nobody hosts there.
    """
    asking = [poller.pid for poller in pollers(directory) if poller.seconds_ago < kineto.FRESH_SECONDS]
    on_gpu = [pid for pid in asking if procfs.uses_gpu(pid)]
    return sorted(pid for pid in on_gpu or asking if not _serves(pid, set(asking)))


def _serves(pid: int, asking: set[int]) -> bool:
    command = procfs.command(pid) or ""
    launcher = "torchrun" in command or "torch.distributed.run" in command or "accelerate launch" in command
    spawned = "multiprocessing.spawn" in command or "multiprocessing.forkserver" in command
    return launcher or (spawned and procfs.parent(pid) in asking)


@dataclass
class _Wait:
    target: Target
    host: HostConnection
    path: Path
    """Where the trace is to be in the end."""
    own_pid: int | None = None
    since: float = field(default_factory=time.monotonic)

    @property
    def asked(self) -> Path:
        """What Kineto is told: it puts the pid before the first dot of a name, or before the last one."""
        return self.path.with_name(f"{self.path.name.removesuffix(traces.ENDING)}.json")

    @property
    def written(self) -> Path:
        """What Kineto makes of that."""
        return self.asked.with_name(f"{self.asked.stem}_{self.own_pid}{self.asked.suffix}")

    @property
    def partial(self) -> Path:
        """Kineto writes beside the final name first."""
        return self.written.with_name(self.written.name + ".tmp")


class KinetoEngine(Engine):
    """Records with the Kineto that is inside each PyTorch; one file a process."""

    name = "kineto"
    gives = "kernels and operators, recorded by PyTorch without a line of llmtop in the process"
    stays_in_process = True
    counts_steps = True
    open_with = "https://ui.perfetto.dev"
    launch_flag = "--kineto"

    def refusal(self, target: Target) -> Refusal | None:
        """See `Engine.refusal`."""
        try:
            directory = directory_of(target.pid)
            if directory is None:
                return Refusal("it was not started for Kineto captures", self.restart(target))
            asking = {poller.pid for poller in pollers(directory)}
        except NotPossibleHere as refused:
            return Refusal(str(refused).partition(";")[0], self.restart(target))
        if target.pid not in asking:
            return Refusal("it has not imported torch, or its torch is built without Kineto")
        return sessions.tracer_refusal(target, self.restart(target))

    def unattached(self, pids: Collection[int]) -> dict[int, bool]:
        """See `Engine.unattached`."""
        asking: dict[Path, list[int]] = {}
        for pid in pids:
            with suppress(NotPossibleHere):
                directory = directory_of(pid)
                if directory is not None:
                    asking.setdefault(directory, []).append(pid)
        found = {}
        for directory, those in asking.items():
            training: list[int] = []
            with suppress(NotPossibleHere):
                training = trainings(directory)
            found.update({pid: pid in training for pid in those})
        return found

    def record(self, job: CaptureJob) -> Recorded:
        """See `Engine.record`."""
        job.stage("prepare")
        waits: list[_Wait] = []
        try:
            waits += (
                _ask(job, target) for target in job.plan.targets
            )  # those before a refusal are kept, to close
            job.stage("start", f"the process asks every {kineto.POLL_SECONDS} s whether to record")
            for wait in waits:
                _await_sent(job, wait)
            begun = time.time_ns()
            job.stage("record")
            recorded = Recorded()
            for wait in waits:
                _await_file(job, wait)
                recorded.traces.append(wait.path)
            job.window = (begun, time.time_ns())
        finally:
            for wait in waits:
                wait.host.close()
        return recorded


def _ask(job: CaptureJob, target: Target) -> _Wait:
    directory = directory_of(target.pid)
    if directory is None:
        raise NotPossibleHere(
            f"{target.name} was not started for Kineto captures; restart it with: llmtop run --kineto -- COMMAND"
        )
    host = HostConnection(directory)
    wait = _Wait(target, host, traces.path_for(job, target))
    milliseconds = 0 if job.plan.steps else round(1000 * (job.plan.seconds or seconds_for(job)))
    # In such a trace only the ends of the optimizer's steps mark steps: N lie between N + 1 of them. By the
    # device's clock, which runs behind, another is lost at the start and one at the end (seen on an H200: 4 of 7).
    steps = job.plan.steps + SPARE_STEPS + 3 if job.plan.steps else 0
    host.send(messages.Wish(pid=target.pid, path=str(wait.asked), steps=steps, milliseconds=milliseconds))
    return wait


def _await_sent(job: CaptureJob, wait: _Wait) -> None:
    while wait.own_pid is None:
        answer = wait.host.receive(0.05)
        if isinstance(answer, messages.Sent):
            wait.own_pid = answer.own_pid
        job.check()
        _still_there(wait)
        if time.monotonic() - wait.since > 3 * kineto.FRESH_SECONDS:
            raise NotPossibleHere(_why_not_sent(wait.target))


def _why_not_sent(target: Target) -> str:
    name = target.name
    known = [poller for poller in pollers(directory_of(target.pid) or Path("/")) if poller.pid == target.pid]
    if not known:
        return f"{name} has never asked the Kineto host: it has not imported torch yet, or is no PyTorch process"
    silent = known[0].seconds_ago
    if silent > kineto.FRESH_SECONDS:
        return f"{name} has not asked for {silent:.0f} s: it is stopped or hung; look at its stacks (key s)"
    return f"a trace is already being recorded in {name}, perhaps by its own torch.profiler: try again later"


def _await_file(job: CaptureJob, wait: _Wait) -> None:
    """Wait for the finished file; Kineto confirms nothing else."""
    began, told = time.monotonic(), time.monotonic()
    patience = max(SILENCE_SECONDS, (job.plan.seconds or 0) + SILENCE_SECONDS, 3 * seconds_for(job))
    while not wait.written.exists():
        job.sleep(0.05)
        _still_there(wait)
        spent = time.monotonic() - began
        if not wait.partial.exists() and spent > patience:
            raise NotPossibleHere(
                f"{wait.target.name} was told to record but has done no optimizer step for {duration(patience)}: "
                "record by time instead (--seconds 2)"
            )
        if spent > patience + WRITE_SECONDS:
            raise NotPossibleHere(
                f"Kineto has not finished its file for {duration(spent)}; it comes to {wait.written}, unless the "
                "disk is full"
            )
        if time.monotonic() - told > 0.5:
            told = time.monotonic()
            job.say(f"{wait.target.name}: {'writing' if wait.partial.exists() else 'recording'} ({spent:.0f} s)")
    os.replace(wait.written, wait.path)
    traces.label(wait.path, *traces.place_of(wait.target))


def _still_there(wait: _Wait) -> None:
    if not procfs.is_alive(wait.target.pid):
        wait.partial.unlink(missing_ok=True)
        raise NotPossibleHere(f"{wait.target.name} ended before its trace was written: nothing was kept")
