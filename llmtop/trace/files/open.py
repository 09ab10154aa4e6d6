"""Trace from a path: unpacked or exported first where needed, the files of several ranks as one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from llmtop.errors import UnusableInput
from llmtop.system.inputs import DEFAULT, Limits, file_bytes, open_input
from llmtop.trace import model
from llmtop.trace.files import chrome_json, xspace
from llmtop.trace.files.doubled import drop_doubled_events, without_copies
from llmtop.trace.files.file_kind import Examined, examine
from llmtop.trace.files.folders import traces_in
from llmtop.trace.files.gunzip import Gunzip
from llmtop.trace.files.merge import merge
from llmtop.trace.files.runs import newest_run
from llmtop.trace.sanitize import drop_unusable_rows


def open_traces(paths: Sequence[Path | Examined], limits: Limits = DEFAULT) -> model.Trace:
    """Read the captures of several ranks of one run as one.

    Args:
        paths: files or folders; those that were examined already are not read again.
        limits: how much of memory and time each may ask for.

    Raises:
        UnusableInput: one of them is not usable.
        NotPossibleHere: as `open_trace`.
    """
    given = [path if isinstance(path, Examined) else examine(path) for path in paths]
    notes: list[str] = []
    traces: list[model.Trace] = []
    which: list[str] = []
    for one in given:
        files, sentence = traces_in(one.path) if one.kind == "folder" else ([one], "")
        own = without_copies([drop_doubled_events(_open_file(file, limits)) for file in files], notes)
        if one.kind == "folder":
            own, of_files = newest_run(own, one.path)
            which += filter(None, (sentence, of_files))
        traces += own
    if len(given) > 1:
        traces = without_copies(traces, notes)
    trace = merge(traces, ", ".join(str(one.path) for one in given), release=True)
    trace.notes[:0] = notes
    trace.which_run = "; ".join(which)
    return drop_unusable_rows(trace)


def open_trace(path: Path | Examined, limits: Limits = DEFAULT) -> model.Trace:
    """Read a capture: a file, or a folder that holds one (or one a rank).

    Raises:
        UnusableInput: nothing usable is there; the sentence names what was found.
        NotPossibleHere: a .nsys-rep, and no nsys that can export it.
    """
    return open_traces([path], limits)


def _open_file(file: Examined, limits: Limits) -> model.Trace:
    path = file.path
    if file.kind == "nsys-report":
        return _export_with_nsys(path, limits)
    if file.kind == "nsys-sqlite":
        from llmtop.trace.nsys import load as nsys_sqlite  # with SQLite, which no other kind of file needs

        return _load_packed(path, limits) if file.packed else nsys_sqlite.load(path, str(path), limits)
    if file.kind == "chrome-json":
        return _open_chrome(file, limits)
    if file.kind == "xspace":
        return xspace.load(path, limits)
    if file.kind == "memory-snapshot":
        raise UnusableInput(f"{path} is a memory snapshot, which has no steps: llmtop report {path}")
    raise UnusableInput(f"{path} is no capture but a {file.kind}")


def _open_chrome(file: Examined, limits: Limits) -> model.Trace:
    path, on_disk = file.path, file_bytes(file.path)

    def check(read: chrome_json.EventCollector) -> None:
        limits.check_events(path, read.seen, on_disk)
        limits.check_number(path, "threads", read.threads)
        limits.check_number(path, "name_characters", read.names.characters)
        limits.check_number(path, "depth", read.deepest)

    with open_input(path) as raw:
        try:
            stream = (
                Gunzip(raw, lambda unpacked: limits.check_unpacked(path, unpacked, on_disk))
                if file.packed
                else raw
            )
            return chrome_json.load(stream, str(path), check)
        except OSError as error:
            raise UnusableInput(f"{path} cannot be read: {error.strerror}; check its permissions") from None


def _load_packed(path: Path, limits: Limits) -> model.Trace:
    from llmtop.trace.nsys import load as nsys_sqlite
    from llmtop.trace.nsys.unpacked import unpack_into_memory

    on_disk, is_cut = file_bytes(path), False

    def unpack(check_memory: Callable[[int], None]) -> Iterator[bytes]:
        nonlocal is_cut

        def check(unpacked: int) -> None:
            limits.check_unpacked(path, unpacked, on_disk)
            check_memory(unpacked)

        with open_input(path) as packed:
            stream = Gunzip(packed, check)
            while piece := stream.read(chrome_json.PIECE_BYTES):
                yield piece
        is_cut = stream.cut

    with unpack_into_memory(path, unpack) as file:
        try:
            trace = nsys_sqlite.load(file, str(path), limits)
        except UnusableInput as error:
            if not is_cut:
                raise
            raise UnusableInput(
                f"{path} is cut or damaged, and its beginning alone cannot be read; copy it again"
            ) from error
    if is_cut:
        trace.notes.insert(0, f"{path} is cut or damaged: only a part of it could be unpacked")
    return trace


def _export_with_nsys(path: Path, limits: Limits) -> model.Trace:
    """Export a report to SQLite with nsys, in a temporary folder."""
    from llmtop.nsys_cli.export import export_into
    from llmtop.trace.nsys import load as nsys_sqlite

    with tempfile.TemporaryDirectory(prefix="llmtop-") as folder:
        return nsys_sqlite.load(export_into(path, Path(folder)), str(path), limits)
