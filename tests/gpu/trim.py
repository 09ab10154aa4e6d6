"""Make a capture small without changing what it says: some steps out of its middle, less what no reader uses."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from pathlib import Path

# Besides these only names that they use stay: a capture also holds the machine's environment, paths and processes.
_KEPT = (
    "TARGET_INFO_GPU",
    "TARGET_INFO_SESSION",
    "TARGET_INFO_CUDA_DEVICE",
    "META_DATA_EXPORT",
    "ENUM_",
    "StringIds",
)
_EVENTS = ("NVTX_EVENTS", "GPU_METRICS", "OSRT_API", "PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_RUNTIME")
_ON_DEVICE = ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION")


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]


def trim_sqlite(source: Path, target: Path, seconds: float) -> None:
    """Cut an nsys SQLite export to `seconds` out of its middle and gzip it to `target`.

    As in a real capture, what was launched before the window is not in it, and ranges that cross an edge are not.
    """
    database = sqlite3.connect(source)
    tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    runtime = "CUPTI_ACTIVITY_KIND_RUNTIME"
    if runtime in tables:
        first, last = database.execute(f"SELECT min(start), max(end) FROM {runtime}").fetchone()
        length = int(seconds * 1e9)
        begin = max(first, (first + last) // 2 - length // 2) if length < last - first else first
        end = min(last, begin + length)
        database.execute(
            f"DELETE FROM {runtime} WHERE start < ? OR end > ? OR nameId IN (SELECT id FROM StringIds WHERE "
            "value LIKE 'cuKernelGet%' OR value LIKE 'cudaGetDevice%' OR value LIKE 'cudaGetLastError%')",
            (begin, end),
        )
        database.execute(
            "CREATE TEMP TABLE kept AS "
            f"SELECT DISTINCT correlationId, globalTid & -16777216 AS process FROM {runtime}"
        )
        database.execute("CREATE INDEX temp.kept_index ON kept (correlationId, process)")
        for table in tables:
            columns = _columns(database, table)
            if any(kind in table for kind in _ON_DEVICE) and "correlationId" in columns:
                database.execute(
                    f"DELETE FROM {table} WHERE NOT EXISTS (SELECT 1 FROM kept WHERE "
                    f"kept.correlationId = {table}.correlationId AND kept.process = {table}.globalPid)"
                )
            elif table == "GPU_METRICS":
                database.execute(f"DELETE FROM {table} WHERE timestamp < ? OR timestamp > ?", (begin, end))
            elif table == "NVTX_EVENTS":
                database.execute(
                    f"DELETE FROM {table} WHERE end IS NOT NULL AND (start < ? OR end > ?)", (begin, end)
                )
    scrub(database)
    database.commit()
    database.execute("VACUUM")
    database.close()
    with source.open("rb") as plain, gzip.open(target, "wb", 9) as packed:
        shutil.copyfileobj(plain, packed)


def scrub(database: sqlite3.Connection) -> None:
    """Leave nothing in an export that says whose machine it was: only events, their names and the GPUs stay."""
    database.execute("PRAGMA secure_delete = ON")
    tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        events = table in _EVENTS or any(kind in table for kind in _ON_DEVICE)
        if not events and not table.startswith(_KEPT):
            database.execute(f'DROP TABLE "{table}"')
    if "META_DATA_EXPORT" in tables:
        database.execute("DELETE FROM META_DATA_EXPORT WHERE name NOT IN ('EXPORT_PRODUCT_VERSION', "
                         "'EXPORT_SCHEMA_VERSION')")  # fmt: skip
    used: set[int] = set()
    for table in tables:
        for column in _columns(database, table) if table != "StringIds" else []:
            if column in ("nameId", "shortName", "demangledName", "textId"):
                used |= {row[0] for row in database.execute(f'SELECT DISTINCT {column} FROM "{table}"')}
    if "StringIds" in tables:
        unused = [row for row in database.execute("SELECT id FROM StringIds") if row[0] not in used]
        database.executemany("DELETE FROM StringIds WHERE id = ?", unused)


def trim_chrome_json(source: Path, target: Path) -> None:
    """Drop the flow arrows, which nothing here reads, and gzip a Chrome trace to `target`."""
    trace = json.loads(source.read_text())
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("ph") not in ("s", "f")]
    trace.pop("traceName", None)
    with gzip.open(target, "wt", 9, encoding="utf-8") as packed:
        json.dump(trace, packed, separators=(",", ":"))
