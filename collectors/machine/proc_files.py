"""Facts on one process from the kernel's two most useful files, each read once.

psutil gives the same, but creates a new process object each time to check for a reused pid, and resolves the
user's name: for eight trainings that cost more than all other reads.
"""

from __future__ import annotations

import os
import pwd
from functools import lru_cache
from typing import NamedTuple

import psutil

from llmtop.system import procfs

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
    """Fields of proc_pid_stat(5)."""

    started_ticks: int
    """When it started, since boot: with the pid it names one process for good."""
    state: str
    """State in psutil's words."""
    cpu_seconds: float
    """CPU time that it has used, in all its threads."""
    threads: int
    rss_bytes: int


class Status(NamedTuple):
    """Fields of proc_pid_status(5)."""

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
    try:
        fields = procfs.stat_fields(pid)
    except OSError as error:
        raise _psutil_error(pid, error) from None
    try:
        return Stat(
            started_ticks=int(fields[19]),
            state=_STATES.get(fields[0], "?"),
            cpu_seconds=(int(fields[11]) + int(fields[12])) * _TICK_SECONDS,
            threads=int(fields[17]),
            rss_bytes=int(fields[21]) * _PAGE_BYTES,
        )
    except (IndexError, ValueError):
        raise psutil.NoSuchProcess(pid) from None


def read_status(pid: int) -> Status:
    """Read the other; raises the same."""
    try:
        uids, pids = procfs.status_fields(pid, "Uid", "NSpid")
    except OSError as error:
        raise _psutil_error(pid, error) from None
    if not uids:
        raise psutil.NoSuchProcess(pid)
    return Status(_user(int(uids[0])), int(pids[-1]) if len(pids) > 1 else None)


def _psutil_error(pid: int, error: OSError) -> psutil.Error:
    """Return psutil's exception in place of the system's."""
    return psutil.AccessDenied(pid) if isinstance(error, PermissionError) else psutil.NoSuchProcess(pid)


@lru_cache(maxsize=256)
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
