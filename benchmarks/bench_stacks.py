"""What sampling Python stacks costs a training's step: a capture by py-spy, the screen `s`, the look at a loader
that a monitor takes by itself, and the training that tells its own stacks; each with four workers too.

Blocks with and without it alternate, and so does which comes first: a busy machine weighs on both. The figure is
the median over the pairs of the ratio of their median steps.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from benchmarks.result import Result
from llmtop.capture.base.job import CaptureJob, Plan, Target
from llmtop.capture.base.step_listener import StepListener
from llmtop.capture.py_spy import engine, inside, loading, outside
from llmtop.protocol import wire
from tests.support.trainings import Heard, Training, connect
from tui.screens.stacks import REFRESH_SECONDS

PAIRS = int(os.environ.get("LLMTOP_BENCH_TURNS", "10"))
BLOCK_SECONDS = float(loading.BURST_SECONDS)
LEAST_PAIRS = 5
"""Fewer decide nothing."""
MOST = 1.02
STEPS = """
import multiprocessing, os, threading, time
import llmtop
training = os.getpid()
def work(times):
    total = 0
    for number in range(times):
        total += len(str(number))
    return total
def load():
    while os.getppid() == training:
        work(500)
        time.sleep(0.01)
for _ in range(8):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
for _ in range(WORKERS):
    multiprocessing.get_context("fork").Process(target=load, daemon=True).start()
while True:
    with llmtop.step():
        for layer in range(20):
            work(2000)
"""
"""Steps of pure Python, which sampling from inside hits the hardest: it takes the lock that they hold."""

Looking = Callable[[], AbstractContextManager[None]]


def run() -> Iterable[Result]:
    """All ways of looking, and no more than two per cent for any."""
    for workers in (0, 4):
        with tempfile.TemporaryDirectory(prefix="lt-") as directory:
            script = STEPS.replace("WORKERS", str(workers))
            with Training(script, LLMTOP_DIR=directory) as training:
                yield from _figures(Path(directory), training, f", {workers} workers" if workers else "")


def _figures(place: Path, training: Training, beside: str) -> Iterator[Result]:
    connection = connect(place, training, history=0)
    heard = Heard(connection)
    ways: tuple[tuple[str, Looking], ...] = (
        (f"py-spy, {outside.RATE_HZ} Hz", lambda: _outside(training.pid, place)),
        (f"the screen s, each {REFRESH_SECONDS:g} s", lambda: _screen(training.pid)),
        (f"a look at its loader, {loading.BURST_HZ} Hz", lambda: _loader(training.pid)),
        (f"the training itself, {inside.RATE_HZ:.0f} Hz", lambda: _inside(connection.path)),
    )
    for name, looking in ways:
        ratios = [_pair(heard, looking, bool(number % 2)) for number in range(PAIRS)]
        note = f"{PAIRS} pairs of blocks of {BLOCK_SECONDS:.0f} s, {min(ratios):.3f} to {max(ratios):.3f}"
        decided = PAIRS >= LEAST_PAIRS and max(ratios) - min(ratios) <= 2 * (MOST - 1)
        limit, note = (MOST, note) if decided else (None, f"{note}: too uncertain")
        yield Result(f"step while looked at by {name}{beside}", statistics.median(ratios), "x", limit, note)


def _pair(heard: Heard, looking: Looking, sampled_first: bool) -> float:
    found = {}
    for sampled in (sampled_first, not sampled_first):
        with looking() if sampled else nullcontext():
            found[sampled] = _median_step(heard)
    return found[True] / found[False]


def _median_step(heard: Heard) -> float:
    """The median ns of the steps of one block."""
    heard.connection.receive(0.0)
    until, lengths = time.monotonic() + BLOCK_SECONDS, []
    while time.monotonic() < until:
        for message in heard.connection.receive(0.1):
            if isinstance(message, wire.Steps):
                lengths += [step.host_ns for step in message.steps]
    return statistics.median(lengths)


@contextmanager
def _outside(pid: int, folder: Path) -> Iterator[None]:
    target = Target(pid)
    plan = Plan(engine="py-spy", targets=(target,), parent=folder, seconds=3 * BLOCK_SECONDS)
    job = CaptureJob(plan, folder, StepListener([]))
    recording = outside.PySpyRecording(job, target)
    try:
        recording.await_start(job)
        yield
    finally:
        recording.close()


@contextmanager
def _screen(pid: int) -> Iterator[None]:
    """What the screen of stacks does while it is open."""
    watching, ended = loading.LoadingMonitor(pid), threading.Event()

    def look() -> None:
        while not ended.wait(REFRESH_SECONDS):
            watching.add(engine.dump(pid))

    thread = threading.Thread(target=look)
    watching.add(engine.dump(pid))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(600)
        watching.close()


@contextmanager
def _loader(pid: int) -> Iterator[None]:
    """What an alert that a training waits for its data does by itself, once a minute."""
    thread = threading.Thread(target=loading.sample_burst, args=(pid,))
    thread.start()
    try:
        yield
    finally:
        thread.join(600)


@contextmanager
def _inside(socket: Path) -> Iterator[None]:
    asked = inside.StackRequest(socket, 3 * BLOCK_SECONDS)
    try:
        yield
        asked.finish()
        asked.await_answer()
    finally:
        asked.close()
