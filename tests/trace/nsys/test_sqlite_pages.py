"""Columns from the pages of an SQLite file are what SQLite itself reads, or the table is left to it."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from llmtop.trace.nsys.sqlite_pages import Pages, UnsupportedTable

_EDGES = [0, 1, 2, -1, 127, 128, -129, 1 << 23, -(1 << 31), 1 << 40, 1 << 47, -(1 << 47) - 1, (1 << 63) - 1, None]
_DEFAULT = -7
_WANTED = dict.fromkeys(("a", "b", "c"), _DEFAULT)


def _made(path: Path, rows: Sequence[tuple[object, ...]], page: int = 4096, columns: str = "a, x, b, c") -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA page_size = {page}")
        database.execute(f"CREATE TABLE t ({columns})")
        marks = ", ".join("?" * len(rows[0] if rows else columns.split(",")))
        database.executemany(f"INSERT INTO t VALUES ({marks})", rows)
        database.commit()
    return path


def _by_pages(path: Path) -> list[list[int]]:
    pages = Pages(path)
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        try:
            blocks = list(pages.columns(database, "t", _WANTED))
        finally:
            pages.close()
    return [np.concatenate([block[place] for block in blocks]).tolist() for place in range(len(_WANTED))]


def _by_sqlite(path: Path) -> list[list[int]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        picked = ", ".join(f"IFNULL({name}, {_DEFAULT})" for name in _WANTED)
        rows = database.execute(f"SELECT {picked} FROM t").fetchall()
    return [list(column) for column in zip(*rows, strict=True)] or [[], [], []]


def _rows(seed: int, count: int) -> list[tuple[object, ...]]:
    draw = random.Random(seed)
    others = [None, 1.5, "text", "t" * 57, 12]
    return [
        (draw.choice(_EDGES), draw.choice(others), draw.choice(_EDGES), draw.choice(_EDGES)) for _ in range(count)
    ]


@pytest.mark.parametrize("page", [512, 4096, 65536])
@pytest.mark.parametrize("count", [0, 1, 40_000])
def test_every_width_of_number_in_every_size_of_page(tmp_path: Path, page: int, count: int) -> None:
    path = _made(tmp_path / "x.sqlite", _rows(page + count, count), page)
    assert _by_pages(path) == _by_sqlite(path)


def test_rows_that_were_deleted_and_written_anew(tmp_path: Path) -> None:
    path = _made(tmp_path / "x.sqlite", _rows(1, 20_000))
    with closing(sqlite3.connect(path)) as database:
        database.execute("DELETE FROM t WHERE rowid % 3 = 0")
        database.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", _rows(2, 5_000))
        database.execute("UPDATE t SET a = 5 WHERE rowid % 7 = 0")
        database.commit()
    assert _by_pages(path) == _by_sqlite(path)


@pytest.mark.parametrize(
    ("value", "columns"),
    [
        ("text", "a, x, b, c"),
        (2.5, "a, x, b, c"),
        (b"blob", "a, x, b, c"),
        (3, "a, x, b"),
    ],
)
def test_what_is_no_whole_number_is_left_to_sqlite(tmp_path: Path, value: object, columns: str) -> None:
    width = len(columns.split(","))
    path = _made(tmp_path / "x.sqlite", [(value, 1, 2, 3)[:width]], columns=columns)
    with pytest.raises(UnsupportedTable):
        _by_pages(path)


@pytest.mark.parametrize(
    "columns",
    [
        "a INTEGER PRIMARY KEY, x, b, c",
        "a INT PRIMARY KEY, x, b, c",
        "a INTEGER, x, b INTEGER, c, PRIMARY KEY (a, b)",
    ],
)
def test_a_key_is_read_from_the_row_or_is_its_number(tmp_path: Path, columns: str) -> None:
    rows = [(number, 1, -number, 3) for number in (1, 7, 300, 70_000, 1 << 40)]
    path = _made(tmp_path / "x.sqlite", rows, columns=columns)
    assert _by_pages(path) == _by_sqlite(path)


@pytest.mark.parametrize("columns", ["a INTEGER PRIMARY KEY DESC, x, b, c"])
def test_a_key_that_only_looks_like_the_number_is_left_to_sqlite(tmp_path: Path, columns: str) -> None:
    path = _made(tmp_path / "x.sqlite", [(3, 1, 2, 3)], columns=columns)
    with pytest.raises(UnsupportedTable):
        _by_pages(path)


def test_a_row_that_spills_over_its_page_is_left_to_sqlite(tmp_path: Path) -> None:
    path = _made(tmp_path / "x.sqlite", [(1, "long" * 5000, 2, 3)])
    with pytest.raises(UnsupportedTable):
        _by_pages(path)


def test_a_column_that_was_added_later_is_left_to_sqlite(tmp_path: Path) -> None:
    path = _made(tmp_path / "x.sqlite", [(1, 2, 3)], columns="a, x, b")
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE t ADD COLUMN c DEFAULT 9")
    with pytest.raises(UnsupportedTable):
        _by_pages(path)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for data in (b"", b"SQLite format 3\0", bytes(100), b"\xff" * 5000):
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(UnsupportedTable):
            Pages(tmp_path / "x").columns(sqlite3.connect(":memory:"), "t", _WANTED).__next__()


def test_damage_is_left_to_sqlite_or_read_as_sqlite_reads_it(tmp_path: Path) -> None:
    whole = _made(tmp_path / "x.sqlite", _rows(3, 4_000), 1024).read_bytes()
    draw, read = random.Random(4), 0
    for turn in range(400):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 1, 3, 30))):
            data[draw.randrange(1024, len(data))] = draw.randrange(256)
        path = tmp_path / f"damaged{turn}.sqlite"
        path.write_bytes(data[: draw.choice((len(data), len(data) - draw.randrange(3000)))])
        try:
            found = _by_pages(path)
        except (UnsupportedTable, sqlite3.Error):
            found = []
        if found:
            read += 1
            assert found == _by_sqlite(path), turn
        path.unlink()
    assert read > 20, "a number that became another one is no damage that can be seen"


def test_numbers_of_rows_are_read_up_to_eight_bytes(tmp_path: Path) -> None:
    """A varint has seven bits in each of its first eight bytes (https://sqlite.org/fileformat2.html, 1.6)."""
    columns = "a INTEGER PRIMARY KEY, x, b, c"
    edges = [one for bits in range(7, 57, 7) for one in ((1 << bits) - 1, 1 << bits)][:-1]
    rows: list[tuple[object, ...]] = [(number, None, place, 2) for place, number in enumerate(edges)]
    path = _made(tmp_path / "x.sqlite", rows, columns=columns)
    assert _by_pages(path)[0] == _by_sqlite(path)[0] == edges


@pytest.mark.parametrize("number", [1 << 56, (1 << 63) - 1, -1])
def test_a_row_whose_number_has_nine_bytes_is_left_to_sqlite(tmp_path: Path, number: int) -> None:
    path = _made(tmp_path / "x.sqlite", [(number, None, 1, 2)], columns="a INTEGER PRIMARY KEY, x, b, c")
    with pytest.raises(UnsupportedTable):
        _by_pages(path)
