"""Which cost of loading makes a training wait: looks at its stacks and states put together for `decide`."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

from llmtop.capture.base.parent_death import dies_with_this_thread
from llmtop.capture.py_spy import cpu_times, outside
from llmtop.capture.py_spy.stacks import ThreadStack
from llmtop.capture.py_spy.thread_states import StateLooks, cores
from llmtop.errors import UnusableInput
from llmtop.model.snapshot import LoadingCost
from llmtop.stacks.fold import CpuTime
from llmtop.stacks.samples import SampledProcess, Stack, ThreadId, read_folded

BURST_SECONDS = 3
BURST_HZ = 20
"""A glance at a training that waits for data: some 60 looks a thread, of which most are in its loader."""
_LOOKS_KEPT = 60
_PATIENCE_SECONDS = 20.0


def judge(
    pid: int,
    stacks: Sequence[Stack],
    cpu: Mapping[int, CpuTime],
    looks: StateLooks | None = None,
    step_seconds: float | None = None,
) -> LoadingCost | None:
    """What a training's loader costs; None where it does not wait for it.

    Args:
        pid: of the training.
        stacks: of its threads, and of the processes that it started.
        cpu: by thread, over the same time.
        looks: at the states of the same threads, over the same time.
        step_seconds: its mean step.
    """
    from llmtop.loading.cost import decide
    from llmtop.loading.seen import LoaderSamples
    from llmtop.loading.source import SourceFiles

    sources = SourceFiles(root_of(pid))
    return decide(
        LoaderSamples(
            pid=pid,
            stacks=tuple(stacks),
            states={} if looks is None else looks.seen(),
            cpu=cpu,
            cores=cores(pid),
            step_seconds=step_seconds,
            read_bytes_per_s=None if looks is None else looks.read_bytes_per_s(),
            written_bytes_per_s=None if looks is None else looks.written_bytes_per_s(),
            workers=tuple(cpu_times.started_by([pid])),
        ),
        sources.calls,
        sources.is_generator,
    )


def root_of(pid: int) -> str:
    """Where its files are to be found: in a container of its own, below /proc/PID/root."""
    root = f"/proc/{pid}/root"
    try:
        same = os.path.samefile(root, "/")
    except OSError:
        return ""
    return "" if same else root


def burst(pid: int, step_seconds: float | None = None) -> LoadingCost | None:
    """Look for `BURST_SECONDS` from outside, without a pause; nothing of it stays on disk or runs on.

    Raises:
        NotPossibleHere: py-spy is not there, or may not read the process.
    """
    outside.check(pid)
    kept = os.memfd_create("llmtop-loading")
    looks = StateLooks([pid])
    first = cpu_times.count([pid])
    # Unasked, and of trainings that may be short of CPUs: it takes what they leave.
    command = [
        "nice",
        "-n",
        "19",
        str(outside.find()),
        "record",
        "--pid",
        str(pid),
        "--duration",
        str(BURST_SECONDS),
    ]
    command += ["--rate", str(BURST_HZ), "--format", "raw", "--threads", "--idle", "--subprocesses"]
    command += ["--full-filenames", "--nonblocking", "--output", f"/dev/fd/{kept}"]
    quiet = subprocess.DEVNULL
    try:
        with suppress(subprocess.TimeoutExpired, OSError):
            subprocess.run(
                command, stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=(kept,), timeout=_PATIENCE_SECONDS,
                check=False, start_new_session=True,
                preexec_fn=dies_with_this_thread(),
            )  # fmt: skip
        cpu = cpu_times.between(first, cpu_times.count([pid]))
        with os.fdopen(os.dup(kept), "rb") as file:
            file.seek(0)
            stacks = read_folded(file.read().decode(errors="replace"))
        return judge(pid, stacks, cpu, looks, step_seconds)
    except UnusableInput:
        return None  # it was cut short: the process has ended
    finally:
        looks.close()
        os.close(kept)


class Watching:
    """One training that is looked at again and again: what its looks come to."""

    def __init__(self, pid: int) -> None:
        """Begin to look at the states of its threads."""
        self.pid = pid
        self._looks: deque[list[Stack]] = deque(maxlen=_LOOKS_KEPT)
        self._states = StateLooks([pid])
        self._first = cpu_times.count([pid])

    def add(self, threads: Sequence[ThreadStack]) -> LoadingCost | None:
        """Take one more look at its stacks; what its loader costs by all of them."""
        self._looks.append([_stack(self.pid, thread) for thread in threads])
        cpu = cpu_times.between(self._first, cpu_times.count([self.pid]))
        return judge(self.pid, [stack for look in self._looks for stack in look], cpu, self._states)

    def close(self) -> None:
        """Look no more."""
        self._states.close()


def _stack(pid: int, thread: ThreadStack) -> Stack:
    process = SampledProcess(pid) if thread.worker is None else SampledProcess(thread.worker, started_by=pid)
    return Stack(process, ThreadId(thread.os_id, thread.name), thread.frames[::-1], 1)
