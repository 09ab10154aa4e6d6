"""What sampling Python stacks costs a training's step: by py-spy from outside, and by the training itself.

Blocks with and without it alternate, so that a busy machine weighs on both; the figure is the median over the
pairs of the ratio of their median steps.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.result import Result
from llmtop import wire
from llmtop.capture.job import Job, Plan, Target
from llmtop.capture.py_spy import inside, outside
from llmtop.capture.step_listener import StepWatch
from tests.support.trainings import Heard, Training, connect

PAIRS = 10
BLOCK_SECONDS = 2.0
STEPS = """
import threading, time
import llmtop
def work(times):
    total = 0
    for number in range(times):
        total += len(str(number))
    return total
for _ in range(8):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
while True:
    with llmtop.step():
        for layer in range(20):
            work(2000)
"""
"""Steps of pure Python, which sampling from inside hits the hardest: it takes the lock that they hold."""


def run() -> Iterable[Result]:
    """Both ways of looking, and no more than two per cent for either."""
    with tempfile.TemporaryDirectory(prefix="lt-") as directory:
        place = Path(directory)
        with Training(STEPS, LLMTOP_DIR=directory) as training:
            connection = connect(place, training, history=0)
            heard = Heard(connection)
            ways: tuple[tuple[str, Callable[[], AbstractContextManager[None]]], ...] = (
                (f"py-spy, {outside.RATE_HZ} Hz", lambda: _outside(training.pid, place)),
                (f"the training itself, {inside.RATE_HZ:.0f} Hz", lambda: _inside(connection.path)),
            )
            for name, looking in ways:
                ratios = [_pair(heard, looking) for _ in range(PAIRS)]
                low, high = min(ratios), max(ratios)
                note = f"{PAIRS} pairs of blocks of {BLOCK_SECONDS:.0f} s, {low:.3f} to {high:.3f}"
                yield Result(
                    f"step while stacks are sampled by {name}", statistics.median(ratios), "x", 1.02, note
                )


def _pair(heard: Heard, looking: Callable[[], AbstractContextManager[None]]) -> float:
    plain = _median_step(heard)
    with looking():
        sampled = _median_step(heard)
    return sampled / plain


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
    job = Job(plan, folder, StepWatch([]))
    recording = outside.Recording(job, target)
    try:
        recording.await_start(job)
        yield
    finally:
        recording.close()


@contextmanager
def _inside(socket: Path) -> Iterator[None]:
    asked = inside.Asked(socket, 3 * BLOCK_SECONDS)
    try:
        yield
        asked.enough()
        asked.answer()
    finally:
        asked.close()
