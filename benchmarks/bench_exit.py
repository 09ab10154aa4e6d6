"""How much longer a training takes to end when it is being captured, over the same one that is not.

Each way to end is tried in half of LLMTOP_BENCH_ROUNDS (5).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.result import Result, SkipBenchmark
from llmtop.protocol import wire
from tests.support import endings
from tests.support.trainings import Heard, Training, connect

ROUNDS = (int(os.environ.get("LLMTOP_BENCH_ROUNDS", "5")) + 1) // 2
MAX_EXTRA_SECONDS = 2.0
MAX_WRITING_SECONDS = 10.0
SLACK_SECONDS = 1.0
"""For the interpreter's own end beside the ten seconds."""
_STUCK = """
import sys, time, torch, torch.profiler, llmtop
def never(self, path):
    open(path, "w").close()
    print("writing", flush=True)
    time.sleep(1000)
torch.profiler.profile.export_chrome_trace = never
work = torch.nn.Linear(8, 8)
llmtop.attach()
input()
for _ in range(4):
    with llmtop.step(): work(torch.ones(8)).sum().backward()
input()
"""


def run() -> Iterator[Result]:
    """Every way to end, with torch.profiler armed or recording; a crashed rank; a file that never gets done."""
    if importlib.util.find_spec("torch") is None:
        raise SkipBenchmark("no torch: pip install torch")
    for way in endings.WAYS:
        bare, captured = [], []
        for _ in range(ROUNDS):
            with _folders() as (directory, folder):
                bare.append(endings.bare(way, directory).seconds)
                captured.append(endings.end(way, directory, folder).seconds)
        usual, extra = statistics.median(bare), statistics.median(captured) - statistics.median(bare)
        yield Result(
            f"ends while captured: {way.name}",
            extra,
            "s",
            MAX_EXTRA_SECONDS,
            f"more than the {usual:.2f} s without",
        )
    with _folders() as (directory, folder):
        ended = endings.crash_a_rank(directory, folder)
        note = f"torchrun, from the exception to its end, exit code {ended.code}"
        yield Result("ends while captured: a rank crashes", ended.seconds, "s", None, note)
    yield Result(
        "ends while a file is being written that never gets done",
        _stuck(),
        "s",
        MAX_WRITING_SECONDS + SLACK_SECONDS,
        "the whole end of the process",
    )


def _stuck() -> float:
    with _folders() as (directory, folder), Training(_STUCK, LLMTOP_DIR=str(directory)) as training:
        heard = Heard(connect(directory, training))
        path = str(folder / "trace")
        heard.connection.send(wire.CaptureRequest(id="it", engine="torch.profiler", path=path, steps=2))
        heard.until(lambda: any(isinstance(one, wire.CaptureState) for one in heard.messages))
        training.go()
        training.hear("writing")
        training.go()
        begun = time.monotonic()
        training.wait(endings.LONG_SECONDS)
        return time.monotonic() - begun


@contextlib.contextmanager
def _folders() -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory(prefix="lt-") as directory, tempfile.TemporaryDirectory() as folder:
        yield Path(directory), Path(folder)
