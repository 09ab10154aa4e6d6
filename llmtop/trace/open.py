"""From a path to a trace: what kind of file it is, unpacked or exported first where it must be, several as one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.trace import chrome_json, model, nsys_sqlite
from llmtop.trace.clean import clean
from llmtop.trace.gunzip import Gunzip
from llmtop.trace.merge import merge

Kind: TypeAlias = Literal["nsys-sqlite", "nsys-report", "chrome-json", "recording", "json", "folder"]
"""``json`` is a JSON file that is no trace: a report, perhaps."""

_SQLITE = b"SQLite format 3\0"
_GZIP = b"\x1f\x8b"
_RECORDING = b"\x1f\x8b\x08\x04"
"""gzip with an extra field: what llmtop.recording writes."""
_NSYS_REPORT = b"NVIDIA Tegra Profiler Report"
_NOT_TRACES = ("capture.json", "report.json")
_HEAD_BYTES = 1 << 20


def kind_of(path: Path) -> Kind:
    """What a file is, by what is in it.

    Raises:
        UnusableInput: it is not there, cannot be read, is empty, or is none of what llmtop reads.
    """
    if path.is_dir():
        return "folder"
    head = _head(path)
    if not head:
        raise UnusableInput(f"{path} is empty")
    if head.startswith(_RECORDING) and head[12:14] == b"LT":
        return "recording"
    if head.startswith(_GZIP):
        head = _unpacked_head(path)
    if head.startswith(_SQLITE):
        return "nsys-sqlite"
    if head.startswith(_NSYS_REPORT) or path.suffix == ".nsys-rep":
        return "nsys-report"
    if path.suffix == ".qdstrm":
        raise UnusableInput(f"{path} is what nsys leaves when it cannot write its report; run: nsys import {path}")
    start = head.lstrip()[:1]
    if start == b"[" or (start == b"{" and b'"traceEvents"' in head):
        return "chrome-json"
    if start == b"{":
        return "json"
    raise UnusableInput(
        f"{path} is neither a capture (.nsys-rep, .sqlite, trace .json or .json.gz), a recording nor a report"
    )


def open_trace(path: Path) -> model.Trace:
    """Read a capture: a file, or a folder that holds one (or one a rank).

    Raises:
        UnusableInput: nothing usable is there; the sentence says what was found.
        NotPossibleHere: a .nsys-rep, and no nsys that can export it.
    """
    if path.is_dir():
        traces = [_open_file(found) for found in traces_in(path)]
        return clean(merge(traces, str(path)))
    return clean(_open_file(path))


def traces_in(folder: Path) -> list[Path]:
    """The captures in a folder, of one kind: exports before reports before Chrome traces.

    Raises:
        UnusableInput: there are none.
    """
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise UnusableInput(f"{folder} cannot be read: {error.strerror}") from None
    for endings in ((".sqlite", ".sqlite.gz"), (".nsys-rep",), (".json", ".json.gz")):
        found = [path for path in files if path.name.endswith(endings) and path.name not in _NOT_TRACES]
        if endings[0] == ".json":
            found = [path for path in found if _is_chrome(path)]
        if found:
            return found
    raise UnusableInput(f"{folder} holds no capture: no .sqlite, .nsys-rep or trace .json is in it")


def _is_chrome(path: Path) -> bool:
    try:
        return kind_of(path) == "chrome-json"
    except UnusableInput:
        return False


def _open_file(path: Path) -> model.Trace:
    kind = kind_of(path)
    if kind == "nsys-report":
        return _through_nsys(path)
    if kind == "nsys-sqlite":
        if _head(path).startswith(_SQLITE):
            return nsys_sqlite.load(path, str(path))
        return _unpacked(path, lambda file: nsys_sqlite.load(file, str(path)))
    if kind == "chrome-json":
        with path.open("rb") as file:
            packed = _head(path).startswith(_GZIP)
            return chrome_json.load(Gunzip(file) if packed else file, str(path))
    raise UnusableInput(f"{path} is no capture but a {kind}")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError as error:
        raise UnusableInput(f"{path} cannot be read: {error.strerror}") from None


def _unpacked_head(path: Path) -> bytes:
    """As much of the beginning as can be unpacked: the file may be cut right after it."""
    with path.open("rb") as file:
        head = Gunzip(file).read(_HEAD_BYTES)
    if not head:
        raise UnusableInput(f"{path} begins like a gzip file but cannot be unpacked")
    return head


def _unpacked(path: Path, load: Callable[[Path], model.Trace]) -> model.Trace:
    """Unpack a gzipped export beside nothing of the user's, load it, and remove it."""
    with tempfile.TemporaryDirectory(prefix="llmtop-") as folder:
        target = Path(folder) / path.name.removesuffix(".gz")
        try:
            with path.open("rb") as packed, target.open("wb") as plain:
                stream = Gunzip(packed)
                while piece := stream.read(1 << 20):
                    plain.write(piece)
        except OSError as error:
            raise NotPossibleHere(f"{path} cannot be unpacked into {folder}: {error.strerror}") from None
        try:
            trace = load(target)
        except UnusableInput as error:
            raise UnusableInput(str(error).replace(str(target), str(path))) from None
        if stream.cut:
            trace.notes.insert(0, f"{path} is cut or damaged: only a part of it could be unpacked")
        return trace


def _through_nsys(path: Path) -> model.Trace:
    """Have nsys export a report to SQLite, in a temporary folder."""
    from llmtop.trace.nsys_export import export

    with tempfile.TemporaryDirectory(prefix="llmtop-") as folder:
        return nsys_sqlite.load(export(path, Path(folder)), str(path))
