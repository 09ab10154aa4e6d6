"""Processes on the GPUs: the driver's list joined with facts of the operating system."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeVar

import msgspec
import psutil

from collectors.base.periodic_thread import PeriodicThread
from collectors.base.source import GpuUse
from collectors.machine.containers import has_host_pids
from collectors.machine.host import SHORTEST_SECONDS, STALE_SECONDS
from collectors.machine.proc_files import Stat, Status, read_stat, read_status
from llmtop.model.snapshot import Process
from llmtop.redaction.secret_filter import words_without_secrets
from llmtop.system import procfs
from llmtop.system.wall_clock import WallClock

BUDGET = 0.02
"""Share of time spent on reading processes, without attached trainings. Of thousands each is read less often, and
its rates are means over the time between."""
FOREMOST = 48
"""This many are read before the others: those with most memory on a GPU, which a screen shows first."""
WHOLE_ROUNDS, WHOLE_SECONDS = 2, 1.0
"""The first rounds look at all, for so long at most each: what they are, and their first rates."""
COMMAND_SECONDS = 10.0
"""How long a command line holds before it is read again."""
COMMAND_LENGTH = 4096
"""Longer command lines are cut: some carry a whole configuration."""

T = TypeVar("T")
_Made = tuple["_ProcessInfo | None", "GpuUse | None", Process]
"""A row at the end, and what it was made from."""


class _ProcessInfo(msgspec.Struct, frozen=True):
    """Facts of the operating system about a process; None where not permitted, as for another user's I/O."""

    user: str | None = None
    command: str | None = None
    container_pid: int | None = None
    cpu_pct: float | None = None
    rss_bytes: int | None = None
    threads: int | None = None
    io_read_bytes_per_s: float | None = None
    io_write_bytes_per_s: float | None = None
    state: str | None = None
    started_at: float | None = None


