"""Captures as plain rows, and what they come to by the plainest arithmetic: nothing here is llmtop's.

A test that sets a report against these shares no code with what it tests. Times are ns.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

Interval = tuple[int, int]


class Op(NamedTuple):
    """A kernel, copy, memset or whole graph."""

    start: int
    end: int
    kind: str
    name: str
    device: int
    pid: int
    launch: tuple[int, int]
    """(pid, correlation id)."""
    bytes: int = 0


class Call(NamedTuple):
    """A CUDA call of the host."""

    start: int
    end: int
    name: str
    pid: int
    correlation: int


class Range(NamedTuple):
    """A range or annotation that ended."""

    start: int
    end: int
    name: str
    pid: int
    thread: int


@dataclass
class Raw:
    """The rows of a capture."""

    ops: list[Op] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)


_COPIES = {1: "host-to-device", 2: "device-to-host", 8: "device-to-device"}
_ARROWS = {"HtoD": "host-to-device", "DtoH": "device-to-host", "DtoD": "device-to-device"}


def read(path: Path) -> Raw:
    """The rows of an nsys export (unpacked) or a Chrome trace."""
    return _sqlite(path) if path.suffix == ".sqlite" else _chrome(path)


def _sqlite(path: Path) -> Raw:
    raw, database = Raw(), sqlite3.connect(path)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    names = dict(database.execute("SELECT id, value FROM StringIds"))
    kind = {"KERNEL": "kernel", "MEMCPY": "memcpy", "MEMSET": "memset"}
    for table, column in (("KERNEL", "demangledName"), ("MEMCPY", "copyKind"), ("MEMSET", "0")):
        size = "0" if table == "KERNEL" else "bytes"
        query = f"SELECT start, end, {column}, deviceId, globalPid, correlationId, {size} FROM "
        if f"CUPTI_ACTIVITY_KIND_{table}" not in tables:
            continue
        for start, end, what, device, process, correlation, count in database.execute(
            query + f"CUPTI_ACTIVITY_KIND_{table}"
        ):
            name = {"KERNEL": names.get(what, ""), "MEMCPY": _COPIES.get(what, "")}.get(table, "memset")
            pid = process >> 24 & 0xFFFFFF
            raw.ops.append(Op(start, end, kind[table], name, device, pid, (pid, correlation), count))
    for start, end, name, thread, correlation in database.execute(
        "SELECT start, end, nameId, globalTid, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    ):
        plain = re.sub(r"_v\d+$", "", names[name])
        raw.calls.append(Call(start, end, plain, thread >> 24 & 0xFFFFFF, correlation))
    for start, end, text, name, thread in database.execute(
        "SELECT start, end, text, textId, globalTid FROM NVTX_EVENTS WHERE eventType = 59 AND end IS NOT NULL"
    ):
        pid = thread >> 24 & 0xFFFFFF
        raw.ranges.append(Range(start, end, text or names.get(name, ""), pid, thread & 0xFFFFFF))
    database.close()
    return raw


def _chrome(path: Path) -> Raw:
    raw = Raw()
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events = json.loads(text, parse_float=Decimal)
    events = events["traceEvents"] if isinstance(events, dict) else events
    rows = [event for event in events if event.get("ph") == "X" and "dur" in event]
    for event in rows:
        kind = str(event.get("cat", "")).lower()
        start = round(event["ts"] * 1000)
        end = start + round(event["dur"] * 1000)
        arguments, pid, name = event.get("args") or {}, event["pid"], event["name"]
        if kind in ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime"):
            raw.calls.append(Call(start, end, name, pid, arguments.get("correlation", -1)))
        elif kind == "user_annotation" or (kind == "operator" and name.startswith("ProfilerStep#")):
            raw.ranges.append(Range(start, end, name, pid, event["tid"]))
    owner = {call.correlation: call.pid for call in raw.calls}
    usual = max(_count(call.pid for call in raw.calls).items(), key=lambda item: item[1])[0] if raw.calls else 0
    for event in rows:
        kind = str(event.get("cat", "")).lower().removeprefix("gpu_")
        if kind not in ("kernel", "memcpy", "memset"):
            continue
        arguments = event.get("args") or {}
        start = round(event["ts"] * 1000)
        correlation = arguments.get("correlation", -1)
        pid = owner.get(correlation, usual)
        device = arguments.get("device", arguments.get("inDevice"))
        if kind == "memcpy":
            name = _ARROWS.get(event["name"].split()[1], "")
        else:
            name = "memset" if kind == "memset" else event["name"]
        size = int(arguments.get("bytes", 0)) if kind != "kernel" else 0
        end = start + round(event["dur"] * 1000)
        raw.ops.append(Op(start, end, kind, name, device, pid, (pid, correlation), size))
    return raw


def _count(values: Iterable[int]) -> dict[int, int]:
    counts: dict[int, int] = defaultdict(int)
    for value in values:
        counts[value] += 1
    return counts


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The instants in any of them, as disjoint intervals in order."""
    found: list[list[int]] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return [(start, end) for start, end in found]


