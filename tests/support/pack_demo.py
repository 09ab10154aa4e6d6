"""Pack the captures that `llmtop demo` opens: python -m tests.support.pack_demo

They are three of `tests/data/labelled/tuning.tar.xz`, recorded on an H200 with nsys: a GPT whose data comes late,
the same with its data in time, and a tiny model that launches thousands of kernels. Each is cut to its first whole
steps, and the tables that no report reads are left out.
"""

from __future__ import annotations

import io
import sqlite3
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path

from llmtop.capture.prepared import STORIES
from tests.support.processes import REPOSITORY

LABELLED = Path(REPOSITORY) / "tests" / "data" / "labelled" / "tuning.tar.xz"
PACKED = Path(REPOSITORY) / "llmtop" / "data" / "demo-captures.tar.xz"
STEPS = 7
"""The first may be cut at its beginning; five are then whole."""


def cut(path: Path) -> None:
    """Keep the first steps of a capture: until its optimizer has run so many times."""
    with closing(sqlite3.connect(path)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        ended = database.execute(
            "SELECT end FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = id "
            "WHERE COALESCE(text, value) = 'optimizer' ORDER BY end"
        ).fetchall()
        until = ended[min(STEPS, len(ended) - 1)][0]
        for name in names:
            columns = {row[1] for row in database.execute(f"PRAGMA table_info({name})")}
            if name.startswith("ENUM_"):
                database.execute(f"DROP TABLE {name}")
            elif {"start", "end"} <= columns:
                database.execute(f"DELETE FROM {name} WHERE start > ?", (until,))
        database.commit()
        database.execute("VACUUM")


def pack() -> None:
    """Write the archive; the same bytes each time."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        tarfile.open(LABELLED) as labelled,
        tarfile.open(PACKED, "w:xz", preset=9) as packed,
    ):
        for name in (story.member for story in STORIES):
            source = labelled.extractfile(f"nsys-{name}.sqlite")
            assert source is not None
            path = Path(scratch) / f"nsys-{name}.sqlite"
            path.write_bytes(source.read())
            cut(path)
            data = path.read_bytes()
            member = tarfile.TarInfo(path.name)
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    pack()
    print(f"{PACKED}: {PACKED.stat().st_size} bytes")
