"""Python stacks of nsys (--python-sampling, --python-backtrace), which its export to SQLite leaves out.

nsys 2023.4.4 keeps them as marks of the NVTX domain "Python Backtrace" with a binary payload. The export to SQLite
has the marks without the payload, the export to JSON has it. Here they are read from JSON and added to the SQLite,
as a table of llmtop's own. The payload, found by recording known programs: two numbers of 32 bits, then the number
of frames and for each frame, the innermost first, the ids of its function and its file, of 64 bits, and the line,
of 32 bits, with 32 bits of padding.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from llmtop.errors import LlmtopError
from llmtop.nsys_cli.tool import Nsys

TABLE = "LLMTOP_PYTHON_STACKS"
"""Columns: start (ns), globalTid (of the thread that wrote the mark), thread (nsys's number for it) and stack, a
JSON list of [file, line, function], the innermost frame first."""
DOMAIN = "Python Backtrace"
_MARK = 34
"""Type of a mark in the export (ENUM_NSYS_EVENT_TYPE)."""
_DOMAIN_CREATE = 75
_MOST_FRAMES = 256
_MOST_LINE = 4 << 20
_FRAME = struct.Struct("<QQi4x")
_HEAD = struct.Struct("<IIQ")


class PythonStack(NamedTuple):
    """One stack of one thread."""

    start: int
    global_tid: int
    thread: int
    frames: list[tuple[str, int, str]]
    """File, line and function; the innermost first."""


def has_python_stacks(database: sqlite3.Connection) -> bool:
    """Return True if the report that an SQLite file was exported from has Python stacks."""
    query = f"SELECT 1 FROM NVTX_EVENTS WHERE eventType = {_DOMAIN_CREATE} AND text = ?"
    try:
        return database.execute(query, (DOMAIN,)).fetchone() is not None
    except sqlite3.Error:
        return False


def add_python_stacks(nsys: Nsys, report: Path, sqlite: Path, seconds: float) -> None:
    """Add the Python stacks of a report, if it has some, to its export; what fails leaves the export as it was.

    Args:
        nsys: exports the report once more, to JSON beside the SQLite, which is removed again.
        report: a .nsys-rep.
        sqlite: its export.
        seconds: how long nsys may take for the other export.
    """
    with closing(sqlite3.connect(f"{sqlite.resolve().as_uri()}?mode=rw", uri=True)) as database:
        if not has_python_stacks(database):
            return
        text = sqlite.with_name(f"{sqlite.name}.python-stacks.json")
        kind = "jsonlines" if nsys.supports("export", "jsonlines") else "json"
        arguments = (f"--type={kind}", "--force-overwrite=true", "--quiet=true", f"--output={text}", str(report))
        try:
            nsys.run("export", *arguments, seconds=seconds)
            with suppress(OSError, sqlite3.Error):
                _write(database, read_python_stacks(text))
        except LlmtopError:
            return
        finally:
            text.unlink(missing_ok=True)


def _write(database: sqlite3.Connection, stacks: Iterator[PythonStack]) -> None:
    with database:
        database.execute(f"CREATE TABLE {TABLE} (start INTEGER, globalTid INTEGER, thread INTEGER, stack TEXT)")
        database.executemany(
            f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?)",
            ((one.start, one.global_tid, one.thread, json.dumps(one.frames)) for one in stacks),
        )


def read_python_stacks(path: Path) -> Iterator[PythonStack]:
    """Yield the stacks in an export to JSON, whose first line has the strings and each other line one event.

    Raises:
        OSError: the file cannot be read.
    """
    strings: list[str] = []
    domains: set[str] = set()
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not strings and line.startswith('{"data"'):
                strings = [html.unescape(str(text)) for text in _decode_line(line).get("data", [])]
            elif '"NvtxEvent"' in line and len(line) < _MOST_LINE:
                event = _decode_line(line).get("NvtxEvent", {})
                if event.get("Type") == _DOMAIN_CREATE and event.get("Text") == DOMAIN:
                    domains.add(str(event.get("DomainId")))
                elif event.get("Type") == _MARK and str(event.get("DomainId")) in domains:
                    with suppress(ValueError, KeyError, IndexError, TypeError, struct.error, binascii.Error):
                        yield _stack(event, strings)


def _decode_line(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _stack(event: dict[str, Any], strings: list[str]) -> PythonStack:
    data = base64.b64decode(event["Payload"]["BinaryData"][0]["Data"])
    count = _HEAD.unpack_from(data)[2]
    frames = []
    for place in range(min(count, _MOST_FRAMES)):
        function, file, line = _FRAME.unpack_from(data, _HEAD.size + place * _FRAME.size)
        # A line that the interpreter does not know is -1.
        frames.append((strings[file], max(line, 0), strings[function]))
    return PythonStack(int(event["Timestamp"]), int(event["GlobalTid"]), int(event.get("Category", 1)), frames)
