"""One capture from the key to the folder: lock, folder, engine, report. Screen and command line both call this."""

from __future__ import annotations

import os
import shlex
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from llmtop.capture import engines
from llmtop.capture.base import folder as folders
from llmtop.capture.base.engine import Engine
from llmtop.capture.base.folder import Info
from llmtop.capture.base.job import Cancelled, CaptureJob, OnProgress, Plan, Progress, Recorded
from llmtop.capture.base.lock import CaptureLock, Holder
from llmtop.capture.base.step_listener import StepListener
from llmtop.errors import LlmtopError, NotPossibleHere, UnusableInput
from llmtop.format import counted, duration, encode_json, percent_text, size
from llmtop.model.snapshot import Snapshot
from llmtop.naming import file_names
from llmtop.system import procfs
from llmtop.trace.files.file_kind import TRACES

if TYPE_CHECKING:
    from llmtop.analysis.steps.unprofiled_step import UnprofiledStep
    from llmtop.document.model import Document
    from llmtop.environment.model import CommandEnvironment

TakeSnapshot = Callable[[], Snapshot | None]
LONGER_AFTER = 1.1
"""Steps vary by less from one second to the next."""
_GIT_SECONDS, _ENVIRONMENT_SECONDS = 5.0, 60.0
"""Longest waits for the state of git and for the environment, whose programs have limits of their own
(`environment.programs`)."""
T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """A capture that was taken."""

    folder: Path
    info: Info
    bytes: int
    trace: Path | None
    """Trace that `llmtop report` reads."""
    report: Any = None
    """The analysis' Report; None where the engine makes none or it failed (then a note says why)."""
    document: Document | None = None
    """Document that the engine itself made."""

    @property
    def copy_command(self) -> str:
        """The command that brings it to another machine, to be called there."""
        return copy_command(self.folder)

    @property
    def open_command(self) -> str:
        """Command that opens it, after the copy."""
        engine = engines.engine_named(self.info.engine)
        return open_command(
            self.folder if self.trace is None else engine.viewer_file(self.trace), engine.open_with
        )

    @property
    def slowest_step_text(self) -> str:
        """Cost of the capture for the training, in one line; "" if unknown."""
        steps, pauses = self.info.step_seconds, self.info.paused_seconds
        waited = (
            f"; the training waited {' and '.join(map(duration, pauses))} for {self.info.engine}" if pauses else ""
        )
        if steps.slowest_during is None:
            return ""
        usual = duration(steps.before_p50)
        return (
            f"slowest step during the capture: {duration(steps.slowest_during)} (median before: {usual}{waited})"
        )

    @property
    def summary(self) -> str:
        """One line: what, how much, where."""
        return f"{self.info.engine}: {size(self.bytes)}{self._steps}{self._seconds} in {self.folder}"

    @property
    def _seconds(self) -> str:
        seconds = self.info.seconds_recorded
        return "" if self.info.seconds_wanted is None or seconds is None else f", {duration(seconds)}"

    @property
    def _steps(self) -> str:
        counted_steps = getattr(self.report, "steps", None)  # the report uses as many as were asked for
        steps = self.info.steps if counted_steps is None else counted_steps.count
        if steps is None:
            return ""
        return f", {counted(steps, 'whole step')}" if steps else ", no step ended in it (take a longer window)"


def take(
    plan: Plan,
    on_progress: OnProgress = lambda progress: None,
    cancelled: threading.Event | None = None,
    snapshot: TakeSnapshot = lambda: None,
    engine: Engine | None = None,
) -> Result:
    """Take a capture; blocks until its report is made.

    Args:
        plan: what.
        on_progress: called often, from this thread.
        cancelled: set it from anywhere to give up.
        snapshot: what is known of the machine now; asked before and after.
        engine: records in the stead of the plan's own: on several nodes.

    Raises:
        Cancelled: given up; nothing was kept.
        LlmtopError: one sentence: what went wrong, what was kept and where, how to finish by hand.
    """
    engine = engine or _engine(plan)
    folders.check_disk(plan.parent)
    with ExitStack() as stack:
        locks = [stack.enter_context(_lock(plan, target.pid)) for target in plan.targets]
        path = folders.make_folder(plan.parent, plan.engine)
        del locks
        watch = StepListener([(target.pid, target.socket) for target in plan.step_sources if target.socket])
        stack.callback(watch.close)
        git = _InBackground("git", lambda: folders.git_state(plan.first.pid))
        environment = _InBackground(file_names.ENVIRONMENT, lambda: _environment(plan))

        def report_progress(progress: Progress) -> None:
            if progress.stage in ("stop", "export"):  # the window is over
                environment.start()
            on_progress(progress)

        job = CaptureJob(plan, path, watch, report_progress, cancelled)
        info = _begin(job, snapshot)
        git.start()
        try:
            recorded = engine.record(job)
            info.git = git.value(_GIT_SECONDS)
            recorded.notes += git.faults()
            return _finish(job, engine, info, recorded, snapshot, environment=environment)
        except Cancelled:
            folders.discard(path)
            raise
        except BaseException as error:
            _fail(job, info, error)
            raise