class ProcessSource:
    """A ProcessSource: one row a (process, GPU), and one for each attached process that is on no GPU.

    The driver may report the host's pids. Inside a container these are unknown or another process's, so a pid is
    trusted only if that process has an NVIDIA device open. Otherwise the row has the driver's values alone.
    """

    def __init__(
        self,
        uses: Callable[[], Iterable[GpuUse]],
        attached: Callable[[], Iterable[int]] = tuple,
        interval: float = 1.0,
        *,
        trusted: bool | None = None,
    ) -> None:
        """Prepare to poll every `interval` seconds, at least `SHORTEST_SECONDS`.

        Args:
            uses: the driver's list as known now; asked from this source's thread.
            attached: pids of attached trainings; from this source's thread as well.
            interval: seconds between looks.
            trusted: whether the driver's pids are those that this process sees; found out when not given.
        """
        self._uses, self._attached = uses, attached
        self._trusted = has_host_pids() if trusted is None else trusted
        self._interval = max(interval, SHORTEST_SECONDS)
        self._thread = PeriodicThread("processes", self.read_once, self._interval)
        self._wall_clock = WallClock()
        self._offset_ns = self._wall_clock.offset_ns()
        self._looked_at: float | None = None
        self._known: dict[int, _TrackedProcess] = {}
        self._made: dict[tuple[int, str | None], _Made] = {}
        """Rows of the last poll by pid and GPU: most stay the same."""
        self._rounds = 0
        self._rows: tuple[Process, ...] = ()

    def start(self) -> None:
        """Start the polling thread."""
        self._thread.start()

    def set_interval(self, seconds: float) -> None:
        """Change the poll interval.

        Args:
            seconds: between rounds; less than `SHORTEST_SECONDS` counts as that. The CPU budget of a round grows
                with it.
        """
        self._interval = max(seconds, SHORTEST_SECONDS)
        self._thread.set_seconds(self._interval)

    def latest(self) -> tuple[Process, ...]:
        """Return the rows of the last poll, sorted by pid.

        Reading the command line of a process that is stuck in the kernel can block for ever; the rows then have
        the driver's values alone.
        """
        if self._looked_at is not None and time.monotonic() - self._looked_at > 3 * self._interval + STALE_SECONDS:
            return tuple(_row(use.pid, None, use) for use in self._uses())
        return self._rows

    def read_at(self) -> float | None:
        """Return the end of the last poll in monotonic seconds."""
        return self._looked_at

    def close(self) -> None:
        """End the polling thread; waits half a second for it at most."""
        self._thread.stop()
        self._thread.join(0.5)

    def read_once(self) -> None:
        """Read all processes in use; its thread does it once per interval."""
        offset_ns = self._wall_clock.offset_ns()
        if offset_ns != self._offset_ns:  # psutil keeps when a process began, by the wall clock of then
            self._known, self._offset_ns, self._rounds = {}, offset_ns, 0
        uses, attached = tuple(self._uses()), frozenset(self._attached())
        on_gpu = {use.pid for use in uses}
        unattached = frozenset() if self._trusted else frozenset(on_gpu - attached)
        known = self._known
        self._known = {pid: known.get(pid) or _TrackedProcess(pid) for pid in attached | on_gpu}
        self._read_all(attached, uses, unattached)
        made: list[tuple[int, GpuUse | None]] = [(use.pid, use) for use in uses]
        made += [(pid, None) for pid in attached - on_gpu if self._known[pid].facts is not None]
        before, self._made = self._made, {}
        for pid, use in made:
            self._build_row(pid, use, before)
        rows = [row for _, _, row in self._made.values()]
        self._rows = tuple(sorted(rows, key=lambda row: (row.pid, row.gpu_uuid or "")))
        self._rounds += 1
        self._looked_at = time.monotonic()

    def _read_all(self, attached: frozenset[int], uses: tuple[GpuUse, ...], unattached: frozenset[int]) -> None:
        """Read the attached processes, and as many of the others as there is time for: half of it for the
        foremost, the rest for those read longest ago."""
        for pid in attached:
            self._known[pid].read(check_gpu=False)
        began = time.monotonic()
        seconds = WHOLE_SECONDS if self._rounds < WHOLE_ROUNDS else BUDGET * self._interval
        by_memory = sorted(uses, key=lambda use: -(use.mem_bytes or 0))
        others = dict.fromkeys(use.pid for use in by_memory if use.pid not in attached)
        foremost = list(others)[:FOREMOST]
        oldest = sorted(others, key=lambda pid: self._known[pid].looked_at)
        for pids, share in ((foremost, 0.5), (oldest, 1.0)):
            for pid in pids:
                if self._known[pid].looked_at >= began:  # by the first of the two loops
                    continue
                self._known[pid].read(check_gpu=pid in unattached)
                if time.monotonic() - began > share * seconds:
                    break

    def _build_row(self, pid: int, use: GpuUse | None, before: dict[tuple[int, str | None], _Made]) -> None:
        facts, key = self._known[pid].facts, (pid, None if use is None else use.gpu_uuid)
        old = before.get(key)
        if old is not None and old[0] is facts and old[1] == use:
            self._made[key] = old
        else:
            self._made[key] = facts, use, _row(pid, facts, use)


