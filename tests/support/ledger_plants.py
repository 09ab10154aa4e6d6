"""Hold the ledger of `llmtop runs show` against the stamps of the planted runs (run_plants.py).

python -m tests.support.ledger_plants [NAME…]
python -m tests.support.ledger_plants --random COUNT SEED

Each plant runs once under `llmtop run`, one after the other, 50 to 90 s each. A row per plant: the shares that are
more than `MOST_POINTS` from the truth, the largest difference, and `unknown`. Exit code 1 if any share is.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import run_plants
from tests.support.processes import environment

MOST_POINTS = 2.0
MOST_UNKNOWN_PCT = 5.0
_SAME = {"other": "unknown"}
"""Classes of the truth that the ledger calls otherwise."""


def compare(name: str, folder: Path) -> dict[str, Any]:
    """Run a plant and return the difference of each class in points of percent, by class, with its truth."""
    runs = folder / "runs"
    os.environ.update(LLMTOP_RUNS=str(runs), LLMTOP_RUN_LOG="1", LLMTOP_DIR=str(folder / "sockets"))
    truth = run_plants.run(name, [sys.executable, "-m", "llmtop", "run", "--"], folder)
    shown = subprocess.run(
        [sys.executable, "-m", "llmtop", "runs", "show", "--json"],
        env=environment(LLMTOP_RUNS=str(runs)), stdout=subprocess.PIPE, check=True, timeout=240,
    )  # fmt: skip
    ledger = json.loads(shown.stdout)["ledger_seconds"]
    whole = sum(ledger.values())
    shares = {kind: 100 * seconds / whole for kind, seconds in ledger.items()}
    points = {kind: shares[_SAME.get(kind, kind)] - truth["percent"][kind] for kind in run_plants.CLASSES}
    return {"points": points, "unknown": shares["unknown"], "truth": truth["percent"], "shares": shares}


def _plant_random(count: int, seed: int) -> list[str]:
    """Add elastic trainings of two ranks, one of which is killed after a random step; return their names."""
    chance, names = random.Random(seed), []
    for number in range(count):
        step, rank = chance.randrange(5, 105), chance.randrange(2)
        text = f"two ranks, rank {rank} is killed after step {step}, torchrun restarts both"
        options = {**run_plants.PLANTS["killed"].options, "save_every": chance.randrange(10, 60)}
        kill = {"step": step, "rank": rank, "signal": signal.SIGKILL}
        names.append(f"random{number}")
        run_plants.PLANTS[names[-1]] = run_plants.Plant(text, options, 2, "torchrun", kill)
    return names


def main(names: Sequence[str]) -> int:
    """Print a row per plant; return the exit code."""
    if list(names[:1]) == ["--random"]:
        names = _plant_random(int(names[1]), int(names[2]))
    within = count = 0
    print(f"{'run':14} {'within':>8} {'largest difference':>28} {'unknown':>8}  beyond", flush=True)
    for name in names or run_plants.PLANTS:
        with tempfile.TemporaryDirectory(prefix="lt-plant-") as made:
            found = compare(name, Path(made))
        points = found["points"]
        beyond = {kind: value for kind, value in points.items() if abs(value) > MOST_POINTS}
        largest = max(points, key=lambda kind: abs(points[kind]))
        within, count = within + len(points) - len(beyond), count + len(points)
        text = ", ".join(
            f"{kind} {found['truth'][kind]:.1f} % is {found['truth'][kind] + value:.1f} %"
            for kind, value in beyond.items()
        )
        print(
            f"{name:14} {len(points) - len(beyond):>3} of {len(points)} {largest:>18} {points[largest]:+7.2f} "
            f"{found['unknown']:>8.2f}  {text}",
            flush=True,
        )
        if found["unknown"] > MOST_UNKNOWN_PCT:
            within -= 1
    print(f"{within} of {count} shares within {MOST_POINTS:g} points")
    return int(within < count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
