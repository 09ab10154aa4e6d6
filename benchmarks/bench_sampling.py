"""What a sampling round costs: from the tick to the last GPU's fresh values, over the stand-in for NVML.

The stand-in takes the time that each call took on a real H200 (tests/support/nvml_stub.py), the dear ones inside
one lock, as a driver may have it. On a machine with a real GPU, tests/gpu/check_collectors.py measures the same.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.result import Result, SkipBenchmark

INTERVAL = 0.25
ROUNDS = 60


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of all does not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def rounds(gpus: int, count: int = ROUNDS, interval: float = INTERVAL) -> list[float]:
    """Seconds of `count` rounds of this process's driver, from the tick until the last of `gpus` was sampled."""
    from tests.support.nvml_source import OwnSource

    source = OwnSource(interval)
    source.start()
    deadline = time.monotonic() + 30
    while len([gpu for gpu in source.latest().gpus if gpu.energy_joules is not None]) < gpus:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the driver does not show {gpus} GPUs: {source.latest()}")
        time.sleep(0.05)
    unix = time.time() - time.monotonic()
    seconds = []
    for _ in range(count):
        # All threads sample at multiples of the interval; what they have is read shortly before the next one.
        tick = math.ceil(time.monotonic() / interval) * interval
        time.sleep(max(0.0, tick + 0.9 * interval - time.monotonic()))
        last = max(gpu.sampled_at or 0.0 for gpu in source.latest().gpus)
        seconds.append(last - unix - tick)
    source.close()
    return [interval if one < 0 else one for one in seconds]  # a round that was not done in time


def run() -> Iterable[Result]:
    """One H200 with GPM, and eight with a lock around their dear calls."""
    from tests.support.nvml_stub import Scenario, build, environment

    try:
        library = build()
    except FileNotFoundError as error:
        raise SkipBenchmark("the stand-in for NVML is built with gcc, which is not here") from error
    for gpus, limit in ((1, 10.0), (8, 30.0)):
        with tempfile.TemporaryDirectory() as folder:
            scenario = Scenario(count=gpus).measured_latencies().write(Path(folder) / "scenario")
            code = f"import json; from benchmarks.bench_sampling import rounds; print(json.dumps(rounds({gpus})))"
            answer = subprocess.run(
                [sys.executable, "-c", code],
                env=environment(library, scenario),
                capture_output=True,
                text=True,
                check=True,
                timeout=3600,
            )
        seconds = json.loads(answer.stdout)
        yield Result(
            f"sampling round, {gpus} GPU{'s' * (gpus > 1)}, p95",
            percentile(seconds, 0.95) * 1e3,
            "ms",
            limit,
            f"median {percentile(seconds, 0.5) * 1e3:.2f} ms, {len(seconds)} rounds every {INTERVAL} s, stand-in "
            "with an H200's latencies" + (", dear calls under one lock" if gpus > 1 else ""),
        )
