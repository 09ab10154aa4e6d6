"""What being watched adds to a step: one training, watchers that come and go in turns; prints JSON.

    python -m tests.gpu.check_watching [--rounds 8] [--seconds 5]

The training runs under `llmtop run`. A block in which nobody watches lies before and after each of the others,
whose order changes from round to round: a bare client of its socket, the monitor, a monitor of the GPU alone,
nvidia-smi once a second, `busy`, a process without a GPU that takes as much processor time as the monitor did, and
`nobody`, a process that sleeps. What a watcher adds is its block less the mean of the two beside it: quartiles
over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.processes import environment

CLIENT = """
import sys, time
from llmtop.protocol.client import Connection, discover
connection = Connection.open(discover()[0].path)
while True:
    connection.receive(5)
"""
BUSY = """
import sys, time
share, wakes = float(sys.argv[1]), 20
while True:
    until = time.thread_time() + share / wakes
    while time.thread_time() < until:
        pass
    time.sleep((1 - share) / wakes)
"""
USUAL_SHARE = 0.1
"""Of a core that `busy` takes until the monitor has been measured."""
QUIET_SECONDS = 2.0
"""Left out after a watcher came: it starts, or is heard of."""
GONE_SECONDS = 1.0
"""Left out after one went."""
PRINTED = ("mean_ms", "median_ms", "cpu_ms", "waits", "switches")


@dataclass(frozen=True)
class _Block:
    """One stretch of time, in unix seconds."""

    watcher: str
    begun: float
    ended: float


def main() -> int:
    """Run the rounds and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--seconds", type=int, default=5)
    options.add_argument("--interval", default="1")
    options.add_argument("--without", nargs="*", default=())
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        variables = environment(LLMTOP_DIR=folder, OMP_NUM_THREADS="1")
        elsewhere = environment(LLMTOP_DIR=f"{folder}/nobody")
        monitor = [sys.executable, "-m", "llmtop", "live", "--json", "-i", given.interval]
        watchers = {
            "client": ([sys.executable, "-c", CLIENT], variables),
            "monitor": (monitor, variables),
            "busy": ([sys.executable, "-c", BUSY, str(USUAL_SHARE)], elsewhere),
            "nobody": ([sys.executable, "-c", "import time; time.sleep(1e6)"], elsewhere),
        }
        if Path("/dev/nvidiactl").exists():
            watchers["gpu_alone"] = (monitor, elsewhere)
            if smi := shutil.which("nvidia-smi"):
                watchers["nvidia_smi"] = ([smi, "-q", "-l", "1"], elsewhere)
        watchers = {name: one for name, one in watchers.items() if name not in given.without}
        a_round = (2 * given.seconds + QUIET_SECONDS + GONE_SECONDS) * len(watchers)
        training = _start_training(a_round * given.rounds + 60, variables)
        blocks: list[_Block] = []
        shares: dict[str, list[float]] = {}
        try:
            time.sleep(15)
            blocks.append(_plain(given.seconds))
            dice = random.Random(given.rounds)
            for _ in range(given.rounds):
                for name in dice.sample(sorted(watchers), len(watchers)):
                    command, env = watchers[name]
                    if name == "busy" and shares.get("monitor"):
                        command = [*command[:-1], str(statistics.median(shares["monitor"]))]
                    block, share = _watched(name, command, env, given.seconds)
                    shares.setdefault(name, []).append(share)
                    blocks += [block, _plain(given.seconds)]
        finally:
            training.send_signal(signal.SIGTERM)
            printed = training.communicate(timeout=600)[0]
    found = _added(blocks, printed)
    found["share_of_a_core"] = {name: round(statistics.median(values), 4) for name, values in shares.items()}
    print(json.dumps(found, indent=1))
    return 0


def _start_training(seconds: float, variables: dict[str, str]) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "tests.gpu.watched_training", str(seconds)]
    return subprocess.Popen(
        [sys.executable, "-m", "llmtop", "run", "--", *program], env=variables, stdout=subprocess.PIPE, text=True
    )


def _plain(seconds: float) -> _Block:
    time.sleep(GONE_SECONDS)
    begun = time.time()
    time.sleep(seconds)
    return _Block("", begun, time.time())


def _watched(name: str, command: list[str], variables: dict[str, str], seconds: float) -> tuple[_Block, float]:
    """The block, and the share of a core that the watcher and its children took."""
    with contextlib.ExitStack() as closing:
        process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        closing.callback(process.wait)
        closing.callback(os.kill, process.pid, signal.SIGKILL)
        time.sleep(QUIET_SECONDS)
        before, begun = _cpu_seconds(process.pid), time.time()
        time.sleep(seconds)
        block = _Block(name, begun, time.time())
        return block, (_cpu_seconds(process.pid) - before) / (block.ended - block.begun)


def _cpu_seconds(pid: int) -> float:
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def _added(blocks: list[_Block], printed: str) -> dict[str, object]:
    lines = [[float(word) for word in line.split()] for line in printed.splitlines() if line[:1].isdigit()]
    by_block = [
        [values for at, *values in lines if block.begun <= at and at + 1 <= block.ended] for block in blocks
    ]
    medians = [[statistics.median(column) for column in zip(*rows, strict=True)] for rows in by_block]
    plain = [one for block, one in zip(blocks, medians, strict=True) if not block.watcher]
    found: dict[str, object] = {
        "nobody": {
            what: round(statistics.median(column), 4)
            for what, column in zip(PRINTED, zip(*plain, strict=True), strict=True)
        }
    }
    added: dict[str, dict[str, list[float]]] = {}
    for at, block in enumerate(blocks):
        if block.watcher:
            for column, what in enumerate(PRINTED):
                beside = (medians[at - 1][column] + medians[at + 1][column]) / 2
                added.setdefault(block.watcher, {}).setdefault(what, []).append(medians[at][column] - beside)
    found["added"] = {
        watcher: {
            what: [round(one, 3) for one in statistics.quantiles(values, n=4)] for what, values in columns.items()
        }
        for watcher, columns in added.items()
    }
    return found


if __name__ == "__main__":
    sys.exit(main())
