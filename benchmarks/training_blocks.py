"""What llmtop adds to a step, by blocks in turns within one process.

    python -m benchmarks.training_blocks WAY KIND SECONDS

WAY is "manual" (step() and phases by hand) or "auto" (to be started by `llmtop run`). KIND is a size of step, of
`KINDS`. In each round, in an order of chance, blocks of steps run without llmtop, with it, with the screen's
client of the socket too, and with the screen's and the exporter's. To be run with LLMTOP_RUN_LOG=0: the thread
that writes the run works once a second, also in a block without llmtop. With it, "waited" says what it takes.

What counts is the time of a block less what its thread waited for a processor that another program had
(`/proc/thread-self/schedstat`). Prints one JSON object: for each state the microseconds it adds to a step, one a
round; and for how many microseconds a step waits for llmtop's threads while the screen's client watches.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks import training_step
from benchmarks.training_step import Hooks, StepFunction, Training, microseconds
from collectors.trainings.source import EVERY_MS, UNATTENDED_EVERY_MS
from llmtop.instrument.record.recorder import get as own_recorder
from llmtop.protocol.socket_dir import runtime_dir

BLOCK_SECONDS = 0.2
SETTLING_SECONDS, WAITING_SECONDS = 5.0, 6.0
"""A monitor's first seconds have more samples of the stack than those after them."""
WARM_STEPS = 150
SIZES = {"short": (64, 16), "usual": (training_step.WIDTH, training_step.BATCH), "long": (440, 160)}
LAYERS = 30
STATES = {"plain": (), "alone": (), "screen": (EVERY_MS,), "both": (EVERY_MS, UNATTENDED_EVERY_MS)}
"""How long the clients that watch in each state accept to wait, in ms."""

CLIENT = """
import select, sys
from pathlib import Path
from llmtop.protocol import wire
from llmtop.protocol.client import Connection, discover
connection, said = None, 0
while True:
    ready = select.select([sys.stdin], [], [], 0.5 if connection else None)[0]
    if ready:
        order = sys.stdin.readline().split()
        if not order:
            break
        if connection is not None:
            connection.close()
        connection = None
        if order[0] != "off":
            connection = Connection.open(discover(Path(sys.argv[1]))[0].path, history=0, every_ms=int(order[0]))
        print(said, flush=True)
    while connection and (messages := connection.receive(0)):
        said = next((one.step_ns for one in messages if isinstance(one, wire.Overhead)), said)
"""


class Client:
    """A reader of the training's socket, as the monitor's is, in a process of its own."""

    def __init__(self) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("LLMTOP_")}
        env["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(runtime_dir())],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def order(self, word: str) -> int:
        """Connect and accept so many ms, or "off"; returns the last overhead that came."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(10)


class Ways(NamedTuple):
    """The same step without llmtop and with it."""

    plain: StepFunction
    watched: StepFunction
    hooks: Hooks | None

    def without(self) -> contextlib.AbstractContextManager[Any]:
        """Train without what `llmtop run` has put into torch."""
        return contextlib.nullcontext() if self.hooks is None else self.hooks.without_hooks()


def many_phases() -> tuple[StepFunction, StepFunction]:
    """A step of small products, without llmtop and with a phase around each."""
    import llmtop

    layers = [(f"layer{place}", torch.randn(64, 64)) for place in range(LAYERS)]

    def plain(batches: Iterator[Any]) -> None:
        (batch,) = next(batches)
        found = batch[:, :64]
        for _, weight in layers:
            found = torch.tanh(found @ weight)

    def watched(batches: Iterator[Any]) -> None:
        with llmtop.step():
            with llmtop.phase("dataload"):
                (batch,) = next(batches)
            found = batch[:, :64]
            for name, weight in layers:
                with llmtop.phase(name):
                    found = torch.tanh(found @ weight)

    return plain, watched


def tiny_step() -> tuple[StepFunction, StepFunction]:
    """One addition, without llmtop and with a step and a phase around it."""
    import llmtop

    number = torch.zeros(4)

    def plain(_: Iterator[Any]) -> None:
        number.add_(1)

    def watched(_: Iterator[Any]) -> None:
        with llmtop.step(), llmtop.phase("forward"):
            number.add_(1)

    return plain, watched


STEPS: dict[str, Callable[[], tuple[StepFunction, StepFunction]]] = {"tiny": tiny_step, "many": many_phases}
KINDS = (*SIZES, *STEPS)


def both_ways(way: str, kind: str, training: Training) -> Ways:
    """The step of that kind, warm."""
    if kind in STEPS:
        plain, watched = STEPS[kind]()
    else:
        plain, watched = training.plain, training.manual() if way == "manual" else training.plain
    if way == "manual":
        import llmtop

        llmtop.attach()
    warm: list[float] = []
    while len(warm) < 2 * WARM_STEPS:
        microseconds(training, watched, warm)
    return Ways(plain, watched, Hooks(training.model) if way == "auto" else None)


def block(training: Training, step: StepFunction, seconds: float) -> float:
    """Run one block; returns the microseconds of a step."""
    taken: list[float] = []
    microseconds(training, step, [])
    begun, queued = time.perf_counter_ns(), queued_ns()
    while time.perf_counter_ns() - begun < 1e9 * seconds:
        microseconds(training, step, taken)
    return (time.perf_counter_ns() - begun - queued_ns() + queued) / len(taken) / 1e3


def queued_ns() -> int:
    """For how long this thread could have run and had no processor."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def waited_ns() -> int:
    """For how long other threads of llmtop's worked and the training did not run."""
    costs = own_recorder().costs
    return 0 if costs is None else sum(one.busy_ns - one.ran_ns for one in costs.others)


def main() -> None:
    """Measure and print."""
    way, kind, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    training_step.WIDTH, training_step.BATCH = SIZES.get(kind, SIZES["usual"])
    training = Training()
    ways = both_ways(way, kind, training)
    clients = [Client() for _ in STATES["both"]]
    rounds: list[dict[str, float]] = []
    try:
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            took: dict[str, float] = {}
            for state in random.sample(sorted(STATES), len(STATES)):
                for client, every_ms in zip(clients, STATES[state], strict=False):
                    client.order(str(every_ms))
                plain = state == "plain"
                with ways.without() if plain else contextlib.nullcontext():
                    took[state] = block(training, ways.plain if plain else ways.watched, BLOCK_SECONDS)
                for client in clients:
                    client.order("off")
            rounds.append(took)
        clients[0].order(str(EVERY_MS))
        block(training, ways.watched, SETTLING_SECONDS)
        before = waited_ns(), own_recorder().ring.count
        block(training, ways.watched, WAITING_SECONDS)
        waited = (waited_ns() - before[0]) / (own_recorder().ring.count - before[1]) / 1e3
    finally:
        for client in clients:
            client.close()
    added = {state: [one[state] - one["plain"] for one in rounds] for state in STATES if state != "plain"}
    added["watching"] = [one["screen"] - one["alone"] for one in rounds]
    added["watching both"] = [one["both"] - one["alone"] for one in rounds]
    plain_us = median(one["plain"] for one in rounds)
    print(json.dumps({"plain": plain_us, "added": added, "waited": waited}), flush=True)


if __name__ == "__main__":
    main()
