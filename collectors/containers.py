"""What a container does to the numbers: limits that the machine's totals hide, and pids of another namespace."""

from __future__ import annotations

import os
from pathlib import Path

INIT_PID_NAMESPACE = "pid:[4026531836]"
"""Linux's PROC_PID_INIT_INO (include/linux/proc_ns.h): the namespace in which pids are the host's."""
_GIB = 1 << 30


def limit_notes(
    memory_total: int | None, cores: int | None, cgroup: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")
) -> tuple[str, ...]:
    """Sentences on limits of this process's cgroup (v2 or v1) that are lower than what the machine has."""
    notes = []
    memory, quota = _limits(cgroup, proc)
    if memory is not None and memory_total is not None and memory < memory_total:
        notes.append(f"{memory / _GIB:.1f} GiB of the machine's {memory_total / _GIB:.1f} GiB of memory")
    if quota is not None and cores is not None and quota < cores:
        notes.append(f"{quota:.3g} of the machine's {cores} CPUs")
    return tuple(f"this container may use {note}; the figures shown are the machine's" for note in notes)


def pids_are_the_hosts(proc: Path = Path("/proc")) -> bool:
    """Whether this process sees the pids that the driver speaks of: it is in no pid namespace of its own."""
    try:
        return os.readlink(proc / "self/ns/pid") == INIT_PID_NAMESPACE
    except OSError:
        return True


def _limits(cgroup: Path, proc: Path) -> tuple[int | None, float | None]:
    """The lowest memory limit in bytes and the lowest CPU quota in cores from this cgroup up to the root."""
    memory: list[int] = []
    quota: list[float] = []
    for base, path in _places(cgroup, proc):
        for folder in (path, *path.parents):
            memory += _memory(folder)
            quota += _quota(folder)
            if folder == base:
                break
    return min(memory, default=None), min(quota, default=None)


def _places(cgroup: Path, proc: Path) -> list[tuple[Path, Path]]:
    """Where the controllers' files of this process lie, each with the root of its hierarchy."""
    places = []
    for line in (_read(proc / "self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # v2
            places.append((cgroup, cgroup / path.lstrip("/")))
        v1 = {"memory", "cpu"} & set(controllers.split(","))
        places += [(cgroup / one, cgroup / one / path.lstrip("/")) for one in v1]
    return places


def _memory(folder: Path) -> list[int]:
    texts = (_read(folder / "memory.max"), _read(folder / "memory.limit_in_bytes"))
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
