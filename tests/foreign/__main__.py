"""Try programs without pytest: ``python -m tests.foreign [-j N] [NAME or FILE.py]...``; by default the table.

A file from anywhere will do; it needs the header and the helper as those of the table do. Prints what differs, and
ends with 1 where anything does.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.foreign.compared import differences, wrongly_heard
from tests.foreign.program import Program, programs, read
from tests.foreign.runs import Run


def found_in(program: Program, place: Path) -> list[str]:
    """Run it in all its ways, and return what differs."""
    kinds = ["plain", "run", *(program.says("hands") or "").replace("yes", "hands").split()]
    running = {kind: Run(program, place / kind, kind) for kind in kinds}
    try:
        outcomes = {kind: run.outcome() for kind, run in running.items()}
    except subprocess.TimeoutExpired as late:
        return [str(late)]
    finally:
        for run in running.values():
            run.end()
    plain = outcomes.pop("plain")
    # The program itself must be right, and have got to its end.
    if plain.exit != int(program.says("exit") or 0):
        return [f"plain: it ends with {plain.exit}: {plain.stderr}"]
    if not plain.digests:
        return ["plain: digest.end() was not called"]
    found = []
    for kind, outcome in outcomes.items():
        says = program.says("says", kind) if kind != "hands" else None
        passing = program.says("passing_threads") or ""
        below_run = kind in ("run", "both")
        line = program.says("line", kind)
        lines = differences(plain, outcome, says, passing, below_run=below_run, line=line)
        lines += wrongly_heard(program, kind, outcome.heard)
        found += [f"{kind}: {line}" for line in lines]
    return found


def _report(program: Program) -> bool:
    if missing := program.missing():
        print(f"{program.name}: skipped, needs {', '.join(missing)}", flush=True)
        return True
    with tempfile.TemporaryDirectory(prefix="foreign-") as place:
        found = found_in(program, Path(place))
    print("\n    ".join([f"{program.name}: {'differs' if found else 'equal'}", *found]), flush=True)
    return not found


def main() -> int:
    """Run them, a few at a time."""
    parser = argparse.ArgumentParser(prog="python -m tests.foreign")
    parser.add_argument("names", nargs="*", metavar="NAME or FILE.py")
    parser.add_argument("-j", type=int, default=1, metavar="N", help="so many at a time")
    args = parser.parse_args()
    table = {program.name: program for program in programs()}
    chosen = [table[name] if name in table else read(Path(name).stem, Path(name)) for name in args.names]
    with ThreadPoolExecutor(args.j) as pool:
        equal = list(pool.map(_report, chosen or table.values()))
    print(f"{sum(equal)} of {len(equal)} equal")
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
