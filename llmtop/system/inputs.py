"""Files that a person names, or that lie in a folder of captures: opened only if they are files, and read no
further than is sane.

A file of a few megabytes can stand for gigabytes (gzip), for work that grows with the square of its size (ranges
within ranges, thousands of devices), or for no end at all (a named pipe, /dev/zero). What real captures have lies
far below each limit; limits on sizes and numbers grow with the file, since a large capture may cost what a large
file costs. `Limits.lifted` reads on whatever it takes.
"""

from __future__ import annotations

import io
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from llmtop.errors import UnusableInput
from llmtop.format import count, size

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True)
class Limits:
    """How much memory and time one input may ask for."""

    lifted: bool = False
    """No limit at all: what ``--no-limits`` asks for."""
    least_unpacked_bytes: int = 1280 << 20
    unpacked_ratio: int = 64
    """gzip packs traces of torch.profiler 8 to 30 times, exports of nsys 3 to 4 times, and zeros 1000 times."""
    least_events: int = 5_000_000
    bytes_an_event: int = 8
    """Bytes of the file per event: an event takes some 14 bytes packed, 30 in SQLite and 250 in JSON."""
    devices: int = 1024
    """GPUs times the processes that use them: each is judged on its own."""
    device_calls: int = 300_000_000
    """CUDA calls of a process, once for each GPU that it uses: each GPU is held against all of them."""
    processes: int = 4096
    threads: int = 100_000
    name_characters: int = 256 << 20
    """Characters of all different names together, each counted with 200 more for its cost beside its text."""
    depth: int = 2000
    """Depth of nested ranges on one thread. CPython's own stack ends at 1000."""
    json_depth: int = 64
    """Levels of a report; llmtop writes 6."""
    report_bytes: int = 128 << 20
    """Size of report.json and capture.json; llmtop writes kilobytes, megabytes at most."""
    snapshot_bytes: int = 1 << 30
    """Size of a snapshot of the allocator: 200,000 allocations with stacks take some 100 to 200 MB, and 5 to 10
    times that in memory."""

    def unpacked_bytes(self, on_disk: int) -> int:
        """Return how many bytes a packed file of `on_disk` bytes may unpack to."""
        return max(self.least_unpacked_bytes, self.unpacked_ratio * on_disk)

    def events(self, on_disk: int) -> int:
        """Return how many events a file of `on_disk` bytes may have."""
        return self.least_events + on_disk // self.bytes_an_event

    def check_unpacked(self, path: object, unpacked: int, on_disk: int) -> None:
        """Refuse what unpacks to too much.

        Raises:
            UnusableInput: `unpacked` bytes are too many.
        """
        limit = self.unpacked_bytes(on_disk)
        if unpacked > limit:
            self._refuse(path, f"unpacks to more than {size(limit)}, the limit on the unpacked size of this file")

    def check_events(self, path: object, events: int, on_disk: int) -> None:
        """Refuse too many events.

        Raises:
            UnusableInput: there are more.
        """
        limit = self.events(on_disk)
        if events > limit:
            self._refuse(path, f"holds more than {count(limit)} events, the limit on events for its size")

    def check_number(self, path: object, what: str, number: int) -> None:
        """Refuse too many, or too deep.

        Args:
            path: what the sentence is about.
            what: the field that holds the limit: "devices", "device_calls", "processes", "threads",
                "name_characters", "depth" or "json_depth".
            number: how many there are.

        Raises:
            UnusableInput: there are more.
        """
        limit: int = getattr(self, what)
        if number <= limit:
            return
        said = {
            "devices": f"has {number:,} devices, times the processes on them; the limit on devices is {limit:,}",
            "device_calls": f"has too many CUDA calls for so many devices; the limit on devices times "
            f"calls is {count(limit)}",
            "processes": f"has {number:,} processes; the limit on processes is {limit:,}",
            "threads": f"has {number:,} threads; the limit on threads is {limit:,}",
            "name_characters": f"has {count(number)} characters of names; the limit on names is {count(limit)}",
            "depth": f"has ranges nested {number:,} deep; the limit on depth is {limit:,}",
            "json_depth": f"is JSON nested more than {limit:,} deep, the limit on depth of a report",
        }
        self._refuse(path, said[what])

    def check_work(self, path: object) -> None:
        """Refuse a database that takes far more work than any of its size.

        Raises:
            UnusableInput: always, unless limits are lifted.
        """
        self._refuse(path, "takes far more work than an export of its size; the limit on work is reached")

    def check_report(self, path: object, on_disk: int) -> None:
        """Refuse a file that is far larger than any report.

        Raises:
            UnusableInput: `on_disk` bytes are too many.
        """
        if on_disk > self.report_bytes:
            self._refuse(
                path, f"has {size(on_disk)}; the limit on the size of a report is {size(self.report_bytes)}"
            )

    def check_snapshot(self, path: object, on_disk: int) -> None:
        """Refuse a snapshot of the allocator that is far larger than any.

        Raises:
            UnusableInput: `on_disk` bytes are too many.
        """
        if on_disk > self.snapshot_bytes:
            limit = size(self.snapshot_bytes)
            self._refuse(path, f"has {size(on_disk)}; the limit on the size of a memory snapshot is {limit}")

    def _refuse(self, path: object, why: str) -> None:
        if not self.lifted:
            raise UnusableInput(f"{path} {why} (llmtop report --no-limits reads it all the same)")


DEFAULT = Limits()


def open_input(path: Path) -> io.BufferedReader:
    """Open a file for reading, without ever waiting for what is no file.

    Raises:
        UnusableInput: it is not there, may not be read, or is a pipe, a socket, a device or a folder.
    """
    try:
        # Without O_NONBLOCK the mere opening of a named pipe waits for a writer.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise UnusableInput(f"{path} cannot be opened: {_what_it_is(path) or error.strerror}") from None
    kind = stat.S_IFMT(os.fstat(number).st_mode)
    if kind != stat.S_IFREG:
        os.close(number)
        raise UnusableInput(f"{path} cannot be opened: {_reason_not_a_file(kind)}")
    return os.fdopen(number, "rb")


def read_input(path: Path, limits: Limits = DEFAULT) -> bytes:
    """Return the bytes of a small file: a report, or what describes a capture.

    Raises:
        UnusableInput: as `open_input`, or it is larger than any such file.
    """
    with open_input(path) as file:
        try:
            limits.check_report(path, os.fstat(file.fileno()).st_size)
            return file.read() if limits.lifted else file.read(limits.report_bytes)
        except OSError as error:
            raise UnusableInput(f"{path} cannot be read: {error.strerror}; check its permissions") from None


def file_bytes(path: Path) -> int:
    """Return the size of a file on disk in bytes; 0 when unknown."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _what_it_is(path: Path) -> str:
    """Return a socket cannot even be opened, and the kernel's error text does not name the reason."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except OSError:
        return ""
    return _reason_not_a_file(kind) if kind == stat.S_IFSOCK else ""


def _reason_not_a_file(kind: int) -> str:
    if kind == stat.S_IFDIR:
        return "it is a folder, where a file is needed"
    return f"it is {_KINDS.get(kind, 'something else')}, no file; write what comes out of it to a file first"


def nesting_depth(value: object, most: int) -> int:
    """Return the nesting depth of lists and dicts of decoded JSON; at most `most` + 1."""
    level, found = [value], 0
    while level and found <= most:
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list | tuple)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list | tuple)
        ]
        found += 1
    return found
