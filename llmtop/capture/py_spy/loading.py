"""Samples a training's stacks and thread states for `decide`, which finds the cost of loading."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

from llmtop.capture.base.parent_death import signal_on_thread_death
from llmtop.capture.py_spy import cpu_times, outside
from llmtop.capture.py_spy.stacks import ThreadStack
from llmtop.capture.py_spy.thread_states import StateSampler, usable_cores
from llmtop.errors import UnusableInput
from llmtop.model.snapshot import LoadingCost
from llmtop.stacks.fold import CpuTime
from llmtop.stacks.samples import SampledProcess, Stack, ThreadId, read_folded
from llmtop.system import procfs

BURST_SECONDS = 3
BURST_HZ = 20
"""Sampling time for a training that waits for data: some 60 samples per thread, most of them in its loader."""
_MAX_SAMPLES = 60
_PATIENCE_SECONDS = 20.0


def judge_loading(
    pid: int,
    stacks: Sequence[Stack],
    cpu: Mapping[int, CpuTime],
    states: StateSampler | None = None,
    step_seconds: float | None = None,
) -> LoadingCost | None:
    """Return what a training's loader costs; None where the training does not wait for it.

    Args:
        pid: of the training, in this process's pid namespace.
        stacks: of its threads and of the processes that it started.
        cpu: CPU time by thread, over the same time as `stacks`.
        states: kernel states of the same threads over the same time; None: not sampled.
        step_seconds: mean step time, from which the saving per step is computed; None: not known.
    """
    from llmtop.loading.cost import decide
    from llmtop.loading.seen import LoaderSamples
    from llmtop.loading.source import SourceFiles

    sources = SourceFiles(procfs.root_folder(pid))
    return decide(
        LoaderSamples(
            pid=pid,
            stacks=tuple(stacks),
            states={} if states is None else states.counts(),
            cpu=cpu,
            cores=usable_cores(pid),
            step_seconds=step_seconds,
            read_bytes_per_s=None if states is None else states.read_bytes_per_s(),
            written_bytes_per_s=None if states is None else states.written_bytes_per_s(),
            workers=tuple(cpu_times.descendant_pids([pid])),
        ),
        sources.calls,
        sources.is_generator,
    )


def sample_burst(pid: int, step_seconds: float | None = None) -> LoadingCost | None:
    """Sample the loader for `BURST_SECONDS` from outside, without pausing the training.

    Args:
        pid: of the training, in this process's pid namespace.
        step_seconds: mean step time; None: not known, and then no saving per step is given.

    Returns:
        None where the training does not wait for its loader. Nothing stays on disk, and no process runs on.

    Raises:
        NotPossibleHere: py-spy is missing, or may not read the process.
    """
    outside.check_access(pid)
    kept = os.memfd_create("llmtop-loading")
    looks = StateSampler([pid])
    first = cpu_times.read_cpu_times([pid])
    # Unasked, and of trainings that may be short of CPUs: it takes what they leave.
    command = ["nice", "-n", "19", *outside.record_command(pid, BURST_SECONDS, BURST_HZ, f"/dev/fd/{kept}")]
    quiet = subprocess.DEVNULL
    try:
        with suppress(subprocess.TimeoutExpired, OSError):
            subprocess.run(
                command, stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=(kept,), timeout=_PATIENCE_SECONDS,
                check=False, start_new_session=True,
                preexec_fn=signal_on_thread_death(),
            )  # fmt: skip
        cpu = cpu_times.cpu_shares(first, cpu_times.read_cpu_times([pid]))
        with os.fdopen(os.dup(kept), "rb") as file:
            file.seek(0)
            stacks = read_folded(file.read().decode(errors="replace"))
        return judge_loading(pid, stacks, cpu, looks, step_seconds)
    except UnusableInput:
        return None  # it was cut short: the process has ended
    finally:
        looks.close()
        os.close(kept)


class LoadingMonitor:
    """Repeated samples of one training and the loading cost that they show."""

    def __init__(self, pid: int) -> None:
        """Start to sample the states of its threads."""
        self.pid = pid
        self._samples: deque[list[Stack]] = deque(maxlen=_MAX_SAMPLES)
        self._states = StateSampler([pid])
        self._first = cpu_times.read_cpu_times([pid])

    def add(self, threads: Sequence[ThreadStack]) -> LoadingCost | None:
        """Add one sample of its stacks and return the loading cost from all samples."""
        self._samples.append([_stack(self.pid, thread) for thread in threads])
        cpu = cpu_times.cpu_shares(self._first, cpu_times.read_cpu_times([self.pid]))
        return judge_loading(self.pid, [stack for sample in self._samples for stack in sample], cpu, self._states)

    def close(self) -> None:
        """Stop sampling."""
        self._states.close()


def _stack(pid: int, thread: ThreadStack) -> Stack:
    process = SampledProcess(pid) if thread.worker is None else SampledProcess(thread.worker, started_by=pid)
    return Stack(process, ThreadId(thread.os_id, thread.name), thread.frames[::-1], 1)
