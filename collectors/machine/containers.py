"""Limits of a container or a scheduler that the machine's totals hide, and pids of another namespace."""

from __future__ import annotations

from llmtop.system import procfs
from llmtop.system.cgroups import CgroupLimits

INIT_PID_NAMESPACE = "pid:[4026531836]"
"""Linux's PROC_PID_INIT_INO (include/linux/proc_ns.h): the namespace in which pids are the host's."""
_GIB = 1 << 30


def limit_notes(
    memory_total: int | None,
    cores: int | None,
    limits: CgroupLimits,
    usable: int | None = None,
) -> tuple[str, ...]:
    """Sentences on limits of this process that are lower than what the machine has.

    Args:
        memory_total: the machine's memory in bytes.
        cores: how many CPUs the machine has.
        limits: of the cgroup of this process.
        usable: on how many CPUs this process may run, by its affinity and cpuset.
    """
    notes = []
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
    """Return how many CPUs a program may use by affinity and quota; None where that is all there are, or
    unknown."""
    known = [float(limit) for limit in (usable, quota) if limit is not None]
    allowed = min(known, default=None)
    return None if allowed is None or cores is None or allowed >= cores else allowed


def _share(part: int, total: int) -> str:
    return f"{part / _GIB:.1f} GiB of the machine's {total / _GIB:.1f} GiB of memory"


def has_host_pids() -> bool:
    """Return True if this process sees the pids that the driver speaks of: it is in no pid namespace of its
    own."""
    return procfs.namespace("self", "pid") in (INIT_PID_NAMESPACE, "")
