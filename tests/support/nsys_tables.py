"""Tables of nsys that only options make, added to a made-up export: CPU samples, stacks, memory usage.

Names and types of columns are those that `nsys export --lazy=false` of 2023.4.4 creates. Without a GPU nsys has no
rows of CUDA_CALLCHAINS and CUDA_GPU_MEMORY_USAGE_EVENTS: those here follow the comments in nsys's own schema.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

_TABLES = """
CREATE TABLE IF NOT EXISTS COMPOSITE_EVENTS (id INTEGER NOT NULL PRIMARY KEY, start INTEGER NOT NULL, cpu INTEGER,
 threadState INTEGER, globalTid INTEGER, cpuCycles INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS SAMPLING_CALLCHAINS (id INTEGER NOT NULL, symbol INTEGER NOT NULL,
 module INTEGER NOT NULL, kernelMode INTEGER, thumbCode INTEGER, unresolved INTEGER, specialEntry INTEGER,
 originalIP INTEGER, unwindMethod INTEGER, stackDepth INTEGER NOT NULL, PRIMARY KEY (id, stackDepth));
CREATE TABLE IF NOT EXISTS CUDA_CALLCHAINS (id INTEGER NOT NULL, symbol INTEGER NOT NULL, module INTEGER NOT NULL,
 unresolved INTEGER, originalIP INTEGER, stackDepth INTEGER NOT NULL, PRIMARY KEY (id, stackDepth));
CREATE TABLE IF NOT EXISTS CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER NOT NULL, globalPid INTEGER NOT NULL,
 deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, address INTEGER NOT NULL, pc INTEGER NOT NULL,
 bytes INTEGER NOT NULL, memKind INTEGER NOT NULL, memoryOperationType INTEGER NOT NULL, name TEXT,
 correlationId INTEGER);
"""

Frame = tuple[str, str]
"""Function and module of a frame; the innermost comes first. An empty function is unresolved."""


class NsysTables:
    """An export under way, with the tables that options make."""

    def __init__(self, path: Path) -> None:
        """Add the tables to an export that is there."""
        self._path = path
        with closing(sqlite3.connect(path)) as database:
            database.executescript(_TABLES)

    def _text(self, database: sqlite3.Connection, text: str) -> int:
        known = database.execute("SELECT id FROM StringIds WHERE value = ?", (text,)).fetchone()
        if known:
            return int(known[0])
        return int(database.execute("INSERT INTO StringIds (value) VALUES (?)", (text,)).lastrowid or 0)

    def samples(self, pid: int, tid: int, instants_us: Sequence[float], stack: Sequence[Frame]) -> None:
        """CPU samples of one thread, all of one stack."""
        with closing(sqlite3.connect(self._path)) as database, database:
            for instant in instants_us:
                row = (round(instant * 1000), (pid << 24) + tid)
                number = database.execute(
                    "INSERT INTO COMPOSITE_EVENTS (start, globalTid, cpuCycles) VALUES (?, ?, 1)", row
                ).lastrowid
                self._stack(database, "SAMPLING_CALLCHAINS", int(number or 0), stack)

    def _stack(self, database: sqlite3.Connection, table: str, number: int, stack: Sequence[Frame]) -> None:
        for depth, (function, module) in enumerate(stack):
            names = (self._text(database, function or "0x7f0000000000"), self._text(database, module))
            database.execute(
                f"INSERT INTO {table} (id, symbol, module, unresolved, stackDepth) VALUES (?, ?, ?, ?, ?)",
                (number, *names, None if function else 1, depth),
            )

    def call_stack(self, number: int, correlation: int, stack: Sequence[Frame]) -> None:
        """The stack of one CUDA call."""
        with closing(sqlite3.connect(self._path)) as database, database:
            columns = {row[1] for row in database.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_RUNTIME)")}
            if "callchainId" not in columns:
                database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN callchainId INTEGER")
            database.execute(
                "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET callchainId = ? WHERE correlationId = ?",
                (number, correlation),
            )
            self._stack(database, "CUDA_CALLCHAINS", number, stack)

    def memory(
        self,
        pid: int,
        at_us: float,
        size: int,
        address: int,
        *,
        freed: bool = False,
        kind: int = 2,
        call: int = -1,
    ) -> None:
        """An allocation on GPU 0, or a release; `kind` as in ENUM_CUDA_MEM_KIND, `call` a correlation id."""
        columns = "start, globalPid, deviceId, contextId, address, pc, bytes, memKind, memoryOperationType"
        values = (round(at_us * 1000), pid << 24, 0, 1, address, 0, size, kind, int(freed), call)
        with closing(sqlite3.connect(self._path)) as database, database:
            database.execute(
                f"INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS ({columns}, correlationId) "
                f"VALUES ({', '.join('?' * len(values))})",
                values,
            )
