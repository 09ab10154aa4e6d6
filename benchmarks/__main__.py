"""Run all benchmarks, or those named: python -m benchmarks [NAME ...]. Exits 1 when a promise is broken.

A benchmark is a module bench_NAME.py here with `run() -> Iterable[Result]`; it raises `SkipBenchmark` with the
reason when what it measures against is not on this machine.
"""

from __future__ import annotations

import importlib
import platform
import sys
from pathlib import Path

from benchmarks.result import Result, SkipBenchmark


def _names() -> list[str]:
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def _line(result: Result) -> str:
    limit = "" if result.limit is None else f"  (at most {result.limit:g})"
    sign = "" if result.is_within_limit else "  OVER"
    return f"  {result.name:<52} {result.value:>10.4g} {result.unit}{limit}{sign}  {result.note}"


def main(wanted: list[str]) -> int:
    """Run and print; returns the exit code."""
    unknown = set(wanted) - set(_names())
    if unknown:
        print(f"no benchmark is called {', '.join(sorted(unknown))}; there are: {', '.join(_names())}")
        return 2
    print(f"{platform.platform()}, Python {platform.python_version()}")
    broken = 0
    for name in wanted or _names():
        print(name, flush=True)
        try:
            for result in importlib.import_module(f"benchmarks.bench_{name}").run():
                print(_line(result), flush=True)
                broken += not result.is_within_limit
        except SkipBenchmark as reason:
            print(f"  skipped: {reason}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
