"""From nsys's report to the SQLite that a trace is read from, and whether that holds what it should.

nsys answers 0 when the disk was full or its importer missing, so what it wrote is looked at, not what it answers.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from llmtop.errors import LlmtopError
from llmtop.nsys_cli.tool import Nsys

EXPORT_SECONDS = 300.0
"""Measured: 0.05 to 0.5 s."""


def export(nsys: Nsys, report: Path, uses_gpu: bool) -> tuple[Path, list[str]]:
    """Make the SQLite beside a report; the report is kept whatever goes wrong.

    Args:
        nsys: the one that made the report.
        report: a .nsys-rep.
        uses_gpu: whether the process has a GPU open, so that kernels are to be expected.

    Returns:
        The SQLite, or the report where there is none; and notes on what failed or is missing.
    """
    sqlite = report.with_suffix(".sqlite")
    arguments = ("--type=sqlite", "--force-overwrite=true", "--quiet=true", f"--output={sqlite}", str(report))
    try:
        done = nsys.run("export", *arguments, seconds=EXPORT_SECONDS)
    except LlmtopError as error:
        sqlite.unlink(missing_ok=True)
        return report, [f"the report is kept at {report}, but {error}"]
    said = (done.stderr or "").strip().splitlines()
    lack = _lack(sqlite) or ("it reports an error" if any("xception" in line for line in said) else None)
    if lack is None:
        return sqlite, _missing(sqlite, uses_gpu)
    sqlite.unlink(missing_ok=True)
    reason = said[-1].split("] = ")[-1].strip() if said else lack
    by_hand = f"{nsys.path} export --type sqlite -o {sqlite} {report}"
    return report, [f"the report is kept at {report}, but nsys export failed ({reason}); by hand: {by_hand}"]


def _lack(sqlite: Path) -> str | None:
    """Why that file cannot be read as an export; None if it can."""
    try:
        if not sqlite.is_file():
            return "it wrote no file"
        with closing(_open(sqlite)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    except sqlite3.Error as error:
        return str(error)
    return None if tables & {"StringIds", "META_DATA_EXPORT"} else "its file is empty or cut off"


def _missing(sqlite: Path, uses_gpu: bool) -> list[str]:
    """What the window should hold and does not: silence here has hidden lost kernels before."""
    with closing(_open(sqlite)) as database:
        kernels = sum(
            _count(database, table) for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
        )
        ranges = _count(database, "NVTX_EVENTS")
        calls = _count(database, "CUPTI_ACTIVITY_KIND_RUNTIME")
    if kernels == 0 and ranges == 0:
        return ["the report holds neither kernels nor NVTX ranges: nothing of the training was recorded"]
    notes = []
    if kernels == 0 and (calls or uses_gpu):
        notes.append("the report holds no kernels although the process uses a GPU: nsys has lost them")
    if ranges == 0:
        notes.append("the report holds no NVTX ranges: no steps or phases can be told from it")
    return notes


def _open(sqlite: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{sqlite.as_uri()}?mode=ro", uri=True)


def _count(database: sqlite3.Connection, table: str) -> int:
    known = database.execute("SELECT 1 FROM sqlite_master WHERE type='table' AND name=?", (table,)).fetchone()
    return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) if known else 0
