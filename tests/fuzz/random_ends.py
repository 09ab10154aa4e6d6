"""Trainings that end at random moments of their first monitor's connection, compared with the same ones plain.

    python -m tests.fuzz.random_ends [--runs 200] [--seconds 600] [--seed 0] [--how "by hand"]

Prints each end that differs (exit code, stderr, a socket left) and how much longer the exits take than plain ones;
exits with 1 if an end differs. It takes a second a run ("run", which imports torch, several) and is no test: the
moments that matter are tests in tests/instrument/test_early_ends.py.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.support.early_ends import EARLY_WAYS, Caller, EarlyEnd, EarlyWay, early_training, end_plain

LATEST_SECONDS = 0.12
"""A first connection takes 30 to 60 ms until all that it needs is imported, and longer on a busy machine."""

PLAIN_EVERY = 20
"""So many runs have one plain end of each way."""


def end_at(way: EarlyWay, how: str, after: float, script: Path, directory: Path) -> tuple[EarlyEnd, list[str]]:
    """End a training so many seconds after a monitor has begun to connect; also returns the files that it left."""
    with (
        early_training(way, script, how, LLMTOP_DIR=str(directory)) as training,
        Caller(directory, training) as caller,
    ):
        caller.go()
        time.sleep(after)
        ending = training.end()
    left = [path.name for path in directory.iterdir() if path.name.startswith(f"{training.process.pid}-")]
    return ending, left


def main() -> int:
    """Compare as many ends as are asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--how", choices=["by hand", "run"], default="by hand")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    until = time.monotonic() + options.seconds
    plains: dict[EarlyWay, EarlyEnd] = {}
    differ, plain_seconds, alone_seconds, seconds = 0, list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        script, directory = Path(folder) / "script.py", Path(folder) / "sockets"
        directory.mkdir(mode=0o700)
        for number in range(options.runs):
            if time.monotonic() > until:
                break
            way = EARLY_WAYS[number % len(EARLY_WAYS)]
            after = chance.uniform(0.0, LATEST_SECONDS)
            if number % PLAIN_EVERY < len(EARLY_WAYS):
                plains[way] = end_plain(way, script)
                plain_seconds.append(plains[way].seconds)
                with early_training(way, script, options.how, LLMTOP_DIR=str(directory)) as training:
                    alone_seconds.append(training.end().seconds)
            plain = plains[way]
            ending, left = end_at(way, options.how, after, script, directory)
            seconds.append(ending.seconds)
            same = (ending.code, ending.stderr) == (plain.code, plain.stderr)
            if not same or (left and not way.leaves_socket):
                differ += 1
                what = f"{way.name} after {1000 * after:.1f} ms"
                print(f"run {number}, {what}: {ending}, left {left}; plain: {plain}", flush=True)
    print(f"{differ} of {len(seconds)} ends differ")
    series = {"plain": plain_seconds, "attached, no monitor": alone_seconds, "with a monitor": seconds}
    for name, found in series.items():
        cuts = statistics.quantiles(found, n=100)
        p50, p99, most = (1000 * one for one in (cuts[49], cuts[98], max(found)))
        print(f"{name}: exit p50 {p50:.1f} ms, p99 {p99:.1f} ms, maximum {most:.1f} ms")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
