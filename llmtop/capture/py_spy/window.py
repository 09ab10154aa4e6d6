"""A recording of Python stacks, by py-spy or by the training itself, and its files and report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import msgspec

from llmtop.capture.base import folder
from llmtop.capture.base.job import CaptureJob, Recorded, Target
from llmtop.capture.base.wait_for_window import recording_seconds
from llmtop.capture.py_spy import inside, outside, program
from llmtop.capture.py_spy.loading import judge_loading
from llmtop.capture.py_spy.sampled_window import sample_window
from llmtop.capture.py_spy.thread_states import StateSampler
from llmtop.errors import NotPossibleHere
from llmtop.model.snapshot import LoadingCost
from llmtop.naming import file_names
from llmtop.stacks.document import stacks_document
from llmtop.stacks.fold import CpuTime, fold
from llmtop.stacks.model import ProcessStacks, StackReport
from llmtop.stacks.samples import SampledProcess, Stack, ThreadId, folded, speedscope
from llmtop.system import procfs


class _SelfSampling:
    """A training that samples itself: what `outside.PySpyRecording` is for py-spy."""

    taken_by: Literal["training"] = "training"
    rate_hz = inside.RATE_HZ

    def __init__(self, job: CaptureJob, target: Target, why: str) -> None:
        assert target.socket is not None
        seconds = math.ceil(3 * (job.plan.seconds or recording_seconds(job))) + 30
        self.target = target
        self.notes = [
            f"{why}. So the training reported the stacks of its own threads; those of processes that it started, "
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


def record(job: CaptureJob) -> Recorded:
    """Record a window: `Engine.record`."""
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
        if not target.can_sample_itself or not procfs.is_alive(target.pid):
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
        return str(program.find_py_spy())
    except NotPossibleHere:
        return "not installed"
