"""An SQLite file that may be damaged or hostile, read as columns of numbers and rows of text.

A query ends with a note where the file is damaged, goes in circles or would take more than the limits allow; what
was read before is kept.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from llmtop.errors import UnusableInput
from llmtop.format import printable
from llmtop.system.inputs import Limits, file_bytes
from llmtop.trace import model, sanitize
from llmtop.trace.groups import distinct_values
from llmtop.trace.intervals import Ns
from llmtop.trace.nsys.sqlite_pages import Pages, UnsupportedTable
from llmtop.trace.nsys.unpacked import UnpackedDatabase

# Kernel, runtime and NVTX tables in one: at 100,000 rows a block the lists of a block stay under 100 MB.
BLOCK_ROWS = 100_000
NEVER = sanitize.ABSENT
"""Stands for NULL in a column of numbers."""

_DAMAGED = (sqlite3.Error, UnicodeDecodeError)
"""Errors of reading a damaged file; the second for a name that is no longer UTF-8."""

_SMALL_ROWS = 10_000
"""Limit of descriptive tables: they never have more rows."""
_LARGEST_VALUE = 4 << 20
"""Bytes of one value; nsys writes names of some thousands."""
_WORK_LEAST, _WORK_A_BYTE, _WORK_LOOK = 40_000_000, 30, 100_000
"""Instructions of SQLite's machine that a file may take: a whole export takes 2 a byte. A damaged page can lead
back to itself, and a schema can hide a query without an end behind the name of a table."""
_LEAST_ROW_BYTES = 4
"""A row takes 6 bytes at least: a table of more rows than that goes in circles."""


def _connect(path: Path) -> sqlite3.Connection:
    # immutable: never a lock, a journal or a -wal file beside a user's capture.
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)


def _error_text(error: Exception) -> str:
    """SQLite quotes the file in its errors, so these are untrusted text."""
    return printable(str(error), 120)


class Database:
    """The file, its tables and columns, and what could not be read of it."""

    def __init__(
        self,
        file: Path | UnpackedDatabase,
        source: str,
        tables: Collection[str],
        notes: list[str],
        limits: Limits,
    ) -> None:
        """Open it.

        Args:
            file: on a disk, or unpacked into memory.
            source: what messages call it.
            tables: those that will be read.
            notes: to which a sentence is added for each thing that could not be read.
            limits: how much it may ask for.

        Raises:
            UnusableInput: it is no SQLite file, or too damaged for its tables to be listed.
        """
        self.source, self.notes, self._limits = source, notes, limits
        self._bytes = file_bytes(file) if isinstance(file, Path) else os.fstat(file.descriptor).st_size
        self._work = _WORK_LEAST + _WORK_A_BYTE * self._bytes
        self._rows = 0
        self._pages: Pages | None = None
        with suppress(UnsupportedTable):
            self._pages = Pages(file if isinstance(file, Path) else file.descriptor)
        try:
            self.connection = _connect(file) if isinstance(file, Path) else file.connect()
            self.connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            if sys.version_info >= (3, 11):
                self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
            self.connection.set_progress_handler(self._on_progress, _WORK_LOOK)
            # No function of a foreign schema, and no mapped file: one that shrinks would take the process with it.
            self.connection.execute("PRAGMA trusted_schema = OFF")
            self.connection.execute("PRAGMA mmap_size = 0")
            # Sorted rows stay in memory, instead of in a file of SQLite's.
            self.connection.execute("PRAGMA temp_store = MEMORY")
            rows = self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            self.tables = {str(name) for (name,) in rows}
        except _DAMAGED as error:
            raise UnusableInput(
                f"{source} cannot be read as an SQLite export of nsys ({_error_text(error)}); export it again: "
                "nsys export --type sqlite REPORT.nsys-rep"
            ) from None
        self.columns = {name: self._columns(name) for name in self.tables.intersection(tables)}

    def close(self) -> None:
        """Close the file."""
        self.connection.close()
        if self._pages is not None:
            self._pages.close()

    def _on_progress(self) -> int:
        """Called by SQLite now and then; anything but 0 ends the query."""
        self._work -= _WORK_LOOK
        return int(self._work < 0 and not self._limits.lifted)

    def _columns(self, table: str) -> set[str]:
        try:
            return {row[1] for row in self.connection.execute(f'PRAGMA table_info("{table}")')} | {"rowid"}
        except _DAMAGED as error:
            self._note_damage(table, error, "is left out")
            return set()

    def _note_damage(self, table: str, error: Exception, left_out: str) -> None:
        if self._work < 0:
            self._limits.check_work(self.source)
        self.notes.append(f"{table} is damaged ({_error_text(error)}): {left_out}")

    def numbers(self, table: str, columns: dict[str, int], where: str = "") -> dict[str, Ns]:
        """Return the columns of a table as int64; `columns` gives what stands for NULL or a column that is not
        there."""
        present = self.columns.get(table, set())
        if not present:
            return {name: np.empty(0, dtype=np.int64) for name in columns}
        plain = None if where else self._from_pages(table, {n: d for n, d in columns.items() if n in present})
        if plain is not None:
            rows = len(next(iter(plain.values()), ()))
            return {name: plain.get(name, np.full(rows, default)) for name, default in columns.items()}
        picked = [
            f'IFNULL("{name}", {default})' if name in present else str(default)
            for name, default in columns.items()
        ]
        blocks = self._blocks(table, f'SELECT {", ".join(picked)} FROM "{table}" {where}', len(columns))
        table_of_rows = np.concatenate(blocks) if blocks else np.empty((0, len(columns)), dtype=np.int64)
        return {name: np.ascontiguousarray(table_of_rows[:, i]) for i, name in enumerate(columns)}

    def _from_pages(self, table: str, columns: dict[str, int]) -> dict[str, Ns] | None:
        """Return the columns straight from the file, ten times faster; None for a table that only SQLite can
        read."""
        before, read = self._rows, 0
        blocks: list[tuple[Ns, ...]] = []
        try:
            if self._pages is None or not columns:
                return None
            for block in self._pages.columns(self.connection, table, columns):
                blocks.append(block)
                read += len(block[0])
                if read * _LEAST_ROW_BYTES > self._bytes:
                    raise UnsupportedTable
                self._rows = before + read
                self._limits.check_events(self.source, self._rows, self._bytes)
        except UnsupportedTable:
            self._rows = before
            return None
        found = {}
        for place, name in enumerate(columns):
            found[name] = np.concatenate([block[place] for block in blocks])
            _replace_beyond(found[name])
        return found

    def _blocks(self, table: str, query: str, width: int) -> list[Ns]:
        blocks: list[Ns] = []
        read = 0
        try:
            cursor = self.connection.execute(query)
            while rows := cursor.fetchmany(BLOCK_ROWS):
                blocks.append(_block(rows, width))
                read += len(rows)
                if read * _LEAST_ROW_BYTES > self._bytes:
                    raise sqlite3.DatabaseError("more rows than the file can hold")
                self._rows += len(rows)
                self._limits.check_events(self.source, self._rows, self._bytes)
        except _DAMAGED as error:
            self._note_damage(table, error, f"{read} of its rows were read, the rest is left out")
        return blocks

    def stream(self, query: str, table: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query, one by one; none when the table is not there, fewer when it is damaged."""
        if table not in self.columns:
            return
        read = text = 0
        try:
            for row in self.connection.execute(query):
                yield row
                read += 1
                text += sum(len(value) for value in row if isinstance(value, str))
                if read * _LEAST_ROW_BYTES + text > self._bytes:
                    raise sqlite3.DatabaseError("more than the file can hold")
        except _DAMAGED as error:
            self._note_damage(table, error, f"{read} of its rows were read, the rest is left out")

    def rows(self, query: str, table: str) -> list[tuple[Any, ...]]:
        """Return the rows of a small query; none when the table is not there or damaged."""
        if table not in self.columns:
            return []
        try:
            return self.connection.execute(query).fetchmany(_SMALL_ROWS)
        except _DAMAGED as error:
            self._note_damage(table, error, "it is left out")
            return []

    def names(
        self, wanted: Iterable[Ns], into: model.Names, plain: Callable[[int, str], str] = lambda _, name: name
    ) -> dict[int, int]:
        """Number the names that occur.

        Args:
            wanted: columns of ids of StringIds.
            into: where the names get their numbers.
            plain: makes of an id and its name what is numbered.

        Returns:
            The number of the name by its id.
        """
        different = [distinct_values(column) for column in wanted]
        ids = set(distinct_values(np.concatenate([*different, np.empty(0, dtype=np.int64)])).tolist()) - {NEVER}
        known: dict[int, str] = {}
        for number, value in self.stream("SELECT id, value FROM StringIds", "StringIds"):
            if number in ids:
                known[number] = plain(number, printable_name(value))
        missing = ids - known.keys()
        if missing:
            self.notes.append(f"{len(missing)} names are missing from StringIds; they are written as #NUMBER")
        numbered = {number: into.number(known.get(number, f"#{number}")) for number in ids} | {NEVER: 0}
        self.check_names(into)
        return numbered

    def check_names(self, names: model.Names) -> None:
        """Refuse a file whose names alone would fill the memory.

        Raises:
            UnusableInput: they would.
        """
        self._limits.check_number(self.source, "name_characters", names.characters)


