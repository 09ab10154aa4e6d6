"""A damaged trace beside the intact one, and the largest capture that must open: time and memory."""

from __future__ import annotations

import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.result import Result
from tests.support.data import KINETO
from tests.support.processes import environment

_SEEDS = 13
_LARGE_EVENTS, _LARGE_DEVICES, _LARGE_DEPTH, _STEPS = 4_000_000, 64, 200, 200
_BOMB_BYTES = 3 << 30


def run() -> Iterable[Result]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        whole = gzip.decompress(KINETO.read_bytes())
        path = folder / "trace.json"
        path.write_bytes(whole)
        intact = statistics.median(_report(path)[0] for _ in range(5))
        size = f"{len(whole) >> 20} MiB, intact {intact:.2f} s"
        for what, damaged in (("one unescaped quote", _quoted), ("one flipped bit", _flipped)):
            ratios = []
            for seed in range(_SEEDS):
                path.write_bytes(damaged(whole, random.Random(seed)))
                ratios.append(_report(path)[0] / intact)
            yield Result(
                f"report of {what}, beside the intact file, median", statistics.median(ratios), "x", 2, size
            )
            yield Result(
                f"report of {what}, beside the intact file, slowest", max(ratios), "x", 2, f"{_SEEDS} seeds"
            )
        bomb = _bomb(folder / "bomb.json.gz")
        seconds, peak, code = _report(bomb)
        packed = f"{bomb.stat().st_size >> 20} MiB packed, exit code {code}"
        yield Result("gzip bomb of 3 GiB refused", seconds, "s", 30, packed)
        yield Result("gzip bomb of 3 GiB refused, peak RSS", peak / (1 << 20), "MiB", 2048)
        large = _large(folder / "large.json")
        seconds, peak, code = _report(large)
        said = f"{large.stat().st_size / 1e9:.2f} GB, 64 devices, ranges 200 deep, exit code {code}"
        yield Result("four million events of 64 devices opened", float(code == 0), "", None, said)
        yield Result("four million events of 64 devices", seconds, "s", None, said)
        yield Result("four million events of 64 devices, peak RSS", peak / (1 << 20), "MiB", None, said)


def _report(path: Path) -> tuple[float, int, int]:
    """(wall seconds, peak RSS in bytes, exit code) of `llmtop report PATH --json`."""
    command = [sys.executable, "-m", "llmtop", "report", str(path), "--json"]
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - began, usage.ru_maxrss * 1024, child.returncode


def _quoted(whole: bytes, chance: random.Random) -> bytes:
    at = whole.index(b'"name": "', chance.randrange(len(whole) * 9 // 10)) + 11
    return whole[:at] + b'"' + whole[at:]


def _flipped(whole: bytes, chance: random.Random) -> bytes:
    raw = bytearray(whole)
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    return bytes(raw)


def _bomb(path: Path) -> Path:
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(_BOMB_BYTES >> 24):
            file.write(bytes(1 << 24))
    return path


def _large(path: Path) -> Path:
    """As torch.profiler lays it out, with arguments that make it 1 GB."""
    kernels = (_LARGE_EVENTS - _STEPS * (_LARGE_DEPTH + 1)) // 2
    length, pad = kernels * 10 // _STEPS, "x" * 90
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        for step in range(_STEPS):
            for depth in range(_LARGE_DEPTH + 1):
                name = f"level_{depth}" if depth else f"ProfilerStep#{step}"
                where = {"ts": step * length + depth * 0.001, "dur": length - 2 * depth * 0.001}
                mark = {"ph": "X", "cat": "user_annotation", "name": name, "pid": 500, "tid": 500}
                file.write(json.dumps(mark | where) + ",\n")
        for i in range(kernels):
            device, at = i % _LARGE_DEVICES, i * 10
            file.write(
                f'{{"ph": "X", "cat": "kernel", "name": "kernel_{i % 60}", "pid": {device}, "tid": 7, '
                f'"ts": {at + 5.5}, "dur": {3 + i % 900 / 1000}, "args": {{"External id": {i}, '
                f'"device": {device}, "stream": 7, "correlation": {i}, "grid": [32, 1, 1], "pad": "{pad}"}}}},\n'
                f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 500, "tid": 500, '
                f'"ts": {at}, "dur": 4.0, "args": {{"External id": {i}, "cbid": 211, "correlation": {i}, '
                f'"pad": "{pad}"}}}}'
            )
            file.write(",\n" if i < kernels - 1 else "")
        file.write("]}")
    return path
