"""The Kineto engine: send a request to the host of the fabric, then watch for the file."""

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

from llmtop.capture.base import traces
from llmtop.capture.base.engine import PERFETTO, Engine, Refusal
from llmtop.capture.base.job import CaptureJob, Recorded, Target
from llmtop.capture.base.wait_for_window import SILENCE_SECONDS, SPARE_STEPS, WRITE_SECONDS, recording_seconds
from llmtop.capture.kineto import messages
from llmtop.capture.nsys import sessions
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.format import duration
from llmtop.model.decoding import decode_checked
from llmtop.naming import variable_names
from llmtop.protocol import wire
from llmtop.protocol.peer import peer_allowed, peer_credentials
from llmtop.system import procfs

START_SECONDS = 5.0
"""Time by which Kineto records by the clock, or never will: a process asks once a second, libkineto begins two
seconds after it got the configuration (Config::validate), by a thread that wakes once a second. When that
thread wakes later, as on a busy machine, libkineto drops the configuration and reports it nowhere
(ConfigDerivedState::canStart)."""
MAX_REQUESTS = 6
"""How often a configuration that was dropped is sent. The thread wakes up to a second early, or just in time: one
that was late once may be early the next time."""
UNFINISHED_SECONDS = 20.0
"""Time after which a file that does not grow, of a process that polls again, is taken for abandoned. Seen once, in
a capture by the clock on a CPU: after three minutes the process polled, and its file was still unfinished."""
ASK_SECONDS = 1.0
_ROUNDING_SECONDS = 0.01
HOST_SECONDS = 5.0
_GONE = "the process that `llmtop run` started to reach Kineto has ended: choose another engine, such as py-spy"
_NOT_OURS = (
    "another program than `llmtop run --kineto` replies on the socket of Kineto, so nothing is captured: "
    "use another engine, or start the training again"
)


class HostConnection:
    """A monitor's line to the host of one directory."""

    def __init__(self, directory: Path) -> None:
        """Connect.

        Raises:
            NotPossibleHere: no host is there any more, or one of another user.
        """
        self.directory = directory
        self._frames = messages.Frames()
        self._received: deque[bytes] = deque()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(HOST_SECONDS)
        try:
            self._socket.connect(str(directory / messages.CONTROL))
            _, uid = peer_credentials(self._socket)
        except OSError as error:
            self._socket.close()
            raise NotPossibleHere(f"{_GONE} ({error.strerror} at {directory})") from None
        if not peer_allowed(uid):
            self._socket.close()
            raise NotPossibleHere(f"{directory} is served by uid {uid}: run llmtop as that user")

    def close(self) -> None:
        """Hang up; a request that has not been sent on is withdrawn."""
        self._socket.close()

    def send(self, message: messages.FromMonitor) -> None:
        """Send one message.

        Raises:
            NotPossibleHere: the host has gone.
        """
        try:
            self._socket.sendall(self._frames.encode(message))
        except OSError as error:
            raise NotPossibleHere(f"{_GONE} ({error.strerror})") from None

    def receive(self, seconds: float) -> messages.Pollers | messages.Sent | None:
        """Wait for one reply of the Kineto host.

        Args:
            seconds: the longest wait; at least 1 ms.

        Returns:
            None if no reply came in time.

        Raises:
            NotPossibleHere: the host has gone, or refused, or something else listens there.
        """
        self._socket.settimeout(max(seconds, 0.001))
        while not self._received:
            try:
                data = self._socket.recv(4096)
            except (TimeoutError, BlockingIOError):
                return None
            except OSError as error:
                raise NotPossibleHere(f"{_GONE} ({error.strerror})") from None
            if not data:
                raise NotPossibleHere(f"{_GONE} (disconnected)")
            try:
                self._received += self._frames.feed(data)
            except UnusableInput:
                raise NotPossibleHere(_NOT_OURS) from None
        try:
            answer = decode_checked(self._frames.from_host, self._received.popleft())
        except msgspec.DecodeError:
            raise NotPossibleHere(_NOT_OURS) from None
        if isinstance(answer, wire.Refused):
            raise NotPossibleHere(f"the process that reaches Kineto refused the capture: {answer.reason}")
        return answer


