"""One run of the command: started, measured, ended, and its files written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from llmtop.bench.model.results import METRICS_FILE, BenchRun, BenchSettings, EndReason
from llmtop.bench.run import run_result
from llmtop.bench.run.command_process import CommandProcess
from llmtop.bench.run.interrupt import Interrupts, collect_interrupts
from llmtop.bench.run.run_end import RunEnd
from llmtop.bench.run.run_watch import RunWatch
from llmtop.capture.base.folder import write
from llmtop.errors import LlmtopError, NotPossibleHere
from llmtop.format import duration, encode_json
from llmtop.redaction.secret_filter import variable_without_secrets, without_secrets, words_without_secrets

TICK_SECONDS = 0.05
"""Between two looks at a command."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """Request for one run."""

    number: int
    """Number from 1, over all variants."""
    folder: Path
    """Its own, inside that of all runs; made if it is not there."""
    command: tuple[str, ...]
    settings: BenchSettings
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """Complete environment of the command."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Additional environment variables of this run; listed in metrics.json."""
    label: str = ""
    """Which variant it is of."""
    attached: bool = True
    """False: a bare run, without llmtop; whole, as it needs `settings.to_end`."""
    surroundings: dict[str, Any] | None = None
    """Environment facts for the header of the recording."""
    say: Callable[[str], None] = print
    """Prints what is waited for on the terminal, one sentence per call."""


def run_once(request: RunRequest) -> BenchRun:
    """Run the command once, and write recording, gpu.csv and metrics.json into its folder.

    A command that crashes, never steps or ends early is no error here: `BenchRun.ended`, `window` and `notes` say
    so. After ctrl+c or SIGTERM the run is "interrupted", and nothing more should be started. On a full disk it is
    "failed", and what was written before stays.

    Raises:
        UnusableInput: there is no such command, or it cannot be executed.
        NotPossibleHere: the folder cannot be written.
    """
    make_folder(request.folder)
    with collect_interrupts() as interrupts:
        run = _run_bare(request, interrupts) if not request.attached else _run_watched(request, interrupts)
    return write_run(request, run)


