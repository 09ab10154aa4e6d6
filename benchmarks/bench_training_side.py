"""What llmtop adds to a training step, in the training thread, beside TraceML and two primitives.

What it adds, watched or not, is measured by blocks in turns within one process (`benchmarks.training_blocks`), so
that a busy machine weighs on all; the same for the floor. What it says that it adds is held against single steps
in turns (`benchmarks.training_estimate`). TraceML stays in the whole process, so its cost is the difference
between processes, which is known to some 20 us. By hand and `llmtop run` are also compared, in turns of processes,
with commit 551f3bb.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.older import checkout
from benchmarks.result import Result, SkipBenchmark, part, spread

REPOSITORY = Path(__file__).resolve().parents[1]
TURNS, TURN_SECONDS = int(os.environ.get("LLMTOP_BENCH_TURNS", "10")), 2.0
"""Many and short: where the memory of a process happens to lie moves what it shows by some 15 us either way."""
ROUNDS, PAIRS, SECONDS = 3, min(TURNS, 6), 1.5
FLOOR = "the least that such a measurement can cost: five time stamps and one write to mapped memory, added"
OLDER = "551f3bb"
"""The commit that the costs are held to (docs/figures.md)."""
BLOCKS = (
    ("manual", "usual", 30, "by hand, a step of"),
    ("manual", "short", 20, "by hand, a step of"),
    ("manual", "long", 10, "by hand, a step of"),
    ("auto", "usual", 30, "llmtop run, a step of"),
)
"""Way, kind of step, seconds, words."""
ADDED_LIMITS = {("manual", "usual"): 20.0, ("auto", "usual"): 28.0}
WATCHED_LIMIT = 8.0
SAID_LIMIT = 1.3
ESTIMATES = (
    ("manual", "usual", 10, "by hand, a step of"),
    ("manual", "short", 10, "by hand, a step of"),
    ("manual", "long", 20, "by hand, a step of"),
    ("manual", "many", 10, "by hand, 31 phases in a step of"),
    ("manual", "tiny", 10, "by hand, one phase in a step of"),
    ("auto", "usual", 10, "llmtop run, a step of"),
)
"""Likewise, for the estimate."""
LEAST_BLOCKS = 5
"""The interval of fewer is no interval."""
MOST_UNCERTAIN = 0.25
"""Half of the interval, of what is measured: a wider one decides nothing."""
LEAST_SECONDS = 8.0
"""An estimate says nothing in the first five seconds."""
STAMPED_STEPS = 20_000


class _Stamp:
    """The barest context manager that times: two stamps and a list write."""

    __slots__ = ("begun", "into", "slot")

    def __init__(self, into: list[int], slot: int) -> None:
        self.into, self.slot, self.begun = into, slot, 0

    def __enter__(self) -> None:
        self.begun = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self.into[self.slot] = time.perf_counter_ns() - self.begun


def _environment(directory: str, root: Path = REPOSITORY) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root), "LLMTOP_DIR": directory, "OMP_NUM_THREADS": "1"}


def _measure(way: str, seconds: float = SECONDS, root: Path = REPOSITORY) -> dict[str, float | None]:
    """One run of one way; `root`: where the llmtop lies that is measured."""
    with tempfile.TemporaryDirectory(prefix="lt-") as directory:
        command = [sys.executable, str(REPOSITORY / "benchmarks" / "training_step.py"), way, str(seconds)]
        if way == "auto":
            command = [sys.executable, "-m", "llmtop", "run", "--", *command]
        if way == "traceml":
            command = _under_traceml(directory)
        medians: dict[str, float | None] = _printed(way, command, _environment(directory, root), root)
        return medians


def _blocks(way: str, kind: str, seconds: float, *, run_log: bool = False) -> Any:
    """What `benchmarks.training_blocks` prints."""
    return _program("benchmarks.training_blocks", way, kind, seconds, run_log=run_log)


def _program(module: str, way: str, kind: str, seconds: float, *, run_log: bool = False) -> Any:
    """What a module prints that measures a kind of step."""
    with tempfile.TemporaryDirectory(prefix="lt-") as directory:
        command = [sys.executable, "-m", module, way, kind, str(seconds)]
        if way == "auto":
            command = [sys.executable, "-m", "llmtop", "run", "--", *command]
        env = _environment(directory) | ({} if run_log else {"LLMTOP_RUN_LOG": "0"})
        return _printed(f"{way}, {kind}", command, env, REPOSITORY)


def _printed(what: str, command: list[str], env: dict[str, str], root: Path) -> Any:
    """The JSON object that a command prints last."""
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False, timeout=900)
    printed = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not printed:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise SkipBenchmark(f"{what} ended with {done.returncode}: {last}")
    return json.loads(printed[-1])


def _under_traceml(directory: str) -> list[str]:
    """TraceML's own launcher with its defaults: started without it, its hooks do nothing."""
    launcher = Path(sys.executable).with_name("traceml")
    script = REPOSITORY / "benchmarks" / "training_step.py"
    options = ["--mode", "summary", "--logs-dir", directory, "--run-name", "bench", "--no-save-training-output"]
    return [str(launcher), "run", *options, str(script), "--args", "traceml", str(SECONDS)]