def directory_of(pid: int) -> Path | None:
    """Return the socket that a process polls for traces; None when it was not started for that.

    Raises:
        NotPossibleHere: it is gone, or belongs to another user.
    """
    environ = procfs.environ(pid)
    text = environ.get(variable_names.KINETO_SOCKET_DIR)
    return Path(text) if text and environ.get(variable_names.KINETO_DAEMON) else None


def list_pollers(directory: Path) -> list[messages.Poller]:
    """Return the processes that polled there lately.

    Raises:
        NotPossibleHere: no host is there.
    """
    host = HostConnection(directory)
    try:
        host.send(messages.ListPollers())
        answer = host.receive(HOST_SECONDS)
    finally:
        host.close()
    return answer.pollers if isinstance(answer, messages.Pollers) else []


def training_pids(directory: Path) -> list[int]:
    """Return the pids among them that train: no launcher, no worker that was spawned to load data.

    Raises:
        NotPossibleHere: no host is there.
    """
    asking = [poller.pid for poller in list_pollers(directory) if poller.seconds_ago < messages.FRESH_SECONDS]
    on_gpu = [pid for pid in asking if procfs.uses_gpu(pid)]
    return sorted(pid for pid in on_gpu or asking if not _is_helper_process(pid, set(asking)))


def _is_helper_process(pid: int, asking: set[int]) -> bool:
    command = procfs.command(pid) or ""
    launcher = "torchrun" in command or "torch.distributed.run" in command or "accelerate launch" in command
    spawned = "multiprocessing.spawn" in command or "multiprocessing.forkserver" in command
    return launcher or (spawned and procfs.parent(pid) in asking)


@dataclass
class _PendingTrace:
    target: Target
    host: HostConnection
    path: Path
    """Where the trace is to be in the end."""
    own_pid: int | None = None
    since: float = field(default_factory=time.monotonic)
    request: messages.TraceRequest | None = None
    sent_at: float = 0.0
    """When the process got it last, by `time.monotonic`."""
    requests: int = 1
    began: bool = False
    """True if the process has been seen to record."""
    asked_at: float = 0.0
    idle_since: float = 0.0
    """Time from which the process, which has recorded, polls again and its file does not grow."""
    partial_bytes: int | None = None
    """Size of the unfinished file, when last looked at; None: there was none."""

    @property
    def requested_path(self) -> Path:
        """Kineto's configuration: it puts the pid before the first dot of a name, or before the last one."""
        return self.path.with_name(f"{self.path.name.removesuffix(traces.ENDING)}.json")

    @property
    def final_path(self) -> Path:
        """Path that Kineto gives the finished trace."""
        return self.requested_path.with_name(
            f"{self.requested_path.stem}_{self.own_pid}{self.requested_path.suffix}"
        )

    @property
    def partial_path(self) -> Path:
        """Kineto writes beside the final name first."""
        return self.final_path.with_name(self.final_path.name + ".tmp")

    def read_partial_bytes(self) -> int | None:
        """Return the size of the unfinished file; None: there is none."""
        try:
            return self.partial_path.stat().st_size
        except OSError:
            return None


class KinetoEngine(Engine):
    """Records with the Kineto that is inside each PyTorch; one file a process."""

    name = "kineto"
    description = "kernels and operators, recorded by PyTorch without a line of llmtop in the process"
    stays_in_process = True
    counts_steps = True
    is_length_only_in_trace = True
    open_with = PERFETTO
    launch_flag = "--kineto"

    def refusal(self, target: Target) -> Refusal | None:
        """See `Engine.refusal`."""
        try:
            directory = directory_of(target.pid)
            if directory is None:
                return Refusal("the process was not started for Kineto captures", self.restart_command(target))
            asking = {poller.pid for poller in list_pollers(directory)}
        except NotPossibleHere as refused:
            return Refusal(str(refused).partition(";")[0], self.restart_command(target))
        if target.pid not in asking:
            return Refusal("the process has not imported torch, or its PyTorch has no Kineto")
        return sessions.tracer_refusal(target, self.restart_command(target))

    def find_unattached(self, pids: Collection[int]) -> dict[int, bool]:
        """See `Engine.find_unattached`."""
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
                training = training_pids(directory)
            found.update({pid: pid in training for pid in those})
        return found

    def record(self, job: CaptureJob) -> Recorded:
        """See `Engine.record`."""
        job.stage("prepare")
        waits: list[_PendingTrace] = []
        try:
            waits += (
                _send_request(job, target) for target in job.plan.targets
            )  # those before a refusal are kept, to close
            job.stage("start", f"the process asks every {messages.POLL_SECONDS} s whether to record")
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


