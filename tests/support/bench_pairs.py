"""Benches of equal pairs, and of pairs whose second side computes 5 % more.

    python -m tests.support.bench_pairs --out FILE [--pairs 50] [--more]

Each pair is `llmtop bench --against … --fail-over 2` of two loops on the CPU, with 5 runs a side, and with 10
where noise hides the answer; a run takes 2 s at most on a quiet machine. FILE gets a JSON object a pair, so the
program can be interrupted and continued. `--more` also tries the number of runs that the bench names (at most 40).
Printed: right and false decisions of each kind.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.processes import environment

LOOP = """
import sys
import llmtop
while True:
    with llmtop.step(tokens=100):
        sum(i * i for i in range(int(sys.argv[1])))
"""
ITERATIONS = 100_000
"""Some 5 ms a step."""
KINDS = {"equal": 1.0, "slower": 1.05}
RIGHT = {"equal": "ok", "slower": "regression"}
WRONG = {"equal": "regression", "slower": "ok"}
LIMIT_PCT = 2
RUNS = (5, 10)
MOST_RUNS = 40


def main() -> int:
    """Make the pairs that FILE lacks, and print what all of them came to."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--pairs", type=int, default=50)
    options.add_argument("--more", action="store_true")
    given = options.parse_args()
    made = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    for number in range(given.pairs):
        for kind in KINDS:
            if not any((one["kind"], one["number"]) == (kind, number) for one in made):
                made.append({"kind": kind, "number": number, "benches": _pair(kind, more=given.more)})
                with given.out.open("a") as file:
                    file.write(json.dumps(made[-1]) + "\n")
                print(_line(made[-1]), flush=True)
    for kind in KINDS:
        last = [one["benches"] for one in made if one["kind"] == kind]
        within = Counter(_decision([one for one in benches if one["runs"] <= max(RUNS)]) for benches in last)
        ended = Counter(_decision(benches) for benches in last)
        print(
            f"{kind}: {len(last)} pairs; within {max(RUNS)} runs {within[RIGHT[kind]]} right, "
            f"{within[WRONG[kind]]} false; in the end {ended[RIGHT[kind]]} right, "
            f"{ended[WRONG[kind]]} false, {dict(ended)}"
        )
    return 0


def _pair(kind: str, *, more: bool) -> list[dict[str, Any]]:
    """One bench of a pair, and more runs while it is undecided."""
    benches: list[dict[str, Any]] = []
    for runs in RUNS:
        benches.append(_bench(KINDS[kind], runs))
        if benches[-1]["decision"] != "undecidable":
            return benches
    named = re.search(r"--runs (\d+)", benches[-1]["advice"])
    if more and named and int(named[1]) <= MOST_RUNS:
        benches.append(_bench(KINDS[kind], int(named[1])))
    return benches


def _bench(factor: float, runs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="lt-") as name:
        loop = Path(name) / "loop.py"
        loop.write_text(LOOP)
        before, after = ([sys.executable, str(loop), str(int(ITERATIONS * each))] for each in (1.0, factor))
        own = ["--warmup", "10", "--steps", "60", "--runs", str(runs), "--fail-over", str(LIMIT_PCT), "--json"]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "llmtop",
                "bench",
                *own,
                "--out",
                "o",
                "--against",
                " ".join(before),
                "--",
                *after,
            ],
            cwd=name,
            env=environment(LLMTOP_DIR=str(Path(name) / "s")),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=60 * runs,
        )
        found = json.loads(done.stdout)
    comparison = found["comparison"] or {"decision": found["state"], "advice": "", "reason": ""}
    return {"runs": runs, **{name: comparison[name] for name in ("decision", "advice", "reason")}}


def _decision(benches: list[dict[str, Any]]) -> str:
    return str(benches[-1]["decision"])


def _line(pair: dict[str, Any]) -> str:
    return f"{pair['kind']} {pair['number']}: " + ", ".join(
        f"{one['runs']} {one['decision']}" for one in pair["benches"]
    )


if __name__ == "__main__":
    sys.exit(main())
