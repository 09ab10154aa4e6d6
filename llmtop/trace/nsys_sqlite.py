"""Read what `nsys export --type sqlite` wrote, of nsys 2023.4 and newer.

Any table and any column may be missing (nsys writes a table only when it has rows), rows come in no order, and the
file may be cut. Documented by NVIDIA under "Exporter" in the Nsight Systems user guide; times are ns.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from llmtop.errors import UnusableInput
from llmtop.format import printable
from llmtop.inputs import DEFAULT, Limits, bytes_of
from llmtop.trace import model, sanitize
from llmtop.trace.intervals import Ns

# Kernel, runtime and NVTX tables in one: at 100,000 rows a block the lists of a block stay under 100 MB.
_BLOCK_ROWS = 100_000
_NEVER = sanitize.ABSENT
"""Stands for NULL in a column of numbers."""

_DAMAGED = (sqlite3.Error, UnicodeDecodeError)
"""What reading a damaged file raises; the second for a name that is not UTF-8 any more."""

_PUSH_POP, _START_END, _NVTXT_PUSH_POP, _NVTXT_START_END, _DOMAIN = 59, 60, 70, 71, 75
"""NVTX_EVENTS.eventType (ENUM_NSYS_EVENT_TYPE)."""

_METRICS = {
    "SMs Active": "sm_active",
    "SM Active": "sm_active",
    "Tensor Active": "tensor_active",
    "Tensor Active / FP16 Active": "tensor_active",
    "DRAM Read Bandwidth": "dram_read",
    "DRAM Write Bandwidth": "dram_write",
    "PCIe RX Throughput": "pcie_rx",
    "PCIe TX Throughput": "pcie_tx",
    "NVLink RX Requests User Data": "nvlink_rx",
    "NVLink TX Requests User Data": "nvlink_tx",
}
"""Names of counters in TARGET_INFO_GPU_METRICS, without their unit; they differ between chips and versions."""
_METRIC_BUCKETS = 120


def _said(error: Exception) -> str:
    """SQLite quotes the file in what it says, so its words are the file's."""
    return printable(str(error), 120)


_TABLES = {
    *("StringIds", "NVTX_EVENTS", "META_DATA_EXPORT", "OSRT_API", "PROFILER_OVERHEAD", "PROCESSES"),
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"),
    *("CUPTI_ACTIVITY_KIND_RUNTIME", "DIAGNOSTIC_EVENT", "GPU_METRICS"),
    *("TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_GPU", "TARGET_INFO_GPU_METRICS"),
}
"""What is read of an export."""
_SMALL_ROWS = 10_000
"""Of tables that describe: more are never there."""
_MOST_WARNINGS = 20
_LARGEST_VALUE = 4 << 20
"""Bytes of one value; nsys writes names of some thousands."""
_WORK_LEAST, _WORK_A_BYTE, _WORK_LOOK = 40_000_000, 30, 100_000
"""Instructions of SQLite's machine that a file may take: a whole export takes 2 a byte. A damaged page can lead
back to itself, and a schema can hide a query without an end behind the name of a table."""
_LEAST_ROW_BYTES = 4
"""A row takes 6 bytes at least: a table of more rows than that goes in circles."""


