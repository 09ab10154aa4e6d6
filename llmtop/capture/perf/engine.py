"""perf: where a training and its workers are on a CPU, down to libraries in C and the kernel, and why they are "
"not."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from llmtop.capture.base.engine import SPEEDSCOPE, Check, Engine, Refusal
from llmtop.capture.base.job import CaptureJob, Recorded, Target
from llmtop.capture.perf import program
from llmtop.naming import file_names
from llmtop.nsys_cli.tool import Option
from llmtop.system import procfs

if TYPE_CHECKING:
    from llmtop.capture.py_spy.thread_states import StateSampler


class PerfEngine(Engine):
    """Samples and switches by Debian's linux-perf, with py-spy's Python stacks of the same window beside them."""

    name = "perf"
    description = "where the CPUs' time goes down to C and the kernel, and why threads are off them; no GPU"
    options = (
        Option(
            "frame-pointers",
            "unwinds stacks by frame pointers: whole where Python and its libraries were built with them",
            "nothing; without it the kernel copies 8 KiB of stack a sample",
            False,
        ),
    )
    open_with = SPEEDSCOPE

    def refusal(self, target: Target) -> Refusal | None:
        """See `Engine.refusal`."""
        refused = program.refusal()
        if refused is not None:
            return refused
        owner = procfs.status(target.pid).get("Uid", "").split()
        if owner and not program.may_trace_kernel() and int(owner[0]) != os.geteuid():
            return Refusal(f"process {target.pid} belongs to uid {owner[0]}", "sudo llmtop")
        return None

    def warning(self, target: Target, options: Collection[str] = ()) -> str:
        """See `Engine.warning`."""
        return (
            ""
            if program.may_trace_kernel()
            else "without the kernel's switches: why threads are off a CPU stays unknown"
        )

    def checks(self) -> list[Check]:
        """See `Engine.checks`."""
        from llmtop.capture.perf import bpf

        return [program.check(), *bpf.checks()]

    def viewer_file(self, trace: Path) -> Path:
        """See `Engine.viewer_file`."""
        return trace.with_suffix(file_names.SPEEDSCOPE)

    def record(self, job: CaptureJob) -> Recorded:
        """See `Engine.record`."""
        # Here and not above: a monitor loads this module to ask whether perf can capture a process.
        from llmtop.capture.perf.recording import PerfRecording
        from llmtop.capture.perf.window_report import WindowReport
        from llmtop.capture.py_spy.sampled_window import sample_window

        job.stage("prepare")
        pids = [target.pid for target in job.plan.targets]
        recordings: list[PerfRecording] = []
        states: list[StateSampler] = []
        job.stage("start")
        try:
            for target in job.plan.targets:
                recordings.append(PerfRecording(job, target))
                recordings[-1].begin(job)
            notes, cpu = sample_window(job, pids, states)
            for recording in recordings:
                recording.end()
            job.stage("analyse", "reading what perf recorded")
            recorded = Recorded(notes=notes, tool={"perf": program.find_perf()})
            window = WindowReport(job, recorded, cpu)
            for recording, sampler in zip(recordings, states, strict=True):
                window.add(recording, sampler)
            recorded.report = window.report()
            return recorded
        finally:
            for sampler in states:
                sampler.close()
            for recording in recordings:
                recording.close()
