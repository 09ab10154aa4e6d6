"""A disk that is slow for some processes only: the kernel's own limit of what a cgroup may read (blkio, "
"io.max)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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


def _remove(group: Path) -> None:
    """It goes when the last of its processes has."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)
