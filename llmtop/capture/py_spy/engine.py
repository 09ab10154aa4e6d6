"""py-spy: the Python stacks of a process that knows nothing of it, read from outside and without pausing it.

Where py-spy cannot read a process (its Python is newer, or the system forbids it), an attached training sends its
own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from llmtop.capture.base import folder
from llmtop.capture.base.engine import SPEEDSCOPE, Check, Engine, Refusal
from llmtop.capture.base.job import CaptureJob, Recorded, Target
from llmtop.capture.base.wait_for_window import recording_seconds
from llmtop.capture.py_spy import inside, outside, ptrace_permission, stacks
from llmtop.capture.py_spy.loading import judge_loading
from llmtop.capture.py_spy.sampled_window import sample_window
from llmtop.capture.py_spy.thread_states import StateSampler
from llmtop.errors import NotPossibleHere
from llmtop.model.snapshot import LoadingCost
from llmtop.naming import file_names
from llmtop.nsys_cli.tool import Option
from llmtop.stacks.fold import CpuTime, fold
from llmtop.stacks.model import ProcessStacks, StackReport
from llmtop.stacks.samples import SampledProcess, Stack, ThreadId, folded, speedscope
from llmtop.system import procfs


def dump(pid: int) -> tuple[stacks.ThreadStack, ...]:
    """Return the stacks of all Python threads now, those of workers too; pauses nothing.

    Raises:
        NotPossibleHere: not permitted, no Python process, or gone; and it is not attached to llmtop.
    """
    try:
        return outside.dump(pid)
    except NotPossibleHere:
        socket = inside.find_socket(pid)
        if socket is None:
            raise
        return inside.dump(socket)


def _is_python(target: Target) -> bool:
    if target.hello is not None:
        return True
    if procfs.runs_python(target.pid):
        return True
    try:
        return any("libpython" in name for name in procfs.mapped_files(target.pid))
    except OSError:
        return True  # not permitted; the check of permissions reports it


def _can_sample_itself(target: Target) -> bool:
    """Return True if the process can sample its stacks itself."""
    return target.socket is not None and target.hello is not None and target.hello.stacks


class _SelfSampling:
    """A training that samples itself: what `outside.PySpyRecording` is for py-spy."""

    taken_by: Literal["training"] = "training"
    rate_hz = inside.RATE_HZ

    def __init__(self, job: CaptureJob, target: Target, why: str) -> None:
        assert target.socket is not None
        seconds = math.ceil(3 * (job.plan.seconds or recording_seconds(job))) + 30
        self.target = target
        self.notes = [
            f"{why}. So the training told the stacks of its own threads; those of processes that it started, "
            "DataLoader workers for one, are not among them"
        ]
        self._asked = inside.StackRequest(target.socket, float(seconds))

    def await_start(self, job: CaptureJob) -> None:
        """It begins at once."""

    def stop(self) -> None:
        """Request its samples."""
        self._asked.finish()

    def samples(self, job: CaptureJob) -> list[Stack]:
        """Receive its samples."""
        found, notes = inside.read_samples(self._asked, self.target.command or "")
        self.notes += notes
        return found

    def close(self) -> None:
        """Hang up."""
        self._asked.close()


_Sampler: TypeAlias = outside.PySpyRecording | _SelfSampling


class PySpyEngine(Engine):
    """Samples Python stacks; a tree, a folded and a speedscope file a training, with its workers."""

    name = "py-spy"
    report_kind = "stacks"
    description = "Python stacks only, read from outside: where the CPU's time goes"
    options = (
        Option(
            "native",
            "frames of C and C++ libraries below the Python ones",
            f"stops the training at each of {outside.NATIVE_RATE_HZ} samples a second, for 10 ms and more",
            False,
        ),
    )
    open_with = SPEEDSCOPE

    def refusal(self, target: Target) -> Refusal | None:
        """See `Engine.refusal`."""
        if _can_sample_itself(target):
            return None
        try:
            outside.find_py_spy()
        except NotPossibleHere as missing:
            because, _, command = str(missing).partition(": ")
            return Refusal(because, command)
        if not _is_python(target):
            return Refusal("this is not a Python process")
        return ptrace_permission.refusal(target.pid)

    def checks(self) -> list[Check]:
        """See `Engine.checks`."""
        return [_program_check(), ptrace_permission.permission_check()]

    def viewer_file(self, trace: Path) -> Path:
        """See `Engine.viewer_file`."""
        return trace.with_suffix(file_names.SPEEDSCOPE)

    def record(self, job: CaptureJob) -> Recorded:
        """See `Engine.record`."""
        job.stage("prepare")
        samplers: list[_Sampler] = []
        states: list[StateSampler] = []
        job.stage("start")
        try:
            samplers += (_start_sampler(job, target) for target in job.plan.targets)
            pids = [target.pid for target in job.plan.targets]
            notes, cpu = sample_window(job, pids, states)
            for sampler in samplers:
                sampler.stop()
            found = [_SamplerStacks(sampler, sampler.samples(job)) for sampler in samplers]
        finally:
            for one in (*states, *samplers):
                one.close()
        return _finish(job, found, notes, cpu, dict(zip(pids, states, strict=True)))


def _start_sampler(job: CaptureJob, target: Target) -> _Sampler:
    """Return a sampler that samples: py-spy, or where that cannot, the training itself.

    Raises:
        NotPossibleHere: neither can.
    """
    recording: outside.PySpyRecording | None = None
    try:
        recording = outside.PySpyRecording(job, target)
        recording.await_start(job)
        return recording
    except NotPossibleHere as refused:
        if recording is not None:
            recording.close()
        if not _can_sample_itself(target) or not procfs.is_alive(target.pid):
            raise
        return _SelfSampling(job, target, str(refused))
    except BaseException:
        if recording is not None:
            recording.close()
        raise


@dataclass(frozen=True)
class _SamplerStacks:
    sampler: _Sampler
    stacks: list[Stack]


def _finish(
    job: CaptureJob,
    found: list[_SamplerStacks],
    notes: list[str],
    cpu: Mapping[int, CpuTime],
    states: Mapping[int, StateSampler],
) -> Recorded:
    asked = {one.sampler.target.pid: one.sampler.target for one in found}
    notes += dict.fromkeys(note for one in found for note in one.sampler.notes)
    recorded = Recorded(notes=notes, tool={"py-spy": _program_text()})
    processes: list[ProcessStacks] = []
    loading: dict[str, LoadingCost] = {}
    begin, end = job.window or (0, 0)
    for one in found:
        target = one.sampler.target
        # A training may have been started by another one: its stacks are in its own file.
        own = [stack for stack in one.stacks if stack.process is None or _belongs(stack.process, target, asked)]
        own = [replace(stack, thread=_with_system_name(stack.thread, cpu)) for stack in own]
        trace = job.folder / f"{target.file_stem}{file_names.FOLDED_STACKS}"
        folder.write(trace, folded(own))
        folder.write(trace.with_suffix(file_names.SPEEDSCOPE), speedscope(own, target.name, one.sampler.rate_hz))
        recorded.traces.append(trace)
        ranks = {target.pid: target.rank} if target.rank is not None else {}
        processes += fold(own, ranks, cpu)
        cost = judge_loading(target.pid, own, cpu, states[target.pid], job.watch.median_seconds(end, begin))
        if cost is not None:
            loading[target.name] = cost
    first = found[0].sampler
    report = StackReport(
        source=str(job.folder),
        taken_by=first.taken_by,
        rate_hz=first.rate_hz,
        window_seconds=(end - begin) / 1e9,
        native="native" in job.plan.options and first.taken_by == "py-spy",
        processes=tuple(processes),
        loading=loading,
        notes=tuple(notes),
    )
    from llmtop.stacks.document import stacks_document  # a monitor loads this module to ask what it refuses

    recorded.report = (stacks_document(report), msgspec.to_builtins(report))
    return recorded


def _belongs(process: SampledProcess, target: Target, asked: Mapping[int, Target]) -> bool:
    return process.pid == target.pid or process.pid not in asked


def _with_system_name(thread: ThreadId, cpu: Mapping[int, CpuTime]) -> ThreadId:
    """Return the thread with the system's name, where Python has none and the system's is llmtop's own."""
    known = cpu.get(thread.os_id) if thread.os_id is not None and not thread.name else None
    return thread if known is None or not known.name.startswith("llmtop-") else replace(thread, name=known.name)


def _program_text() -> str:
    try:
        return str(outside.find_py_spy())
    except NotPossibleHere:
        return "not installed"


def _program_check() -> Check:
    try:
        return Check(name="py-spy", ok=True, says=str(outside.find_py_spy()))
    except NotPossibleHere as refusal:
        because, _, command = str(refusal).partition(": ")
        return Check(name="py-spy", ok=False, says=because, command=command)
