"""From a path to a trace: unpacked or exported first where it must be, the files of several ranks as one."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.inputs import DEFAULT, Limits, bytes_of, open_input
from llmtop.trace import chrome_json, model, nsys_sqlite
from llmtop.trace.chrome_events import Collector
from llmtop.trace.file_kind import is_packed, kind_of
from llmtop.trace.gunzip import Gunzip
from llmtop.trace.merge import merge
from llmtop.trace.sanitize import clean

_NOT_TRACES = ("capture.json", "report.json")


def open_traces(paths: Sequence[Path], limits: Limits = DEFAULT) -> model.Trace:
    """Read the captures of several ranks of one run as one.

    Raises:
        UnusableInput: one of them is not usable.
        NotPossibleHere: as `open_trace`.
    """
    files = [file for path in paths for file in (traces_in(path) if path.is_dir() else [path])]
    return clean(merge([_open_file(file, limits) for file in files], ", ".join(map(str, paths))))


def open_trace(path: Path, limits: Limits = DEFAULT) -> model.Trace:
    """Read a capture: a file, or a folder that holds one (or one a rank).

    Raises:
        UnusableInput: nothing usable is there; the sentence says what was found.
        NotPossibleHere: a .nsys-rep, and no nsys that can export it.
    """
    return open_traces([path], limits)


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


def _open_file(path: Path, limits: Limits) -> model.Trace:
    kind = kind_of(path)
    if kind == "nsys-report":
        return _through_nsys(path, limits)
    if kind == "nsys-sqlite":
        if not is_packed(path):
            return nsys_sqlite.load(path, str(path), limits)
        return _unpacked(path, limits)
    if kind == "chrome-json":
        return _open_chrome(path, limits)
    raise UnusableInput(f"{path} is no capture but a {kind}")


def _open_chrome(path: Path, limits: Limits) -> model.Trace:
    packed, on_disk = is_packed(path), bytes_of(path)

    def check(read: Collector) -> None:
        limits.check_events(path, read.seen, on_disk)
        limits.check_number(path, "threads", read.threads)
        limits.check_number(path, "name_characters", read.names.characters)
        limits.check_number(path, "depth", read.deepest)

    with open_input(path) as file:
        try:
            stream = (
                Gunzip(file, lambda unpacked: limits.check_unpacked(path, unpacked, on_disk)) if packed else file
            )
            return chrome_json.load(stream, str(path), check)
        except OSError as error:
            raise UnusableInput(f"{path} cannot be read: {error.strerror}") from None


def _unpacked(path: Path, limits: Limits) -> model.Trace:
    """Unpack a gzipped export beside nothing of the user's, load it, and remove it."""
    on_disk = bytes_of(path)
    with tempfile.TemporaryDirectory(prefix="llmtop-") as folder:
        target = Path(folder) / path.name.removesuffix(".gz")
        try:
            with open_input(path) as packed, target.open("wb") as plain:
                stream = Gunzip(packed, lambda unpacked: limits.check_unpacked(path, unpacked, on_disk))
                while piece := stream.read(1 << 20):
                    plain.write(piece)
        except OSError as error:
            raise NotPossibleHere(f"{path} cannot be unpacked into {folder}: {error.strerror}") from None
        trace = nsys_sqlite.load(target, str(path), limits)
        if stream.cut:
            trace.notes.insert(0, f"{path} is cut or damaged: only a part of it could be unpacked")
        return trace


def _through_nsys(path: Path, limits: Limits) -> model.Trace:
    """Have nsys export a report to SQLite, in a temporary folder."""
    from llmtop.nsys_cli.export import export_into

    with tempfile.TemporaryDirectory(prefix="llmtop-") as folder:
        return nsys_sqlite.load(export_into(path, Path(folder)), str(path), limits)
