"""A recording: a stream of snapshots in a file.

The file is a series of gzip members (`llmtop/recording/members.py`), so `zcat` shows it: first one JSON object
that describes it (`Header`), then snapshots, one JSON object a line, some of them to a member. A reader can seek,
and a recorder that is killed loses only the member that it had not yet written.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import time
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

import msgspec

from llmtop.errors import LlmtopError, NotPossibleHere, UnusableInput
from llmtop.format import encode_json
from llmtop.model.snapshot import SCHEMA, Snapshot, from_json, to_json
from llmtop.recording.header import FORMAT, MAGIC, Header
from llmtop.recording.members import (
    MAX_MEMBER_BYTES,
    MEMBER_BEGINS,
    Head,
    RecordingMember,
    head_at,
    is_cut_in_head,
    is_head_doubtful,
    is_recording,
    is_time,
    pack,
    salvage,
    unpack,
)
from llmtop.recording.steady import MonotonicTime
from llmtop.system.inputs import Limits, nesting_depth, open_input
from llmtop.version import __version__

MEMBER_SNAPSHOTS = 10
MEMBER_SECONDS = 5.0
MEMBER_BYTES = 1 << 20
"""A member is written when it holds so many snapshots or bytes or spans so much time, whichever comes first."""
MAX_EVIDENCE_DEPTH = 8
"""Deepest evidence of an alert, which has any form; that of llmtop's rules is flat."""
_SEARCHED_BYTES = 1 << 20
_EXACT = 1e-6
"""Seconds; unix times as floats are good to 0.2 µs."""
_UNREADABLE = (msgspec.DecodeError, zlib.error, struct.error, ValueError, RecursionError, OSError)
"""Errors of unpacking and decoding a damaged member."""


