"""What being watched adds to a step: one training, watchers that come and go in turns; prints JSON.

    python -m tests.gpu.check_watching [--rounds 5] [--seconds 5]

The training runs under `llmtop run`. In turns nobody watches it, a bare client of its socket does, the monitor
does, and a monitor does that looks at the GPU alone. What each adds is the median over the rounds of its seconds
less those of nobody's around it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.processes import environment

CLIENT = """
import sys, time
from llmtop.protocol.client import Connection, discover
connection = Connection.open(discover()[0].path)
while True:
    connection.receive(5)
"""
QUIET_SECONDS = 1.0
"""Left out after a watcher came or went: it starts, or is heard of."""


def main() -> int:
    """Run the rounds and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=int, default=5)
    options.add_argument("--interval", default="1")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        variables = environment(LLMTOP_DIR=folder, OMP_NUM_THREADS="1")
        elsewhere = environment(LLMTOP_DIR=f"{folder}/nobody")
        monitor = [sys.executable, "-m", "llmtop", "live", "--json", "-i", given.interval]
        watchers = {
            "nobody": None,
            "client": ([sys.executable, "-c", CLIENT], variables),
            "monitor": (monitor, variables),
            "gpu_alone": (monitor, elsewhere),
        }
        if not Path("/dev/nvidiactl").exists():
            del watchers["gpu_alone"]
        lasts = (given.seconds + 3) * given.rounds * len(watchers) + 20
        training = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "llmtop",
                "run",
                "--",
                sys.executable,
                "-m",
                "tests.gpu.watched_training",
                str(lasts),
            ],
            env=variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        stretches: list[tuple[str, float, float]] = []
        try:
            time.sleep(15)
            for _ in range(given.rounds):
                for name, watcher in watchers.items():
                    stretches.append(_stretch(name, watcher, given.seconds))
        finally:
            training.send_signal(signal.SIGTERM)
            printed = training.communicate(timeout=600)[0]
    print(json.dumps(_added(stretches, printed), indent=1))
    return 0


def _stretch(
    name: str, watcher: tuple[list[str], dict[str, str]] | None, seconds: float
) -> tuple[str, float, float]:
    with contextlib.ExitStack() as closing:
        if watcher is not None:
            command, variables = watcher
            process = subprocess.Popen(
                command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            closing.callback(process.wait)
            closing.callback(os.kill, process.pid, signal.SIGKILL)
            time.sleep(QUIET_SECONDS + 1)
        begun = time.time()
        time.sleep(seconds)
        return name, begun, time.time()


def _added(stretches: list[tuple[str, float, float]], printed: str) -> dict[str, object]:
    lines = [line.split() for line in printed.splitlines() if line[:1].isdigit()]
    by_second = {int(second): (float(mean), float(median)) for second, mean, median in lines}
    found: dict[str, object] = {}
    for column, what in enumerate(("mean", "median")):
        taken: dict[str, list[float]] = {}
        for name, begun, ended in stretches:
            inside = [values[column] for at, values in by_second.items() if begun <= at and at + 1 <= ended]
            if inside:
                taken.setdefault(name, []).append(statistics.median(inside))
        found[f"{what}_step_ms"] = {name: round(statistics.median(values), 4) for name, values in taken.items()}
        found[f"{what}_added_pct"] = {
            name: [
                round(100 * (value / plain - 1), 2) for value, plain in zip(values, taken["nobody"], strict=False)
            ]
            for name, values in taken.items()
            if name != "nobody"
        }
    return found


if __name__ == "__main__":
    sys.exit(main())
