"""A disk that is slow for some processes only: the kernel's own limit of what a cgroup may read (blkio, "
"io.max)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

BYTES_PER_S = 1_000_000
_CGROUPS = Path("/sys/fs/cgroup")


@contextmanager
def slow_reads(folder: Path, name: str) -> Iterator[Path | None]:
    """A cgroup whose processes read that slowly from the disk of a folder; None where none can be made."""
    device = os.stat(folder).st_dev
    numbers = f"{os.major(device)}:{os.minor(device)}"
    limits = (
        (_CGROUPS / "blkio", "blkio.throttle.read_bps_device", f"{numbers} {BYTES_PER_S}"),
        (_CGROUPS, "io.max", f"{numbers} rbps={BYTES_PER_S}"),
    )
    for base, file, line in limits:
        group = base / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / file).write_text(line)
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            _remove(group)
        return
    yield None


def put(group: Path, pids: Iterable[int]) -> None:
    """Move processes there."""
    for pid in pids:
        with suppress(OSError):
            (group / "cgroup.procs").write_text(str(pid))


def held_back(pids: Sequence[int], seconds: float) -> bool:
    """Whether one of these processes comes to wait for the disk; False if they read freely for so long instead.

    Some virtual disks accept a limit and read on; the evidence is that more was read than the limit allows.

    Raises:
        AssertionError: within `seconds` they neither waited for the disk nor read more than the limit allows.
    """
    read = [_read_bytes(pid) for pid in pids]
    started = time.monotonic()
    while (passed := time.monotonic() - started) < seconds:
        if any(psutil.Process(pid).status() == psutil.STATUS_DISK_SLEEP for pid in pids):
            return True
        time.sleep(0.005)
    rate = (sum(_read_bytes(pid) for pid in pids) - sum(read)) / passed
    assert rate > 2 * BYTES_PER_S, f"{rate:.0f} bytes/s were read, and nobody waited for the disk"
    return False


def _read_bytes(pid: int) -> int:
    """What a process asked its files for (rchar): what the page cache answers counts as well."""
    return int(psutil.Process(pid).io_counters().read_chars)


def _remove(group: Path) -> None:
    """It goes when the last of its processes has."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)
