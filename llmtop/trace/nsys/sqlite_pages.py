"""Columns of whole numbers straight from the pages of an SQLite file, a few hundred pages at a time.

Python's sqlite3 makes an object of every value, which for a million kernels takes most of the time of a report.
The file format is public and fixed (sqlite.org/fileformat2.html): a table is a tree of pages, each leaf holds
rows, each row has the lengths of its values. Only plain tables are read: what is damaged, spills over its page,
holds anything but whole numbers where they are asked for, or has columns that are computed, is left to SQLite.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llmtop.trace.groups import distinct_values
from llmtop.trace.intervals import Ns

Bytes = npt.NDArray[np.uint8]

_BATCH_BYTES = 1 << 19
"""Bytes of pages that are decoded at once: so little stays in the processor's cache."""
_INTERIOR, _LEAF = 0x05, 0x0D
_DEEPEST = 20
_SPARE = 16
"""Bytes behind the last page: eight are read wherever a value begins."""
_WIDTHS = np.full(256, -(1 << 40), dtype=np.int64)
_WIDTHS[:8] = 0, 1, 2, 3, 4, 6, 8, 8
_WIDTHS[8:10] = 0
_WIDTHS[12:128] = (np.arange(12, 128) - 12) // 2
"""Bytes of a value by its serial type. 10 and 11 are in no file, from 128 on a type takes more than one byte: with
any of these a row cannot end where its length says."""
_SHIFTS = np.zeros(256, dtype=np.int64)
_SHIFTS[1:7] = 64 - 8 * _WIDTHS[1:7]
_NULL, _FLOAT, _ZERO, _ONE, _TEXT = 0, 7, 8, 9, 12


class UnsupportedTable(Exception):
    """This table is for SQLite to read."""


