"""Captures that an attached training takes of itself: send a request, follow its states, take the file.

The training starts, steps and stops the recorder in its own thread, at step boundaries:
instrument/control/self_capture.py.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from llmtop.capture.base.engine import Engine, Refusal
from llmtop.capture.base.job import DEFAULT_STEPS, CaptureJob, Recorded, Target
from llmtop.capture.base.wait_for_window import SILENCE_SECONDS, WRITE_SECONDS, recording_seconds
from llmtop.errors import LlmtopError, NotPossibleHere
from llmtop.format import duration
from llmtop.protocol import client, wire
from llmtop.system import procfs


@dataclass
class _Request:
    target: Target
    connection: client.Connection
    message: wire.CaptureRequest
    state: wire.CaptureState
    changed_at: float

    @property
    def path(self) -> Path:
        return Path(self.message.path)


class InProcessEngine(Engine):
    """Records with what PyTorch or JAX brings along, in the training, which offers it in its Hello."""

    supports_start_step = True
    unavailable_reason: str = "it has not imported torch"
    """Why a process of this llmtop does not support it, as a rule."""
    suffix: str
    """Suffix of its files."""

    def refusal(self, target: Target) -> Refusal | None:
        """See `Engine.refusal`."""
        if target.hello is None or target.socket is None:
            return Refusal(
                "the process is not attached to llmtop: restart it with llmtop run", self.restart_command(target)
            )
        if self.name in target.hello.engines:
            return None
        return self.unavailable_refusal(target)

    def unavailable_refusal(self, target: Target) -> Refusal:
        """Return why an attached process does not support it."""
        if target.hello is None or target.hello.torch is None:
            return Refusal(self.unavailable_reason)
        if target.hello.engines:  # it lists others of this kind, so its llmtop knows this one
            return self.missing_device_refusal(target)
        return Refusal(
            "the training runs another version of llmtop, without this engine: restart it with this one",
            self.restart_command(target),
        )

    def missing_device_refusal(self, target: Target) -> Refusal:
        """Return why a process with PyTorch, which lists other engines of this kind, does not list this one."""
        return Refusal(
            "the training runs another version of llmtop, without this engine: restart it with this one",
            self.restart_command(target),
        )

    def record(self, job: CaptureJob) -> Recorded:
        """See `Engine.record`."""
        job.stage("prepare")
        requests: list[_Request] = []
        try:
            requests += (self._ask(job, target) for target in job.plan.targets)
            job.stage("start", _start_text(job))
            _follow(job, requests, until=("recording", "writing", *wire.CAPTURE_ENDED))
            begun = time.time_ns()
            job.stage("record")
            _follow(job, requests, until=("writing", *wire.CAPTURE_ENDED))
            job.window = (begun, time.time_ns())
            job.stage("stop", "the training writes its file")
            _follow(job, requests, until=wire.CAPTURE_ENDED)
            job.raise_if_cancelled()  # a small file may have been there before the first look
        except BaseException:
            _cancel_all(requests)
            raise
        finally:
            for request in requests:
                request.connection.close()
        early = [request.state.stopped_early for request in requests if request.state.stopped_early]
        job.stopped_early = early[0] if early else ""
        return self._collect(requests)

    def path_for(self, job: CaptureJob, target: Target) -> Path:
        """Return where a process is to write its file."""
        return job.folder / f"{target.file_stem}{self.suffix}"

    def complete_file(self, target: Target, path: Path) -> None:
        """Complete what a process has written.

        Raises:
            NotPossibleHere: it cannot be.
        """

    def _ask(self, job: CaptureJob, target: Target) -> _Request:
        if target.socket is None or target.hello is None:
            raise NotPossibleHere(
                f"{target.name} is not attached to llmtop; start it with: llmtop run -- COMMAND, or call "
                "llmtop.attach() in it"
            )
        if self.name not in target.hello.engines:
            raise NotPossibleHere(
                f"{target.name} does not support {self.name}: {self.unavailable_reason}, or its llmtop is older; "
                "restart it with this llmtop"
            )
        message = wire.CaptureRequest(
            id=os.urandom(4).hex(),
            engine=self.name,
            path=str(self.path_for(job, target)),
            steps=steps_to_record(job, self),
            seconds=job.plan.seconds,
            memory_bytes=job.plan.memory_bytes,
            options=dict.fromkeys(sorted(job.plan.options), True),
            at_step=job.plan.at_step,
        )
        try:
            connection = client.Connection.open(target.socket, history=0)
        except (client.ConnectionClosed, client.NoReply) as error:
            raise NotPossibleHere(
                f"{target.name} cannot be reached: {error}; check that the process runs"
            ) from None
        try:
            connection.send(message)
        except (client.ConnectionClosed, LlmtopError) as error:
            connection.close()
            raise NotPossibleHere(
                f"{target.name} cannot be reached: {error}; check that the process runs"
            ) from None
        return _Request(
            target, connection, message, wire.CaptureState(id=message.id, state="armed"), time.monotonic()
        )

    def _collect(self, requests: list[_Request]) -> Recorded:
        failed = [request for request in requests if request.state.state != "done"]
        if failed:
            first = failed[0]
            why = first.state.detail or first.state.state
            runs_on = "" if first.state.ended else "; the training continues"
            raise NotPossibleHere(f"{first.target.name} could not record with {self.name}: {why}{runs_on}")
        firsts = [request.state.first_step for request in requests if request.state.first_step is not None]
        lasts = [request.state.last_step for request in requests if request.state.last_step is not None]
        files = [Path(request.state.path or request.message.path) for request in requests]
        for request, file in zip(requests, files, strict=True):
            self.complete_file(request.target, file)
        begun, ended = max(firsts, default=None), min(lasts, default=None)
        if begun is not None and ended is not None and begun > ended:
            begun = ended = None  # ranks that do not wait for each other have no step in common
        return Recorded(
            traces=files if self.has_time_report else [],
            notes=[request.state.detail for request in requests if request.state.detail],
            seconds=min((one.state.seconds for one in requests if one.state.seconds is not None), default=None),
            first_step=begun,
            last_step=ended,
        )


def _start_text(job: CaptureJob) -> str:
    if job.plan.at_step is not None:
        return f"it begins at step {job.plan.at_step}"
    return "the training begins at its next step; the first time takes a second or two"


def steps_to_record(job: CaptureJob, engine: Engine) -> int:
    """Return how many steps a process is asked to record where it is not asked for seconds."""
    # By the device's clock a step ends where the next begins, so the last one needs a step after it.
    return (job.plan.steps or DEFAULT_STEPS) + (1 if engine.has_time_report else 0)


def _follow(job: CaptureJob, requests: list[_Request], until: tuple[str, ...]) -> None:
    """Read what the trainings say until each is in one of these states.

    Raises:
        Cancelled: meanwhile.
        NotPossibleHere: one has gone, or passes no step boundary.
    """
    while waiting := [request for request in requests if request.state.state not in until]:
        job.raise_if_cancelled()
        for request in waiting:
            _read(request)
            _check_time(job, request)
        _report_progress(job, waiting[0].state, min(_finished_steps(request) for request in requests))


def _report_progress(job: CaptureJob, state: wire.CaptureState, steps: int) -> None:
    if state.state != "recording":
        job.report_progress(state.detail)
    elif job.plan.seconds is not None and state.seconds is not None:
        job.report_progress(f"{duration(min(state.seconds, job.plan.seconds))} of {duration(job.plan.seconds)}")
    else:
        job.report_progress(state.detail, steps=steps)


def _read(request: _Request) -> None:
    try:
        messages = request.connection.receive(0.02)
    except (client.ConnectionClosed, LlmtopError):
        alive = procfs.is_alive(request.target.pid)
        raise NotPossibleHere(
            f"{request.target.name} {'disconnected' if alive else 'ended'} before its capture was written: no "
            "file was kept"
        ) from None
    for message in messages:
        if isinstance(message, wire.CaptureState) and message.id == request.message.id:
            request.state, request.changed_at = message, time.monotonic()


def _check_time(job: CaptureJob, request: _Request) -> None:
    silent = time.monotonic() - request.changed_at
    writing = request.state.state == "writing"
    patience = (
        WRITE_SECONDS if writing else max(SILENCE_SECONDS, 3 * recording_seconds(job), 3 * job.plan.wait_seconds)
    )
    if request.state.state in wire.CAPTURE_ENDED or silent < patience:
        return
    if writing:
        raise NotPossibleHere(
            f"{request.target.name} has not finished writing its capture for {silent:.0f} s; the file will "
            "appear at "
            f"{request.path}, unless the disk is full"
        )
    raise NotPossibleHere(
        f"{request.target.name} has not finished a step for {silent:.0f} s and may hang; look at its stacks "
        "(key s, or llmtop capture --engine py-spy)"
    )


def _finished_steps(request: _Request) -> int:
    first, last = request.state.first_step, request.state.last_step
    return 0 if first is None or last is None else last - first + 1


def _cancel_all(requests: list[_Request]) -> None:
    """Take back what was asked for and give the trainings a moment to say so; they clean up in any case."""
    for request in requests:
        if request.state.state not in wire.CAPTURE_ENDED:
            _cancel(request)
    deadline = time.monotonic() + 5.0
    for request in requests:
        with suppress(NotPossibleHere):
            while request.state.state not in wire.CAPTURE_ENDED and time.monotonic() < deadline:
                _read(request)


def _cancel(request: _Request) -> None:
    try:
        request.connection.send(wire.CaptureCancel(id=request.message.id))
    except (client.ConnectionClosed, LlmtopError):
        request.state = wire.CaptureState(id=request.message.id, state="cancelled")
