"""Captures made by hand, in the two formats that llmtop reads, for tests that must know the truth to the µs."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmtop.trace import model
from llmtop.trace.files import chrome_json
from llmtop.trace.files.open import open_trace
from llmtop.trace.sanitize import drop_unusable_rows

MAIN = 100


@dataclass
class Capture:
    """Events in µs. Each kernel or copy comes with the call that launched it, unless `launched` is None."""

    pid: int = MAIN
    device: int = 0
    ops: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    ranges: list[dict[str, Any]] = field(default_factory=list)
    host: list[dict[str, Any]] = field(default_factory=list)
    waits: list[dict[str, Any]] = field(default_factory=list)
    switches: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 0

    def call(self, name: str, start: float, end: float, tid: int | None = None) -> int:
        """A CUDA call; returns its correlation id."""
        self.correlation += 1
        self.calls.append(self._event(name, start, end, tid) | {"correlation": self.correlation})
        return self.correlation

    def kernel(
        self,
        start: float,
        end: float,
        launched: float | None = None,
        name: str = "gemm_kernel",
        stream: int = 7,
        tid: int | None = None,
        took: float = 5,
        by: str = "cudaLaunchKernel",
        **arguments: Any,
    ) -> None:
        """A kernel and the call that launched it, which began at `launched` and took `took`; `arguments` are
        written into Chrome JSON only."""
        correlation = self._launch(by, launched, took, tid)
        extra = {"kind": "kernel", "stream": stream, "corr": correlation, "arguments": arguments}
        self.ops.append(self._event(name, start, end, tid) | extra)

    def copy(
        self,
        start: float,
        end: float,
        size: int,
        direction: str = "HtoD",
        memory: str = "Pageable",
        launched: float | None = None,
        took: float = 5,
        tid: int | None = None,
    ) -> None:
        """A copy between the host's `memory` and the device."""
        correlation = self._launch("cudaMemcpyAsync", launched, took, tid)
        extra = {"kind": "memcpy", "stream": 7, "corr": correlation, "bytes": size}
        self.ops.append(
            self._event("", start, end, tid) | extra | {"direction": direction, "memory": memory},
        )

    def memset(self, start: float, end: float, launched: float | None = None) -> None:
        """A memset of four bytes."""
        correlation = self._launch("cudaMemsetAsync", launched, 2, None)
        self.ops.append(
            self._event("", start, end, None) | {"kind": "memset", "stream": 7, "corr": correlation, "bytes": 4}
        )

    def range(self, name: str, start: float, end: float | None, tid: int | None = None, domain: int = 0) -> None:
        """An NVTX range or annotation."""
        self.ranges.append(self._event(name, start, end, tid) | {"domain": domain})

    def operator(self, name: str, start: float, end: float, tid: int | None = None, **arguments: Any) -> None:
        """An operator of the framework (Chrome JSON only), with the arguments that the file gives it."""
        self.host.append(self._event(name, start, end, tid) | {"arguments": arguments})

    def frame(self, name: str, start: float, end: float, tid: int | None = None) -> None:
        """A frame of Python, or a module's forward (Chrome JSON only)."""
        self.host.append(self._event(name, start, end, tid) | {"category": "python_function"})

    def wait(self, name: str, start: float, end: float, tid: int | None = None) -> None:
        """A call into the C library (nsys only)."""
        self.waits.append(self._event(name, start, end, tid))

    def off_cpu(self, start: float, end: float, tid: int | None = None, state: int = 0, block: int = 0) -> None:
        """A stretch in which a thread had no CPU (nsys only), with the numbers that say why; 0 is Unknown."""
        self.switches.append(self._event("", start, end, tid) | {"state": state, "block": block})

    def _launch(self, name: str, launched: float | None, took: float, tid: int | None) -> int:
        if launched is None:
            self.correlation += 1
            return self.correlation
        return self.call(name, launched, launched + took, tid)

    def _event(self, name: str, start: float, end: float | None, tid: int | None) -> dict[str, Any]:
        thread = self.pid if tid is None else tid
        return {"name": name, "start": start, "end": end, "tid": thread, "pid": self.pid, "device": self.device}

    def trace(self, folder: Path) -> model.Trace:
        """As nsys would write it, read back."""
        return open_trace(write_sqlite(folder / f"made-{self.pid}.sqlite", [self]))

    def chrome_trace(self, folder: Path, **properties: Any) -> model.Trace:
        """As torch.profiler would write it, read back; `properties` are the file's own."""
        path = write_chrome(folder / f"made-{self.pid}.json", self, **properties)
        with path.open("rb") as stream:
            return drop_unusable_rows(chrome_json.load(stream, str(path)))


_TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
 correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
 correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
 correlationId INTEGER, globalPid INTEGER, bytes INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,
 nameId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER,
 globalTid INTEGER, domainId INTEGER);
CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER);
"""
_SCHEDULING = """
CREATE TABLE SCHED_EVENTS (start INTEGER, cpu INTEGER, isSchedIn INTEGER, globalTid INTEGER, threadState INTEGER,
 threadBlock INTEGER);
