"""Seeded damage to files: what disks, copies, cut transfers and other programs do, and what malice would."""

from __future__ import annotations

import gzip
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

_NUMBERS = (
    *(
        "-1",
        "0",
        "1e999",
        "-1e999",
        "1e308",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551616",
    ),
    *(
        "9" * 400,
        "9" * 5000,
        "0.1",
        "null",
        "true",
        '"12"',
        '"x"',
        "[]",
        "{}",
        "NaN",
        "-inf",
        "4611686018427387904",
    ),
)
_NUMBER = re.compile(rb"(?<=[:\[,\s])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_STRING = re.compile(rb'"(?:[^"\\]|\\.){0,200}"')
_NAMES = (
    *(b'"\\u001b]0;owned\\u0007"', '"\u009b31m\u202e"'.encode(), b'"\\ud800"', b'"' + b"n" * 70_000 + b'"'),
    *(
        b'"' + b"7" * 20_000 + b'"',
        b'"ph"',
        b'""',
        b'"\xe9"',
        b'"a"b"',
        b'"traceEvents"',
        b'"}, {\\"ph\\": 1}, {"',
    ),
)
_VALUES = (
    *("NULL", "-1", "0", "9223372036854775807", "-9223372036854775808", "4611686018427387904", "1e308", "9e999"),
    *(
        "'text'",
        "''",
        "x'00ff'",
        "1.5",
        "'12'",
        "char(27) || ']0;owned'",
        "zeroblob(70000)",
        "printf('%.*c', 70000, 'n')",
    ),
)


def damaged_bytes(data: bytes, chance: random.Random) -> bytes:
    """A copy with some bits flipped, or a part cut out, doubled, moved, zeroed, or written over."""
    raw = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 30))):
        if not raw:
            break
        at = chance.randrange(len(raw))
        length = min(chance.choice((1, 1, 4, 50, 1000, 20_000)), len(raw) - at)
        what = chance.randrange(7)
        if what <= 1:
            raw[at] ^= 1 << chance.randrange(8)
        elif what == 2:
            del raw[at : at + length]
        elif what == 3:
            raw[at:at] = raw[at : at + length]
        elif what == 4:
            raw[at : at + length] = bytes(length)
        elif what == 5:
            raw[at:at] = chance.choice((b'"', b"{", b"}", b"[", b"]", b",", b"\\", b"\xff", b"\n", b"\0"))
        else:
            del raw[at:]
    return bytes(raw)


def odd_json(data: bytes, chance: random.Random) -> bytes:
    """A copy in which some numbers and strings are others, of other types and sizes; nesting may grow."""
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        pattern = chance.choice((_NUMBER, _STRING))
        found = pattern.search(data, chance.randrange(max(len(data), 1)))
        if found is None:
            continue
        if chance.randrange(12) == 0:
            depth = chance.choice((10, 100, 900, 5000))
            new = b'{"a":' * depth + b"[1]" + b"}" * depth
        else:
            new = chance.choice(_NUMBERS).encode() if pattern is _NUMBER else chance.choice(_NAMES)
        data = data[: found.start()] + new + data[found.end() :]
    return data


def odd_sqlite(path: Path, chance: random.Random) -> None:
    """Change values, columns and tables of a database in place, as its schema allows."""
    database = sqlite3.connect(path)
    try:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(chance.choice((1, 2, 5))):
            table = chance.choice(tables)
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            statement = _statement(chance, table, columns)
            try:
                database.execute(statement)
            except sqlite3.Error:
                continue  # an earlier change took away what this one needs
        database.commit()
    finally:
        database.close()


def _statement(chance: random.Random, table: str, columns: list[str]) -> str:
    column = chance.choice(columns) if columns else "rowid"
    some = f"WHERE rowid % {chance.choice((1, 2, 7))} = 0"
    return chance.choice(
        (
            f'UPDATE "{table}" SET "{column}" = {chance.choice(_VALUES)} {some}',
            f'UPDATE "{table}" SET "{column}" = {chance.choice(_VALUES)} {some}',
            f'UPDATE "{table}" SET "{column}" = "{column}" * 1000003 {some}',
            f'DELETE FROM "{table}" {some}',
            f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "gone"',
            f'ALTER TABLE "{table}" RENAME TO "{table}_old"',
            f'CREATE VIEW "V{chance.randrange(9)}" AS SELECT * FROM "{table}"',
        )
    )


def packed(change: Callable[[bytes, random.Random], bytes], data: bytes, chance: random.Random) -> bytes:
    """A gzip file of changed contents, or a changed gzip file."""
    if chance.randrange(2):
        return gzip.compress(change(data, chance), 1)
    return damaged_bytes(gzip.compress(data, 1), chance)
