"""Report of one window that perf recorded: stacks on the CPUs and off them, with py-spy's stacks of Python."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from llmtop.capture.base import folder
from llmtop.capture.base.job import CaptureJob, Recorded, Target
from llmtop.capture.perf import trampoline
from llmtop.capture.perf.recording import RATE_HZ, PerfRecording
from llmtop.capture.perf.script import PerfStacks
from llmtop.capture.py_spy.loading import judge_loading
from llmtop.capture.py_spy.thread_states import StateSampler
from llmtop.document.model import Document
from llmtop.model.snapshot import LoadingCost
from llmtop.naming import file_names
from llmtop.stacks.document import stacks_document
from llmtop.stacks.fold import CpuTime, fold
from llmtop.stacks.model import Counters, ProcessStacks, StackReport, ThreadStacks
from llmtop.stacks.samples import Stack, folded, speedscope


class WindowReport:
    """Measurements of all trainings in the window, input of the report."""

    def __init__(self, job: CaptureJob, recorded: Recorded, cpu: Mapping[int, CpuTime]) -> None:
        self._job, self._recorded, self._cpu = job, recorded, cpu
        self._processes: list[ProcessStacks] = []
        self._counters: dict[str, Counters] = {}
        self._loading: dict[str, LoadingCost] = {}
        self._notes: dict[str, None] = {}

    def add(self, recording: PerfRecording, states: StateSampler) -> None:
        """Read what one training left, and write its files."""
        target, job = recording.target, self._job
        self._counters[target.name] = recording.read_counters()
        found = recording.read_stacks()
        python = recording.python_stacks(job)
        self._write(target, found, python)
        ranks = {target.pid: target.rank} if target.rank is not None else {}
        self._processes += _merge_processes(
            [
                fold(python, ranks, self._cpu),
                _label_on_cpu(fold(found.on_cpu, ranks, self._cpu)),
                _label_off_cpu(fold(found.off_cpu, ranks, {})),
            ]
        )
        begin, end = job.window or (0, 0)
        cost = judge_loading(target.pid, python, self._cpu, states, job.watch.median_seconds(end, begin))
        if cost is not None:
            self._loading[target.name] = cost
        notes = [*recording.notes]
        if not recording.switches:
            notes.append(
                "perf may not see the kernel here (sudo sysctl kernel.perf_event_paranoid=-1), so it is not "
                "known in which stack threads were off a CPU"
            )
        if not found.has_python and not trampoline.is_active(target.pid):
            notes.append(
                "perf sees no functions of Python: that needs Python 3.12 and newer started with "
                "PYTHONPERFSUPPORT=1 or -X perf; py-spy's stacks of the same window have them"
            )
        self._notes |= dict.fromkeys(notes)

    def _write(self, target: Target, found: PerfStacks, python: list[Stack]) -> None:
        for kind, stacks, rate in (
            ("perf", found.on_cpu, RATE_HZ),
            ("off-cpu", found.off_cpu, 1e6),
            ("python", python, 100.0),
        ):
            if not stacks:
                continue
            trace = self._job.folder / f"{target.file_stem}.{kind}{file_names.FOLDED_STACKS}"
            folder.write(trace, folded(stacks))
            folder.write(trace.with_suffix(file_names.SPEEDSCOPE), speedscope(stacks, target.name, rate))
            self._recorded.traces.append(trace)

    def report(self) -> tuple[Document, object]:
        """Return it as a document and as data."""
        begin, end = self._job.window or (0, 0)
        self._recorded.notes += self._notes
        report = StackReport(
            engine="perf",
            source=str(self._job.folder),
            taken_by="linux-perf",
            rate_hz=RATE_HZ,
            window_seconds=(end - begin) / 1e9,
            native=True,
            processes=tuple(self._processes),
            counters=self._counters,
            loading=self._loading,
            notes=tuple(self._recorded.notes),
        )
        return stacks_document(report), msgspec.to_builtins(report)


def _label_on_cpu(processes: tuple[ProcessStacks, ...]) -> tuple[ProcessStacks, ...]:
    return _label_threads(processes, "on a CPU", "samples")


def _label_off_cpu(processes: tuple[ProcessStacks, ...]) -> tuple[ProcessStacks, ...]:
    return _label_threads(processes, "off it", "microseconds")


def _label_threads(processes: tuple[ProcessStacks, ...], where: str, unit: str) -> tuple[ProcessStacks, ...]:
    """With names that say what their trees are of. What perf saw on a CPU worked; what is off it waits, but "
    "for the"
    threads that llmtop has."""
    renamed = []
    for process in processes:
        threads = tuple(_thread(one, where, unit) for one in process.threads)
        renamed.append(replace(process, threads=threads))
    return tuple(renamed)


def _thread(one: ThreadStacks, where: str, unit: str) -> ThreadStacks:
    first = one.thread.partition(",")[0]
    kind = (
        one.kind
        if one.kind == "llmtop"
        else "working"
        if unit == "samples" or first == "MainThread"
        else "waiting"
    )
    return msgspec.structs.replace(one, thread=f"{one.thread}, {where}", kind=kind, unit=unit)


def _merge_processes(each: list[tuple[ProcessStacks, ...]]) -> list[ProcessStacks]:
    """Return the same process's threads in one; what perf saw on CPUs comes first."""
    by_pid: dict[int | None, list[ProcessStacks]] = {}
    for processes in each:
        for process in processes:
            by_pid.setdefault(process.pid, []).append(process)
    merged = []
    for same in by_pid.values():
        threads = [thread for process in same for thread in process.threads]
        threads.sort(key=lambda one: ("MainThread" not in one.thread, "on a CPU" not in one.thread))
        merged.append(replace(same[0], threads=tuple(threads)))
    merged.sort(key=lambda one: one.started_by is not None)
    return merged
