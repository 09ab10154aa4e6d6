"""The operator table of `nsys --option ops` beside torch.profiler's; needs one GPU and an nsys.

    python -m tests.gpu.check_ops [--out FILE] [--cpu]

A GPT trains under `llmtop run --nsys` and is captured by nsys with its operators marked, twice and once without;
the same GPT under `llmtop run` is captured by torch.profiler with shapes. Prints a JSON object, and appends it to
FILE. Exits 1 if an operator's share of self device time differs by more than 3 points, if one is called another
number of times in a step, or if steps after the captures with marks take over 5 % longer than after the one
without. Takes some two minutes. --cpu tries the program where there is no GPU, and compares nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from llmtop.capture import targets
from llmtop.capture.base.job import Target
from tests.support.processes import environment, wait_for

STEPS = 5
MOST_POINTS = 3.0
LEAST_SHARE_PCT = 0.1
LONGER = 1.05
_RUN = (sys.executable, "-m", "llmtop", "run")
_ON_CPU = """
import runpy, sys
from tests.support import torch_nvtx
torch_nvtx.register()
runpy.run_module("tests.gpu.plain_training", run_name="__main__", alter_sys=True)
"""


def _captures(cpu: bool, under: tuple[str, ...], captures: list[tuple[str, ...]]) -> list[dict[str, Any]]:
    """Train, and take these captures one after another; what `llmtop capture --json` says of each."""
    what = ("-c", _ON_CPU) if cpu else ("-m", "tests.gpu.plain_training")
    command = (*under, "--", sys.executable, *what, "gpt", "1000000", *(["--cpu"] if cpu else []))
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        os.environ["LLMTOP_DIR"] = f"{folder}/s"
        training = subprocess.Popen(
            command, env=environment(LLMTOP_QUIET="1"), stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            target: Target = wait_for(
                lambda: next(iter(targets.list_attached()), None), 120, "an attached training"
            )
            found = []
            for arguments in captures:
                line = [sys.executable, "-m", "llmtop", "capture", "--json", "--pid", str(target.pid)]
                line += ["--steps", str(STEPS), "--out", folder, *arguments]
                done = subprocess.run(
                    line, env=environment(), capture_output=True, text=True, check=False, timeout=3600
                )
                if done.returncode != 0:
                    raise RuntimeError(f"{' '.join(arguments)}: {done.stderr}")
                found.append(json.loads(done.stdout))
            return found
        finally:
            os.killpg(training.pid, signal.SIGKILL)
            training.wait(600)


def _table(told: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Share of self device time in percent, and calls a step, by operator."""
    rows = [row for row in told["report"]["operators"] if row["is_operator"]]
    calls = {row["name"]: [one[1] for one in row["per_step"]] for row in rows}
    return {row["name"]: (row["share_pct"], sum(calls[row["name"]])) for row in rows}


def _apart(marked: dict[str, Any], profiled: dict[str, Any]) -> dict[str, Any]:
    """Operators of which the two say something else."""
    ours, theirs = _table(marked), _table(profiled)
    found = {}
    for name in ours.keys() | theirs.keys():
        one, other = ours.get(name, (0.0, 0.0)), theirs.get(name, (0.0, 0.0))
        if max(one[0], other[0]) >= LEAST_SHARE_PCT and (
            abs(one[0] - other[0]) > MOST_POINTS or abs(one[1] - other[1]) > 0.01
        ):
            found[name] = {"nsys": one, "torch.profiler": other}
    return found


def _compared(cpu: bool) -> dict[str, Any]:
    nsys = ("--engine", "nsys")
    marks = (*nsys, "--option", "ops")
    first, second, without = _captures(cpu, (*_RUN, "--nsys"), [marks, marks, nsys])
    shapes = ("--engine", "torch.profiler", "--option", "shapes")
    (profiled,) = _captures(cpu, _RUN, [shapes])
    steps = [told["capture"]["step_seconds"] for told in (first, second, without)]
    sizes = {row["operator"]: [row["m"], row["n"], row["k"]] for row in first["report"]["gemms"][:5]}
    after = [one.get("after_p50") for one in steps]
    longer = all(after) and max(after[:2]) > LONGER * after[2]
    return {
        "operators": len(_table(first)),
        "apart": _apart(second, profiled),
        "products": sizes,
        "step_seconds": steps,
        "step_seconds_profiled": profiled["capture"]["step_seconds"],
        "longer_after_marks": bool(longer),
        "notes": [told["capture"]["notes"] for told in (first, second, without, profiled)],
    }


def main() -> int:
    """Capture, compare and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="append the result to this file")
    parser.add_argument("--cpu", action="store_true", help="try it without a GPU")
    given = parser.parse_args()
    found = _compared(given.cpu)
    line = json.dumps(found)
    print(line)
    if given.out:
        with given.out.open("a") as file:
            file.write(line + "\n")
    good = not found["apart"] and not found["longer_after_marks"] and (given.cpu or found["operators"] > 0)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