class Pages:
    """The pages of a file that SQLite has opened."""

    def __init__(self, file: Path | int) -> None:
        """Open it.

        Args:
            file: its path, or a descriptor of it, which stays open.

        Raises:
            UnsupportedTable: it is no such file, or cannot be read.
        """
        try:
            self._file = os.dup(file) if isinstance(file, int) else os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UnsupportedTable from error
        head = os.pread(self._file, 100, 0)
        size = int.from_bytes(head[16:18], "big")
        self._size = 65536 if size == 1 else size
        self._count = os.fstat(self._file).st_size // max(self._size, 1)
        if len(head) < 100 or self._size < 512 or self._size & (self._size - 1):
            self.close()
            raise UnsupportedTable
        self._usable = self._size - head[20]

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def columns(
        self, connection: sqlite3.Connection, table: str, wanted: dict[str, int]
    ) -> Iterator[tuple[Ns, ...]]:
        """Yield the columns of a table, some thousand rows at a time, in the order in which SQLite has them.

        Args:
            connection: to the same file, for what the table is.
            table: its name.
            wanted: what stands for NULL, by the name of the column.

        Raises:
            UnsupportedTable: at the first batch or at any later one.
        """
        root, names, alias = _schema(connection, table, wanted)
        places = [names.index(name) for name in wanted]
        number = names.index(alias) if alias in wanted else None
        leaves = self._leaves(root)
        step = max(_BATCH_BYTES // self._size, 1)
        for first in range(0, len(leaves), step):
            flat = self._read(leaves[first : first + step])
            yield self._rows(flat, len(names), places, list(wanted.values()), number)

    def _read(self, numbers: Ns) -> Bytes:
        """These pages one after another, and some zeros."""
        flat = np.zeros(len(numbers) * self._size + _SPARE, dtype=np.uint8)
        if len(numbers) and not 2 <= int(numbers.min()) <= int(numbers.max()) <= self._count:
            raise UnsupportedTable
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        at = 0
        for run in runs:
            length = len(run) * self._size
            if os.preadv(self._file, [flat[at : at + length].data], (int(run[0]) - 1) * self._size) != length:
                raise UnsupportedTable
            at += length
        return flat

    def _leaves(self, root: int) -> Ns:
        """Return the numbers of a table's leaves in the order of its rows."""
        level = np.array([root], dtype=np.int64)
        for _ in range(_DEEPEST):
            flat = self._read(level[:1])
            if flat[0] == _LEAF:
                return level
            level = np.concatenate([self._children(int(page)) for page in level])
            if len(level) > self._count or len(distinct_values(level)) < len(level):
                break  # it goes in circles
        raise UnsupportedTable

    def _children(self, number: int) -> Ns:
        flat = self._read(np.array([number], dtype=np.int64))
        if flat[0] != _INTERIOR:
            raise UnsupportedTable
        cells = (int(flat[3]) << 8) + int(flat[4])
        at = flat[12 : 12 + 2 * cells].view(">u2").astype(np.int64)
        if len(at) < cells or (cells and (int(at.max()) > self._usable - 4 or int(at.min()) < 12 + 2 * cells)):
            raise UnsupportedTable
        at = np.append(at, 8)  # the last child stands in the page's head
        return np.asarray(flat[at[:, None] + np.arange(4)] @ np.array([1 << 24, 1 << 16, 1 << 8, 1]))

    def _cells(self, flat: Bytes) -> tuple[Ns, Ns]:
        """Return where in these leaves each row begins, and where its page ends."""
        heads = flat[:-_SPARE].reshape(-1, self._size)
        counts = (heads[:, 3].astype(np.int64) << 8) + heads[:, 4]
        room = (self._size - 8) // 2
        if (heads[:, 0] != _LEAF).any() or int(counts.max()) > room or (len(counts) > 1 and not counts.all()):
            raise UnsupportedTable
        page = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(len(page)) - np.repeat(np.cumsum(counts) - counts, counts)
        offset = flat[:-_SPARE].view(">u2")[page * (self._size // 2) + 4 + place].astype(np.int64)
        if len(offset) and ((offset < 8 + 2 * counts[page]) | (offset > self._usable - 4)).any():
            raise UnsupportedTable
        return page * self._size + offset, page * self._size + self._usable

    def _rows(
        self, flat: Bytes, columns: int, places: list[int], defaults: list[int], number: int | None
    ) -> tuple[Ns, ...]:
        """Return the wanted columns; that at the place `number` is the row's number, and empty in the row."""
        at, page_end = self._cells(flat)
        payload, at = _varint(flat, at)
        row, at = _varint(flat, at)
        if (payload > self._usable - 35).any() or (at + payload > page_end).any():
            raise UnsupportedTable  # a part of the row lies in other pages
        if columns > 126 or (flat[at] != columns + 1).any():
            raise UnsupportedTable  # a value with a long type, or a row from before a column was added
        value = at + columns + 1
        row_end = at + payload
        found: dict[int, tuple[Ns, Bytes]] = {}
        for column in range(columns):
            kind = flat[at + 1 + column]
            if column in places:
                found[column] = value, kind
            value = value + _WIDTHS[kind]
            if column == number and (kind != _NULL).any():
                raise UnsupportedTable
        if (value != row_end).any():
            raise UnsupportedTable
        return tuple(
            row if place == number else _numbers(flat, *found[place], default)
            for place, default in zip(places, defaults, strict=True)
        )


def _schema(
    connection: sqlite3.Connection, table: str, wanted: dict[str, int]
) -> tuple[int, list[str], str | None]:
    """(the first page of a table, its columns in the order of the file, the one that is the row's number)."""
    with suppress(sqlite3.Error, UnicodeDecodeError):
        rows = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
        ).fetchmany(2)
        columns = connection.execute(f'PRAGMA table_xinfo("{table}")').fetchall()
        names = [str(column[1]) for column in columns]
        # One INTEGER as the key is the row's number, and not in the row (https://sqlite.org/lang_createtable.html).
        key = [column for column in columns if column[5]]
        alias = str(key[0][1]) if len(key) == 1 and str(key[0][2]).upper() == "INTEGER" else None
        computed = any(column[6] for column in columns)
        if not computed and wanted.keys() <= set(names) and len(rows) == 1 and isinstance(rows[0][0], int):
            return rows[0][0], names, alias
    raise UnsupportedTable


def _varint(flat: Bytes, at: Ns) -> tuple[Ns, Ns]:
    """Numbers of one to eight bytes, seven bits in each, and where they end."""
    first = flat[at]
    value = (first & 0x7F).astype(np.int64)
    ends = at + 1
    more = np.flatnonzero(first >= 128)
    for _ in range(7):
        if not len(more):
            return value, ends
        following = flat[np.minimum(ends[more], len(flat) - 1)]
        value[more] = (value[more] << 7) | (following & 0x7F)
        ends[more] += 1
        more = more[following >= 128]
    if len(more):
        raise UnsupportedTable
    return value, ends


def _numbers(flat: Bytes, at: Ns, kind: Bytes, default: int) -> Ns:
    """Return the values of one column."""
    least, most = (int(kind.min()), int(kind.max())) if len(kind) else (_NULL, _NULL)
    if most >= _TEXT or (least <= _FLOAT <= most and (kind == _FLOAT).any()):
        raise UnsupportedTable
    # Eight bytes from each value's first on, highest first; what lies behind the value is shifted out again.
    eight = np.ndarray((len(flat) - 7,), dtype="<i8", buffer=flat, strides=(1,))
    values = eight[at].byteswap() >> (_SHIFTS[least] if least == most else _SHIFTS[kind])
    if least == _NULL or most >= _ZERO:
        empty = (kind == _NULL) | (kind >= _ZERO)
        values = np.where(empty, np.where(kind == _NULL, default, kind == _ONE), values)
    return np.asarray(values)
