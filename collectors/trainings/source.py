"""The attached trainings of this machine: finds them, reads their messages, and returns them as ranks.

One thread searches for sockets and reads from all trainings that answer; each first contact has a short thread of
its own, because a stopped process accepts nothing and would hold the others up.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from pathlib import Path

from msgspec.structs import replace

from collectors.base.gpu_lookup import GpuLookup
from collectors.base.interruptible_sleep import InterruptibleSleep
from collectors.base.source import RanksReading
from collectors.trainings.arrivals import compare_arrivals
from collectors.trainings.job_names import JobNames, Member
from collectors.trainings.poll_rate import CallRate
from collectors.trainings.rank_stats import HISTORY_STEPS
from collectors.trainings.training import Training
from llmtop.errors import LlmtopError, NotPossibleHere
from llmtop.model.snapshot import Rank
from llmtop.protocol import client, socket_dir, wire

EVERY_MS = 400
"""How long a training may hold steps back for a screen, or another reader once a second. Each message costs the
training a wake of the thread that sends it, half a millisecond where other programs have emptied the caches."""
LEAST_EVERY_MS = 100
"""The same for a reader that comes more often."""
UNATTENDED_EVERY_MS = 500
"""The same without a screen, where a snapshot is made every few seconds, as by the exporter."""
_EVERY_SHARE = 0.5
"""Part of the interval between snapshots for which steps may be held back."""
ROUND_SECONDS = 1.0
"""Poll interval of the directory, the processes and, unless `latest()` reads them, the sockets. A reader that woke
up for every message would cost more than the rest of the monitor."""
BUSY_STEPS = 500
BUSY_SECONDS = 0.05
"""Where so many steps came in one round, the next reading follows so soon: a socket holds some 200 KiB."""
GONE_SECONDS = 300.0
"""A training that has ended is still shown for so long."""
REFUSED_RETRY_SECONDS = 30.0
SILENT_RETRY_SECONDS = 5.0
MAX_TRAININGS_PER_USER = 128
"""Processes of one other user that root listens to: an eight-GPU node has eight ranks."""
MAX_OPENING = 64
"""First contacts at once."""
_READS = 8  # from one training in a row, before the others get their turn
_LATEST_SECONDS = 0.5  # for messages from all, before those that have sent are returned
_DRAIN_SECONDS = 0.1  # the same for one that sends more than can be taken in

_SETTLED_NS = 1_000_000_000
"""Time since the last change of a folder after which the next one has another time stamp: those are as coarse as
the kernel's ticks."""
_FolderVersion = tuple[int, int, int, int]
_Opened = tuple[Path, "client.Connection | LlmtopError | client.ConnectionClosed"]


def held_ms(interval: float) -> int:
    """Return for how many ms a training may hold steps back for a reader that comes every `interval` seconds."""
    return round(min(max(_EVERY_SHARE * 1000 * interval, LEAST_EVERY_MS), EVERY_MS))


