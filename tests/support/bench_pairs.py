"""Benches of equal pairs, and of pairs whose second side computes 5 % more.

    python -m tests.support.bench_pairs --out FILE [--pairs 50] [--more] [--way turns|runs]

Each pair is `llmtop bench --against … --fail-over 2` of two loops on the CPU, with 5 runs a side, and with 10
where noise hides the answer; a run measures 1 s of steps. With `--way turns` both loops run at the same time in
turns (`--turns auto`), with `--way runs` one run follows the other. FILE gets a JSON object a pair, so the
program can be interrupted and continued. `--more` also tries the number of runs that the bench names (at most 40).
Printed: right and false decisions of each kind and way.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import product
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
WAYS = {"turns": ["--turns", "auto"], "runs": []}


def main() -> int:
    """Make the pairs that FILE lacks, and print what all of them came to."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--pairs", type=int, default=50)
    options.add_argument("--first", type=int, default=0, help="number of the first pair, for a second program")
    options.add_argument("--more", action="store_true")
    options.add_argument("--way", choices=WAYS, default="turns")
    given = options.parse_args()
    made = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    for number in range(given.first, given.pairs):
        for kind in KINDS:
            key = {"way": given.way, "kind": kind, "number": number}
            if not any(key.items() <= one.items() for one in made):
                made.append(
                    {
                        **key,
                        "load": os.getloadavg()[0],
                        "nice": os.nice(0),
                        "benches": _pair(kind, given.way, more=given.more),
                    }
                )
                with given.out.open("a") as file:
                    file.write(json.dumps(made[-1]) + "\n")
                print(_line(made[-1]), flush=True)
    for way, kind in product(WAYS, KINDS):
        last = [one["benches"] for one in made if (one["way"], one["kind"]) == (way, kind)]
        within = Counter(_decision([one for one in benches if one["runs"] <= max(RUNS)]) for benches in last)
        ended = Counter(_decision(benches) for benches in last)
        print(
            f"{way}, {kind}: {len(last)} pairs; within {max(RUNS)} runs {within[RIGHT[kind]]} right, "
            f"{within[WRONG[kind]]} false; in the end {ended[RIGHT[kind]]} right, "
            f"{ended[WRONG[kind]]} false, {dict(ended)}"
        )
    return 0


def _pair(kind: str, way: str, *, more: bool) -> list[dict[str, Any]]:
    """One bench of a pair, and more runs while it is undecided."""
    benches: list[dict[str, Any]] = []
    for runs in RUNS:
        benches.append(_bench(KINDS[kind], runs, way))
        if benches[-1]["decision"] != "undecidable":
            return benches
    named = re.search(r"--runs (\d+)", benches[-1]["advice"])
    if more and named and int(named[1]) <= MOST_RUNS:
        benches.append(_bench(KINDS[kind], int(named[1]), way))
    return benches


def _bench(factor: float, runs: int, way: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="lt-") as name:
        loop = Path(name) / "loop.py"
        loop.write_text(LOOP)
        before, after = ([sys.executable, str(loop), str(int(ITERATIONS * each))] for each in (1.0, factor))
        own = ["--warmup", "10", "--seconds", "1", "--runs", str(runs), "--fail-over", str(LIMIT_PCT), "--json"]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "llmtop",
                "bench",
                *own,
                *WAYS[way],
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
            timeout=240 * runs,
        )
        found = json.loads(done.stdout)
    comparison = found["comparison"] or {
        "decision": found["state"],
        "advice": "",
        "reason": "; ".join(note for run in found["runs"] for note in run["notes"]),
    }
    change = next(iter(comparison.get("changes", ())), {})
    return {
        "runs": runs,
        **{name: comparison[name] for name in ("decision", "advice", "reason")},
        **{name: change.get(name) for name in ("worse_pct", "worse_low_pct", "worse_high_pct")},
    }


def _decision(benches: list[dict[str, Any]]) -> str:
    return str(benches[-1]["decision"])


def _line(pair: dict[str, Any]) -> str:
    return f"{pair['way']} {pair['kind']} {pair['number']}: " + ", ".join(
        f"{one['runs']} {one['decision']}" for one in pair["benches"]
    )


if __name__ == "__main__":
    sys.exit(main())