class _InBackground(Generic[T]):
    """A value that a thread of its own finds, so that neither the window nor the report waits for it."""

    def __init__(self, name: str, find: Callable[[], T]) -> None:
        """Prepare the thread.

        Args:
            name: of the value, for a sentence.
            find: called once.
        """
        self._name, self._find = name, find
        self._found: T | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to find it; does nothing where that has begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"llmtop-{self._name}", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._find()
        except Exception as error:  # noqa: BLE001  a capture without this value is still one
            self._error = error

    def value(self, seconds: float) -> T | None:
        """Return the value; None if it is not found within so many seconds."""
        self.start()
        if self._thread is not None:
            self._thread.join(seconds)
        return self._found

    def faults(self) -> list[str]:
        """Return why it is missing, in a sentence, where finding it failed."""
        return (
            [] if self._error is None else [f"{self._name} is missing: a fault in llmtop itself ({self._error!r})"]
        )


def _environment(plan: Plan) -> CommandEnvironment | None:
    """Return the environment of the first process; None where it has gone, cannot be seen, or is on another node.

    It takes 0.3 s, most of it for a Python that lists its packages.
    """
    from llmtop.environment import collect

    return collect.process_environment(plan.targets[0].pid) if plan.targets else None


def _engine(plan: Plan) -> Engine:
    engine = engines.engine_named(plan.engine)
    if not plan.targets:
        raise UnusableInput("no process to capture was given: pass --pid or --rank")
    return engine


def _lock(plan: Plan, pid: int) -> CaptureLock:
    return CaptureLock(
        f"pid-{pid}",
        Holder(
            pid=os.getpid(),
            engine=plan.engine,
            since=time.time(),
            began=time.monotonic(),
            target=pid,
            folder=str(plan.parent),
        ),
    )


def _begin(job: CaptureJob, snapshot: TakeSnapshot) -> Info:
    """Write capture.json as far as known, so that a capture that was cut short is recognized."""
    plan, first = job.plan, job.plan.first
    before = snapshot()
    info = Info(
        engine=plan.engine,
        reason=plan.reason or None,
        started_at=time.time(),
        command=first.command,
        pids=[target.pid for target in plan.targets],
        ranks=[target.rank for target in plan.targets],
        at_step=plan.at_step,
        steps_wanted=plan.steps,
        seconds_wanted=plan.seconds,
        options=sorted(plan.options),
        driver=(before.host.driver_version if before else None) or folders.driver_version(),
        cuda=before.host.cuda_version if before else None,
        torch=first.hello.torch if first.hello else None,
        gpus_before=list(before.gpus) if before else None,
    )
    folders.write_info(job.folder, info)
    return info


def _finish(
    job: CaptureJob,
    engine: Engine,
    info: Info,
    recorded: Recorded,
    snapshot: TakeSnapshot,
    *,
    environment: _InBackground[CommandEnvironment | None],
) -> Result:
    job.stage("analyse", "reading the trace")
    info.tool, info.notes = recorded.tool, list(recorded.notes)
    if recorded.ranks is not None:
        info.ranks = [one.rank for one in recorded.ranks]
        info.pids = [one.pid for one in recorded.ranks]
        info.hosts = [one.host for one in recorded.ranks]
    info.paused_seconds = [round(seconds, 3) for seconds in recorded.paused_seconds]
    info.step_seconds.profiler_stays = engine.stays_in_process
    _describe_window(job, info, recorded)
    report = _report(job, engine, info, recorded)
    _describe_length(job, engine, info, recorded, report)
    after = snapshot()
    info.gpus_after = list(after.gpus) if after else None
    _describe_slowest(job, info)
    if report is None:  # a report has asked for it, and its figures rest on the value of that moment
        _describe_after(job, info)
    _note_longer_steps(info)
    _write_environment(job, info, environment)
    job.end_stage()
    info.stage_seconds = {name: round(seconds, 3) for name, seconds in job.stage_seconds.items()}
    info.state, info.finished_at = "done", time.time()
    folders.write_info(job.folder, info)
    job.stage("done")
    trace = recorded.traces[0] if recorded.traces else None
    document = recorded.report[0] if recorded.report is not None else None
    return Result(
        folder=job.folder,
        info=info,
        bytes=folders.total_bytes(job.folder),
        trace=trace,
        report=report,
        document=None if isinstance(document, str) else document,
    )


