"""Limits of a process's cgroup, of both versions."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from llmtop.system import procfs

_MOUNT = Path("/sys/fs/cgroup")


class CgroupLimits(NamedTuple):
    """The lowest limits of a process's cgroup (v2 or v1), from its own up to the root; None where none is."""

    memory: int | None
    """Bytes beyond which it is killed."""
    memory_high: int | None
    """Bytes beyond which the kernel takes memory away from it, and slows it down."""
    cpus: float | None
    """The CPU time that it may use, in CPUs."""


def read_limits(pid: procfs.Pid = "self", mount: Path = _MOUNT) -> CgroupLimits:
    """Return the limits of a process's cgroup, and of those above it.

    Args:
        pid: of the process.
        mount: where the cgroups are mounted.
    """
    memory: list[int] = []
    high: list[int] = []
    quota: list[float] = []
    for base, path in _folders(pid, mount):
        for folder in (path, *path.parents):
            memory += _bytes(folder, "memory.max", "memory.limit_in_bytes")
            high += _bytes(folder, "memory.high")
            quota += _quota(folder)
            if folder == base:
                break
    return CgroupLimits(min(memory, default=None), min(high, default=None), min(quota, default=None))


def _folders(pid: procfs.Pid, mount: Path) -> list[tuple[Path, Path]]:
    """Return where the controllers' files of a process lie, each with the root of its hierarchy."""
    places = []
    for line in procfs.text(pid, "cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:  # v2
            places.append((mount, mount / path.lstrip("/")))
        v1 = {"memory", "cpu"} & set(controllers.split(","))
        places += [(mount / one, mount / one / path.lstrip("/")) for one in v1]
    return places


def _bytes(folder: Path, *names: str) -> list[int]:
    texts = [_text(folder / name) for name in names]
    return [int(text) for text in texts if text is not None and text.strip().isdigit()]


def _quota(folder: Path) -> list[float]:
    text = _text(folder / "cpu.max")
    if text is None:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        text = f"{quota} {period}" if quota and period else ""
    parts = text.split()
    if len(parts) == 2 and all(part.isdigit() for part in parts) and int(parts[1]):
        return [int(parts[0]) / int(parts[1])]
    return []


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None
