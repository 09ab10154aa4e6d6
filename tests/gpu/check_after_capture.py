"""Whether a training steps as before once a capture is over: python -m tests.gpu.check_after_capture

A launch-bound training prints what its steps take each second (watched_training). It runs plain, under `llmtop
run`, and under `llmtop run --nsys`; then it is captured, twice, by torch.profiler (with what CUPTI is told to do
at the end left to llmtop, and both ways) and by nsys. Prints a JSON object a run: the median milliseconds of a
step second by second, and at which seconds captures were. Needs a GPU; without one it shows that it works.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from tests.support.processes import environment

SECONDS = 30
CAPTURES, CAPTURES_AT, BETWEEN = 2, 6.0, 4.0
RUN = (sys.executable, "-m", "llmtop", "run")
TRAIN = (sys.executable, "-m", "tests.gpu.watched_training", str(SECONDS))
RUNS: dict[str, tuple[tuple[str, ...], str | None, dict[str, str]]] = {
    "plain": (TRAIN, None, {}),
    "llmtop run": ((*RUN, "--", *TRAIN), None, {}),
    "torch.profiler": ((*RUN, "--", *TRAIN), "torch.profiler", {}),
    "torch.profiler, TEARDOWN_CUPTI=1": ((*RUN, "--", *TRAIN), "torch.profiler", {"TEARDOWN_CUPTI": "1"}),
    "torch.profiler, TEARDOWN_CUPTI=0": ((*RUN, "--", *TRAIN), "torch.profiler", {"TEARDOWN_CUPTI": "0"}),
    "llmtop run --nsys": ((*RUN, "--nsys", "--", *TRAIN), "nsys", {}),
    "plain again": (TRAIN, None, {}),
}


def one(command: tuple[str, ...], engine: str | None, variables: dict[str, str]) -> dict[str, Any]:
    """Run it, capture once on the way."""
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        env = environment(LLMTOP_DIR=f"{folder}/s", LLMTOP_QUIET="1", OMP_NUM_THREADS="1", **variables)
        training = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said: list[dict[str, Any]] = []
        try:
            assert training.stdout is not None
            begun = next((line for line in training.stdout if line[:1].isdigit()), "0")
            for number in range(CAPTURES if engine else 0):
                time.sleep(CAPTURES_AT if number == 0 else BETWEEN)
                at = time.time()
                capture = [
                    sys.executable,
                    "-m",
                    "llmtop",
                    "capture",
                    "--json",
                    "--engine",
                    str(engine),
                    "--out",
                    folder,
                ]
                done = subprocess.run(capture, env=env, capture_output=True, text=True, check=False, timeout=3600)
                since = float(begun.split()[0])
                said.append(
                    {"from": round(at - since, 1), "to": round(time.time() - since, 1), "rc": done.returncode}
                )
                if done.returncode == 0:
                    told = json.loads(done.stdout)
                    kernels = sum(device["kernels"] for device in told["report"]["devices"])
                    said[-1] |= {"kernels": kernels, "steps": told["capture"]["step_seconds"]}
            rest = training.communicate(timeout=2 * SECONDS + 60)[0]
        finally:
            training.send_signal(signal.SIGKILL)
        lines = [line.split() for line in [begun, *rest.splitlines()] if line[:1].isdigit()]
        by_second = [round(float(line[2]), 2) for line in lines[1:]]
        halves = by_second[: int(CAPTURES_AT)], by_second[-8:]
        return {
            "medians": [round(statistics.median(half), 2) for half in halves if half],
            "seconds": by_second,
            "captures": said,
        }


def main() -> int:
    """Run all, or those whose names are given."""
    for name, run in RUNS.items():
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            print(json.dumps({"run": name, **one(*run)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