def make_folder(folder: Path) -> None:
    """Create the folder of a run.

    Raises:
        NotPossibleHere: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotPossibleHere(
            f"{folder} cannot be created: {error.strerror}; choose another folder with --out"
        ) from None


def write_run(request: RunRequest, run: BenchRun) -> BenchRun:
    """Write metrics.json of a run; returns the run, "failed" where that is not possible."""
    try:
        write(request.folder / METRICS_FILE, msgspec.json.format(encode_json(run), indent=2) + b"\n")
    except LlmtopError as error:
        run = msgspec.structs.replace(run, ended="failed", notes=[*run.notes, str(error)])
    return run


def start(request: RunRequest, *, fixed_layout: bool = False) -> CommandProcess:
    """Start the command of a run.

    Args:
        request: what to run.
        fixed_layout: without address randomization.

    Raises:
        UnusableInput: there is no such command, or it cannot be executed.
    """
    environment = {**request.environment, **request.variables}
    return CommandProcess(request.command, environment, attached=request.attached, fixed_layout=fixed_layout)


def _run_watched(request: RunRequest, interrupts: Interrupts) -> BenchRun:
    watch = RunWatch(request.folder, request.surroundings)
    try:
        command = start(request)
        timeout = StepTimeout(request.settings.step_timeout_seconds)
        end = RunEnd(command, interrupts, request.say, kill=request.settings.kill)
        try:
            by_window = _run_until_end(request, command, watch, end, timeout)
            if not end.is_abandoned:
                watch.finish(command)
        finally:
            if not command.has_ended() and not end.is_abandoned:
                command.interrupt()
    finally:
        watch.close()
    notes = end.wait_for_remaining()
    if end.is_abandoned:
        why = "it ignored Ctrl+C" if end.has_timed_out else "after Ctrl+C"
        notes.append(f"left running, {why}: pid {command.pid}")
    ended = end_reason(command, interrupts, end, by_window=by_window)
    if watch.error is not None:
        ended, notes = "failed", [*notes, str(watch.error)]
    if end.has_timed_out:
        limit = duration(request.settings.step_timeout_seconds)
        notes = [f"no step ended for {limit} (--step-timeout), so the command was interrupted", *notes]
    run = run_result.run_result(base_run(request, command, ended, notes), request.settings, watch, command)
    command.close()
    return run


def _run_until_end(
    request: RunRequest, command: CommandProcess, watch: RunWatch, end: RunEnd, timeout: StepTimeout
) -> bool:
    """Watch until the command has ended; returns whether its window was whole before it was asked to end."""
    settings, whole = request.settings, False
    while not command.has_ended():
        if watch.poll(command) and not whole:
            whole = watch.steps.is_whole(settings) and not end.is_asked
            if whole and settings.to_end:
                request.say(f"run {request.number}: measured; waiting for the command's own end (--to-end)")
            elif whole or watch.error is not None:
                end.request_end()
        if not whole and not end.is_asked and timeout.is_over(watch.steps.step_count):
            end.request_end_after_timeout()
        if end.poll():
            break
        time.sleep(TICK_SECONDS)
    return whole and end.is_asked


class StepTimeout:
    """Says when no step has ended for too long."""

    def __init__(self, seconds: float) -> None:
        """Begin to wait.

        Args:
            seconds: time without a step that is too long.
        """
        self._seconds, self._steps, self._since = seconds, 0, time.monotonic()

    def is_over(self, step_count: int) -> bool:
        """Return True if the number of steps has stood still for the time given."""
        if step_count != self._steps:
            self._steps, self._since = step_count, time.monotonic()
        return time.monotonic() - self._since > self._seconds


def _run_bare(request: RunRequest, interrupts: Interrupts) -> BenchRun:
    command = start(request)
    end = RunEnd(command, interrupts, request.say, kill=request.settings.kill)
    while not command.has_ended() and not end.poll():
        time.sleep(TICK_SECONDS)
    ended = end_reason(command, interrupts, end, by_window=False)
    run = base_run(request, command, ended, end.wait_for_remaining())
    command.close()
    crash = [run_result.crash_text(run, 0)] if ended == "crashed" else []
    return msgspec.structs.replace(run, notes=[*crash, *run.notes])


def end_reason(command: CommandProcess, interrupts: Interrupts, end: RunEnd, *, by_window: bool) -> EndReason:
    """Return how a run ended.

    Args:
        command: the process, which has ended or is left running.
        interrupts: signals that the bench got while the command ran.
        end: account of how the command was asked to end.
        by_window: whether the window was whole before that.
    """
    if interrupts:
        return "interrupted"
    if end.has_timed_out:
        return "failed"
    if end.is_killed:
        return "killed"
    if by_window:
        return "window"
    return "itself" if command.exit_code == 0 else "crashed"


def base_run(request: RunRequest, command: CommandProcess, ended: EndReason, notes: list[str]) -> BenchRun:
    """Return the facts of a run that hold whatever it measured.

    Args:
        request: what was asked for.
        command: the process, which has ended or is left running.
        ended: how the run ended.
        notes: sentences on the run.
    """
    return BenchRun(
        number=request.number,
        folder=request.folder.name,
        label=request.label,
        command=words_without_secrets(request.command),
        variables={
            name: variable_without_secrets(name, value) for name, value in sorted(request.variables.items())
        },
        attached=request.attached,
        started_at=command.started_at,
        wall_seconds=command.wall_seconds,
        exit_code=command.exit_code,
        signal=command.signal,
        last_stderr_line=without_secrets(command.last_stderr_line()) if ended == "crashed" else "",
        ended=ended,
        notes=notes,
    )
