"""One more run under a profiler: the capture that shows the cause of a regression."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmtop.bench.run.command_process import CommandProcess
from llmtop.bench.run.interrupt import Interrupts, collect_interrupts
from llmtop.bench.run.run_end import RunEnd
from llmtop.capture import capabilities, targets
from llmtop.capture.base.job import DEFAULT_STEPS, Plan, Target
from llmtop.capture.base.step_listener import StepListener
from llmtop.capture.take import Result, take
from llmtop.errors import LlmtopError, NotPossibleHere

_TICK_SECONDS = 0.1
CANCEL_SECONDS = 60.0
"""How long a capture that is called off may take to be undone; nsys ends a collection in about three seconds."""


@dataclass(frozen=True, kw_only=True)
class BenchCapture:
    """Capture that a run takes."""

    command: tuple[str, ...]
    folder: Path
    """Where the capture's own folder is made."""
    warmup: int
    """Steps before it begins."""
    environment: Mapping[str, str]
    kill: bool
    reason: str
    say: Callable[[str], None]


@dataclass
class _CaptureThread:
    """A capture in a thread, so that progress can be printed meanwhile."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    result: Result | None = None
    error: LlmtopError | None = None
    thread: threading.Thread | None = None

    def start(self, plan: Plan) -> None:
        """Begin."""
        self.thread = threading.Thread(target=self._run, args=(plan,), name="llmtop-bench-capture", daemon=True)
        self.thread.start()

    def _run(self, plan: Plan) -> None:
        try:
            self.result = take(plan, cancelled=self.cancelled)
        except LlmtopError as error:
            self.error = error

    @property
    def is_finished(self) -> bool:
        """Return True if it has begun and ended."""
        return self.thread is not None and not self.thread.is_alive()


def capture_run(request: BenchCapture) -> Result:
    """Run the command once more, capture some steps after its warm-up, and end it as by ctrl+c.

    Raises:
        LlmtopError: the command made no such steps, or no engine could capture it.
    """
    with collect_interrupts() as interrupts:
        command = CommandProcess(request.command, request.environment)
        taking = _CaptureThread()
        end = RunEnd(command, interrupts, request.say, kill=request.kill)
        try:
            _run_until_end(request, command, taking, end, interrupts)
        finally:
            taking.cancelled.set()
            if taking.thread is not None:
                taking.thread.join(CANCEL_SECONDS)
            if not command.has_ended():
                command.interrupt()
        end.wait_for_remaining()
        command.close()
    if taking.error is not None:
        raise taking.error
    if taking.result is None:
        raise NotPossibleHere(
            "nothing was captured: "
            + (
                "the run was interrupted"
                if interrupts
                else f"the command ended within its first {request.warmup} steps"
            )
        )
    return taking.result


def _run_until_end(
    request: BenchCapture, command: CommandProcess, taking: _CaptureThread, end: RunEnd, interrupts: Interrupts
) -> None:
    watched: _Warmup | None = None
    try:
        while not command.has_ended():
            if taking.thread is None and not interrupts:
                watched = watched or _Warmup.from_command(command)
                if watched is not None and watched.steps > request.warmup:
                    taking.start(_plan(request, watched.targets))
            if interrupts:
                taking.cancelled.set()
            if taking.is_finished:
                end.request_end()
            if end.poll():
                return
            time.sleep(_TICK_SECONDS)
    finally:
        if watched is not None:
            watched.close()


class _Warmup:
    """Counts the steps of the command's processes."""

    def __init__(self, found: Sequence[Target]) -> None:
        self.targets = tuple(found)
        self._watch = StepListener([(target.pid, target.socket) for target in found if target.socket])

    @classmethod
    def from_command(cls, command: CommandProcess) -> _Warmup | None:
        """Return the warm-up of the trainings that have attached and made a step by now; None while there is
        none."""
        found = [target for target in targets.list_attached() if command.owns(target.pid)]
        return cls(found) if found else None

    @property
    def steps(self) -> int:
        """Whole steps that each of them has made since."""
        return self._watch.whole_step_count(0)

    def close(self) -> None:
        """Listen no more."""
        self._watch.close()


def _plan(request: BenchCapture, found: tuple[Target, ...]) -> Plan:
    return Plan(
        engine=capabilities.best_common_engine(found),
        targets=found,
        parent=request.folder,
        steps=DEFAULT_STEPS,
        reason=request.reason,
    )
