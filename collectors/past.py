"""The past of a live feed: its snapshots in a recording without a name, so that a screen can go back to any.

The file is unlinked as soon as it is open, so whatever ends the monitor leaves nothing behind. It is some
recordings that share the room: when the newest is full, the oldest goes.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from llmtop.errors import LlmtopError
from llmtop.format import size
from llmtop.model.snapshot import Snapshot
from llmtop.recording.reader_writer import Reader, Writer
from llmtop.recording.steady import MonotonicTime
from llmtop.system import procfs

LIMIT_BYTES = 64 << 20
IN_MEMORY_BYTES = 4 << 20
"""Limit without a disk that has room: some minutes, in memory."""
LEAST_SECONDS = 0.9
"""Shortest time between kept snapshots: of faster ones, one a second is kept."""
PARTS = 4
_EFFORT = 3
"""Effort of the packing: 16 % more bytes than with 6, in less than half the time."""
FREE_TIMES = 4
"""A disk that has less room than so many times the limit is left to others."""

_READ_TOGETHER, _PAUSE_SECONDS = 16, 0.002
"""Snapshots that are read at once, some 3 ms of processor time for eight GPUs, and the pause after them."""


class _RecordingPart(NamedTuple):
    """One of the recordings."""

    writer: Writer
    reader: Reader
    first: float
    """Unix time of its first snapshot."""
    in_memory: bool


class SnapshotHistory:
    """Shown snapshots, to be shown again. The feed's thread writes, any thread reads."""

    def __init__(self, folder: Path | None = None, limit_bytes: int = LIMIT_BYTES) -> None:
        """Start empty; files are made when the first snapshot comes.

        Args:
            folder: where the file is made; that for temporary files by default.
            limit_bytes: the most that it takes of the disk.
        """
        self._folder = Path(tempfile.gettempdir()) if folder is None else folder
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._parts: list[_RecordingPart] = []
        self._clock = MonotonicTime()
        self._newest: float | None = None
        self._closed = False
        self.shortened: str | None = None
        """Why the past is shorter than it could be, as a sentence; None where it is not."""

    def write(self, snapshot: Snapshot) -> None:
        """Store a snapshot. What cannot be stored is reported in `shortened`; nothing is raised."""
        with self._lock:
            if self._closed:
                return
            now = self._clock.time_of(snapshot)
            if self._newest is not None and now < self._newest + LEAST_SECONDS:
                return  # or another boot's: a time that occurs twice is no key
            self._newest = now
            why = self._write_snapshot(snapshot, now)
            if why is not None and self.shortened is None:
                self._to_memory(why)
                self._write_snapshot(snapshot, now)

    def _write_snapshot(self, snapshot: Snapshot, now: float) -> str | None:
        """Write a snapshot; returns why it could not be."""
        try:
            self._part(snapshot, now).writer.write(snapshot)
        except (LlmtopError, OSError) as error:
            return str(error)
        return None

    def _part(self, snapshot: Snapshot, now: float) -> _RecordingPart:
        newest = self._parts[-1] if self._parts else None
        moved = newest is not None and newest.in_memory != (self.shortened is not None)
        if newest is None or moved or newest.writer.bytes_written >= self._limit // PARTS:
            if len(self._parts) >= PARTS:
                _close(self._parts.pop(0))
            self._parts.append(self._new_recording(snapshot, now))
            if newest is not None:  # one open file less: from now on it is read alone
                with contextlib.suppress(LlmtopError, OSError):
                    newest.writer.close()
        return self._parts[-1]

    def _new_recording(self, snapshot: Snapshot, now: float) -> _RecordingPart:
        """Return an empty recording that has no name."""
        if self.shortened is None:
            free = shutil.disk_usage(self._folder).free
            if free < FREE_TIMES * self._limit:
                raise OSError(f"only {size(free)} are free at {self._folder}")
            number, name = tempfile.mkstemp(prefix="llmtop-", dir=self._folder)
            opened = Path(name)
        else:
            number = os.memfd_create("llmtop-past")
            opened = Path(procfs.descriptor_path(number))
        file = io.FileIO(number, "r+")
        try:
            reading = opened.open("rb")
        except OSError:
            file.close()
            raise
        finally:
            if self.shortened is None:
                opened.unlink(missing_ok=True)
        called = self._folder / "the past"
        writer = Writer(called, host=snapshot.host.name, file=file, effort=_EFFORT)
        return _RecordingPart(writer, Reader(called, file=reading), now, self.shortened is not None)

    def _to_memory(self, why: str) -> None:
        """Continue in memory; data on the disk stays readable."""
        self.shortened = f"Rewinding reaches back some minutes only, from memory: {why}"
        self._limit = IN_MEMORY_BYTES
        for part in self._parts:
            with contextlib.suppress(LlmtopError, OSError):
                part.writer.flush()

    def snapshot_at(self, at: float) -> tuple[float, Snapshot] | None:
        """Return the last snapshot at or before this unix time, else the first; with its time. None without
        any."""
        with self._lock:
            for number, part in enumerate(reversed(self._parts)):
                oldest = number + 1 == len(self._parts)
                if part.first > at and not oldest:
                    continue
                with contextlib.suppress(LlmtopError, OSError):
                    part.writer.flush()
                    part.reader.refresh()
                    place = part.reader.position_before(at - part.first) or 0.0
                    found = next(part.reader.snapshots(place), None)
                    if found is not None:
                        return part.first + found[0], found[1]
        return None

    def samples(self, until: float) -> Iterator[tuple[float, Snapshot]]:
        """Yield (unix time, snapshot) of all that is from before an instant: the newest recording first, each from
        its oldest snapshot on. It pauses, so that other threads run.

        Args:
            until: unix time.
        """
        with self._lock:
            parts = [part for part in reversed(self._parts) if part.first < until]
        for part in parts:
            snapshots: Iterator[tuple[float, Snapshot]] | None = None
            read: list[tuple[float, Snapshot]] = []
            while snapshots is None or read:
                read = []
                with (
                    self._lock,
                    contextlib.suppress(LlmtopError, OSError, ValueError),
                ):  # it has made room meanwhile
                    if snapshots is None:
                        part.writer.flush()
                        part.reader.refresh()
                        snapshots = part.reader.snapshots()
                    read = list(itertools.islice(snapshots, _READ_TOGETHER))
                if snapshots is None:
                    break
                for position, snapshot in read:
                    if part.first + position < until:
                        yield part.first + position, snapshot
                time.sleep(_PAUSE_SECONDS)

    @property
    def first_time(self) -> float | None:
        """Unix time of the oldest snapshot that is still there; None without any."""
        with self._lock:
            return self._parts[0].first if self._parts else None

    def close(self) -> None:
        """Drop all data."""
        with self._lock:
            self._closed = True
            for part in self._parts:
                _close(part)
            self._parts.clear()


def _close(part: _RecordingPart) -> None:
    part.reader.close()
    with contextlib.suppress(LlmtopError, OSError):
        part.writer.close()