class StepsSource:
    """The trainings that publish on sockets in a directory (a `RankSource`)."""

    def __init__(
        self,
        directory: Path | None = None,
        gpus: GpuLookup | None = None,
        *,
        owner: int | None = None,
        engines: bool = True,
        every_ms: int = EVERY_MS,
    ) -> None:
        """Watch `directory`.

        Args:
            directory: `socket_dir.runtime_dir()` if not given.
            gpus: what the driver lists, for the GPU of a training that does not name it, and for MFU.
            owner: uid of the other user whose folder it is: then no link in it is followed, nothing in it is
                removed, and no more than `MAX_TRAININGS_PER_USER` of his processes are listened to.
            engines: whether to find out what can capture each process.
            every_ms: how long a training may hold a step back to send it together with the next ones.
        """
        self._directory = socket_dir.runtime_dir() if directory is None else directory
        self._owner = owner
        self._engines = engines
        self._every_ms = every_ms
        self._gpus = gpus or GpuLookup()
        self._round_seconds = ROUND_SECONDS
        self._lock = threading.Lock()
        self._trainings: dict[Path, Training] = {}
        self._notes: dict[Path, str] = {}
        self._retry_at: dict[Path, float] = {}
        self._opening: set[Path] = set()
        self._opened: queue.SimpleQueue[_Opened] = queue.SimpleQueue()
        self._rhythm = CallRate()
        """Rate of the calls of `latest()`."""
        self._busy = False
        """True if some training sent so much last that the next reading is to follow soon."""
        self._job_names = JobNames()
        self._closed = False
        self._wake = InterruptibleSleep()
        self._scanned = False
        self._version: _FolderVersion | None = None
        """Folder as it was when it was listed last; None where it may have changed since then unnoticed."""
        self._found: list[Path] = []
        """Sockets that were in it."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to search for trainings."""
        self._thread = threading.Thread(target=self._run, name="llmtop-steps", daemon=True)
        self._thread.start()

    def set_interval(self, seconds: float) -> None:
        """Do nothing: `latest()` reads what has arrived, however often it is called.

        Args:
            seconds: ignored.
        """

    def set_discovery_interval(self, seconds: float) -> None:
        """Change how often new trainings are searched for, and search at once.

        Args:
            seconds: between searches. `llmtop bench` shortens it so that no short run is missed.
        """
        self._round_seconds = seconds
        self._wake.set()

    def close(self) -> None:
        """Close all connections, and end the searching thread."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def is_settled(self) -> bool:
        """True once each training found at the start has sent a message or has reached its time limit."""
        with self._lock:
            return self._scanned and not self._opening and all(one.has_history for one in self._trainings.values())

    def latest(self) -> RanksReading:
        """Return all trainings by rank, with the steps since the last call: each is handed over once."""
        with self._lock:
            now = time.monotonic()
            until = now + _LATEST_SECONDS
            self._rhythm.record(now)
            for known in self._trainings.values():
                before = known.stats.received
                self._drain(known, 1)
                if known.stats.received - before >= BUSY_STEPS and not self._busy:
                    self._busy = True
                    self._wake.set()
                if time.monotonic() > until:
                    self._rhythm = CallRate()
                    break  # what is left comes with the next round
            names = self._job_names.assign_names(
                Member(path, one.pid, one.stats.hello, live=one.connection is not None or one.is_silent)
                for path, one in self._trainings.items()
            )
            ranks = compare_arrivals(
                (with_job(one.take(self._gpus), one.stats.hello, names[path]), one.stamped)
                for path, one in self._trainings.items()
            )
            notes = tuple(dict.fromkeys(self._notes.values()))
        return RanksReading(ranks=tuple(sorted(ranks, key=_order)), notes=notes)

    def pids(self) -> tuple[int, ...]:
        """This host's pids of the trainings that have not ended."""
        with self._lock:
            return tuple(training.pid for training in self._trainings.values() if not training.is_gone)

    def _run(self) -> None:
        next_round = time.monotonic()
        while not self._closed:
            now = time.monotonic()
            try:
                self._take_opened()
                next_round = min(next_round, now + self._round_seconds)
                if now >= next_round:
                    next_round = now + self._round_seconds
                    self._discover_and_read(now)
                if self._busy or not self._rhythm.is_frequent(now):
                    self._busy = self._read() >= BUSY_STEPS
            except Exception as error:  # noqa: BLE001  one odd training must not end the watch over the others
                self._busy = False
                self._notes[Path()] = f"a fault in llmtop itself (steps: {error!r}); a training may be missing"
            rest = max(0.0, next_round - time.monotonic())
            if self._wake.wait(min(rest, BUSY_SECONDS) if self._busy else rest):
                self._wake.clear()
        with self._lock:
            for training in self._trainings.values():
                training.hang_up()

    def _discover_and_read(self, now: float) -> None:
        found = self._discover()
        with self._lock:
            self._forget(found, now)
        for training in self._trainings.values():  # only this thread adds or removes one
            training.poll_process()
            training.poll_engines()
        for path in found:
            training_there = self._trainings.get(path)
            if (
                path not in self._opening
                and now >= self._retry_at.get(path, 0.0)
                and (training_there is None or training_there.connection is None)
                and len(self._opening) < MAX_OPENING
            ):
                self._opening.add(path)
                threading.Thread(target=self._open, args=(path,), name="llmtop-open", daemon=True).start()
        self._scanned = True

    def _discover(self) -> list[Path]:
        version = _folder_version(self._directory)
        if version is not None and version == self._version:
            return self._found
        self._found, self._version = self._list(), version
        return self._found

    def _list(self) -> list[Path]:
        note = None
        try:
            found = [file.path for file in client.discover(self._directory, self._owner)]
            if self._owner is not None and len(found) > MAX_TRAININGS_PER_USER:
                note = (
                    f"uid {self._owner} has {len(found)} sockets: the first {MAX_TRAININGS_PER_USER} are looked at"
                )
                return found[:MAX_TRAININGS_PER_USER]
            return found
        except NotPossibleHere as error:
            # A folder that is not there is the usual state before the first training, not a fault.
            note = str(error) if self._directory.exists() or self._directory.is_symlink() else None
            return []
        finally:
            with self._lock:
                self._notes.pop(self._directory, None)
                if note is not None:
                    self._notes[self._directory] = note

    def _forget(self, found: list[Path], now: float) -> None:
        """Drop what is over: trainings long gone, and what was noted on sockets that are no more."""
        there = set(found)
        for path in [path for path in self._retry_at if path not in there]:
            del self._retry_at[path]
            self._notes.pop(path, None)
        for path, training in list(self._trainings.items()):
            if training.connection is None and path not in there and path not in self._opening:
                training.end()
            if training.seconds_since_end(now) > GONE_SECONDS or (training.is_silent and path not in there):
                del self._trainings[path]

    def _open(self, path: Path) -> None:
        """Make the first contact; in a thread of its own."""
        outcome: client.Connection | LlmtopError | client.ConnectionClosed
        try:
            outcome = client.Connection.open(path, HISTORY_STEPS, owner=self._owner, every_ms=self._every_ms)
        except client.ConnectionClosed as error:
            self._remove_stale(path)
            outcome = error
        except LlmtopError as error:
            outcome = error
        self._opened.put((path, outcome))
        self._wake.set()

    def _take_opened(self) -> None:
        while not self._opened.empty():
            path, outcome = self._opened.get()
            with self._lock:
                self._opening.discard(path)
                self._notes.pop(path, None)
                self._retry_at.pop(path, None)
                if isinstance(outcome, client.Connection):
                    self._add_connection(path, outcome)
                else:
                    self._note_refusal(path, outcome)
            if path in self._trainings:
                self._trainings[path].poll_engines()

    def _add_connection(self, path: Path, connection: client.Connection) -> None:
        training = self._trainings.get(path)
        if training is None:
            training = self._trainings[path] = Training(connection.host_pid, self._engines)
        training.attach(connection)
        # One process may attach again after exec: what it was before is over.
        for other in [p for p, t in self._trainings.items() if t.pid == training.pid and p != path]:
            if self._trainings[other].connection is None:
                del self._trainings[other]
        self._drain(training, _READS)

    def _note_refusal(self, path: Path, error: LlmtopError | client.ConnectionClosed) -> None:
        now = time.monotonic()
        known = self._trainings.get(path)
        if isinstance(error, client.ConnectionClosed):
            self._retry_at[path] = now + ROUND_SECONDS
            if known is not None:
                known.end()
        elif isinstance(error, client.NoReply):
            self._retry_at[path] = now + SILENT_RETRY_SECONDS
            training = known or Training(error.host_pid or _pid_of(path), self._engines)
            if known is None and training.is_stopped():
                training.read_identity()
                self._trainings[path] = training
            elif known is None:
                self._notes[path] = str(error)
        else:
            self._retry_at[path] = now + REFUSED_RETRY_SECONDS
            self._notes[path] = str(error)

    def _read(self) -> int:
        """Take in what has come; returns the most steps that any one training sent."""
        most = 0
        for training in list(self._trainings.values()):
            with self._lock:
                before = training.stats.received
                self._drain(training, _READS)
                most = max(most, training.stats.received - before)
        return most

    def _drain(self, training: Training, times: int) -> None:
        """Read from one training up to so many times; the caller holds the lock."""
        connection = training.connection
        if connection is None:
            return
        try:
            until = time.monotonic() + _DRAIN_SECONDS
            for _ in range(times):
                messages = connection.receive(0.0)
                training.take_in(messages)
                if not messages or time.monotonic() > until:
                    break
        except client.ConnectionClosed:
            self._drop(training, connection)
        except LlmtopError as error:
            self._drop(training, connection)
            self._notes[connection.path] = str(error)
            self._retry_at[connection.path] = time.monotonic() + REFUSED_RETRY_SECONDS

    def _drop(self, training: Training, connection: client.Connection) -> None:
        training.hang_up()
        if not training.is_alive():
            training.end()
            self._remove_stale(connection.path)

    def _remove_stale(self, path: Path) -> None:
        if self._owner is None:
            client.remove_stale(path)


def _folder_version(folder: Path) -> _FolderVersion | None:
    """Return what changes with the content or the owner of a folder; None if unknown, or just changed."""
    try:
        info = os.lstat(folder)
    except OSError:
        return None
    if abs(time.time_ns() - info.st_ctime_ns) < _SETTLED_NS:
        return None
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns


def _pid_of(path: Path) -> int:
    match = wire.SOCKET_NAME.match(path.name)
    return int(match["pid"]) if match else 0


def with_job(rank: Rank, hello: wire.Hello, job: str) -> Rank:
    """Return the rank with the name of its job, and how that was started."""
    launch = hello.launch
    return replace(
        rank,
        job=job,
        launcher=launch.launcher or None,
        run_id=launch.run_id or None,
        slurm_job_id=launch.slurm_job_id or None,
    )


def _order(rank: Rank) -> tuple[str, float, int]:
    return rank.host, float("inf") if rank.rank is None else rank.rank, rank.pid
