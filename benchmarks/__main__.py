"""Run all benchmarks but the soak, or those named: python -m benchmarks [--write] [NAME ...].

Exits 1 when a promise is broken. Where none is named, those that can watch for more or less time watch for
less of it (`SHORTER`). The soak takes an hour.

With --write the figures also replace those in docs/figures.md, of the benchmarks that have a table there.

A benchmark is a module bench_NAME.py here with `run() -> Iterable[Result]`; it raises `SkipBenchmark` with the
reason when what it measures against is not on this machine.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
import time
from pathlib import Path

from benchmarks import figures
from benchmarks.result import Result, SkipBenchmark

ONLY_NAMED = frozenset({"soak"})
"""Benchmarks that run only where they are named: they watch for an hour."""

SHORTER = {
    "LLMTOP_BENCH_SECONDS": "15",
    "LLMTOP_BENCH_BLOCKS": "5",
    "LLMTOP_BENCH_TURNS": "2",
    "LLMTOP_BENCH_ROUNDS": "2",
    "LLMTOP_BENCH_PART": "0.4",
}
"""Settings where all run, unless they are set: seconds and turns of each that otherwise takes minutes."""


def _names() -> list[str]:
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def _line(result: Result) -> str:
    limit = "" if result.limit is None else f"  (at most {result.limit:g})"
    sign = "" if result.is_within_limit else "  OVER"
    within = "" if result.interval is None else " [{:.4g}, {:.4g}]".format(*result.interval)
    return f"  {result.name:<52} {result.value:>10.4g}{within} {result.unit}{limit}{sign}  {result.note}"


def main(wanted: list[str]) -> int:
    """Run and print; returns the exit code."""
    writes = "--write" in wanted
    wanted = [name for name in wanted if name != "--write"]
    unknown = set(wanted) - set(_names())
    if unknown:
        print(f"no benchmark is called {', '.join(sorted(unknown))}; there are: {', '.join(_names())}")
        return 2
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"{platform.platform()}, {machine}")
    broken = 0
    if not wanted:
        for setting, short in SHORTER.items():
            os.environ.setdefault(setting, short)
    for name in wanted or [one for one in _names() if one not in ONLY_NAMED]:
        print(name, flush=True)
        began = time.monotonic()
        results: list[Result] = []
        try:
            for result in importlib.import_module(f"benchmarks.bench_{name}").run():
                results.append(result)
                print(_line(result), flush=True)
                broken += not result.is_within_limit
        except SkipBenchmark as reason:
            print(f"  skipped: {reason}")
            continue
        print(f"  took {time.monotonic() - began:.0f} s", flush=True)
        if writes:
            figures.write(name, machine, results)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
