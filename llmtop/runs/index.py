"""Index of the runs of a folder: what `store` has read of processes that have ended, so that it reads them once.

Beside that it has the alerts that were recomputed for runs that have ended.

A file of SQLite beside the runs; readers alone write it, and no training loads this module. The files of runs
decide: an index that is missing, damaged, of another version or behind is made again silently. Where it cannot be
written everything is read from the files.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from llmtop.runs import records

NAME = "index.sqlite"
VERSION = 4
"""Grows with each change of `ProcessFacts`, of a record in it, or of what recomputed alerts are kept as."""
_BUSY_SECONDS = 0.2
_ENDINGS = ("", "-journal", "-wal", "-shm")


class ProcessFacts(msgspec.Struct, omit_defaults=True):
    """Facts on one process that a list of runs needs."""

    start: records.Start | None
    state: records.State | None
    end: records.End | None
    last_sign: float
    damaged_bytes: int
    last_values: dict[str, float]


class ProcessKey(NamedTuple):
    """Which process."""

    folder: str
    """Name of its run's folder."""
    stem: str
    """Name of its files without the ending."""


class RunPlace(NamedTuple):
    """Folder and number of a run: its key in the index."""

    folder: str
    number: int
    """Number, as in `store.Run`."""


class Entry(NamedTuple):
    """Index entry of a process."""

    signature: str
    """Sizes and times of its files: it holds as long as these are the same."""
    facts: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ProcessFacts)


def packed(facts: ProcessFacts) -> bytes:
    """Return facts as they stand in the index."""
    return _encoder.encode(facts)


def unpacked(data: bytes) -> ProcessFacts | None:
    """Return facts; None where they are damaged."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def load(runs: Path) -> dict[ProcessKey, Entry]:
    """Return what the index of a folder holds; nothing where it is missing or unusable."""
    path = runs / NAME
    if not path.is_file():
        return {}
    try:
        with contextlib.closing(_connect(path)) as database:
            if database.execute("PRAGMA user_version").fetchone() != (VERSION,):
                return {}
            rows = database.execute("SELECT folder, stem, signature, facts FROM processes").fetchall()
    except sqlite3.Error:
        return {}
    return {ProcessKey(where, stem): Entry(signature, facts) for where, stem, signature, facts in rows}


def load_alerts(runs: Path, run: RunPlace, signature: str) -> bytes | None:
    """Return the recomputed alerts of a run; None where the index has none of this signature.

    Args:
        runs: folder of all runs.
        run: which one.
        signature: of its files, and of what the rules depend on.
    """
    path = runs / NAME
    if not path.is_file():
        return None
    try:
        with contextlib.closing(_connect(path)) as database:
            if database.execute("PRAGMA user_version").fetchone() != (VERSION,):
                return None
            wanted = "SELECT facts FROM alerts WHERE folder = ? AND number = ? AND signature = ?"
            row = database.execute(wanted, (*run, signature)).fetchone()
    except sqlite3.Error:
        return None
    return None if row is None or not isinstance(row[0], bytes) else row[0]


def save_alerts(runs: Path, run: RunPlace, signature: str, facts: bytes) -> None:
    """Keep the recomputed alerts of a run, where the index holds its processes."""
    path = runs / NAME
    if not path.is_file():
        return
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_connect(path)) as database, database:
        if database.execute("PRAGMA user_version").fetchone() == (VERSION,):
            database.execute("INSERT OR REPLACE INTO alerts VALUES (?, ?, ?, ?)", (*run, signature, facts))


def save(runs: Path, changed: Mapping[ProcessKey, Entry], gone: Iterable[ProcessKey]) -> None:
    """Bring the index up to date; one that is unusable is made anew. A folder that cannot be written is left.

    Args:
        runs: folder of all runs.
        changed: entries that are new or that others take the place of.
        gone: processes whose files are not there any more.
    """
    path = runs / NAME
    for _ in range(2):
        try:
            _write(path, changed, gone)
        except sqlite3.OperationalError:
            return  # locked by another reader, or no place to write to
        except sqlite3.DatabaseError:
            _remove(path)
            continue
        except OSError:
            return
        return


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_SECONDS)


def _write(path: Path, changed: Mapping[ProcessKey, Entry], gone: Iterable[ProcessKey]) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    with contextlib.closing(_connect(path)) as database, database:
        if database.execute("PRAGMA user_version").fetchone() != (VERSION,):
            database.execute("DROP TABLE IF EXISTS processes")
            database.execute("DROP TABLE IF EXISTS alerts")
            database.execute(f"PRAGMA user_version = {VERSION}")
        database.execute(
            "CREATE TABLE IF NOT EXISTS processes "
            "(folder TEXT, stem TEXT, signature TEXT, facts BLOB, PRIMARY KEY (folder, stem))"
        )
        database.execute(
            "CREATE TABLE IF NOT EXISTS alerts "
            "(folder TEXT, number INTEGER, signature TEXT, facts BLOB, PRIMARY KEY (folder, number))"
        )
        database.executemany("DELETE FROM processes WHERE folder = ? AND stem = ?", list(gone))
        database.executemany(
            "INSERT OR REPLACE INTO processes VALUES (?, ?, ?, ?)",
            [(*key, *entry) for key, entry in changed.items()],
        )
        database.execute("DELETE FROM alerts WHERE folder NOT IN (SELECT folder FROM processes)")


def _remove(path: Path) -> None:
    for ending in _ENDINGS:
        with contextlib.suppress(OSError):
            os.unlink(f"{path}{ending}")