def _describe_window(job: CaptureJob, info: Info, recorded: Recorded) -> None:
    info.first_step, info.last_step = recorded.first_step, recorded.last_step
    if job.window is None:
        return
    begin, end = job.window
    info.window_seconds = (end - begin) / 1e9
    within = job.watch.steps_within(begin, end)
    if recorded.first_step is not None and recorded.last_step is not None:
        info.steps = recorded.last_step - recorded.first_step + 1
    elif within:
        fewest = min(within.values(), key=len)
        info.steps = len(fewest)
        info.first_step = fewest[0].index if fewest else None
        info.last_step = fewest[-1].index if fewest else None
    info.step_seconds.before_p50 = job.watch.median_seconds(end_ns=round(info.started_at * 1e9))


ENOUGH = 0.9
"""Share of the requested seconds that is enough: a trace begins with its first event and ends with its last."""


def _describe_length(job: CaptureJob, engine: Engine, info: Info, recorded: Recorded, report: Any) -> None:
    """Describe the recorded length. If it is shorter than requested, report.md and capture.json begin with
    that."""
    if recorded.seconds is not None:
        seconds: float | None = recorded.seconds
    else:
        by_trace = report is not None and engine.is_length_only_in_trace
        seconds = report.window_seconds if by_trace else info.window_seconds
    info.seconds_recorded = None if seconds is None else round(seconds, 3)
    wanted, why = info.seconds_wanted, job.stopped_early
    if wanted is not None and seconds is not None and seconds < ENOUGH * wanted:
        why = why or ("the trace has no earlier and no later event" if seconds else "the trace is empty")
        info.stopped_early = f"recorded {duration(seconds)} of the {duration(wanted)} asked for: {why}"
    elif wanted is None and why:
        steps = report.steps.count if report is not None else info.steps or 0
        asked = counted(info.steps_wanted or 0, "step")
        info.stopped_early = f"recorded {counted(steps, 'whole step')} of the {asked} asked for: {why}"
    if info.stopped_early:
        _prepend_sentence(job.folder / file_names.REPORT_TEXT, info.stopped_early)


def _prepend_sentence(path: Path, sentence: str) -> None:
    """Begin a report of Markdown with a sentence, where there is a report."""
    from llmtop.document.markdown import escape

    if path.is_file():
        folders.write(path, f"**{escape(sentence)}**\n\n".encode() + path.read_bytes())


PAUSED_STEP_SECONDS = 5.0
"""Longest wait for the step that the last pause delayed, which the training reports once it has ended."""


def _describe_slowest(job: CaptureJob, info: Info) -> None:
    """Describe the slowest step during the capture; unknown if the one that was paused is not reported in time."""
    if job.window is None or not job.watch.publishing_pids:
        return
    begin, stopped = round(info.started_at * 1e9), job.stopped_ns or job.window[1]
    limit, longest_pause = time.monotonic() + PAUSED_STEP_SECONDS, max(info.paused_seconds, default=0.0)
    while (slowest := job.watch.slowest_seconds(begin, stopped) or 0.0) < longest_pause:
        if time.monotonic() > limit or not any(map(procfs.is_alive, job.watch.publishing_pids)):
            return
        time.sleep(0.02)
    info.step_seconds.slowest_during = slowest or None


def _describe_after(job: CaptureJob, info: Info) -> None:
    """Describe the step time after the capture: steps that came while its trace was read."""
    if job.window is not None and job.watch.publishing_pids:
        info.step_seconds.after_p50 = job.watch.median_seconds(begin_ns=job.stopped_ns or job.window[1])


def _note_longer_steps(info: Info) -> None:
    """Note steps that stay longer because a tool cannot leave the process."""
    steps = info.step_seconds
    before, after = steps.before_p50, steps.after_p50
    if steps.profiler_stays and before and after and after > LONGER_AFTER * before:
        longer = percent_text(100 * (after / before - 1))
        words = (
            f"since the capture a step takes {longer} longer: {info.engine} stays in the training until it ends"
        )
        info.notes.append(words)


