"""Index of the runs of a folder: what `store` has read of processes that have ended, so that it reads them once.

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
VERSION = 1
"""Grows with each change of `ProcessFacts` or of a record in it."""
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
            database.execute(f"PRAGMA user_version = {VERSION}")
        database.execute(
            "CREATE TABLE IF NOT EXISTS processes "
            "(folder TEXT, stem TEXT, signature TEXT, facts BLOB, PRIMARY KEY (folder, stem))"
        )
        database.executemany("DELETE FROM processes WHERE folder = ? AND stem = ?", list(gone))
        database.executemany(
            "INSERT OR REPLACE INTO processes VALUES (?, ?, ?, ?)",
            [(*key, *entry) for key, entry in changed.items()],
        )


def _remove(path: Path) -> None:
    for ending in _ENDINGS:
        with contextlib.suppress(OSError):
            os.unlink(f"{path}{ending}")
