"""From nsys's report to the SQLite that a trace is read from, and whether that holds what it should.

nsys answers 0 when the disk was full, its importer missing or the report newer than itself, so its output file and
its messages are checked, not its exit code.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from llmtop.errors import LlmtopError, NotPossibleHere, UnusableInput
from llmtop.nsys_cli import tool, words
from llmtop.nsys_cli.python_stacks import add_python_stacks
from llmtop.nsys_cli.tool import Nsys

EXPORT_SECONDS = 600.0
"""A capture of some steps takes 0.05 to 0.5 s; a report of a whole run may take minutes."""
IMPORT_PAUSES = (0.0, 1.0, 5.0)
"""Seconds before each try to import raw data."""
_RECORDS_NEWER_NVTX = (2025, 3)
"""Ranges of nvtx 0.2.11 to 0.2.17 are in reports of nsys 2025.3.1, and not of 2023.4.4 (docs/measurements.md)."""


def importer(nsys: Nsys) -> Path | None:
    """Return the program of that nsys which makes a report of raw data; None where it is not beside it."""
    real = nsys.path.resolve()
    for folder in (real.parent, real.parent.parent, real.parent.parent / "nsight"):
        for found in folder.glob("host-linux-*/QdstrmImporter"):
            return found
    return None


def import_raw(nsys: Nsys, raw: Path) -> Path:
    """Make the report of raw data that nsys itself could not import; the raw data goes where that works.

    On a busy machine nsys has failed at data that was whole, and its importer as well: it read the data a moment
    later.

    Args:
        nsys: the one that left it.
        raw: a .qdstrm.

    Raises:
        NotPossibleHere: its importer is not there, or fails in each of its tries; the importer's own words.
    """
    program, report, began, failed = importer(nsys), raw.with_suffix(".nsys-rep"), time.monotonic(), ""
    if program is None:
        raise NotPossibleHere("there is no QdstrmImporter beside nsys")
    for pause in IMPORT_PAUSES:
        if failed and time.monotonic() - began > EXPORT_SECONDS / 10:
            break  # much data: it is not read once more
        time.sleep(pause)
        report.unlink(missing_ok=True)  # it writes over nothing
        try:
            done = Nsys(program, nsys.version).run("-i", str(raw), seconds=EXPORT_SECONDS)
        except NotPossibleHere:
            report.unlink(missing_ok=True)
            raise
        if done.returncode == 0 and report.is_file() and report.stat().st_size:
            raw.unlink(missing_ok=True)
            return report
        failed = words.failure_reason(done.stdout + done.stderr) or f"exit code {done.returncode}"
    report.unlink(missing_ok=True)
    raise NotPossibleHere(failed)


def export_into(report: Path, folder: Path) -> Path:
    """Export a report into a folder, by the nsys of this machine; returns the path of the SQLite file.

    Raises:
        NotPossibleHere: no usable nsys is here, or it hangs.
        UnusableInput: nsys cannot read the report, as when a newer nsys wrote it.
    """
    try:
        nsys = tool.find_nsys()
    except NotPossibleHere as error:
        raise NotPossibleHere(
            f"{report} must be exported to SQLite first: {error}, or export it where it was made: "
            "nsys export --type sqlite REPORT.nsys-rep"
        ) from None
    sqlite = folder / f"{report.stem}.sqlite"
    if _export(nsys, report, sqlite) is not None:
        raise UnusableInput(
            f"{nsys.path} ({nsys.version_text}) cannot export {report}: it is damaged, or a newer nsys wrote it; "
            "export it with the one that did: nsys export --type sqlite REPORT.nsys-rep"
        )
    add_python_stacks(nsys, report, sqlite, EXPORT_SECONDS)
    return sqlite


def export_beside(nsys: Nsys, report: Path, uses_gpu: bool) -> tuple[Path, list[str]]:
    """Make the SQLite beside a capture's report; the report is kept whatever goes wrong.

    Args:
        nsys: the one that made the report.
        report: a .nsys-rep.
        uses_gpu: whether the process has a GPU open, so that kernels are to be expected.

    Returns:
        The SQLite, or the report where there is none; and notes on what failed or is missing.
    """
    sqlite = report.with_suffix(".sqlite")
    try:
        reason = _export(nsys, report, sqlite)
    except LlmtopError as error:
        return report, [f"the report is kept at {report}, but {error}"]
    if reason is None:
        add_python_stacks(nsys, report, sqlite, EXPORT_SECONDS)
        return sqlite, _missing_content(sqlite, uses_gpu, nsys)
    by_hand = f"{nsys.path} export --type sqlite -o {sqlite} {report}"
    return report, [
        f"the report is kept at {report}, but nsys export failed ({reason}); to do it by hand: {by_hand}"
    ]


def _export(nsys: Nsys, report: Path, sqlite: Path) -> str | None:
    """Export the report to SQLite with nsys; returns the error, or None. No incomplete file is left.

    Raises:
        NotPossibleHere: nsys cannot be started, or does not end.
    """
    arguments = ("--type=sqlite", "--force-overwrite=true", "--quiet=true", f"--output={sqlite}", str(report))
    try:
        done = nsys.run("export", *arguments, seconds=EXPORT_SECONDS)
    except LlmtopError:
        sqlite.unlink(missing_ok=True)
        raise
    said = f"{done.stdout or ''}\n{done.stderr or ''}"
    lack = _read_error(sqlite) or (
        f"it answers {done.returncode}" if done.returncode else _error_line(said, report, sqlite)
    )
    if lack is None:
        return None
    sqlite.unlink(missing_ok=True)
    return words.failure_reason(said) or lack


def _error_line(said: str, report: Path, sqlite: Path) -> str | None:
    """Return the first line with an error, names of files aside."""
    for line in said.splitlines():
        own = line
        for path in (report, sqlite):
            own = own.replace(str(path), "").replace(path.name, "")
        if "rror" in own or "xception" in own:
            return line
    return None


def _read_error(sqlite: Path) -> str | None:
    """Return why a file cannot be read as an export; None if it can."""
    try:
        if not sqlite.is_file():
            return "it wrote no file"
        with closing(_open(sqlite)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    except sqlite3.Error as error:
        return str(error)
    return None if tables & {"StringIds", "META_DATA_EXPORT"} else "its file is empty or cut off"


def _missing_content(sqlite: Path, uses_gpu: bool, nsys: Nsys) -> list[str]:
    """Return the expected content that the window lacks. Without this check, lost kernels stay unnoticed."""
    with closing(_open(sqlite)) as database:
        kernels = sum(
            _count(database, table) for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
        )
        ranges = _count(database, "NVTX_EVENTS")
        calls = _count(database, "CUPTI_ACTIVITY_KIND_RUNTIME")
    old = _about_newer_nvtx(nsys) if ranges == 0 else ""
    if kernels == 0 and ranges == 0:
        return [f"the report holds neither kernels nor NVTX ranges: nothing of the training was recorded{old}"]
    notes = []
    if kernels == 0 and (calls or uses_gpu):
        notes.append("the report holds no kernels although the process uses a GPU: nsys has lost them")
    if ranges == 0:
        notes.append("the report holds no NVTX ranges: no steps or phases can be told from it" + old)
    return notes


def _about_newer_nvtx(nsys: Nsys) -> str:
    """Return why an old nsys may have recorded no range, to be added to a sentence; empty for a newer nsys."""
    if nsys.version >= _RECORDS_NEWER_NVTX:
        return ""
    return (
        f"; nsys {nsys.version_text} may not record the ranges of nvtx 0.2.11 and newer: install nsys 2025.3 or "
        "newer, or nvtx 0.2.10 where the training runs"
    )


def _open(sqlite: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{sqlite.as_uri()}?mode=ro", uri=True)


def _count(database: sqlite3.Connection, table: str) -> int:
    known = database.execute("SELECT 1 FROM sqlite_master WHERE type='table' AND name=?", (table,)).fetchone()
    return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) if known else 0