def _report(job: CaptureJob, engine: Engine, info: Info, recorded: Recorded) -> Any:
    """Make report.md and report.json; a trace without a report is still a trace, so failures become notes."""
    if recorded.report is not None:
        from llmtop.document.markdown import write_markdown

        document, data = recorded.report
        markdown = document if isinstance(document, str) else write_markdown(document)
        _write_report(job.folder, markdown, encode_json(data))
        return None
    if not recorded.traces:
        return None
    try:
        report = _analyse(job, info, recorded.traces)
        _note_losses(info, report)
        engine.learn_from_report(job, report)
        return report
    except LlmtopError as error:
        info.notes.append(f"no report could be made: {error}")
        return None


def _analyse(job: CaptureJob, info: Info, traces: list[Path]) -> Any:
    from llmtop.analysis.steps.unprofiled_step import UnprofiledStep

    def unprofiled_step() -> UnprofiledStep:
        # Asked once the trace has been read: by then some steps have gone by since the tool stopped.
        _describe_after(job, info)
        times = info.step_seconds
        return UnprofiledStep(times.before_p50, times.after_p50, times.profiler_stays)

    # several ranks are judged together, which the folder stands for
    whole = traces[0] if len(traces) == 1 else job.folder
    return written_report(job, whole, unprofiled_step)


def written_report(
    job: CaptureJob, trace: Path, unprofiled_step: Callable[[], UnprofiledStep] | None = None
) -> Any:
    """Make the report of a trace, and write it into the capture's folder.

    Args:
        job: the capture.
        trace: a file, or the folder where several ranks are judged together.
        unprofiled_step: asked, once the trace has been read, how long steps are without the tool.

    Raises:
        LlmtopError: the trace cannot be read, or the folder not be written.
    """
    from llmtop.analysis.analyze import analyze
    from llmtop.document.markdown import write_markdown
    from llmtop.report.document import report_document
    from llmtop.report.model import to_json

    report = analyze(trace, read_unprofiled_step=unprofiled_step)
    _write_report(job.folder, write_markdown(report_document(report)), to_json(report))
    return report


def _write_environment(job: CaptureJob, info: Info, environment: _InBackground[CommandEnvironment | None]) -> None:
    """Write environment.json: what the first of the processes runs in. A capture without it is still one."""
    from llmtop.environment import collect

    found = environment.value(_ENVIRONMENT_SECONDS)
    info.notes += environment.faults()
    if found is None:
        return
    try:
        folders.write(job.folder / file_names.ENVIRONMENT, collect.to_json(found))
    except NotPossibleHere as error:
        info.notes.append(f"environment.json is missing: {error}")


def _note_losses(info: Info, report: Any) -> None:
    """Kernels that the tool lost come first."""
    from llmtop.report.advice.table import RECORDS_LOST

    info.notes += [finding.summary for finding in report.findings if finding.id == RECORDS_LOST]


def _write_report(path: Path, markdown: str, data: bytes) -> None:
    folders.write(path / file_names.REPORT_TEXT, markdown.encode())
    folders.write(path / file_names.REPORT, data + b"\n")


def _fail(job: CaptureJob, info: Info, error: BaseException) -> None:
    """Keep the folder if anything of the trace is in it; write down what went wrong if the disk lets us."""
    kept = [path for path in folders.list_files(job.folder) if path.name != folders.INFO]
    if not kept:
        folders.discard(job.folder)
        return
    info.state, info.error, info.finished_at = "failed", str(error) or type(error).__name__, time.time()
    try:
        folders.write_info(job.folder, info)
    except (LlmtopError, OSError):
        return  # a full disk is then already in `error`


def copy_command(path: Path) -> str:
    """Return the scp command that brings a folder to the machine it is called on."""
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or "root"
    host, port = socket.gethostname(), "22"
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) == 4:
        host, port = connection[2], connection[3]  # the address by which this person reaches this machine
    flag = "" if port == "22" else f"-P {port} "
    return f"scp -r {flag}{user}@{host}:{shlex.quote(str(path))} ."


def open_command(path: Path, open_with: str) -> str:
    """Return how to open a file after the copy: a command, or where to drop it."""
    above = path.parent.parent.name if path.parent.name == TRACES else ""
    if path.name == TRACES:
        name = Path(path.parent.name) / path.name
        return f"{open_with} {shlex.quote(str(name))}"
    name = path if not path.suffix else Path(above) / path.parent.name / path.name
    if open_with.startswith("https://"):
        return f"open {open_with} and drop {name} there"
    return f"{open_with} {shlex.quote(str(name))}" if open_with else str(name)


def report_data(result: Result) -> Any:
    """Return the report as data for JSON: what report.json has; None where there is none."""
    path = result.folder / file_names.REPORT
    return msgspec.json.decode(path.read_bytes()) if path.is_file() else None