def total(intervals: Iterable[Interval]) -> int:
    """How long they are together."""
    return sum(end - start for start, end in intervals)


def clipped(intervals: Iterable[Interval], low: int, high: int) -> list[Interval]:
    """What of them lies between two instants."""
    return [(max(start, low), min(end, high)) for start, end in intervals if min(end, high) > max(start, low)]


def common(one: list[Interval], other: list[Interval]) -> int:
    """How long both of two disjoint, ordered sets hold."""
    at = both = 0
    for start, end in one:
        while at < len(other) and other[at][1] <= start:
            at += 1
        place = at
        while place < len(other) and other[place][0] < end:
            both += min(end, other[place][1]) - max(start, other[place][0])
            place += 1
    return both


def holes(intervals: list[Interval], low: int, high: int) -> list[Interval]:
    """What of the time between two instants lies in none of them."""
    edges = [low, *(edge for interval in clipped(intervals, low, high) for edge in interval), high]
    return [(edges[i], edges[i + 1]) for i in range(0, len(edges), 2) if edges[i + 1] > edges[i]]


def host_edges(raw: Raw, pid: int, found_by: str) -> tuple[list[int], int]:
    """Where the host's steps begin, and the end of the last; and on which thread.

    Args:
        raw: the capture.
        pid: of the process.
        found_by: what the report says of how it found them.
    """
    quoted = re.search(r"range '(.*)'", found_by)
    assert quoted is not None, found_by
    named = [row for row in raw.ranges if row.pid == pid and quoted[1] in (row.name, _bare(row.name))]
    lengths: dict[int, int] = defaultdict(int)
    for row in named:
        lengths[row.thread] += row.end - row.start
    thread = max(lengths, key=lambda key: lengths[key])
    rows = sorted(row for row in named if row.thread == thread)
    if found_by.startswith("from the end"):
        return sorted(row.end for row in rows), thread
    edges = [row.start for row in rows]
    return (edges if found_by.startswith("from the start") else [*edges, rows[-1].end]), thread


def _bare(name: str) -> str:
    return re.sub(r"[\s#_:-]*\d+$", "", name)


class Steps(NamedTuple):
    """The whole steps of one process on one GPU."""

    bounds: list[int]
    """On the device; one more than there are steps."""
    launched: Interval
    """Between which instants the host launched them."""


def device_steps(ops: list[Op], called_at: dict[tuple[int, int], int], edges: list[int]) -> Steps:
    """A step begins on the device with the first work that the host launched in it.

    Args:
        ops: of one process on one GPU.
        called_at: when the host launched, by process and correlation id.
        edges: the host's steps.
    """
    launches = sorted((called_at[op.launch], op.start) for op in ops if op.launch in called_at)
    began: dict[int, int] = {}
    at = 0
    for edge, following in zip(edges, [*edges[1:], 1 << 62], strict=True):
        while at < len(launches) and launches[at][0] < edge:
            at += 1
        if at < len(launches) and launches[at][0] < following:
            began.setdefault(launches[at][1], edge)
    if len(began) < 2:
        return Steps(edges, (edges[0], edges[-1]))
    bounds = sorted(began)
    lengths = [after - before for before, after in pairwise(bounds)]
    if len(lengths) >= 3 and lengths[0] > 1.15 * median(lengths[1:]) and lengths[0] > max(lengths[1:]):
        bounds = bounds[1:]
    hosts = [began[bound] for bound in bounds]
    return Steps(bounds, (min(hosts), max(hosts)))


def totals(rows: Iterable[Any], key: str = "name") -> dict[str, tuple[int, int]]:
    """By name how many there are and how long they take together."""
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        number, took = found.get(getattr(row, key), (0, 0))
        found[getattr(row, key)] = (number + 1, took + row.end - row.start)
    return found
