"""Kernel states of the threads of a training and of its child processes, sampled from /proc.

/proc/PID/task/TID/stat shows whether a thread runs (R), sleeps (S) or waits for a device (D), wchan in which
function of the kernel, syscall with which arguments. Each sample takes some 0.1 ms of the monitor's time per
thread. Where the kernel tells no wchan (some sandboxes) or syscall (another user's process), only R, S and D are
known.
"""

from __future__ import annotations

import os
import platform
import re
import threading
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from llmtop.capture.py_spy.cpu_times import descendant_pids
from llmtop.system import cgroups, procfs

if TYPE_CHECKING:
    from llmtop.loading.seen import Waits

RATE_HZ = 20.0
_MAX_THREADS = 32
"""Most sampled threads of the training's own process; of the others only the first thread is sampled."""
_RESCAN_SAMPLES = 10
_REMOTE = re.compile(r"nfs|rpc|ceph|cifs|smb|fuse|request_wait_answer|lustre|ptlrpc|ldlm|p9_|afs|gfs|beegfs|gpfs")
_WAITS: tuple[tuple[re.Pattern[str], Waits], ...] = (
    (re.compile(r"lock_inode_wait|flock_lock|posix_lock|fcntl_setlk|locks_lock"), "lock"),
    (_REMOTE, "network"),
    (re.compile(r"futex"), "futex"),
    (re.compile(r"sk_wait|tcp|inet|unix_stream|unix_dgram|skb|sock|wait_for_more_packets"), "socket"),
    (re.compile(r"pipe"), "pipe"),
    (re.compile(r"poll|select|ep_"), "poll"),
    (re.compile(r"nanosleep|hrtimer"), "sleep"),
    (re.compile(r"do_wait|kernel_wait"), "child"),
)
_DISK = re.compile(
    r"io_schedule|folio|page|blk|bio|buffer|filemap|ext4|xfs|btrfs|jbd2|throtl|swap|dio|iomap|balance_dirty|rq_qos"
)
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())


def read_state(pid: int, thread: int) -> Waits | None:
    """Return the state of a thread at this instant; None if it has ended."""
    state = procfs.thread_state(pid, thread)
    if state is None or state == "R":
        return None if state is None else "runs"
    channel = procfs.wait_channel(pid, thread)
    if state == "D":
        if _REMOTE.search(channel):
            return "network"
        return "disk" if not channel or _DISK.search(channel) else "device"
    for pattern, waits in _WAITS:
        if pattern.search(channel):
            return _classify_futex(pid, thread) if waits == "futex" else waits
    return "asleep"


def _classify_futex(pid: int, thread: int) -> Waits:
    """Return the reason of a futex wait. A thread that waits for the GIL checks every 5 ms: its wait has a
    timeout, the fourth argument of futex(2)."""
    number, *arguments = procfs.system_call(pid, thread) or (None,)
    return "gil" if number == _FUTEX and any(arguments[3:4]) else "futex"


class StateSampler:
    """Samples the threads of some processes, `RATE_HZ` times per second, in a thread of its own."""

    def __init__(self, pids: Collection[int]) -> None:
        """Begin."""
        self._pids = tuple(pids)
        self._lock = threading.Lock()
        self._seen: dict[int, Counter[Waits]] = {}
        self._first = storage_bytes(self._pids)
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="llmtop-states", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        looks, threads = 0, list[tuple[int, int]]()
        while not self._ended.wait(1.0 / RATE_HZ):
            if looks % _RESCAN_SAMPLES == 0:
                threads = list_threads(self._pids)
            looks += 1
            for pid, thread in threads:
                waits = read_state(pid, thread)
                if waits is not None:
                    with self._lock:
                        self._seen.setdefault(thread, Counter())[waits] += 1

    def counts(self) -> dict[int, Counter[Waits]]:
        """Number of samples by state, for each thread."""
        with self._lock:
            return {thread: counted.copy() for thread, counted in self._seen.items()}

    def read_bytes_per_s(self) -> float | None:
        """Return the bytes that the processes read from storage since the begin; None where the kernel does not
        report it."""
        return self._rate(0)

    def written_bytes_per_s(self) -> float | None:
        """Write rate to storage, likewise."""
        return self._rate(1)

    def _rate(self, which: int) -> float | None:
        now = storage_bytes(self._pids)
        both = [now[pid][which] - before[which] for pid, before in self._first.items() if pid in now]
        return sum(both) / max(time.monotonic() - self._began, 1e-3) if both else None

    def close(self) -> None:
        """End."""
        self._ended.set()
        self._thread.join(timeout=5.0)


def list_threads(pids: Collection[int]) -> list[tuple[int, int]]:
    """(process, thread) of all to be looked at: first threads, and of the processes asked for some more."""
    found = [(pid, thread) for pid in pids for thread in procfs.thread_ids(pid)[:_MAX_THREADS]]
    return [*found, *((child, child) for child in descendant_pids(pids))]


def storage_bytes(pids: Collection[int]) -> dict[int, tuple[int, int]]:
    """Return bytes read from and written to storage by each process and its children, without hidden processes."""
    found = {}
    for pid in {*pids, *descendant_pids(pids)}:
        with suppress(psutil.Error, OSError, RuntimeError, ValueError):
            counters = psutil.Process(pid).io_counters()
            found[pid] = counters.read_bytes, counters.write_bytes
    return found


def usable_cores(pid: int) -> float:
    """Return how many CPUs a process may use: by its affinity, and by the quota of its cgroup and those above."""
    try:
        most = float(len(os.sched_getaffinity(pid)))
    except OSError:
        most = float(os.cpu_count() or 1)
    quota = cgroups.read_limits(pid).cpus
    return most if quota is None else min(most, quota)
