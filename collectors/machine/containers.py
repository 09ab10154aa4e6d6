"""What a container or a scheduler does to the numbers: limits that the machine's totals hide, and pids of another
namespace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

INIT_PID_NAMESPACE = "pid:[4026531836]"
"""Linux's PROC_PID_INIT_INO (include/linux/proc_ns.h): the namespace in which pids are the host's."""
_GIB = 1 << 30


class ContainerLimits(NamedTuple):
    """The lowest limits of a process's cgroup (v2 or v1), from its own up to the root; None where none is."""

    memory: int | None
    """Bytes beyond which it is killed."""
    memory_high: int | None
    """Bytes beyond which the kernel takes memory away from it, and slows it down."""
    cpus: float | None
    """The CPU time that it may use, in CPUs."""


def limit_notes(
    memory_total: int | None,
    cores: int | None,
    cgroup: Path = Path("/sys/fs/cgroup"),
    proc: Path = Path("/proc"),
    usable: int | None = None,
) -> tuple[str, ...]:
    """Sentences on limits of this process that are lower than what the machine has.

    Args:
        memory_total: the machine's memory in bytes.
        cores: how many CPUs the machine has.
        cgroup: where the cgroups are mounted.
        proc: where the process file system is mounted.
        usable: on how many CPUs this process may run, by its affinity and cpuset.
    """
    notes = []
    limits = read_limits(cgroup, proc)
    memory, high = limits.memory, limits.memory_high
    if memory is not None and memory_total is not None and memory < memory_total:
        notes.append(f"this container may use {_share(memory, memory_total)}")
    if high is not None and memory_total is not None and high < min(memory or high + 1, memory_total):
        notes.append(f"this container is slowed down beyond {_share(high, memory_total)} (memory.high)")
    if limits.cpus is not None and cores is not None and limits.cpus < cores:
        notes.append(f"this container may use {limits.cpus:.3g} of the machine's {cores} CPUs")
    if usable is not None and cores is not None and usable < cores:
        notes.append(f"programs here may run on {usable} of the machine's {cores} CPUs (affinity or cpuset)")
    return tuple(f"{note}; the figures shown are the machine's" for note in notes)


def cpus_allowed(usable: int | None, quota: float | None, cores: int | None) -> float | None:
    """How many CPUs a program may use by affinity and quota; None where that is all there are, or unknown."""
    known = [float(limit) for limit in (usable, quota) if limit is not None]
    allowed = min(known, default=None)
    return None if allowed is None or cores is None or allowed >= cores else allowed


def _share(part: int, total: int) -> str:
    return f"{part / _GIB:.1f} GiB of the machine's {total / _GIB:.1f} GiB of memory"


def has_host_pids(proc: Path = Path("/proc")) -> bool:
    """Return True if the driver's pids are valid here: this process is in no pid namespace of its own."""
    try:
        return os.readlink(proc / "self/ns/pid") == INIT_PID_NAMESPACE
    except OSError:
        return True


def read_limits(cgroup: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> ContainerLimits:
    """The limits of this process's cgroup."""
    memory: list[int] = []
    high: list[int] = []
    quota: list[float] = []
    for base, path in _cgroup_folders(cgroup, proc):
        for folder in (path, *path.parents):
            memory += _bytes(folder, "memory.max", "memory.limit_in_bytes")
            high += _bytes(folder, "memory.high")
            quota += _quota(folder)
            if folder == base:
                break
    return ContainerLimits(min(memory, default=None), min(high, default=None), min(quota, default=None))


def _cgroup_folders(cgroup: Path, proc: Path) -> list[tuple[Path, Path]]:
    """Where the controllers' files of this process lie, each with the root of its hierarchy."""
    places = []
    for line in (_read(proc / "self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # v2
            places.append((cgroup, cgroup / path.lstrip("/")))
        v1 = {"memory", "cpu"} & set(controllers.split(","))
        places += [(cgroup / one, cgroup / one / path.lstrip("/")) for one in v1]
    return places


def _bytes(folder: Path, *names: str) -> list[int]:
    texts = [_read(folder / name) for name in names]
    return [int(text) for text in texts if text is not None and text.strip().isdigit()]


def _quota(folder: Path) -> list[float]:
    text = _read(folder / "cpu.max")
    if text is None:
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        text = f"{quota} {period}" if quota and period else ""
    parts = text.split()
    if len(parts) == 2 and all(part.isdigit() for part in parts) and int(parts[1]):
        return [int(parts[0]) / int(parts[1])]
    return []


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None
