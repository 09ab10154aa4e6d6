"""What llmtop says that it costs against what it costs, on kinds of step that the estimate was not set on.

    python -m benchmarks.training_estimate WAY KIND SECONDS

WAY is "manual" or "auto" (to be started by `llmtop run`), KIND one of `training_kinds.KINDS` and
`more_training_kinds.MORE_KINDS`. A client of the screen reads all the time. Blocks of steps without llmtop and
with it take turns. What counts is the difference of the lower quartiles of single steps, which other programs
disturb least, with how long the training waited for llmtop's other threads (`TakenTime`). To be run with
LLMTOP_RUN_LOG=0.

Prints one JSON object: the microseconds that a step takes, what llmtop adds (with 95 % interval, by processor time
and by the clock), what a step waits, the estimate, and the number of pairs of blocks.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from statistics import median, quantiles
from typing import Any

import torch

from benchmarks.more_training_kinds import MORE_KINDS
from benchmarks.result import RESAMPLES
from benchmarks.training_blocks import Client, waited_ns
from benchmarks.training_kinds import KINDS, Kind, StepFunction
from benchmarks.training_step import Hooks
from collectors.trainings.source import EVERY_MS
from llmtop.instrument.record.recorder import get as own_recorder
from llmtop.instrument.serve.overhead import hot_path_ns

Steps = list[tuple[int, int]]

BLOCK_S = 0.004
KEPT_STEPS = 20
"""Of a block, about: the intervals are by resampling of all."""
WARM_SECONDS = 3.0
SAID_EVERY_S = 2.5


def block(step: StepFunction, steps: int, into: list[tuple[int, int]]) -> None:
    """Run a block and add the processor time and the time by the clock of each step, in nanoseconds."""
    step()
    for _ in range(steps):
        ran, begun = time.thread_time_ns(), time.perf_counter_ns()
        step()
        into.append((time.thread_time_ns() - ran, time.perf_counter_ns() - begun))


def added_us(pairs: list[tuple[Steps, Steps]], place: int) -> tuple[float, float, float]:
    """Return the difference of the lower quartiles, in microseconds, and its interval by resampling of pairs.

    Args:
        pairs: blocks without llmtop and with it.
        place: of the time in what `block` adds.
    """

    def difference(chosen: list[tuple[Steps, Steps]]) -> float:
        plain, watched = ([one[place] for pair in chosen for one in pair[which]] for which in (0, 1))
        return (quantiles(watched, n=4)[0] - quantiles(plain, n=4)[0]) / 1e3

    chance = random.Random(0)
    found = sorted(difference(chance.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return difference(pairs), found[RESAMPLES // 40], found[-1 - RESAMPLES // 40]


def measure(way: str, kind: Kind, seconds: float) -> dict[str, Any]:
    """Measure one kind for so many seconds; return what is printed.

    Args:
        way: "manual" or "auto".
        kind: of step.
        seconds: after the warm-up.

    Raises:
        SystemExit: it has no such way.
    """
    watched = kind.by_hand if way == "manual" else kind.plain
    if watched is None:
        raise SystemExit("no phases by hand in this kind")
    if way == "manual":
        import llmtop

        llmtop.attach()
    begun, warm = time.monotonic(), 0
    while time.monotonic() - begun < WARM_SECONDS:
        watched()
        warm += 1
    steps = max(1, round(BLOCK_S * warm / WARM_SECONDS))
    hooks = Hooks(kind.model) if way == "auto" else None
    client = Client()
    pairs: list[tuple[Steps, Steps]] = []
    said: list[int] = []
    ring = own_recorder().ring
    try:
        client.order(str(EVERY_MS))
        before = waited_ns(), ring.count
        begun = said_at = time.monotonic()
        while time.monotonic() - begun < seconds:
            pair: tuple[Steps, Steps] = ([], [])
            with hooks.without_hooks() if hooks is not None else contextlib.nullcontext():
                block(kind.plain, steps, pair[0])
            block(watched, steps, pair[1])
            pairs.append((pair[0][:: 1 + steps // KEPT_STEPS], pair[1][:: 1 + steps // KEPT_STEPS]))
            if time.monotonic() - said_at > SAID_EVERY_S:
                said_at = time.monotonic()
                said.append(client.order(str(EVERY_MS)))
        runs = len(pairs) * (steps + 1)
        # Hooks may take each call of a model for a step.
        counted = (ring.count - before[1]) / runs
        # Steps without llmtop wait too, and the estimate counts that for those with it.
        waited = (waited_ns() - before[0]) / (2 * runs) / 1e3
    finally:
        client.close()
    return {
        "step": median(one[1] for plain, _ in pairs for one in plain) / 1e3,
        "added": added_us(pairs, 0),
        "added by the clock": added_us(pairs, 1),
        "waited": waited,
        "said for the steps alone": _own_us() * counted,
        "said": [one * counted / 1e3 - waited for one in said[1:]],
        "pairs": len(pairs),
    }


def _own_us() -> float:
    """Return what the estimate says of a step's calls alone, in microseconds."""
    recorder = own_recorder()
    assert recorder.costs is not None
    return hot_path_ns(recorder, recorder.costs) / 1e3


def main() -> None:
    """Measure and print."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(json.dumps(measure(sys.argv[1], (KINDS | MORE_KINDS)[sys.argv[2]](), float(sys.argv[3]))), flush=True)


if __name__ == "__main__":
    main()
