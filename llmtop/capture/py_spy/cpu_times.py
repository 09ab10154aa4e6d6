"""CPU time of each thread of some processes, from the kernel's counters.

That distinguishes a working thread from one that waits in the same line.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import psutil

from llmtop.stacks.fold import CpuTime
from llmtop.system import procfs


@dataclass(frozen=True)
class CpuReading:
    """CPU times read at one instant."""

    at: float
    """Seconds, monotonic."""
    threads: dict[int, tuple[int, int, str, int]]
    """Times by thread: ns on a CPU and ns waiting for one since it began, its name, and its process."""


def read_cpu_times(pids: Collection[int]) -> CpuReading:
    """Read the counters of all threads of these processes, and of those that they have started."""
    threads: dict[int, tuple[int, int, str, int]] = {}
    for pid in {*pids, *descendant_pids(pids)}:
        for thread in procfs.thread_ids(pid):
            times = procfs.thread_cpu_ns(pid, thread)
            if times is not None:  # a thread ends at any time
                threads[thread] = *times, procfs.thread_name(pid, thread), pid
    return CpuReading(time.monotonic(), threads)


def cpu_shares(first: CpuReading, last: CpuReading) -> dict[int, CpuTime]:
    """Return the share of the time between that each thread was on a CPU; of those that were there both times."""
    passed = max((last.at - first.at) * 1e9, 1.0)
    return {
        thread: CpuTime(
            100.0 * max(spent - before[0], 0) / passed, 100.0 * max(waited - before[1], 0) / passed, name, pid
        )
        for thread, (spent, waited, name, pid) in last.threads.items()
        if (before := first.threads.get(thread)) is not None
    }


def descendant_pids(pids: Collection[int]) -> list[int]:
    """Return the processes that these have started, and those that these have, by pid."""
    found: set[int] = set()
    for pid in pids:
        with suppress(psutil.Error):
            found.update(child.pid for child in psutil.Process(pid).children(recursive=True))
    return sorted(found)
