"""From a capture to its report in a fresh process: a real one, and made ones of two million events."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.result import Result
from tests.support.data import LAUNCH_BOUND, unpacked
from tests.support.nsys import find_nsys
from tests.support.processes import environment

MILLIONS = 2_000_000
_STEPS = 200


def run() -> Iterable[Result]:
    """All figures; those beside nsys only where there is one."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        real = unpacked(LAUNCH_BOUND, folder)
        ours = min(_report(real)[0] for _ in range(3))
        yield Result("launch_bound.sqlite to report, fresh process", ours, "s", 1.5, "63,474 kernels, best of 3")
        nsys = find_nsys()
        if nsys is not None:
            theirs = min(_nsys_stats(nsys, real) for _ in range(2))
            yield Result("the same beside nsys stats, three reports", ours / theirs, "x", None, f"{theirs:.2f} s")
        kinds = (
            ("nsys SQLite", _made_sqlite),
            ("Chrome JSON", _made_json),
            ("Chrome JSON, half of them operators", _made_json_with_operators),
        )
        for kind, make in kinds:
            made = make(folder)
            seconds, peak = _report(made)
            size = made.stat().st_size >> 20
            yield Result(f"two million events of {kind}", seconds, "s", 10.0, f"{size} MiB")
            yield Result(f"two million events of {kind}, peak RSS", peak / (1 << 20), "MiB", 1024.0)
            made.unlink()


def _report(path: Path) -> tuple[float, int]:
    """(wall seconds, peak RSS in bytes) of `llmtop report PATH --json`."""
    command = [sys.executable, "-m", "llmtop", "report", str(path), "--json"]
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment())
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} failed")
    return seconds, usage.ru_maxrss * 1024


def _nsys_stats(nsys: str, path: Path) -> float:
    reports = "cuda_gpu_kern_sum,cuda_api_sum,cuda_gpu_mem_time_sum"
    began = time.perf_counter()
    subprocess.run([nsys, "stats", "-r", reports, str(path)], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _kernels() -> Iterator[tuple[int, int, int, int]]:
    """(launched, start, end, name) in ns: short kernels, launched somewhat too slowly."""
    for index in range(MILLIONS // 2 - _STEPS):
        at = index * 10_000
        yield at, at + 5_000, at + 9_000 + index % 900, index % 60


def _made_sqlite(folder: Path) -> Path:
    path = folder / "made.sqlite"
    database = sqlite3.connect(path)
    database.executescript(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
        " correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,"
        " correlationId INTEGER, nameId INTEGER);"
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER);"
    )
    owner = 500 << 24
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, f"kernel_{i}_name") for i in range(61)])
    database.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, ?, ?, ?, ?)",
        ((start, end, i, owner, name, name) for i, (_, start, end, name) in enumerate(_kernels())),
    )
    database.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 60)",
        ((at, at + 4_000, owner + 500, i) for i, (at, *_) in enumerate(_kernels())),
    )
    database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, 'step', ?)", _steps(owner + 500))
    database.commit()
    database.close()
    return path


def _steps(thread: int) -> Iterator[tuple[int, int, int]]:
    length = (MILLIONS // 2) * 10_000 // _STEPS
    for step in range(_STEPS):
        yield step * length, (step + 1) * length, thread


def _made_json_with_operators(folder: Path) -> Path:
    """As with record_shapes=True: two operators around each launch, of a hundred sizes."""
    path = folder / "made-operators.json"
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [')
        for step, (start, end, thread) in enumerate(_steps(500)):
            mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": thread}
            file.write(json.dumps(mark | {"tid": thread, "ts": start / 1e3, "dur": (end - start) / 1e3}) + ",\n")
        for i, (at, start, end, name) in zip(range(MILLIONS // 4), _kernels(), strict=False):
            outer = _operator("aten::linear", at - 400, 4_900, i, name)
            inner = _operator("aten::mm", at - 200, 4_500, i, name)
            file.write(
                f"{outer},\n{inner},\n"
                f'{{"ph": "X", "cat": "kernel", "name": "kernel_{name}_name", "pid": 0, "tid": 7, '
                f'"ts": {start / 1e3}, "dur": {(end - start) / 1e3}, '
                f'"args": {{"External id": {i}, "queued": 0, "device": 0, "context": 1, "stream": 7, '
                f'"correlation": {i}, "grid": [32, 1, 1], "block": [128, 1, 1]}}}},\n'
                f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 500, "tid": 500, '
                f'"ts": {at / 1e3}, "dur": 4.0, "args": {{"External id": {i}, "cbid": 211, "correlation": {i}}}}}'
            )
            file.write(",\n" if i < MILLIONS // 4 - 1 else "")
        file.write("]}")
    return path


def _operator(name: str, start: int, took: int, number: int, size: int) -> str:
    return (
        f'{{"ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 500, "tid": 500, "ts": {start / 1e3}, '
        f'"dur": {took / 1e3}, "args": {{"External id": {number}, "Record function id": 0, '
        f'"Sequence number": {number}, "Fwd thread id": 0, "Ev Idx": {number}, "Input Strides": [[1024, 1]], '
        f'"Input type": ["c10::BFloat16", "c10::BFloat16"], '
        f'"Input Dims": [[{64 + size}, 1024], [1024, {size}]]}}}}'
    )


def _made_json(folder: Path) -> Path:
    """As torch.profiler lays it out, with the arguments that it writes."""
    path = folder / "made.json"
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [')
        for step, (start, end, thread) in enumerate(_steps(500)):
            mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": thread}
            file.write(json.dumps(mark | {"tid": thread, "ts": start / 1e3, "dur": (end - start) / 1e3}) + ",\n")
        for i, (at, start, end, name) in enumerate(_kernels()):
            file.write(
                f'{{"ph": "X", "cat": "kernel", "name": "kernel_{name}_name", "pid": 0, "tid": 7, '
                f'"ts": {start / 1e3}, "dur": {(end - start) / 1e3}, '
                f'"args": {{"External id": {i}, "queued": 0, "device": 0, "context": 1, "stream": 7, '
                f'"correlation": {i}, "grid": [32, 1, 1], "block": [128, 1, 1]}}}},\n'
                f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 500, "tid": 500, '
                f'"ts": {at / 1e3}, "dur": 4.0, "args": {{"External id": {i}, "cbid": 211, "correlation": {i}}}}}'
            )
            file.write(",\n" if i < MILLIONS // 2 - _STEPS - 1 else "")
        file.write("]}")
    return path
