"""Facts of one process from its two main files in /proc, each read once.

psutil gives the same, but creates a new process object each time to check for a reused pid, and resolves the
user's name: for eight trainings that cost more than all other reads.
"""

from __future__ import annotations

import os
import pwd
from functools import lru_cache
from typing import NamedTuple

import psutil

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATES = {
    "R": psutil.STATUS_RUNNING,
    "S": psutil.STATUS_SLEEPING,
    "D": psutil.STATUS_DISK_SLEEP,
    "T": psutil.STATUS_STOPPED,
    "t": psutil.STATUS_TRACING_STOP,
    "Z": psutil.STATUS_ZOMBIE,
    "X": psutil.STATUS_DEAD,
    "x": psutil.STATUS_DEAD,
    "K": "wake-kill",
    "W": psutil.STATUS_WAKING,
    "I": psutil.STATUS_IDLE,
    "P": psutil.STATUS_PARKED,
}


class Stat(NamedTuple):
    """/proc/PID/stat (proc_pid_stat(5))."""

    started_ticks: int
    """When it started, since boot: with the pid it names one process for good."""
    state: str
    """In psutil's words."""
    cpu_seconds: float
    """That it has used, in all its threads."""
    threads: int
    rss_bytes: int


class Status(NamedTuple):
    """/proc/PID/status."""

    user: str
    """Its name, else the uid."""
    inner_pid: int | None
    """The pid in the process's innermost namespace where it is in one of its own."""


def read_stat(pid: int) -> Stat:
    """Read the one.

    Raises:
        psutil.NoSuchProcess: there is no such process (any more).
        psutil.AccessDenied: it may not be read.
    """
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    try:
        return Stat(
            started_ticks=int(fields[19]),
            state=_STATES.get(fields[0].decode(), "?"),
            cpu_seconds=(int(fields[11]) + int(fields[12])) * _TICK_SECONDS,
            threads=int(fields[17]),
            rss_bytes=int(fields[21]) * _PAGE_BYTES,
        )
    except (IndexError, ValueError):
        raise psutil.NoSuchProcess(pid) from None


def read_status(pid: int) -> Status:
    """Read the other; raises the same."""
    text = _read(pid, "status")
    uids, pids = _field(text, b"\nUid:"), _field(text, b"\nNSpid:")
    if not uids:
        raise psutil.NoSuchProcess(pid)
    return Status(_user(int(uids[0])), int(pids[-1]) if len(pids) > 1 else None)


def _read(pid: int, name: str) -> bytes:
    try:
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 1 << 16)
        finally:
            os.close(descriptor)
    except PermissionError:
        raise psutil.AccessDenied(pid) from None
    except OSError:
        raise psutil.NoSuchProcess(pid) from None


def _field(text: bytes, name: bytes) -> list[bytes]:
    return text.partition(name)[2].partition(b"\n")[0].split()


@lru_cache(maxsize=256)
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
