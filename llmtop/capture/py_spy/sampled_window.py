"""A window during which the states and the CPU times of threads are sampled, whatever records their stacks."""

from __future__ import annotations

import time
from collections.abc import Sequence

from llmtop.capture.base.job import CaptureJob
from llmtop.capture.base.wait_for_window import wait_window
from llmtop.capture.py_spy import cpu_times
from llmtop.capture.py_spy.thread_states import StateSampler
from llmtop.stacks.fold import CpuTime


def sample_window(
    job: CaptureJob, pids: Sequence[int], states: list[StateSampler]
) -> tuple[list[str], dict[int, CpuTime]]:
    """Wait for the end of the window; returns notes on it, and the share of it that each thread was on a CPU.

    Args:
        job: of the capture; its window is set.
        pids: of the trainings.
        states: gets a sampler for each of them, which is closed at the end of the window; the caller closes them
            again where this raises.
    """
    states += (StateSampler([pid]) for pid in pids)
    first = cpu_times.read_cpu_times(pids)
    begun = time.time_ns()
    job.stage("record")
    notes = wait_window(job, begun)
    job.window = (begun, time.time_ns())
    job.stage("stop")
    last = cpu_times.read_cpu_times(pids)
    for sampler in states:
        sampler.close()
    return notes, cpu_times.cpu_shares(first, last)