def _send_request(job: CaptureJob, target: Target) -> _PendingTrace:
    directory = directory_of(target.pid)
    if directory is None:
        raise NotPossibleHere(
            f"{target.name} was not started for Kineto captures; restart it with: llmtop run --kineto -- COMMAND"
        )
    host = HostConnection(directory)
    wait = _PendingTrace(target, host, traces.path_for(job, target))
    milliseconds = 0 if job.plan.steps else round(1000 * (job.plan.seconds or recording_seconds(job)))
    # In such a trace only the ends of the optimizer's steps mark steps: N lie between N + 1 of them. By the
    # device's clock, which runs behind, another is lost at the start and one at the end (seen on an H200: 4 of 7).
    steps = job.plan.steps + SPARE_STEPS + 3 if job.plan.steps else 0
    wait.request = messages.TraceRequest(
        pid=target.pid, path=str(wait.requested_path), steps=steps, milliseconds=milliseconds
    )
    host.send(wait.request)
    return wait


def _await_sent(job: CaptureJob, wait: _PendingTrace) -> None:
    while wait.own_pid is None:
        answer = wait.host.receive(0.05)
        if isinstance(answer, messages.Sent):
            wait.own_pid, wait.sent_at = answer.own_pid, time.monotonic()
        job.raise_if_cancelled()
        _raise_if_gone(wait)
        if time.monotonic() - wait.since > 3 * messages.FRESH_SECONDS:
            raise NotPossibleHere(_unsent_text(wait.target))


def _unsent_text(target: Target) -> str:
    name = target.name
    known = [poller for poller in list_pollers(directory_of(target.pid) or Path("/")) if poller.pid == target.pid]
    if not known:
        return (
            f"{name} has never asked for captures: it has not imported torch yet (then try again later), or "
            "is not a PyTorch process"
        )
    silent = known[0].seconds_ago
    if silent > messages.FRESH_SECONDS:
        return (
            f"{name} has not asked for captures for {silent:.0f} s: it is stopped or hangs; "
            "look at its stacks (key s)"
        )
    return f"a trace is already being recorded in {name}, perhaps by its own torch.profiler: try again later"


def _await_file(job: CaptureJob, wait: _PendingTrace) -> None:
    """Wait for the finished file; Kineto confirms nothing else. What it has dropped is sent again.

    Raises:
        Cancelled: meanwhile.
        NotPossibleHere: no file arrives; the sentence gives the reason.
    """
    is_reported = time.monotonic()
    limits = _Limits.for_job(job)
    while not wait.final_path.exists():
        job.sleep(0.05)
        _raise_if_gone(wait)
        spent = time.monotonic() - wait.since
        if time.monotonic() - wait.asked_at > ASK_SECONDS:
            _poll_host(wait, limits)
        if wait.partial_path.exists():
            wait.began = True
        if spent > (limits.all_seconds if wait.began else limits.begin_seconds):
            raise NotPossibleHere(_missing_file_text(wait, limits, spent))
        if time.monotonic() - is_reported > 0.5:
            is_reported = time.monotonic()
            job.report_progress(f"{wait.target.name}: {_activity_text(wait)} ({spent:.0f} s)")
    os.replace(wait.final_path, wait.path)
    traces.write_label(wait.path, *traces.rank_and_world_size(wait.target))


