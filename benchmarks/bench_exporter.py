"""What `llmtop export` costs: processor time and memory with 8 GPUs and 8 ranks, and what it costs the trainings
beside a monitor that watches them already.

GPUs are the driver's stand-in, which answers at once; trainings step four times a second; it is fetched
each second.
LLMTOP_BENCH_SECONDS (60) is how long processor time is watched; in each of LLMTOP_BENCH_ROUNDS (5) turns half as
long.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psutil

from benchmarks.bench_monitor import RANKS, environment, trainings
from benchmarks.result import Result, SkipBenchmark, part
from tests.support import nvml_stub
from tests.support.prometheus import free_port

SETTLE_SECONDS = 12.0 * max(0.5, part())
TURNS = int(os.environ.get("LLMTOP_BENCH_ROUNDS", "5"))
_LLMTOP = [sys.executable, "-m", "llmtop"]


def run() -> Iterator[Result]:
    """The exporter's own costs, then the trainings' beside it and beside a second monitor, in turns."""
    if shutil.which("gcc") is None:
        raise SkipBenchmark("gcc is needed")
    seconds = float(os.environ.get("LLMTOP_BENCH_SECONDS", "60"))
    with tempfile.TemporaryDirectory(prefix="lt-") as directory, ExitStack() as running:
        scenario = nvml_stub.Scenario.eight_gpus()
        env = environment(scenario, Path(directory))
        pids = running.enter_context(trainings(env))
        for gpu, pid in enumerate(pids):
            scenario.process(gpu, pid, 90 << 30, sm=95)
        scenario.write(Path(directory) / "scenario")
        ranks = [psutil.Process(pid) for pid in pids]
        with _exporting(env) as (exporter, fetching):
            time.sleep(SETTLE_SECONDS)
            unfetched = _share(_family(exporter), seconds, processor_seconds)
            with fetching():
                time.sleep(2)
                family = _family(exporter)
                mine = _share(family, seconds, processor_seconds)
                memory = sum(float(process.memory_full_info().pss) for process in family) / 2**20
        running.enter_context(_started(env, "--json"))
        time.sleep(SETTLE_SECONDS)
        one = _share(ranks, seconds, scheduled_seconds)
        turns = [_turn(env, ranks, seconds / 2, first=turn % 2) for turn in range(TURNS)]
    note = f"8 GPUs, {RANKS} ranks, fetched each second, nothing else watches; {unfetched:.2f} % unfetched"
    yield Result("processor time of a core", mine, "%", 1.0, note)
    yield Result("memory of both processes (PSS)", memory, "MiB", 45, f"8 GPUs, {RANKS} ranks")
    two, three, theirs = (statistics.median(values) for values in zip(*turns, strict=True))
    costs = f"{one:.2f} % of a core with one monitor, {two:.2f} % with a second, {three:.2f} % with the exporter"
    ratio = statistics.median(exported / second for second, exported, _ in turns)
    note = f"{costs}; {TURNS} turns"
    yield Result("trainings' processor time / with a second monitor", ratio, "x", 1.05, note)
    ratio = statistics.median(fetched / exported for _, exported, fetched in turns)
    note = f"{theirs:.2f} % where it is fetched each second"
    yield Result("  fetched / not fetched", ratio, "x", 1.05, note)


def _turn(
    env: dict[str, str], ranks: list[psutil.Process], seconds: float, first: int
) -> tuple[float, float, float]:
    """What the trainings take with a second monitor, with the exporter instead, and with one that is fetched from.

    Args:
        env: of all programs.
        ranks: the trainings.
        seconds: how long each is watched.
        first: 0: the monitor comes first; 1: the exporter.
    """

    def beside_monitor() -> float:
        with _started(env, "--json"):
            time.sleep(SETTLE_SECONDS)
            return _share(ranks, seconds, scheduled_seconds)

    two = 0.0 if first else beside_monitor()
    with _exporting(env) as (_, fetching):
        time.sleep(SETTLE_SECONDS)
        three = _share(ranks, seconds, scheduled_seconds)
        with fetching():
            fetched = _share(ranks, seconds, scheduled_seconds)
    return two or beside_monitor(), three, fetched


@contextmanager
def _started(env: dict[str, str], *arguments: str) -> Iterator[psutil.Process]:
    """llmtop, until the end of the `with`."""
    process = subprocess.Popen(
        [*_LLMTOP, *arguments], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(600)


@contextmanager
def _exporting(env: dict[str, str]) -> Iterator[tuple[psutil.Process, Callable[[], AbstractContextManager[None]]]]:
    """The exporter, and what fetches from it each second."""
    port = free_port()

    @contextmanager
    def fetching() -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=fetch, args=(port, stop), daemon=True)
        thread.start()
        yield
        stop.set()
        thread.join(600)

    with _started(env, "export", "--port", str(port), "--dcgm-exporter", "none") as exporter:
        yield exporter, fetching


def _family(exporter: psutil.Process) -> list[psutil.Process]:
    return [exporter, *exporter.children(recursive=True)]


def fetch(port: int, stop: threading.Event) -> None:
    """Fetch the page of the exporter on that port each second, until `stop`."""
    while not stop.wait(1.0):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            answer.read()


def processor_seconds(processes: list[psutil.Process]) -> float:
    """User and system time of these so far, their ended threads' too; it moves in hundredths of a second."""
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


def scheduled_seconds(processes: list[psutil.Process]) -> float:
    """The same of the threads that live, to the nanosecond, as the scheduler counts it."""
    files = [file for process in processes for file in Path(f"/proc/{process.pid}/task").glob("*/schedstat")]
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def _share(
    processes: list[psutil.Process], seconds: float, so_far: Callable[[list[psutil.Process]], float]
) -> float:
    """Per cent of a core."""
    before, started = so_far(processes), time.monotonic()
    time.sleep(seconds)
    return 100 * (so_far(processes) - before) / (time.monotonic() - started)