class _Database:
    """The file, its tables and columns, and what could not be read of it."""

    def __init__(self, path: Path, source: str, notes: list[str], limits: Limits) -> None:
        self.source, self.notes, self._limits = source, notes, limits
        self._bytes = bytes_of(path)
        self._work = _WORK_LEAST + _WORK_A_BYTE * self._bytes
        self._rows = 0
        try:
            # immutable: never a lock, a journal or a -wal file beside somebody's capture.
            self.connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
            self.connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            if sys.version_info >= (3, 11):
                self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
            self.connection.set_progress_handler(self._worked, _WORK_LOOK)
            # No function of a foreign schema, and no mapped file: one that shrinks would take the process with it.
            self.connection.execute("PRAGMA trusted_schema = OFF")
            self.connection.execute("PRAGMA mmap_size = 0")
            rows = self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            self.tables = {str(name) for (name,) in rows}
        except _DAMAGED as error:
            raise UnusableInput(
                f"{source} cannot be read as an SQLite export of nsys ({_said(error)}); export it again: "
                "nsys export --type sqlite REPORT.nsys-rep"
            ) from None
        self.columns = {name: self._columns(name) for name in self.tables & _TABLES}

    def _worked(self) -> int:
        """Called by SQLite now and then; anything but 0 ends the query."""
        self._work -= _WORK_LOOK
        return int(self._work < 0 and not self._limits.lifted)

    def _columns(self, table: str) -> set[str]:
        try:
            return {row[1] for row in self.connection.execute(f'PRAGMA table_info("{table}")')} | {"rowid"}
        except _DAMAGED as error:
            self._damaged(table, error, "is left out")
            return set()

    def _damaged(self, table: str, error: Exception, left_out: str) -> None:
        if self._work < 0:
            self._limits.check_work(self.source)
        self.notes.append(f"{table} is damaged ({_said(error)}): {left_out}")

    def numbers(self, table: str, columns: dict[str, int], where: str = "") -> dict[str, Ns]:
        """The columns of a table as int64; `columns` gives what stands for NULL or a column that is not there."""
        present = self.columns.get(table, set())
        if not present:
            return {name: np.empty(0, dtype=np.int64) for name in columns}
        picked = [
            f'IFNULL("{name}", {default})' if name in present else str(default)
            for name, default in columns.items()
        ]
        blocks = self._blocks(table, f'SELECT {", ".join(picked)} FROM "{table}" {where}', len(columns))
        table_of_rows = np.concatenate(blocks) if blocks else np.empty((0, len(columns)), dtype=np.int64)
        return {name: np.ascontiguousarray(table_of_rows[:, i]) for i, name in enumerate(columns)}

    def _blocks(self, table: str, query: str, width: int) -> list[Ns]:
        blocks: list[Ns] = []
        read = 0
        try:
            cursor = self.connection.execute(query)
            while rows := cursor.fetchmany(_BLOCK_ROWS):
                blocks.append(_block(rows, width))
                read += len(rows)
                if read * _LEAST_ROW_BYTES > self._bytes:
                    raise sqlite3.DatabaseError("more rows than the file can hold")
                self._rows += len(rows)
                self._limits.check_events(self.source, self._rows, self._bytes)
        except _DAMAGED as error:
            self._damaged(table, error, f"{read} of its rows were read, the rest is left out")
        return blocks

    def stream(self, query: str, table: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, one by one; none when the table is not there, fewer when it is damaged."""
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
            self._damaged(table, error, f"{read} of its rows were read, the rest is left out")

    def rows(self, query: str, table: str) -> list[tuple[Any, ...]]:
        """The rows of a small query; none when the table is not there or damaged."""
        if table not in self.columns:
            return []
        try:
            return self.connection.execute(query).fetchmany(_SMALL_ROWS)
        except _DAMAGED as error:
            self._damaged(table, error, "it is left out")
            return []

    def names(self, wanted: Iterable[Ns], into: model.Names) -> dict[int, int]:
        """From the ids of StringIds that occur to numbers of names."""
        ids = set(np.unique(np.concatenate([*wanted, np.empty(0, dtype=np.int64)])).tolist()) - {_NEVER}
        known: dict[int, str] = {}
        for number, value in self.stream("SELECT id, value FROM StringIds", "StringIds"):
            if number in ids:
                known[number] = _name(value)
        missing = ids - known.keys()
        if missing:
            self.notes.append(f"{len(missing)} names are missing from StringIds; they are written as #NUMBER")
        numbered = {number: into.number(known.get(number, f"#{number}")) for number in ids} | {_NEVER: 0}
        self.check_names(into)
        return numbered

    def check_names(self, names: model.Names) -> None:
        """Refuse a file whose names alone would fill the memory.

        Raises:
            UnusableInput: they would.
        """
        self._limits.check_number(self.source, "name_characters", names.characters)


def _name(value: object) -> str:
    return printable(str(value), model.LONGEST_NAME)


def _block(rows: list[tuple[Any, ...]], width: int) -> Ns:
    try:
        flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=len(rows) * width)
    except (TypeError, ValueError, OverflowError):
        # SQLite columns have no fixed type: a foreign or damaged row may hold text or a fraction.
        flat = np.fromiter((_whole(value) for value in chain.from_iterable(rows)), dtype=np.int64)
    beyond = (flat < -(1 << 62)) | (flat >= 1 << 62)
    if beyond.any():
        flat[beyond] = _NEVER
    return flat.reshape(-1, width)


def _whole(value: object) -> int:
    try:
        number = int(value)  # type: ignore[call-overload]  # anything may come; what is no number is caught
    except (TypeError, ValueError, OverflowError):
        return _NEVER
    return number if -(1 << 62) <= number < (1 << 62) else _NEVER


def load(path: Path, source: str, limits: Limits = DEFAULT) -> model.Trace:
    """Read an SQLite export.

    Args:
        path: the file.
        source: what messages and the report call it.
        limits: how much it may ask for.

    Raises:
        UnusableInput: not an SQLite file, not one of nsys, or beyond a limit.
    """
    notes: list[str] = []
    database = _Database(path, source, notes, limits)
    try:
        known = ("StringIds", "NVTX_EVENTS", "TARGET_INFO_SYSTEM_ENV", "META_DATA_EXPORT")
        if not any(name in known or name.startswith("CUPTI_ACTIVITY_KIND") for name in database.tables):
            raise UnusableInput(
                f"{source} is an SQLite file but not an export of nsys: none of its tables is there"
            )
        return _load(database, source, notes)
    finally:
        database.connection.close()


def _load(database: _Database, source: str, notes: list[str]) -> model.Trace:
    names = model.Names()
    kernels = database.numbers(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        dict.fromkeys(("start", "end"), _NEVER)
        | {"deviceId": 0, "streamId": 0, "correlationId": -1, "globalPid": 0, "shortName": _NEVER}
        | {"demangledName": _NEVER},
    )
    copies = database.numbers(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        dict.fromkeys(("start", "end"), _NEVER)
        | {"deviceId": 0, "streamId": 0, "correlationId": -1, "globalPid": 0, "bytes": 0, "copyKind": 0}
        | {"srcKind": model.MEMORY_UNKNOWN, "dstKind": model.MEMORY_UNKNOWN},
    )
    memsets = database.numbers(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        dict.fromkeys(("start", "end"), _NEVER)
        | {"deviceId": 0, "streamId": 0, "correlationId": -1, "globalPid": 0, "bytes": 0},
    )
    calls = database.numbers(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        {"start": _NEVER, "end": _NEVER, "globalTid": 0, "correlationId": -1, "nameId": _NEVER},
    )
    waits = database.numbers("OSRT_API", {"start": _NEVER, "end": _NEVER, "globalTid": 0, "nameId": _NEVER})
    ids = [kernels["shortName"], kernels["demangledName"], calls["nameId"], waits["nameId"]]
    number = database.names(ids, names)
    trace = model.Trace(source=source, engine="nsys", notes=notes)
    trace.ops = model.joined(
        [_kernels(kernels, number), _copies(copies, names), _memsets(memsets, names.number("memset"))]
    )
    process, thread = _owner(calls["globalTid"])
    trace.calls = model.ApiCalls(
        calls["start"], calls["end"], process, thread, _map(calls["nameId"], number), calls["correlationId"]
    )
    process, thread = _owner(waits["globalTid"])
    kind = np.full(len(process), model.OS_CALL, dtype=np.int8)
    trace.host = model.HostSpans(
        waits["start"], waits["end"], process, thread, _map(waits["nameId"], number), kind
    )
    trace.ranges = _ranges(database, names)
    overhead = database.numbers("PROFILER_OVERHEAD", {"start": _NEVER, "end": _NEVER})
    trace.overhead = model.Table(overhead["start"], overhead["end"])
    trace.names = names.all
    _describe(database, trace)
    trace.metrics = _metrics(database)
    return trace


def _map(ids: Ns, number: dict[int, int]) -> Ns:
    different, inverse = np.unique(ids, return_inverse=True)
    return np.array([number.get(i, 0) for i in different.tolist()], dtype=np.int64)[inverse.reshape(-1)]


def _owner(global_tid: Ns) -> tuple[Ns, Ns]:
    """(pid, tid) from a serialised GlobalId: pid in bits 24 to 47, tid below."""
    return (global_tid >> 24) & 0xFFFFFF, global_tid & 0xFFFFFF


def _kernels(rows: dict[str, Ns], number: dict[int, int]) -> model.DeviceOps:
    short, full = _map(rows["shortName"], number), _map(rows["demangledName"], number)
    return model.build(
        model.DeviceOps,
        _common(rows)
        | {"kind": np.full(len(short), model.KERNEL), "name": np.where(short > 0, short, full)}
        | {"full_name": np.where(full > 0, full, short)},
    )


def _copies(rows: dict[str, Ns], names: model.Names) -> model.DeviceOps:
    direction = np.where((rows["copyKind"] >= 0) & (rows["copyKind"] <= 13), rows["copyKind"], model.UNKNOWN)
    label = {d: names.number(f"memcpy {text}") for d, text in model.DIRECTIONS.items()}
    name = _map(direction, label)
    return model.build(
        model.DeviceOps,
        _common(rows)
        | {"kind": np.full(len(name), model.MEMCPY), "name": name, "full_name": name, "bytes": rows["bytes"]}
        | {"direction": direction, "source_memory": _memory(rows["srcKind"])}
        | {"target_memory": _memory(rows["dstKind"])},
    )


def _memory(kinds: Ns) -> Ns:
    return np.where((kinds >= 0) & (kinds < model.MEMORY_UNKNOWN), kinds, model.MEMORY_UNKNOWN)


def _memsets(rows: dict[str, Ns], name: int) -> model.DeviceOps:
    length = len(rows["start"])
    return model.build(
        model.DeviceOps,
        _common(rows)
        | {"kind": np.full(length, model.MEMSET), "bytes": rows["bytes"]}
        | {"name": np.full(length, name), "full_name": np.full(length, name)},
    )


def _common(rows: dict[str, Ns]) -> dict[str, Ns]:
    return {
        "start": rows["start"],
        "end": rows["end"],
        "device": rows["deviceId"],
        "process": _owner(rows["globalPid"])[0],
        "stream": rows["streamId"],
        "correlation": rows["correlationId"],
    }


def _ranges(database: _Database, names: model.Names) -> model.Ranges:
    """NVTX ranges. A name stands in `text`, or is registered and stands in StringIds under `textId`."""
    table = "NVTX_EVENTS"
    columns = {"start": _NEVER, "end": _NEVER, "eventType": 0, "globalTid": 0, "textId": _NEVER, "domainId": 0}
    kinds = f"WHERE eventType IN ({_PUSH_POP}, {_START_END}, {_NVTXT_PUSH_POP}, {_NVTXT_START_END})"
    if not {"start", "eventType"} <= database.columns.get(table, set()):
        return model.empty(model.Ranges)
    rows = database.numbers(table, {"rowid": 0} | columns, kinds)
    if not len(rows["start"]):
        return model.empty(model.Ranges)
    number = database.names([rows["textId"]], names)
    name = _map(rows["textId"], number)
    texts: dict[int, int] = {}
    if "text" in database.columns[table]:
        query = f"SELECT rowid, text FROM {table} {kinds} AND text IS NOT NULL"
        for row, text in database.stream(query, table):
            texts[row] = names.number(_name(text))
            if not len(texts) % _BLOCK_ROWS:
                database.check_names(names)
        database.check_names(names)
    if texts:
        name = np.where(name > 0, name, _map(rows["rowid"], texts))
    process, thread = _owner(rows["globalTid"])
    push_pop = np.isin(rows["eventType"], (_PUSH_POP, _NVTXT_PUSH_POP))
    end = np.where(rows["end"] == _NEVER, model.OPEN, rows["end"])
    domain = _domains(database, process, rows["domainId"], names)
    style = np.where(push_pop, model.PUSH_POP, model.START_END).astype(np.int8)
    return model.Ranges(rows["start"], end, process, thread, name, domain, style)


def _domains(database: _Database, process: Ns, domain: Ns, names: model.Names) -> Ns:
    """Domain ids count within a process; the name comes with the event that created the domain."""
    query = f"SELECT globalTid, domainId, text FROM NVTX_EVENTS WHERE eventType = {_DOMAIN} AND text IS NOT NULL"
    known = {"domainId", "text", "globalTid"} <= database.columns["NVTX_EVENTS"]
    created = database.stream(query, "NVTX_EVENTS") if known else ()
    found = {
        (((_whole(tid) >> 24) & 0xFFFFFF) << 32) + _whole(number): names.number(_name(text))
        for tid, number, text in created
    }
    return _map((process << 32) + domain, found)


def _describe(database: _Database, trace: model.Trace) -> None:
    version = database.rows(
        "SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_PRODUCT_VERSION'", "META_DATA_EXPORT"
    )
    trace.version = printable(str(version[0][0]), 40) if version else ""
    began = database.rows(
        "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SESSION_START_TIME"
    )
    if began and isinstance(began[0][0], int) and 0 < began[0][0] < 1 << 62:
        trace.origin_unix_ns = began[0][0]
    columns = database.columns.get("TARGET_INFO_GPU", set())
    wanted = ("id", "name", "uuid", "memoryBandwidth", "smCount")
    picked = ", ".join(column if column in columns else "NULL" for column in wanted)
    for row in database.rows(f"SELECT {picked} FROM TARGET_INFO_GPU", "TARGET_INFO_GPU"):
        number, name, uuid, bandwidth, sms = row
        if isinstance(number, int):
            trace.gpus[number] = model.TracedGpu(
                number=number,
                name=printable(str(name), 100) if name else None,
                uuid=printable(str(uuid), 100) if uuid else None,
                dram_bytes_per_s=float(bandwidth) if isinstance(bandwidth, int) and bandwidth > 0 else None,
                sm_count=sms if isinstance(sms, int) and sms > 0 else None,
            )
    for pid, name in database.rows("SELECT pid, name FROM PROCESSES", "PROCESSES"):
        if isinstance(pid, int) and name:
            trace.process_names[pid] = printable(str(name), 200)
    _warnings(database, trace)


def _warnings(database: _Database, trace: model.Trace) -> None:
    """What nsys itself found wrong with the capture; its routine remarks at every stop are not repeated."""
    query = "SELECT DISTINCT text FROM DIAGNOSTIC_EVENT WHERE severity IN (2, 3)"
    routine = ("Not all ", "No NVTX events", "No CUDA events")
    said = [str(text) for (text,) in database.rows(query, "DIAGNOSTIC_EVENT")]
    said = [text for text in said if not text.startswith(routine)]
    trace.notes += [f"nsys says: {printable(text, 300)}" for text in said[:_MOST_WARNINGS]]
    if len(said) > _MOST_WARNINGS:
        trace.notes.append(f"nsys says {len(said) - _MOST_WARNINGS} things more")


def _metrics(database: _Database) -> list[model.SampledMetric]:
    """GPU metrics, averaged by SQLite into buckets: there can be millions of samples."""
    if not {"typeId", "metricId", "timestamp", "value"} <= database.columns.get("GPU_METRICS", set()):
        return []
    described = database.rows(
        "SELECT typeId, metricId, metricName FROM TARGET_INFO_GPU_METRICS", "TARGET_INFO_GPU_METRICS"
    )
    wanted = {}
    for kind, metric, text in described:
        label, _, unit = str(text).partition(" [")
        countable = isinstance(kind, int) and isinstance(metric, int)
        if countable and label in _METRICS and unit.startswith("Throughput"):
            wanted[(kind, metric)] = _METRICS[label]
    edges = database.rows("SELECT min(timestamp), max(timestamp) FROM GPU_METRICS", "GPU_METRICS")
    low, high = (_whole(edge) for edge in edges[0]) if edges else (0, 0)
    if not wanted or high <= low:
        return []
    width = (high - low + 1) / _METRIC_BUCKETS
    values = {key: np.full(_METRIC_BUCKETS, np.nan) for key in wanted}
    ids = ", ".join(sorted({str(metric) for _, metric in wanted}))
    query = (
        f"SELECT typeId, metricId, CAST((timestamp - {low}) / {width} AS INTEGER), avg(value) FROM GPU_METRICS "
        f"WHERE metricId IN ({ids}) GROUP BY 1, 2, 3"
    )
    for kind, metric, bucket, mean in database.stream(query, "GPU_METRICS"):
        if (kind, metric) in values and 0 <= bucket < _METRIC_BUCKETS and isinstance(mean, float):
            values[(kind, metric)][bucket] = mean
    # The low byte of typeId numbers the GPU.
    return [
        model.SampledMetric(
            device=kind & 0xFF, name=name, start=low, bucket_ns=width, values=values[(kind, metric)]
        )
        for (kind, metric), name in wanted.items()
    ]