def _bare() -> tuple[float, float]:
    """Nanoseconds of a step with four phases of llmtop and of five bare stamping context managers, interleaved."""
    import llmtop

    cells = [0] * 5
    stamps = [_Stamp(cells, slot) for slot in range(5)]

    def bare() -> None:
        with stamps[0]:
            with stamps[1]:
                pass
            with stamps[2]:
                pass
            with stamps[3]:
                pass
            with stamps[4]:
                pass

    def ours() -> None:
        with llmtop.step():
            with llmtop.phase("dataload"):
                pass
            with llmtop.phase("forward"):
                pass
            with llmtop.phase("backward"):
                pass
            with llmtop.phase("optimizer"):
                pass

    llmtop.attach()
    taken: dict[Callable[[], None], list[int]] = {bare: [], ours: []}
    for _ in range(STAMPED_STEPS // 100):
        for step, into in taken.items():
            begun = time.perf_counter_ns()
            for _ in range(100):
                step()
            into.append((time.perf_counter_ns() - begun) // 100)
    return statistics.median(taken[ours]), statistics.median(taken[bare])


def _added_to_floor() -> float:
    """Microseconds that the floor adds: the median over the rounds."""
    rounds = [_measure("floor") for _ in range(ROUNDS)]
    return statistics.median((one["watched"] or 0.0) - (one["plain"] or 0.0) for one in rounds)


def _in_turns(way: str, older: Path) -> tuple[list[float], list[float]]:
    """Microseconds that a way adds now, and with the llmtop below `older`, by runs in turns."""
    added: dict[Path, list[float]] = {REPOSITORY: [], older: []}
    for turn in range(TURNS):
        for root in (REPOSITORY, older)[:: 1 if turn % 2 else -1]:
            one = _measure(way, seconds=TURN_SECONDS, root=root)
            added[root].append((one["watched"] or 0.0) - (one["plain"] or 0.0))
    return added[REPOSITORY], added[older]


def _by_blocks() -> Iterator[Result]:
    for way, kind, seconds, words in BLOCKS:
        found = _blocks(way, kind, part() * seconds)
        added = {state: spread(values) for state, values in found["added"].items()}
        alone, name = added["alone"], _step_name(words, found["plain"])
        yield Result(f"{name}, added", alone.value, "µs", ADDED_LIMITS.get((way, kind)), "", alone.interval)
        for state, who in (("watching", "the screen"), ("watching both", "the screen and the exporter")):
            more = added[state]
            width = more.interval[1] - more.interval[0]
            decided = len(found["added"][state]) >= LEAST_BLOCKS and width <= 2 * WATCHED_LIMIT
            limit, note = (WATCHED_LIMIT, "") if decided else (None, "too uncertain")
            yield Result(f"  watched by {who}, more than that", more.value, "µs", limit, note, more.interval)
        note = "by processor time, without what the caches lose"
        yield Result("  of that it waits for llmtop's threads", found["waited"], "µs", WATCHED_LIMIT, note)


def _step_name(words: str, plain_us: float) -> str:
    return f"{words} {plain_us / 1e3:.2g} ms" if plain_us > 100 else f"{words} {plain_us:.2g} µs"


def _estimates() -> Iterator[Result]:
    for way, kind, seconds, words in ESTIMATES:
        found = _program("benchmarks.training_estimate", way, kind, max(LEAST_SECONDS, part() * seconds))
        added, low, high = found["added"]
        true, said = added + found["waited"], statistics.median(found["said"])
        ends = low + found["waited"], high + found["waited"]
        yield Result(f"{_step_name(words, found['step'])}, added while watched", true, "µs", None, "", ends)
        decided = (high - low) / 2 <= MOST_UNCERTAIN * true
        note = f"{said:.1f} µs said" if decided else f"{said:.1f} µs said: not decided"
        limit = SAID_LIMIT if decided else None
        yield Result("  what it says that it costs, over that", _cost_ratio(said, true), "x", limit, note)


def _beside_older() -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        checkout(OLDER, Path(folder))
        for way, most in (("manual", 1.03), ("auto", 1.1)):
            now, older = _in_turns(way, Path(folder))
            less = spread([one - other for one, other in zip(now, older, strict=True)])
            before = statistics.median(older)
            note = f"{statistics.median(now):.1f} µs against {before:.1f}, {TURNS} runs each"
            ends = (1 + less.interval[0] / before, 1 + less.interval[1] / before)
            yield Result(f"{way}, over {OLDER}'s", statistics.median(now) / before, "x", most, note, ends)


def _beside_traceml() -> Iterator[Result]:
    if importlib.util.find_spec("traceml_ai") is None:
        return
    taken: dict[str, list[float]] = {"traceml": [], "manual": [], "auto": []}
    for _ in range(PAIRS):
        base = _measure("base")["watched"] or 0.0
        taken["traceml"].append((_measure("traceml")["watched"] or 0.0) - base)
        for way in ("manual", "auto"):
            one = _measure(way)
            taken[way].append((one["watched"] or 0.0) - (one["plain"] or 0.0))
    traceml = spread(taken["traceml"])
    yield Result("TraceML, added", traceml.value, "µs", None, "", traceml.interval)
    for way, most in (("manual", 1 / 8), ("auto", 1 / 5)):
        yield Result(f"{way} over TraceML", statistics.median(taken[way]) / traceml.value, "x", most)


def _cost_ratio(said: float, true: float) -> float:
    """By what factor two costs differ, whichever is larger."""
    return max(said, true) / max(min(said, true), 1e-3)


def run() -> Iterator[Result]:
    """Measure all ways."""
    if importlib.util.find_spec("torch") is None:
        raise SkipBenchmark("torch is needed: pip install torch")
    with tempfile.TemporaryDirectory(prefix="lt-") as directory:
        os.environ["LLMTOP_DIR"] = directory
        ours, bare = _bare()
    yield Result("step with four phases", ours / 1e3, "µs", note="nothing in it, in the training thread")
    yield Result("  over five bare stamping context managers", ours / bare, "x", 4.0, f"{bare / 1e3:.2f} µs")
    yield Result(FLOOR, _added_to_floor(), "µs")
    yield from _by_blocks()
    yield from _estimates()
    waited = _blocks("manual", "usual", 1, run_log=True)["waited"]
    yield Result("what a step waits for the threads that serve and write", waited, "µs", note="by processor time")
    yield from _beside_older()
    yield from _beside_traceml()
