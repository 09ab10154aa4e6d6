"""What the monitor costs beside thousands of GPU processes, its table of processes open or not.

Eight GPUs (the driver's stand-in) with 2,000 processes that sleep; both processes of the monitor are counted.
LLMTOP_BENCH_SECONDS (60) is how long they are watched.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench_monitor import SETTLE_SECONDS, Pane, environment
from benchmarks.result import Result, SkipBenchmark
from tests.support import nvml_stub

PROCESSES = 2_000
_SLEEPERS = (
    "import os, sys, time\n"
    "pids = []\n"
    f"for _ in range({PROCESSES}):\n"
    "    pid = os.fork()\n"
    "    if pid == 0: time.sleep(3600); os._exit(0)\n"
    "    pids.append(pid)\n"
    "print(*pids, flush=True)\n"
    "time.sleep(3600)\n"
)


def run() -> Iterator[Result]:
    """Processor time on the main screen, then with the table of processes."""
    if shutil.which("tmux") is None or shutil.which("gcc") is None:
        raise SkipBenchmark("tmux and gcc are needed")
    seconds = float(os.environ.get("LLMTOP_BENCH_SECONDS", "60"))
    with tempfile.TemporaryDirectory(prefix="lt-") as directory, _sleepers() as pids:
        scenario = nvml_stub.Scenario.eight_gpus()
        for place, pid in enumerate(pids):
            scenario.process(place % 8, pid, (1 + place) << 20, sm=place % 100)
        pane = Pane("processes", [sys.executable, "-m", "llmtop"], environment(scenario, Path(directory)))
        try:
            time.sleep(SETTLE_SECONDS)
            yield from _watched(pane, seconds, "the main screen")
            pane.type("p")
            time.sleep(2.0)
            if f"{PROCESSES}" not in pane.text():
                raise SkipBenchmark(f"the table of processes is not there: {pane.text()[:300]}")
            yield from _watched(pane, seconds, "the table of processes")
        finally:
            pane.close()


def _watched(pane: Pane, seconds: float, what: str) -> Iterator[Result]:
    before, began = pane.processor_seconds(), time.monotonic()
    time.sleep(seconds)
    share = 100 * (pane.processor_seconds() - before) / (time.monotonic() - began)
    yield Result(f"processor time with {what}", share, "% of a core", 5.0, f"{PROCESSES} processes on 8 GPUs")


@contextmanager
def _sleepers() -> Iterator[list[int]]:
    """The pids of processes that do nothing; all are ended."""
    parent = subprocess.Popen(
        [sys.executable, "-S", "-c", _SLEEPERS], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert parent.stdout is not None
        yield [int(pid) for pid in parent.stdout.readline().split()]
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait(600)
