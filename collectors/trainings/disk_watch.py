"""Sizes of checkpoints and free space of their disks, asked for in a thread of its own.

A network file system may not reply for minutes, and a call of the kernel to it cannot be interrupted. So a
query runs in a daemon thread, whose answer is taken when it is there. While one does not reply, its path is not
asked for again, and after `MOST_STUCK` of them nothing is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

AGAIN_SECONDS = 30.0
ANSWER_SECONDS = 10.0
"""Time without a reply after which the known values are too old to be shown."""
MOST_STUCK = 4
MOST_IN_FOLDER = 20_000
"""Most files of a checkpoint's folder; one with more has no size."""
MOST_PATHS = 256


@dataclass(frozen=True)
class DiskUse:
    """Facts on a path; None where it is not visible here."""

    size_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None


class _Query:
    """One path's last answer, and the query under way."""

    __slots__ = ("asked_at", "is_running", "use", "version")

    def __init__(self) -> None:
        self.use: DiskUse | None = None
        self.version = 0
        self.asked_at = float("-inf")
        self.is_running = False


class DiskWatch:
    """Answers at once with what the last query of a path found."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}

    def get(self, path: str, version: int) -> DiskUse | None:
        """Return what is known of a path, and ask anew if that is due.

        Args:
            path: absolute.
            version: changes whenever what lies there was written.
        """
        now = time.monotonic()
        with self._lock:
            query = self._queries.get(path)
            if query is None:
                if len(self._queries) >= MOST_PATHS:
                    self._queries.pop(next(iter(self._queries)))
                query = self._queries[path] = _Query()
            if query.is_running:
                return query.use if now - query.asked_at < ANSWER_SECONDS else None
            is_due = query.version != version or now - query.asked_at >= AGAIN_SECONDS
            stuck = sum(one.is_running for one in self._queries.values())
            if is_due and stuck < MOST_STUCK:
                query.is_running, query.asked_at, query.version = True, now, version
                threading.Thread(target=self._ask, args=(path, query), name="checkpoint disk", daemon=True).start()
            return query.use

    def _ask(self, path: str, query: _Query) -> None:
        use = read_use(path)
        with self._lock:
            query.use, query.is_running = use, False


def read_use(path: str) -> DiskUse:
    """Return size and free space; this may block for as long as the file system does not reply."""
    try:
        there = path if os.path.lexists(path) else os.path.dirname(path)
        disk = os.statvfs(there)
    except OSError:
        return DiskUse()
    return DiskUse(
        size_bytes=_size(path),
        free_bytes=disk.f_bavail * disk.f_frsize,
        total_bytes=disk.f_blocks * disk.f_frsize,
    )


def _size(path: str) -> int | None:
    try:
        if not os.path.isdir(path):
            return os.stat(path).st_size
        total = count = 0
        for size in _sizes(path):
            total, count = total + size, count + 1
            if count > MOST_IN_FOLDER:
                return None
    except OSError:
        return None
    return total


def _sizes(path: str) -> Iterator[int]:
    for folder, _, names in os.walk(path):
        for name in names:
            yield os.lstat(os.path.join(folder, name)).st_size


DISKS = DiskWatch()
"""Shared by all trainings of this monitor."""