class _TrackedProcess:
    """A pid and its process between polls: rates need the totals of the last poll."""

    def __init__(self, pid: int) -> None:
        self.facts: _ProcessInfo | None = None
        """Facts of the last poll. None before it, and when the process has ended or is not the one that the
        driver means."""
        self.looked_at = -math.inf
        """Monotonic seconds."""
        self._pid = pid
        self._process: psutil.Process | None = None
        self._started_ticks: int | None = None
        """Start time by which the pid is known to be still that process's."""
        self._cpu: tuple[float, float] | None = None
        """Monotonic seconds, and what of a CPU it had used by then."""
        self._has_gpu: bool | None = None
        self._io: tuple[float, int, int] | None = None
        self._status: tuple[float, Status | None] = (-math.inf, None)
        """`_command`'s time when it was read, and its user and inner pid."""
        self._command: tuple[float, str | None] = (-math.inf, None)
        """Monotonic seconds of when it was read, and the command line."""

    def read(self, *, check_gpu: bool) -> None:
        """Read everything that this user may read; with `check_gpu` only if the process uses a GPU."""
        try:
            stat = read_stat(self._pid)
            if self._process is None or stat.started_ticks != self._started_ticks:
                self._forget()
                self._process, self._started_ticks = psutil.Process(self._pid), stat.started_ticks
            self.facts = None if check_gpu and not self._uses_gpu() else self._read(self._process, stat)
        except psutil.NoSuchProcess:  # also so for a process of another container, or under hidepid
            self._forget()
            self.facts = None
        except psutil.AccessDenied:
            self.facts = _ProcessInfo()
        self.looked_at = time.monotonic()

    def _forget(self) -> None:
        self._process = self._started_ticks = self._has_gpu = self._io = self._cpu = None
        self._command = self._status = -math.inf, None

    def _uses_gpu(self) -> bool:
        """Return True if this process has an NVIDIA device open, as everything that the driver lists does."""
        if not self._has_gpu:
            self._has_gpu = procfs.uses_gpu(self._pid)
        return self._has_gpu

    def _read(self, process: psutil.Process, stat: Stat) -> _ProcessInfo:
        """Read its figures anew, those in `stat` left aside.

        Raises:
            psutil.NoSuchProcess: it has ended.
        """
        status = self._read_status(stat)
        read, written = self._io_rates()
        return _ProcessInfo(
            user=None if status is None else _encodable(status.user),
            command=self._command_line(process, stat),
            container_pid=None if status is None else status.inner_pid,
            cpu_pct=self._cpu_pct(stat),
            rss_bytes=stat.rss_bytes,
            threads=stat.threads,
            io_read_bytes_per_s=read,
            io_write_bytes_per_s=written,
            state=stat.state,
            started_at=_value_or_none(process.create_time),
        )

    def _read_status(self, stat: Stat) -> Status | None:
        """Return its user and inner pid, read anew with its command: a program may change its user."""
        at, known = self._status
        if known is None or at != self._command[0] or stat.state == psutil.STATUS_ZOMBIE:
            known = _value_or_none(lambda: read_status(self._pid))
            self._status = self._command[0], known
        return known

    def _cpu_pct(self, stat: Stat) -> float | None:
        """Percent of one CPU since the last poll; None at the first."""
        before, now = self._cpu, (time.monotonic(), stat.cpu_seconds)
        self._cpu = now
        if before is None or now[0] <= before[0]:
            return None
        return round(100.0 * max(0.0, now[1] - before[1]) / (now[0] - before[0]), 1)

    def _command_line(self, process: psutil.Process, stat: Stat) -> str | None:
        """Its command, read anew now and then: a program may rename itself, or start another in its place."""
        now = time.monotonic()
        at, known = self._command
        if known is None or stat.state == psutil.STATUS_ZOMBIE or now - at >= COMMAND_SECONDS:
            self._command = now, _command(process)
        return self._command[1]

    def _io_rates(self) -> tuple[float | None, float | None]:
        try:
            counted = procfs.io_bytes(self._pid)
        except (OSError, ValueError):
            self._io = None
            return None, None
        before, now = self._io, (time.monotonic(), *counted)
        self._io = now
        if before is None or now[0] <= before[0]:
            return None, None
        seconds = now[0] - before[0]
        return max(0, now[1] - before[1]) / seconds, max(0, now[2] - before[2]) / seconds


def _row(pid: int, facts: _ProcessInfo | None, use: GpuUse | None) -> Process:
    known = msgspec.structs.asdict(facts or _ProcessInfo())
    if use is None:
        return Process(pid=pid, **known)
    return Process(
        pid=pid,
        gpu_uuid=use.gpu_uuid,
        gpu_mem_bytes=use.mem_bytes,
        gpu_sm_pct=use.sm_pct,
        gpu_computes=use.computes,
        **known,
    )


def _value_or_none(read: Callable[[], T]) -> T | None:
    """Return the value that this user may read, else None.

    Raises:
        psutil.NoSuchProcess: the process ended.
    """
    try:
        return read()
    except psutil.ZombieProcess:  # a NoSuchProcess by class, but it is there, with little left to read
        return None
    except (psutil.AccessDenied, OSError, KeyError, ValueError, NotImplementedError):
        return None


def _command(process: psutil.Process) -> str | None:
    """Return the command line without secrets, or the name in brackets where there is none (zombies, kernel
    threads)."""
    words = _value_or_none(process.cmdline)
    if words:
        return _encodable(_displayed_command(tuple(words))[:COMMAND_LENGTH])
    name = _value_or_none(process.name)
    return None if name is None else _encodable(f"[{name}]")


@lru_cache(maxsize=512)
def _displayed_command(words: tuple[str, ...]) -> str:
    """Return a command line without secrets; text far beyond the displayed length is not scanned."""
    kept, room = [], 2 * COMMAND_LENGTH
    for word in words:
        if room <= 0:
            break
        kept.append(word[:room])
        room -= len(word) + 1
    return " ".join(words_without_secrets(kept))


def _encodable(text: str | None) -> str | None:
    """Return a text without the half characters by which Python keeps bytes that are no UTF-8: JSON cannot hold
    them."""
    return None if text is None else text.encode("utf-8", "replace").decode("utf-8")
