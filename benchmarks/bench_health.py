"""What the health features add to a step: logged losses and learning rates, and `clip_grad_norm_`.

Steps with and without these features alternate in one process, in a random order in each pair: two processes of
one training differ by more than the cost. "by hand" has llmtop.step, three phases and llmtop.log; "llmtop run"
has its hooks, llmtop.log and a clipped gradient. Without the features llmtop.log still keeps the last number of
each name, as it did before. The time is the processor time of the training thread, so that other programs of a
busy machine count only by what they do to its caches.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.result import Result, SkipBenchmark

LIMIT_US: Final = 3.0
WARMUP: Final = 400
CHUNK: Final = 50
"""Pairs of steps whose medians are compared; the interval is over chunks, since neighbouring steps are alike."""
SECONDS: Final = float(os.environ.get("LLMTOP_BENCH_SECONDS", "60"))
RESAMPLES: Final = 1000
LEAST_CHUNKS: Final = 10
WAYS: Final = {"hand": "by hand", "run": "under llmtop run"}


class _NothingLogged:
    """Stands for `LoggedValues` without the health features: no name is watched."""

    names: frozenset[str] = frozenset()

    def watch(self, name: str) -> bool:
        return False

    def has_new(self, cursor: int) -> bool:
        return False

    def read(self, cursor: int) -> tuple[int, list[Any]]:
        return cursor, []


class _Features:
    """Turns the features of this process on and off."""

    def __init__(self) -> None:
        import torch

        from llmtop.instrument import api

        self._recorder: Any = api._recorder
        self._utils: Any = torch.nn.utils
        self._logged = self._recorder.logged
        self._clip = torch.nn.utils.clip_grad_norm_

    def turn(self, *, on: bool) -> None:
        self._recorder.logged = self._logged if on else _NothingLogged()
        self._utils.clip_grad_norm_ = self._clip if on else getattr(self._clip, "__wrapped__", self._clip)


def _step(way: str, training: Any, batches: Iterator[Any]) -> None:
    import torch

    import llmtop

    def forward_and_backward(batch: Any) -> None:
        training.model(batch).square().mean().backward()

    if way == "run":
        (batch,) = next(batches)
        forward_and_backward(batch)
        torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        llmtop.log(loss=0.5, lr=1e-3)
        training.optimizer.step()
        training.optimizer.zero_grad()
        return
    with llmtop.step():
        with llmtop.phase("dataload"):
            (batch,) = next(batches)
        with llmtop.phase("backward"):
            forward_and_backward(batch)
        with llmtop.phase("optimizer"):
            training.optimizer.step()
            training.optimizer.zero_grad()
        llmtop.log(loss=0.5, lr=1e-3)


def measure(way: str) -> None:
    """Print the differences of all chunks, and the median step without the features; microseconds."""
    from benchmarks.training_step import Training

    training, draw = Training(), random.Random(0)
    batches = (batch for _ in iter(int, 1) for batch in training.loader)
    for _ in range(WARMUP):
        _step(way, training, batches)
    features = _Features()
    if way == "run" and not hasattr(features._clip, "__wrapped__"):
        raise SystemExit("clip_grad_norm_ is not wrapped: not started by llmtop run")
    found: dict[bool, list[float]] = {True: [], False: []}
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for on in draw.sample((True, False), 2):
            features.turn(on=on)
            begun = time.thread_time_ns()
            _step(way, training, batches)
            found[on].append((time.thread_time_ns() - begun) / 1e3)
    features.turn(on=True)
    chunks = [
        statistics.median(found[True][begin : begin + CHUNK])
        - statistics.median(found[False][begin : begin + CHUNK])
        for begin in range(0, len(found[True]) - CHUNK + 1, CHUNK)
    ]
    print(json.dumps({"chunks": chunks, "step": statistics.median(found[False])}), flush=True)


def interval(chunks: list[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(chunks, k=len(chunks))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


def run() -> Iterator[Result]:
    """The upper end of each interval is held to the promise."""
    repository = Path(__file__).resolve().parents[1]
    for way, name in WAYS.items():
        with tempfile.TemporaryDirectory(prefix="lt-") as folder:
            command = [sys.executable, "-m", "benchmarks.bench_health", way]
            if way == "run":
                command = [sys.executable, "-m", "llmtop", "run", "-q", "--", *command]
            env = {**os.environ, "LLMTOP_DIR": folder, "LLMTOP_RUN_LOG": "0", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                command, cwd=repository, env=env, capture_output=True, text=True, check=False, timeout=3600
            )
        printed = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or not printed:
            raise SkipBenchmark(f"{name}: ended with {done.returncode}: {done.stderr.strip()[-200:]}")
        found = json.loads(printed[-1])
        chunks = found["chunks"]
        if len(chunks) < LEAST_CHUNKS:
            raise SkipBenchmark(f"{name}: {len(chunks)} chunks of {CHUNK} pairs; raise LLMTOP_BENCH_SECONDS")
        low, high = interval(chunks)
        note = (
            f"median {statistics.median(chunks):.2f} ({low:.2f} to {high:.2f}), {len(chunks)} chunks of {CHUNK} "
        )
        note += f"pairs of steps of {found['step']:.0f} us"
        yield Result(f"health features, a step {name}: upper end", high, "us", LIMIT_US, note)


if __name__ == "__main__":
    measure(sys.argv[1])