CREATE TABLE ENUM_SAMPLING_THREAD_STATE (id INTEGER, name TEXT);
CREATE TABLE ENUM_SCHEDULING_THREAD_BLOCK (id INTEGER, name TEXT);
INSERT INTO ENUM_SAMPLING_THREAD_STATE VALUES (0, 'Unknown'), (1, 'Running'), (2, 'Interruptible');
INSERT INTO ENUM_SCHEDULING_THREAD_BLOCK VALUES (0, 'NonBlocked'), (4, 'Nanosleep'), (44, 'Preempted');
"""
_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "unified DtoH": 12}
_MEMORIES = {"Pageable": 0, "Pinned": 1, "Device": 2}


def write_sqlite(path: Path, captures: list[Capture], zero_us: float = 0.0) -> Path:
    """Write captures of several processes as one SQLite export of nsys."""
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.executescript(_TABLES)
    if any(capture.switches for capture in captures):
        database.executescript(_SCHEDULING)
    names: dict[str, int] = {}

    def text(name: str) -> int:
        if name not in names:
            names[name] = len(names) + 1
            database.execute("INSERT INTO StringIds VALUES (?, ?)", (names[name], name))
        return names[name]

    def ns(us: float | None) -> int | None:
        return None if us is None else round((us + zero_us) * 1000)

    def put(table: str, *values: Any) -> None:
        database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)

    for capture in captures:
        process = capture.pid << 24
        for op in capture.ops:
            common = (ns(op["start"]), ns(op["end"]), op["device"], op["stream"], op["corr"], process)
            if op["kind"] == "kernel":
                name = text(op["name"])
                put("CUPTI_ACTIVITY_KIND_KERNEL", *common, name, name)
            elif op["kind"] == "memset":
                put("CUPTI_ACTIVITY_KIND_MEMSET", *common, op["bytes"])
            else:
                source, target = _ends(op["direction"], op["memory"])
                kinds = (_KINDS[op["direction"]], _MEMORIES[source], _MEMORIES[target])
                put("CUPTI_ACTIVITY_KIND_MEMCPY", *common, op["bytes"], *kinds)
        for call in capture.calls:
            thread = process + call["tid"]
            name = text(call["name"] + "_v3020")
            put(
                "CUPTI_ACTIVITY_KIND_RUNTIME",
                ns(call["start"]),
                ns(call["end"]),
                thread,
                call["correlation"],
                name,
            )
        for mark in capture.ranges:
            thread = process + mark["tid"]
            put("NVTX_EVENTS", ns(mark["start"]), ns(mark["end"]), 59, mark["name"], None, thread, mark["domain"])
        for wait in capture.waits:
            put("OSRT_API", ns(wait["start"]), ns(wait["end"]), process + wait["tid"], text(wait["name"]))
        for off in capture.switches:
            thread = process + off["tid"]
            put("SCHED_EVENTS", ns(off["start"]), 0, 0, thread, off["state"], off["block"])
            put("SCHED_EVENTS", ns(off["end"]), 0, 1, thread, 0, 0)
    database.commit()
    database.close()
    return path


def write_chrome(path: Path, capture: Capture, zero_us: float = 0.0, **properties: Any) -> Path:
    """Write a capture as torch.profiler does today."""
    events: list[dict[str, Any]] = []

    def add(category: str, event: dict[str, Any], pid: object, tid: object, **arguments: Any) -> None:
        took = event["end"] - event["start"]
        place = {"pid": pid, "tid": tid, "ts": event["start"] + zero_us, "dur": took}
        events.append({"ph": "X", "cat": category, "name": event["name"], **place, "args": arguments})

    for op in capture.ops:
        arguments = {"device": op["device"], "stream": op["stream"], "correlation": op["corr"]}
        if op["kind"] == "memcpy":
            source, target = _ends(op["direction"], op["memory"])
            op = op | {"name": f"Memcpy {op['direction']} ({source} -> {target})"}
        elif op["kind"] == "memset":
            op = op | {"name": "Memset (Device)"}
        category = "kernel" if op["kind"] == "kernel" else f"gpu_{op['kind']}"
        arguments |= op.get("arguments", {})
        add(category, op, op["device"], op["stream"], **arguments, bytes=op.get("bytes", 0))
    for call in capture.calls:
        add("cuda_runtime", call, call["pid"], call["tid"], correlation=call["correlation"])
    for mark in capture.ranges:
        if mark["end"] is not None:
            add("user_annotation", mark, mark["pid"], mark["tid"])
    for operator in capture.host:
        category = operator.get("category", "cpu_op")
        add(category, operator, operator["pid"], operator["tid"], **operator.get("arguments", {}))
    path.write_text(
        json.dumps({"schemaVersion": 1, **properties, "traceEvents": events, "traceName": str(path.name)})
    )
    return path


def _ends(direction: str, memory: str) -> tuple[str, str]:
    if direction == "DtoD":
        return "Device", "Device"
    return (memory, "Device") if direction == "HtoD" else ("Device", memory)


def steady(steps: int = 6, period: float = 10_000, busy: float = 9_900, capture: Capture | None = None) -> Capture:
    """A healthy training: each step one long kernel, launched a step ahead, and a range around the host's part."""
    made = capture or Capture()
    for step in range(steps):
        begin = step * period
        made.range("step", begin, begin + period)
        made.kernel(begin + period * 0.5, begin + period * 0.5 + busy, launched=begin + 10)
    return made
