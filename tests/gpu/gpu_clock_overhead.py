"""Cases of tests.gpu.check_gpu_clock: what llmtop and its GPU times cost a step."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.gpu.gpu_clock_trainings import CPU, Gpt, Tiny, Verdict, gpu_times, synchronise
from tests.support.processes import environment

# As often as a monitor at 1 Hz: by default a message comes every 20 ms, which cost a step of 1.4 ms 7 %.
WATCH = """
import sys
from pathlib import Path
from collectors.trainings.source import EVERY_MS
from llmtop.protocol.client import Connection
connection = Connection.open(Path(sys.argv[1]), every_ms=EVERY_MS)
print("watching", flush=True)
while True:
    connection.receive(5)
"""


def overhead(training: Gpt | Tiny, block: int, rounds: int, limit: float) -> Verdict:
    """Blocks of steps with and without llmtop in turn, a monitor reading: medians of seconds a step."""
    for number in range(3 * block):
        training.recorded(number)
    (path,) = Path(os.environ["LLMTOP_DIR"]).glob("*.sock")
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCH, str(path)], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert watcher.stdout is not None
    watcher.stdout.readline()
    # A second bare arm shows what the machine itself does to equal blocks: a GPU at its power limit is not steady.
    arms = {"bare": training.bare, "recorded": training.recorded, "control": training.bare}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    before = len(gpu_times())
    for turn in range(rounds):
        for place in range(len(arms)):
            name = list(arms)[(turn + place) % len(arms)]
            synchronise()
            begun = time.perf_counter()
            for number in range(block):
                arms[name](number)
            synchronise()
            seconds[name].append((time.perf_counter() - begun) / block)
    watcher.kill()
    bare, recorded, control = (statistics.median(taken) for taken in seconds.values())
    timed = len(gpu_times()) - before
    return {
        "bare_ms": 1e3 * bare,
        "recorded_ms": 1e3 * recorded,
        "ratio": recorded / bare,
        "control_ratio": control / bare,
        "limit": limit,
        "timed_steps": timed,
        "ok": recorded <= limit * max(bare, control) and (timed > 0 or CPU),
    }


def gpt_overhead() -> Verdict:
    """A healthy GPT step with llmtop and GPU timing: within 0.2 %."""
    return overhead(Gpt(), 2 if CPU else 20, 2 if CPU else 15, 1.002)


LAUNCH_BOUND_SECONDS = 1.4e-3
"""The step that the promise is about; how many layers that takes depends on the machine."""


def launch_bound_overhead() -> Verdict:
    """A launch-bound step of 1.4 ms: within 3 %."""
    probe = Tiny()
    for number in range(300):
        probe.bare(number)
    synchronise()
    begun = time.perf_counter()
    for number in range(300):
        probe.bare(number)
    synchronise()
    a_step = (time.perf_counter() - begun) / 300
    layers = max(4, round(4 * LAUNCH_BOUND_SECONDS / a_step))
    return {"layers": layers, **overhead(Tiny(layers), 300, 20, 1.03)}
