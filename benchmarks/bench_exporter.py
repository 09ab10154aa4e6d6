"""What `llmtop export` costs: processor time and memory with 8 GPUs and 8 ranks, and what it costs the trainings.

GPUs are the driver's stand-in, which answers at once; trainings step four times a second; it is fetched
each second.
LLMTOP_BENCH_SECONDS (60) is how long processor time is watched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil

from benchmarks.bench_monitor import RANKS, environment, trainings
from benchmarks.result import Result, SkipBenchmark
from tests.support import nvml_stub
from tests.support.prometheus import free_port

SETTLE_SECONDS = 15.0
_LLMTOP = [sys.executable, "-m", "llmtop"]


def run() -> Iterator[Result]:
    """The exporter's own costs, then the trainings', with a second monitor and with the exporter instead."""
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

        def started(*arguments: str) -> psutil.Process:
            process = subprocess.Popen(
                [*_LLMTOP, *arguments], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            running.callback(process.wait)
            running.callback(process.kill)
            return psutil.Process(process.pid)

        started("--json")
        time.sleep(SETTLE_SECONDS)
        one = _share(ranks, seconds)
        second = started("--json")
        time.sleep(SETTLE_SECONDS)
        two = _share(ranks, seconds)
        second.kill()
        port = free_port()
        exporter = started("export", "--port", str(port), "--dcgm-exporter", "none")
        time.sleep(SETTLE_SECONDS)
        unfetched = _share([exporter, *exporter.children(recursive=True)], seconds)
        stop = threading.Event()
        threading.Thread(target=fetch, args=(port, stop), daemon=True).start()
        time.sleep(2)
        family = [exporter, *exporter.children(recursive=True)]
        before = processor_seconds(family), processor_seconds(ranks), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - before[2]
        mine, theirs = (
            100 * (processor_seconds(them) - at) / took for them, at in ((family, before[0]), (ranks, before[1]))
        )
        memory = sum(float(process.memory_full_info().pss) for process in family) / 2**20
        stop.set()
    note = f"8 GPUs, {RANKS} ranks, fetched each second; {unfetched:.2f} % unfetched; over {took:.0f} s"
    yield Result("processor time of a core", mine, "%", 1.0, note)
    yield Result("memory of both processes (PSS)", memory, "MiB", 45, f"8 GPUs, {RANKS} ranks")
    costs = f"{one:.2f} % of a core with one monitor, {two:.2f} % with a second, {theirs:.2f} % with the exporter"
    yield Result("trainings' processor time / with a second monitor", theirs / two, "x", 1.05, costs)


def fetch(port: int, stop: threading.Event) -> None:
    """Fetch the page of the exporter on that port each second, until `stop`."""
    while not stop.wait(1.0):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            answer.read()


def processor_seconds(processes: list[psutil.Process]) -> float:
    """User and system time of these so far."""
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


def _share(processes: list[psutil.Process], seconds: float) -> float:
    """Per cent of a core."""
    before, started = processor_seconds(processes), time.monotonic()
    time.sleep(seconds)
    return 100 * (processor_seconds(processes) - before) / (time.monotonic() - started)
