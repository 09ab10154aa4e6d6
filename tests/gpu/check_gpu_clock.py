"""The GPU clock on a real GPU, against what is planted: python -m tests.gpu.check_gpu_clock [CASE ...]

Each case runs in a process of its own and prints one JSON object: its figures, and `ok`, whether they are what was
planted or promised. Exits 1 when one is not. ``--cpu`` only shows that the script itself runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable

from tests.gpu.gpu_clock_overhead import gpt_overhead, launch_bound_overhead
from tests.gpu.gpu_clock_times import healthy_clocks, launch_bound_clocks, starved_30, starved_60
from tests.gpu.gpu_clock_torch import allocator_and_metrics, compiled, cuda_graph
from tests.gpu.gpu_clock_trainings import Verdict
from tests.support.processes import REPOSITORY, environment

CASES: dict[str, Callable[[], Verdict]] = {
    case.__name__: case
    for case in (
        gpt_overhead,
        launch_bound_overhead,
        healthy_clocks,
        starved_30,
        starved_60,
        launch_bound_clocks,
        cuda_graph,
        compiled,
        allocator_and_metrics,
    )
}


def main() -> int:
    """Run the cases named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--cpu", action="store_true", help="only show that the script runs")
    parser.add_argument("--inside", choices=list(CASES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps({"case": arguments.inside, **CASES[arguments.inside]()}, default=str), flush=True)
        return 0
    bad = 0
    for name in arguments.cases or CASES:
        with tempfile.TemporaryDirectory(prefix="lt-") as directory:
            extra = {"LLMTOP_DIR": directory, "LLMTOP_DEBUG": "1"}
            if arguments.cpu:
                extra["CHECK_GPU_CLOCK_CPU"] = "1"
            done = subprocess.run(
                [sys.executable, "-m", "tests.gpu.check_gpu_clock", "--inside", name],
                env=environment(**extra),
                stdout=subprocess.PIPE,
                text=True,
                check=False,
                cwd=REPOSITORY,
                timeout=3600,
            )
        print(done.stdout.strip() or json.dumps({"case": name, "ok": False, "exit": done.returncode}), flush=True)
        bad += done.returncode != 0 or not json.loads(done.stdout.splitlines()[-1])["ok"]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