@dataclass(frozen=True)
class _Limits:
    """How long a file may take, from the request on."""

    by_steps: bool
    begin_seconds: float
    """Until the process records."""
    all_seconds: float
    """Until its file is there."""

    @classmethod
    def for_job(cls, job: CaptureJob) -> _Limits:
        if job.plan.steps is None:
            begin = MAX_REQUESTS * 2 * START_SECONDS  # each time it is sent it may wait for a question
            return cls(False, begin, begin + (job.plan.seconds or 0.0) + WRITE_SECONDS)
        begin = max(SILENCE_SECONDS, 3 * recording_seconds(job))
        return cls(True, begin, 2 * begin + WRITE_SECONDS)


def _poll_host(wait: _PendingTrace, limits: _Limits) -> None:
    """Query the host whether the process records, and send a dropped configuration again.

    A process that polls does not record. One that is to begin with a step polls until that step, and takes no
    second configuration until then (ActivityProfilerController::scheduleTrace).
    """
    before = time.monotonic()
    known = [one for one in list_pollers(wait.host.directory) if one.pid == wait.target.pid]
    wait.asked_at = now = time.monotonic()
    # After the pollers: what the host sent before it answered is there by now.
    while (answer := wait.host.receive(0.001)) is not None:
        if isinstance(answer, messages.Sent):
            wait.sent_at = now
    # How long after that the process asked last: at least so long, for the host answered after `before`.
    asked_after = before - known[0].seconds_ago - wait.sent_at if known else 0.0
    if not known or not known[0].ready:
        # The host takes it for busy from the moment it sent a configuration until it asks again.
        wait.began = wait.began or asked_after > _ROUNDING_SECONDS
        return
    if asked_after < START_SECONDS or wait.final_path.exists() or wait.request is None:
        return
    if wait.began:
        # Kineto polls in one thread and makes the file in another, which a busy machine keeps waiting.
        size = wait.read_partial_bytes()
        if size != wait.partial_bytes or not wait.idle_since:
            wait.partial_bytes, wait.idle_since = size, now
        if now - wait.idle_since < (START_SECONDS if size is None else UNFINISHED_SECONDS):
            return
        if size is not None and wait.requests < MAX_REQUESTS:
            wait.partial_path.unlink(missing_ok=True)
            wait.began, wait.idle_since, wait.partial_bytes = False, 0.0, None
            _send_again(wait, now)
            return
        raise NotPossibleHere(
            f"Kineto in {wait.target.name} has recorded, but wrote no file: check that the disk has space and "
            "that it can write "
            f"to {wait.path.parent}"
        )
    if wait.requests < MAX_REQUESTS:
        _send_again(wait, now)
    elif not limits.by_steps:
        raise NotPossibleHere(_missing_file_text(wait, limits, now - wait.since))


def _send_again(wait: _PendingTrace, now: float) -> None:
    assert wait.request is not None
    wait.requests += 1
    wait.sent_at = now  # at the earliest
    wait.host.send(wait.request)


def _activity_text(wait: _PendingTrace) -> str:
    if wait.partial_path.exists():
        return "writing"
    if wait.began:
        return "recording"
    return "not recording yet" if wait.requests == 1 else f"not recording yet, asked {wait.requests} times"


def _missing_file_text(wait: _PendingTrace, limits: _Limits, spent: float) -> str:
    name = wait.target.name
    if wait.began:
        return (
            f"Kineto in {name} has not finished its file after {duration(spent)}; it will be written to "
            f"{wait.final_path}, unless the disk is full"
        )
    if limits.by_steps:
        return (
            f"{name} received the capture request but has finished no optimizer step for {duration(spent)}: "
            f"record by time "
            "instead (--seconds 2); Kineto records these steps all the same when they come"
        )
    return (
        f"Kineto in {name} dropped the request {wait.requests} times in {duration(spent)}, as it does on a busy "
        "machine: try again, or capture with --engine torch.profiler or --steps 5"
    )


def _raise_if_gone(wait: _PendingTrace) -> None:
    if not procfs.is_alive(wait.target.pid):
        wait.partial_path.unlink(missing_ok=True)
        raise NotPossibleHere(f"{wait.target.name} ended before its trace was written: no file was kept")
