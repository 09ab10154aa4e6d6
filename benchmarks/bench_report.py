"""From a capture to its report in a fresh process: a real one, and made ones of two million events.

In processor time and peak memory, in turns with the first release, of which the promises are made; and beside
HTA's reading of a public trace, where both are here (`LLMTOP_BENCH_TRACE` names another trace).
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks.older import checkout, cost, run_interleaved
from benchmarks.result import Result
from tests.support.data import KINETO, LAUNCH_BOUND, unpacked
from tests.support.nsys import find_nsys
from tests.support.processes import REPOSITORY

MILLIONS = 2_000_000
RANKS, RANK_EVENTS = 64, 228_000
"""Events of a trace of 50 MB."""
_RANK_STEPS = 20
OLDER = "77553bc"
"""Version 0.1.0."""
_MOST_MEMORY = 1.1
_STEPS = 200
_HTA = REPOSITORY / ".cache" / "hta" / "bin" / "python"
_GIVEN = REPOSITORY.parent / "shared" / "public-traces" / "hta_df_index_resolver_df_index_resolver.json.gz"
_WITH_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
read = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=sys.argv[2])
read.get_temporal_breakdown(visualize=False)
read.get_gpu_kernel_breakdown(visualize=False)
"""
"""What of a report HTA has: busy and idle time, and kernels by time."""


def run() -> Iterable[Result]:
    """All figures; those beside nsys and HTA only where there is one."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        real = unpacked(LAUNCH_BOUND, folder)
        older = folder / "older"
        older.mkdir()
        checkout(OLDER, older)
        yield from _compare_older(older, real, "launch_bound.sqlite", 1.1)
        nsys = find_nsys()
        if nsys is not None:
            ours = min(_wall(real) for _ in range(3))
            theirs = min(_nsys_stats(nsys, real) for _ in range(2))
            note = f"{ours:.2f} s against {theirs:.2f} s by the clock"
            yield Result("the same beside nsys stats, three reports", ours / theirs, "x", None, note)
        kinds: tuple[tuple[str, float, Callable[[Path], Path]], ...] = (
            ("nsys SQLite", 0.6, _made_sqlite),
            ("Chrome JSON", 0.6, _made_json),
            ("Chrome JSON, half of them operators", 0.9, _made_json_with_operators),
        )
        for kind, most, make in kinds:
            made = make(folder)
            size = made.stat().st_size >> 20
            yield from _compare_older(older, made, f"two million events of {kind}, {size} MiB", most)
            made.unlink()
        yield from _many_ranks(folder)
        if _HTA.exists():
            yield _compare_hta(folder)


def _many_ranks(folder: Path) -> Iterator[Result]:
    """A trace a rank, all read together."""
    alike = _made_json(folder, RANK_EVENTS, _RANK_STEPS).read_text()
    ranks = folder / "ranks"
    ranks.mkdir()
    for rank in range(RANKS):
        place = f'"distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {RANKS}}}, '
        head, _, events = alike.replace('"pid": 500, "tid": 500', f'"pid": {500 + rank}, "tid": 500').partition(
            '"tr'
        )
        (ranks / f"rank{rank}.pt.trace.json").write_text(f'{head}{place}"tr{events}')
    began = time.perf_counter()
    taken = cost(REPOSITORY, ["-m", "llmtop", "report", str(ranks), "--json"])
    seconds = time.perf_counter() - began
    note = f"{taken.seconds:.1f} s of processor time"
    yield Result(f"{RANKS} ranks of 50 MB, Chrome JSON, as one report", seconds, "s", 90.0, note)
    yield Result("  its peak memory", taken.peak / (1 << 20), "MiB", 1024.0)
    shutil.rmtree(ranks)


def _compare_older(older: Path, path: Path, what: str, most: float) -> Iterator[Result]:
    pair = run_interleaved(older, ["-m", "llmtop", "report", str(path), "--json"])
    yield Result(f"{what}, over {OLDER}", pair.seconds, "x", most, pair.note)
    yield Result("  its peak memory", pair.peak, "x", _MOST_MEMORY)


def _compare_hta(folder: Path) -> Result:
    given = os.environ.get("LLMTOP_BENCH_TRACE")
    trace = Path(given) if given else _GIVEN if _GIVEN.exists() else KINETO
    ours = [cost(REPOSITORY, ["-m", "llmtop", "report", str(trace), "--json"]) for _ in range(3)]
    theirs = [cost(REPOSITORY, ["-c", _WITH_HTA, str(trace), str(folder)], str(_HTA)) for _ in range(3)]
    seconds = [statistics.median(one.seconds for one in side) for side in (ours, theirs)]
    mib = [max(one.peak for one in side) >> 20 for side in (ours, theirs)]
    note = f"{seconds[0]:.2f} s and {mib[0]} MiB against {seconds[1]:.2f} s and {mib[1]} MiB"
    return Result(f"{trace.name} beside HTA", seconds[0] / seconds[1], "x", 1.0, note)


def _wall(path: Path) -> float:
    """Seconds that `llmtop report PATH --json` takes."""
    began = time.perf_counter()
    cost(REPOSITORY, ["-m", "llmtop", "report", str(path), "--json"])
    return time.perf_counter() - began


def _nsys_stats(nsys: str, path: Path) -> float:
    reports = "cuda_gpu_kern_sum,cuda_api_sum,cuda_gpu_mem_time_sum"
    began = time.perf_counter()
    subprocess.run([nsys, "stats", "-r", reports, str(path)], stdout=subprocess.DEVNULL, check=True, timeout=3600)
    return time.perf_counter() - began


def _kernels(events: int = MILLIONS, steps: int = _STEPS) -> Iterator[tuple[int, int, int, int]]:
    """(launched, start, end, name) in ns: short kernels, launched somewhat too slowly."""
    for index in range(events // 2 - steps):
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


def _steps(thread: int, events: int = MILLIONS, steps: int = _STEPS) -> Iterator[tuple[int, int, int]]:
    length = (events // 2) * 10_000 // steps
    for step in range(steps):
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


def _made_json(folder: Path, events: int = MILLIONS, steps: int = _STEPS) -> Path:
    """As torch.profiler lays it out, with the arguments that it writes."""
    path = folder / "made.json"
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [')
        for step, (start, end, thread) in enumerate(_steps(500, events, steps)):
            mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": thread}
            file.write(json.dumps(mark | {"tid": thread, "ts": start / 1e3, "dur": (end - start) / 1e3}) + ",\n")
        for i, (at, start, end, name) in enumerate(_kernels(events, steps)):
            file.write(
                f'{{"ph": "X", "cat": "kernel", "name": "kernel_{name}_name", "pid": 0, "tid": 7, '
                f'"ts": {start / 1e3}, "dur": {(end - start) / 1e3}, '
                f'"args": {{"External id": {i}, "queued": 0, "device": 0, "context": 1, "stream": 7, '
                f'"correlation": {i}, "grid": [32, 1, 1], "block": [128, 1, 1]}}}},\n'
                f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 500, "tid": 500, '
                f'"ts": {at / 1e3}, "dur": 4.0, "args": {{"External id": {i}, "cbid": 211, "correlation": {i}}}}}'
            )
            file.write(",\n" if i < events // 2 - steps - 1 else "")
        file.write("]}")
    return path
