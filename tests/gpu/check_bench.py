"""Benches of the GPT example: pairs that are equal, and pairs whose second side is slower by 6 % or noisy.

    python -m tests.gpu.check_bench --out FILE [--rounds 1] [--runs 5] [--steps 40] [--extra KERNELS] [KIND…]

Needs one GPU and torch. A round is a bench of `--runs` runs, and then one for each KIND (equal and slower if none
is named), which makes a pair with it. Appends a JSON object a pair to FILE, with all runs as metrics.json has them
(every step of every window), to be judged and resampled by `python -m benchmarks.bench_decisions FILE`. slower:
kernels that keep the GPU busy for 6 % of a step, as many as are measured to do so on the same GPU first, or
`--extra`. noisy: beside a second program that comes and goes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.processes import REPOSITORY, environment

SLOWED = """
import os, runpy, sys
import torch
extra = int(os.environ["EXTRA_KERNELS"])
plain = torch.optim.AdamW.step
state = {}

def step(self, *arguments, **named):
    if extra and "x" not in state:
        state["x"] = torch.zeros(1 << 24, device="cuda")
    found = plain(self, *arguments, **named)
    for _ in range(extra):
        state["x"].add_(1.0)
    return found

torch.optim.AdamW.step = step
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""The example with so many elementwise kernels of 64 MiB a step more; 0 is the example, started the same way."""
NEIGHBOUR = """
import random, time, torch
x = torch.randn(4096, 4096, device="cuda")
while True:
    until = time.time() + random.uniform(4, 16)
    while time.time() < until:
        x @ x
        torch.cuda.synchronize()
    time.sleep(random.uniform(8, 24))
"""
"""Comes and goes for as long as a run takes, so that it meets some of them and others not."""
CALIBRATING = 400


def main() -> int:
    """Make the pairs and append them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--percent", type=float, default=6.0)
    options.add_argument("--extra", type=int, help="kernels of the slower side; without it they are measured")
    options.add_argument("kinds", nargs="*", metavar="KIND", help="equal, slower, noisy")
    given = options.parse_args()
    kinds = given.kinds or ["equal", "slower"]
    if set(kinds) - {"equal", "slower", "noisy"}:
        options.error("a KIND is equal, slower or noisy")
    with tempfile.TemporaryDirectory(prefix="lt-") as name:
        folder = Path(name)
        (folder / "slowed.py").write_text(SLOWED)
        extra = given.extra or 0
        if "slower" in kinds and not extra:
            extra = _kernels_for(given.percent, folder, given.steps)
        for number in range(given.rounds):
            first = _bench(folder, f"{number}-plain", 0, given.steps, given.runs)
            for kind in kinds:
                more = extra if kind == "slower" else 0
                second = _bench(folder, f"{number}-{kind}", more, given.steps, given.runs, noisy=kind == "noisy")
                _append(given.out, kind, more, first, second)
    return 0


def _kernels_for(percent: float, folder: Path, steps: int) -> int:
    """How many kernels take so much of a step."""
    plain = _median_step(_bench(folder, "calibrate", 0, steps, 1))
    slow = _median_step(_bench(folder, "calibrated", CALIBRATING, steps, 1))
    return max(1, round(percent / 100 * plain / (slow - plain) * CALIBRATING))


def _bench(folder: Path, name: str, extra: int, steps: int, runs: int, *, noisy: bool = False) -> dict[str, Any]:
    """One bench; returns its metrics.json."""
    out = folder / name
    example = str(REPOSITORY / "examples" / "train_gpt.py")
    command = [sys.executable, str(folder / "slowed.py"), example, "--steps", "1000000", "--quiet"]
    own = [sys.executable, "-m", "llmtop", "bench", "--warmup", "10", "--steps", str(steps), "--runs", str(runs)]
    neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) if noisy else None
    try:
        done = subprocess.run(
            [*own, "--no-diff", "--out", str(out), "--", *command],
            env=environment(EXTRA_KERNELS=str(extra)),
            capture_output=True,
            text=True,
            check=False,
            timeout=3600,
        )
    finally:
        if neighbour is not None:
            neighbour.send_signal(signal.SIGKILL)
            neighbour.wait(600)
    sys.stderr.write(done.stderr[-2000:] if done.returncode else done.stdout)
    found: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    if done.returncode:
        raise SystemExit(f"the bench {name} ended with {done.returncode}")
    return found


def _median_step(found: dict[str, Any]) -> float:
    return statistics.median(seconds for run in found["runs"] for seconds in run["window"]["step_seconds"])


def _append(path: Path, kind: str, extra: int, first: dict[str, Any], second: dict[str, Any]) -> None:
    row = {
        "at": time.time(),
        "kind": kind,
        "extra_kernels": extra,
        "slower_pct": 100 * (_median_step(second) / _median_step(first) - 1),
        "a": first,
        "b": second,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + os.linesep)
    shown = {name: value for name, value in row.items() if name not in ("a", "b")}
    idle = [run["figures"]["gpu_idle_pct"] for run in first["runs"]]
    watts = [run["figures"]["power_watts"] for run in first["runs"]]
    mfu = [run["figures"]["mfu_pct"] for run in first["runs"]]
    said = [why for run in first["runs"] + second["runs"] for why in run["unsteady"]]
    print(json.dumps({**shown, "idle_pct": idle, "watts": watts, "mfu_pct": mfu, "unsteady": said}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