class Writer:
    """Writes a recording. Not safe for several threads."""

    def __init__(
        self,
        path: str | Path,
        *,
        host: str,
        overwrite: bool = False,
        file: io.FileIO | None = None,
        effort: int = 6,
        environment: dict[str, Any] | None = None,
    ) -> None:
        """Create the file.

        Args:
            path: of the file; with `file` only what it is called.
            host: the machine that the snapshots are of.
            overwrite: write over one that exists.
            file: an empty one that is open already and has no name any more; closed by `close()`.
            effort: of the packing, 1 to 9.
            environment: facts of the machine for the header.

        Raises:
            UnusableInput: it exists and `overwrite` is not set, or it is no file that keeps what is written.
            NotPossibleHere: it cannot be created or written.
        """
        self.path = Path(path)
        self._effort = effort
        self._lines: list[bytes] = []
        self._bytes = 0
        self._first = self._last = 0.0
        self._clock = MonotonicTime()
        self._file = self._create_file(overwrite) if file is None else file
        header = Header(created=time.time(), host=host, environment=environment)
        try:
            if self._file.isatty():
                raise _discards_writes(self.path)
            self._write_whole(pack(encode_json(header) + b"\n", header.created, header.created, 0))
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                raise _discards_writes(self.path)
        except LlmtopError:
            self._file.close()
            raise

    def _create_file(self, overwrite: bool) -> io.FileIO:
        if self.path.is_fifo() or self.path.is_socket():
            raise _discards_writes(self.path)  # opening a FIFO would wait for a reader
        try:
            return io.FileIO(self.path, "w" if overwrite else "x")
        except FileExistsError:
            raise UnusableInput(f"{self.path} exists; give another name, or --force to write over it") from None
        except OSError as error:
            raise NotPossibleHere(f"{self.path} cannot be written: {error.strerror}") from None

    @property
    def bytes_written(self) -> int:
        """How large the file is by now."""
        return self._file.tell()

    def write(self, snapshot: Snapshot) -> None:
        """Add a snapshot; it is on disk when its member is full, or at `flush()`.

        Raises:
            NotPossibleHere: the disk is full or the file cannot be written; what was whole before it stays.
        """
        now = self._clock.time_of(snapshot)
        since_last = abs(now - self._last)
        if not self._lines:
            self._first = now
        line = to_json(snapshot)
        self._lines.append(line)
        self._bytes += len(line)
        self._last = now
        span = max(abs(self._last - self._first), since_last)
        if len(self._lines) >= MEMBER_SNAPSHOTS or self._bytes >= MEMBER_BYTES or span >= MEMBER_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is pending as a member.

        Raises:
            NotPossibleHere: as `write`.
        """
        if self._lines:
            lines, self._lines, self._bytes = self._lines, [], 0
            self._write_whole(pack(b"\n".join(lines) + b"\n", self._first, self._last, len(lines), self._effort))

    def close(self) -> None:
        """Write what is pending and close.

        Raises:
            NotPossibleHere: as `write`; the file is closed all the same.
        """
        try:
            self.flush()
        finally:
            self._file.close()

    def _write_whole(self, data: bytes) -> None:
        """Write all of it or leave the file as it was, so that a full disk leaves no half member behind."""
        start = self._file.tell()
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            try:
                os.ftruncate(self._file.fileno(), start)
                self._file.seek(start)
            except OSError:
                pass  # a reader drops the half member by itself
            raise NotPossibleHere(
                f"recording to {self.path} failed: {error.strerror}; the part written before is complete and can "
                "be replayed; check the free space of the disk"
            ) from None


class Reader:
    """Reads a recording, also one that is still being written. It holds an index of the members, no snapshots."""

    def __init__(self, path: str | Path, limits: Limits | None = None, *, file: BinaryIO | None = None) -> None:
        """Open and index it.

        Args:
            path: the file; with `file` only what it is called.
            limits: how much all that is read of it may unpack to; None where it is played, piece by piece. Each
                piece has a limit of its own (`MAX_MEMBER_BYTES`), unless limits are lifted.
            file: the file, where it is open already and has no name any more; closed by `close()`.

        Raises:
            UnusableInput: it cannot be opened, is no file, is empty, not a recording, cut off within its head, or
                in the form of another llmtop.
        """
        self.path = Path(path)
        self.members: list[RecordingMember] = []
        self.recordings = 1
        """How many were written one after the other into this file (`cat A B > C`)."""
        self._limits = limits
        self._end = 0
        """Behind the last member that is known."""
        self._cut = 0
        """Bytes at the end that are no whole member, or not yet."""
        self._skipped = 0
        """Bytes between members that are none."""
        self._lost_header = 0
        """Bytes before the first member with snapshots, where the header cannot be read."""
        self._mended = 0
        """Members whose head is damaged and whose data is whole."""
        self._searched = 0
        """Up to here no member begins behind the damaged one."""
        self._bad: dict[int, int] = {}
        """Number of unreadable snapshots, by the place of a member."""
        self._file = open_input(self.path) if file is None else file
        try:
            header = self._read_header()
            self.refresh()
            self.header = header or self._inferred_header()
        except BaseException:
            self._file.close()
            raise

    @property
    def damage(self) -> str | None:
        """A sentence on what of the file cannot be played; None for a whole recording."""
        said = []
        if self._lost_header:
            said.append(
                f"the first {self._lost_header} bytes of {self.path} are damaged and were left out: the "
                "environment of the recording is unknown"
            )
        if self._mended:
            said.append(f"the heads of {self._mended} parts of {self.path} are damaged; their data was read")
        if bad := sum(self._bad.values()):
            said.append(f"{bad} snapshots of {self.path} are damaged and were left out")
        if self._skipped:
            said.append(f"{self._skipped} bytes within {self.path} are no part of a recording and were left out")
        if self._cut:
            said.append(
                f"the last {self._cut} bytes of {self.path} are no whole part of a recording and were left out"
            )
        return "; ".join(said) or None

    def close(self) -> None:
        """Close the file; the index stays."""
        self._file.close()

    @property
    def length(self) -> float:
        """Seconds from the first snapshot to the last. Where the clock went backwards, no time passed."""
        if not self.members:
            return 0.0
        return self.members[-1].position + self.members[-1].seconds

    @property
    def count(self) -> int:
        """How many snapshots there are."""
        return sum(member.number for member in self.members)

    def refresh(self) -> bool:
        """Search for members that were written since; returns True if there are new ones."""
        known = len(self.members)
        self._cut = 0
        size = os.fstat(self._file.fileno()).st_size
        while self._end < size:
            head = self._head(size)
            if head is None:
                following = self._next_member(size)
                if following is None:
                    self._cut = size - self._end
                    break
                self._skipped += following - self._end
                self._end = following
                continue
            hole = max(0.0, head.first - self.members[-1].last) if self.members else 0.0
            member = RecordingMember(self._end, self.length + hole, *head)
            if member.number == 0 and self._is_header(member):
                self.recordings += 1
            else:
                self.members.append(member)
            self._end = member.end
        return len(self.members) > known

    def _head(self, size: int) -> Head | None:
        """Return the head of the next member, made anew from its data where it is damaged; None where no member
        is."""
        head = head_at(self._file, self._end, size)
        if head is not None and not is_head_doubtful(self._file, self._end, head, size):
            return head
        found = salvage(self._file, self._end)
        if found is None:
            return head
        head_bytes, packed, lines = found
        if head is not None and (head_bytes, packed) == (head.head_bytes, head.packed):
            return head
        times = _times(lines)
        if times is None and _header_in(lines) is None:
            return None
        self._mended += 1
        return Head(head_bytes, packed, *(times or (0.0, 0.0, 0)))

    def _next_member(self, size: int) -> int | None:
        """Return where a whole member begins behind a damaged one; None where none does, or not yet."""
        at = max(self._end + 1, self._searched)
        while at < size:
            self._file.seek(at)
            piece = self._file.read(_SEARCHED_BYTES)
            if len(piece) < len(MEMBER_BEGINS):
                break
            found = piece.find(MEMBER_BEGINS)
            while found >= 0:
                if head_at(self._file, at + found, size) is not None:
                    return at + found
                found = piece.find(MEMBER_BEGINS, found + 1)
            at += max(len(piece) - len(MEMBER_BEGINS), 1)
            # An incomplete member is read again later.
            self._searched = min(at, size - MAX_MEMBER_BYTES)
        return None

    def snapshots(self, start: float = 0.0, first_member: int | None = None) -> Iterator[tuple[float, Snapshot]]:
        """Yield (position in seconds, snapshot) from the first at or after `start`, until the end known now.

        What cannot be unpacked or decoded is left out, and `damage` reports it.

        Args:
            start: position in seconds.
            first_member: begin with this one of `members` instead.

        Raises:
            UnusableInput: it unpacks to more than the limits allow.
        """
        first = self._member_at(start) if first_member is None else first_member
        unpacked = 0
        for member in self.members[first:]:
            lines = self._lines(member)
            unpacked += len(lines)
            if self._limits is not None:
                self._limits.check_unpacked(self.path, unpacked, os.fstat(self._file.fileno()).st_size)
            for position, snapshot in self._with_positions(member, lines):
                if position >= start - _EXACT:
                    yield position, snapshot

    def approach(self, position: float, seconds: float) -> Iterator[tuple[float, Snapshot]]:
        """Yield what leads up to a position, from `seconds` before it on, then all that follows."""
        return self.snapshots(position - seconds)

    def _member_at(self, position: float) -> int:
        """Return the last member that begins before the position: several may begin at it."""
        low, high = 0, len(self.members)
        while low < high:
            middle = (low + high) // 2
            if self.members[middle].position < position:
                low = middle + 1
            else:
                high = middle
        return max(0, low - 1)

    def position_before(self, position: float) -> float | None:
        """Return the position of the last snapshot at or before this one; None if there is none."""
        until = bisect_right(self.members, position + _EXACT, key=lambda member: member.position)
        for member in reversed(self.members[:until]):
            found = [at for at, _ in self._with_positions(member, self._lines(member)) if at <= position + _EXACT]
            if found:
                return max(found)
        return None

    @property
    def median_gap(self) -> float:
        """Seconds between two snapshots as they mostly are: the median, which a hole does not move."""
        gaps = [(one.last - one.first) / (one.number - 1) for one in self.members if one.number > 1]
        gaps += [later.first - one.last for one, later in pairwise(self.members)]
        return max(0.0, median(gaps)) if gaps else 0.0

    def _with_positions(self, member: RecordingMember, lines: bytes) -> Iterator[tuple[float, Snapshot]]:
        """Yield a member's snapshots with their positions, which never run back as a wall clock may."""
        clock, base, offset = MonotonicTime(), None, 0.0
        for snapshot in self._decode(member, lines):
            now = clock.time_of(snapshot)
            base = now if base is None else base
            offset = max(offset, min(now - base, member.seconds))
            yield member.position + offset, snapshot

    def _is_header(self, member: RecordingMember) -> bool:
        """Return True if a member is the beginning of a further recording."""
        return self._header_of(member) is not None

    def _header_of(self, member: RecordingMember) -> Header | None:
        try:
            return _header_in(unpack(self._file, member))
        except _UNREADABLE:
            return None

    def _read_header(self) -> Header | None:
        """Return the first member; None if it is damaged and members with snapshots follow."""
        size = os.fstat(self._file.fileno()).st_size
        if size == 0:
            raise UnusableInput(f"{self.path} is empty: not even the beginning of a recording is in it")
        head = self._head(size)
        member = None if head is None else RecordingMember(0, 0.0, *head)
        header = None if member is None else self._header_of(member)
        if member is None or header is None:
            self._skip_header(size)
            return None
        self._check_form(header, f"llmtop {header.version[:20]!r}")
        self._end = member.end
        return header

    def _skip_header(self, size: int) -> None:
        """Go to the first member whose head is whole.

        Raises:
            UnusableInput: there is none near the beginning of the file, or the file is no recording.
        """
        self._mended = 0
        self._file.seek(0)
        following = self._next_member(size) if is_recording(self._file.read(_SEARCHED_BYTES)) else None
        if following is not None:
            self._end = self._lost_header = following
            return
        if is_cut_in_head(self._file, size):
            raise UnusableInput(
                f"{self.path} is cut off after {size} bytes, within the head of a recording: no snapshot is "
                "in it; copy it or record it again"
            )
        raise UnusableInput(f"{self.path} is not a recording of llmtop (llmtop record FILE writes one)")

    def _inferred_header(self) -> Header:
        """Return a header made of the first snapshot, in place of one that cannot be read."""
        first = next((snapshot for _, snapshot in self.snapshots()), None)
        if first is None:
            return Header(created=self.members[0].first if self.members else 0.0)
        header = Header(schema=first.schema, version="", created=first.time, host=first.host.name)
        self._check_form(header, "llmtop")
        return header

    def _check_form(self, header: Header, writer: str) -> None:
        """Raise if another llmtop wrote the recording in a form that this one does not read.

        Raises:
            UnusableInput: it did.
        """
        form = (header.format, header.schema)
        if form == (FORMAT, SCHEMA):
            return
        is_newer = header.format > FORMAT or header.schema > SCHEMA
        age, advice = ("older", "record it again with this llmtop")
        if is_newer:
            age, advice = ("newer", "upgrade llmtop to play it")
        raise UnusableInput(
            f"{self.path} was written by the {age} {writer}, in a form that this one ({__version__}) does not "
            f"read; {advice}"
        )

    def _lines(self, member: RecordingMember) -> bytes:
        try:
            return unpack(self._file, member, lifted=self._limits is not None and self._limits.lifted)
        except (zlib.error, struct.error, ValueError, OSError):
            self._bad[member.offset] = max(member.number, 1)
            return b""

    def _decode(self, member: RecordingMember, lines: bytes) -> Iterator[Snapshot]:
        bad = 0
        for line in lines.splitlines():
            try:
                snapshot = from_json(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                bad += 1
                continue
            deepest = max(
                (nesting_depth(alert.evidence, MAX_EVIDENCE_DEPTH) for alert in snapshot.alerts), default=0
            )
            if is_time(snapshot.time) and deepest <= MAX_EVIDENCE_DEPTH:
                yield snapshot
            else:
                bad += 1
        if bad:
            self._bad[member.offset] = bad


def _header_in(lines: bytes) -> Header | None:
    """Return the header of a recording, if that is what is in these lines."""
    try:
        header = msgspec.json.decode(lines, type=Header)
    except _UNREADABLE:
        return None
    return header if header.magic == MAGIC else None


def _times(lines: bytes) -> tuple[float, float, int] | None:
    """Unix seconds of the first and last snapshot in these lines, and how many lines there are; None for none."""
    clock, times = MonotonicTime(), []
    for line in lines.splitlines():
        try:
            snapshot = from_json(line)
        except _UNREADABLE:
            continue
        if is_time(snapshot.time):
            times.append(clock.time_of(snapshot))
    return (times[0], times[-1], len(lines.splitlines())) if times else None


def _discards_writes(path: Path) -> UnusableInput:
    return UnusableInput(
        f"{path} is no regular file, and a recording is read again; record to a file, or pipe llmtop --json"
    )
