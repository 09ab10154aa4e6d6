"""What being watched adds to a training step, in the training thread, beside TraceML and two primitives.

Each way runs in a process of its own (`benchmarks.training_step`), in turns, so that a busy machine weighs on all;
what it adds is its step less the plain one. Manual, auto and the floor alternate with the plain step in one
process, so theirs are told to a microsecond; TraceML stays in the whole process, so its is the difference between
processes, which is told to some 20. Manual and auto are also held, in turns, to what they were at commit 77553bc.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.older import checkout
from benchmarks.result import Result, SkipBenchmark

REPOSITORY = Path(__file__).resolve().parents[1]
ROUNDS, PAIRS, SECONDS = 3, 9, 1.5
OLDER = "77553bc"
"""The commit that the costs are held to (docs/figures.md)."""
TURNS, TURN_SECONDS = 24, 2.5
"""Many and short: where the memory of a process happens to lie moves what it tells by some 15 us either way."""
SAYING_SECONDS = 6.0
"""What llmtop costs is estimated anew every two seconds, the first time without what its server costs."""
STAMPED_STEPS = 20_000

WATCH = """
import sys
import time
from pathlib import Path
from llmtop.protocol import wire
from llmtop.protocol.client import Connection, discover
while not (found := discover(Path(sys.argv[1]))):
    time.sleep(0.02)
connection = Connection.open(found[0].path)
print("watching", flush=True)
while True:
    try:
        for message in connection.receive(5):
            if isinstance(message, wire.Overhead):
                print(message.step_ns, flush=True)
    except ConnectionError:
        break
"""


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


def _measure(
    way: str,
    watcher: str | None = None,
    messages: list[int] | None = None,
    seconds: float = SECONDS,
    root: Path = REPOSITORY,
) -> dict[str, float | None]:
    """One run of one way; `watcher`: None, "reading" or "stopped" (SIGSTOP); `told` gets what it hears; `root`:
    where the llmtop lies that is measured."""
    with tempfile.TemporaryDirectory(prefix="lt-") as directory, contextlib.ExitStack() as closing:
        env = _environment(directory, root)
        watching = _watch(directory, env, closing, stopped=watcher == "stopped") if watcher else None
        command = [sys.executable, str(REPOSITORY / "benchmarks" / "training_step.py"), way, str(seconds)]
        if way == "auto":
            command = [sys.executable, "-m", "llmtop", "run", "--", *command]
        if way == "traceml":
            command = _under_traceml(directory)
        done = subprocess.run(
            command, cwd=root, env=env, capture_output=True, text=True, check=False, timeout=3600
        )
        printed = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or not printed:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            raise SkipBenchmark(f"{way} ended with {done.returncode}: {last}")
        medians: dict[str, float | None] = json.loads(printed[-1])
        if messages is not None and watching is not None:
            messages += [int(word) for word in watching.communicate(timeout=20)[0].split() if word.isdecimal()]
        return medians


def _under_traceml(directory: str) -> list[str]:
    """TraceML's own launcher with its defaults: started without it, its hooks do nothing."""
    launcher = Path(sys.executable).with_name("traceml")
    script = REPOSITORY / "benchmarks" / "training_step.py"
    options = ["--mode", "summary", "--logs-dir", directory, "--run-name", "bench", "--no-save-training-output"]
    return [str(launcher), "run", *options, str(script), "--args", "traceml", str(SECONDS)]


def _watch(
    directory: str, env: dict[str, str], closing: contextlib.ExitStack, *, stopped: bool
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WATCH, directory]
    process = subprocess.Popen(
        command, env=env, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    closing.callback(process.wait)
    closing.callback(process.kill)
    if stopped:

        def stop_when_watching() -> None:
            assert process.stdout is not None
            if process.stdout.readline():
                process.send_signal(signal.SIGSTOP)

        import threading

        threading.Thread(target=stop_when_watching, daemon=True).start()
    return process


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


def _added_overhead(way: str, watcher: str | None = None) -> float:
    """Microseconds that a way with its own plain steps adds: the median over the rounds."""
    rounds = [_measure(way, watcher) for _ in range(ROUNDS)]
    return statistics.median((one["watched"] or 0.0) - (one["plain"] or 0.0) for one in rounds)


def _added_to_base(way: str) -> float:
    """Microseconds that a way without plain steps of its own adds to the "base" run beside it: the median."""
    taken = []
    for _ in range(PAIRS):
        base = _measure("base")["watched"] or 0.0
        taken.append((_measure(way)["watched"] or 0.0) - base)
    return statistics.median(taken)


def _in_turns(way: str, older: Path) -> tuple[float, float]:
    """Microseconds that a way adds now, and with the llmtop below `older`: medians of runs in turns."""
    added: dict[Path, list[float]] = {REPOSITORY: [], older: []}
    for turn in range(TURNS):
        for root in (REPOSITORY, older)[:: 1 if turn % 2 else -1]:
            one = _measure(way, seconds=TURN_SECONDS, root=root)
            added[root].append((one["watched"] or 0.0) - (one["plain"] or 0.0))
    return statistics.median(added[REPOSITORY]), statistics.median(added[older])


def _reported_overhead(way: str) -> float:
    """Microseconds that a way says of itself that it costs a step, to a monitor: the median over the rounds."""
    rounds = []
    for _ in range(ROUNDS):
        told: list[int] = []
        _measure(way, "reading", told, seconds=SAYING_SECONDS)
        if not told:
            raise SkipBenchmark(f"{way} has not said what it costs")
        rounds.append(told[-1] / 1e3)
    return statistics.median(rounds)


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
    yield Result("floor: stamps and a memory-map write, added", _added_overhead("floor"), "µs")
    manual = _added_overhead("manual")
    yield Result("manual: step() and four phases, added", manual, "µs", note="no monitor")
    watched = {watcher: _added_overhead("manual", watcher) for watcher in ("reading", "stopped")}
    for watcher, added in watched.items():
        yield Result(f"  with a monitor {watcher}", added, "µs")
    said = _reported_overhead("manual")
    yield Result(
        "  what it says that it costs, over that",
        _cost_ratio(said, watched["reading"]),
        "x",
        2.0,
        f"{said:.1f} µs",
    )
    auto = _added_overhead("auto")
    yield Result("auto: llmtop run, added", auto, "µs", 40.0)
    said = _reported_overhead("auto")
    yield Result("  what it says that it costs, over that", _cost_ratio(said, auto), "x", 2.0, f"{said:.1f} µs")
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        checkout(OLDER, Path(folder))
        for way, most in (("manual", 1.03), ("auto", 1.1)):
            now, older = _in_turns(way, Path(folder))
            note = f"{now:.1f} µs against {older:.1f}, {TURNS} runs each"
            yield Result(f"{way}, over {OLDER}'s", now / older, "x", most, note)
    if importlib.util.find_spec("traceml_ai") is None:
        return
    traceml = _added_to_base("traceml")
    yield Result("TraceML, added", traceml, "µs")
    yield Result("manual over TraceML", manual / traceml, "x", 1 / 40)
    yield Result("auto over TraceML", auto / traceml, "x", 1 / 4)