def printable_name(value: object) -> str:
    """Return a name in the file as it may be printed, no longer than names are in a trace."""
    return printable(str(value), model.LONGEST_NAME)


def _block(rows: list[tuple[Any, ...]], width: int) -> Ns:
    try:
        flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=len(rows) * width)
    except (TypeError, ValueError, OverflowError):
        # SQLite columns have no fixed type: a foreign or damaged row may hold text or a fraction.
        flat = np.fromiter((int_or_never(value) for value in chain.from_iterable(rows)), dtype=np.int64)
    _replace_beyond(flat)
    return flat.reshape(-1, width)


def _replace_beyond(values: Ns) -> None:
    """Put `NEVER` in the place of values beyond what times and counts can be."""
    if len(values) and (int(values.min()) < -(1 << 62) or int(values.max()) >= 1 << 62):
        values[(values < -(1 << 62)) | (values >= 1 << 62)] = NEVER


def int_or_never(value: object) -> int:
    """Return a value of any type as a number; `NEVER` for what is none, or beyond what times and counts can be."""
    try:
        number = int(value)  # type: ignore[call-overload]  # anything may come; what is no number is caught
    except (TypeError, ValueError, OverflowError):
        return NEVER
    return number if -(1 << 62) <= number < (1 << 62) else NEVER
