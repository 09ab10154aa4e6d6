"""Change a line, run the tests that execute it, and count how many changes a test notices.

make mutants, or:
python -m tests.support.mutants [--count 150] [--areas 8] [--minutes 120] [--seed HASH] [--state FOLDER]

Two steps, both resumed by the same command. First, each folder of tests runs once under coverage, which records
the tests of each line. Then each mutant runs in a copy of the checkout, two at a time and 60 s at most, the
nearest tests first. The seed is the hash of the commit. Coverage does not see child processes, so near tests that
wait are run too. With fewer than eight areas, the seed chooses them, only the folders that mirror them are
recorded, and each area has both steps before the next has one: CI does that. Remove the folder of the state to
begin again.

Exit codes: 0 at least 80 % of the mutants are noticed, 1 fewer (of fewer than 100: fewer than chance explains), 3
the time ended first: run it again.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from tests.support.checkout import commit, copy_checkout
from tests.support.equivalent_mutants import EQUIVALENT
from tests.support.mutation import Mutant, mutants
from tests.support.processes import REPOSITORY

AREAS: Final = {
    "rules": ("llmtop/rules",),
    "analysis": ("llmtop/analysis",),
    "trace": ("llmtop/trace",),
    "wire": ("llmtop/protocol",),
    "recorder": ("llmtop/instrument/record", "llmtop/instrument/steps"),
    "hub": ("collectors/hub.py",),
    "bench": ("llmtop/bench/statistics",),
    "redaction": ("llmtop/redaction",),
}
"""By name, the files and folders of the product."""
MIRRORS: Final = {
    "rules": ("tests/rules",),
    "analysis": ("tests/analysis",),
    "trace": ("tests/trace",),
    "wire": ("tests/protocol", "tests/instrument/serve", "tests/instrument/test_directories_and_users.py"),
    "recorder": ("tests/instrument/record", "tests/instrument/steps"),
    "hub": ("tests/collectors/test_hub.py", "tests/collectors/test_replay.py"),
    "bench": ("tests/bench",),
    "redaction": ("tests/redaction",),
}
"""By area, the tests that are recorded where not all areas are asked for."""
WANTED_PCT: Final = 80.0
FEW: Final = 100
"""Of fewer mutants the share alone decides nothing: eight of ten are noticed now and then where 70 % would be."""
CHANCE: Final = 0.001
"""With few mutants it fails if so few would be noticed less often than this, were the share as wanted: four of ten
are enough. CI tries ten of each commit, of areas where the share is lower, too."""
MUTANT_SECONDS: Final = 60.0
EXPECTED_SECONDS: Final = 15.0
"""Of the tests of one mutant when they were recorded: beside another mutant they may take twice as long."""
RECORD_SECONDS: Final = 2400.0
"""One folder of tests, under coverage and beside other work."""
AT_ONCE: Final = 2
WAITING_SECONDS: Final = 0.1
"""A test that does not compute for that long may wait for a process."""
SELECTED: Final = ("-m", "not slow and not shape")
NOT_DONE: Final = 3


@dataclass(frozen=True)
class Lines:
    """Which tests execute which lines, and how long each takes."""

    seconds: dict[str, float]
    """Of tests that passed."""
    waiting: frozenset[str]
    """Tests that wait: for a process of theirs, perhaps, which may execute lines too."""
    tests: dict[str, dict[int, set[str]]]
    """By path and line; lines that only an import executes have no tests."""

    def select(self, mutant: Mutant) -> list[str]:
        """Return the tests for a mutant: those that execute its line, then those that may do so in a child.

        A line in no function is executed by whichever test imports its module first, but any near test may read
        what it sets: there, all near tests are among the second kind. The tests of the folder that mirrors the
        module's come first, of these the ones that bear its name, and among equals the fastest. Each of the two
        kinds takes `EXPECTED_SECONDS` at most, or is one test.
        """

        def order(test: str) -> tuple[int, bool, float, str]:
            named = Path(test.partition("::")[0]).stem == f"test_{Path(mutant.path).stem}"
            return -nearness(mutant.path, test), not named, self.seconds[test], test

        executing = self.tests.get(mutant.path, {}).get(mutant.line, set()) & self.seconds.keys()
        candidates = self.waiting if mutant.line in function_lines(mutant.path) else self.seconds.keys()
        others = {test for test in candidates - executing if nearness(mutant.path, test) >= 2}
        return [*self._within(sorted(executing, key=order)), *self._within(sorted(others, key=order))]

    def _within(self, tests: list[str]) -> Iterator[str]:
        total = 0.0
        for number, test in enumerate(tests):
            total += self.seconds[test]
            if number and total > EXPECTED_SECONDS:
                return
            yield test


@cache
def function_lines(path: str) -> frozenset[int]:
    """Return the lines of a module that run when a function of it does, and not at the import."""
    found: set[int] = set()
    for node in ast.walk(ast.parse((REPOSITORY / path).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.update(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, ast.Lambda):
            found.update(range(node.body.lineno, (node.body.end_lineno or 0) + 1))
    return frozenset(found)


def nearness(path: str, test: str) -> int:
    """Return how many folders the place of a test shares with the place that mirrors a module's."""
    mirrored = ("tests", *Path(path.removeprefix("llmtop/")).parts[:-1])
    shared = takewhile(
        lambda pair: pair[0] == pair[1], zip(mirrored, Path(test.partition("::")[0]).parts, strict=False)
    )
    return sum(1 for _ in shared)


def product_files(area: str) -> list[str]:
    """Return the paths of an area's modules below the repository."""
    found = []
    for name in AREAS[area]:
        path = REPOSITORY / name
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [one.relative_to(REPOSITORY).as_posix() for one in found]


def choose(seed: str, count: int, areas: list[str]) -> list[tuple[str, Mutant]]:
    """Draw mutants at random, the same number of each area, no two of one line.

    Args:
        seed: the same one draws the same mutants of the same code.
        count: how many.
        areas: names of `AREAS`.
    """
    order = random.Random(seed)
    pools = {}
    for area in areas:
        pool = [one for path in product_files(area) for one in mutants(path, (REPOSITORY / path).read_text())]
        order.shuffle(pool)
        pools[area] = pool
    chosen: dict[tuple[str, int], tuple[str, Mutant]] = {}
    while len(chosen) < count and any(pools.values()):
        for area, pool in pools.items():
            while pool and (pool[-1].path, pool[-1].line) in chosen:
                pool.pop()
            if pool and len(chosen) < count:
                one = pool.pop()
                if one.compiles((REPOSITORY / one.path).read_text()):
                    chosen[one.path, one.line] = (area, one)
    return list(chosen.values())


def run_pytest(
    arguments: list[str], folder: Path, environment: dict[str, str], seconds: float
) -> tuple[int | None, str]:
    """Run the tests of `SELECTED` in a folder; return the exit code (None: not in time) and the output."""
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", *SELECTED, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Record:
    """The recorded lines of each folder of tests, in files of a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def missing(self, units: list[str]) -> list[str]:
        """Return the paths of tests that have not been recorded."""
        return [unit for unit in units if not self._file(unit).exists()]

    def add(self, unit: str, until: float) -> bool:
        """Run the tests below a path and record them; return False if they have not ended at `until`."""
        with tempfile.TemporaryDirectory() as folder:
            targets = [
                f"{REPOSITORY}/{name}{'' if name.endswith('.py') else '/*'}"
                for of in AREAS.values()
                for name in of
            ]
            seconds = Path(folder) / "outcomes.json"
            environment = {
                **os.environ,
                "LLMTOP_LINES": folder,
                "LLMTOP_LINES_OF": ",".join(targets),
                "LLMTOP_OUTCOMES": str(seconds),
            }
            plugins = ("-p", "tests.support.line_contexts", "-p", "tests.support.outcomes_plugin")
            arguments = ["-n", "2", "--dist", "worksteal", *plugins, "-p", "no:cacheprovider", unit]
            limit = min(RECORD_SECONDS, until - time.monotonic())
            code, output = run_pytest(arguments, REPOSITORY, environment, limit)
            if code is None:
                print(f"not recorded within {limit:.0f} s: {unit}", flush=True)
                return False
            if not seconds.exists():
                raise SystemExit(f"pytest did not run {unit} (exit code {code}):\n{output[-3000:]}")
            failed = [line for line in output.splitlines() if line.startswith("FAILED")]
            print("\n".join([f"recorded {unit}: {output.splitlines()[-1]}", *failed]), flush=True)
            self._write(unit, Path(folder), json.loads(seconds.read_text()))
            return True

    def _write(self, unit: str, folder: Path, outcomes: dict[str, dict[str, Any]]) -> None:
        from coverage import CoverageData

        names = sorted(test for test, one in outcomes.items() if one["outcome"] == "passed")
        number = {name: place for place, name in enumerate(names)}
        lines: dict[str, dict[int, set[int]]] = {}
        for file in sorted(folder.glob(".coverage.*")):
            data = CoverageData(str(file))
            data.read()
            for path in data.measured_files():
                of_path = lines.setdefault(Path(path).relative_to(REPOSITORY).as_posix(), {})
                for line, tests in data.contexts_by_lineno(path).items():
                    of_path.setdefault(line, set()).update(number[test] for test in tests if test in number)
        known = {path: {line: sorted(tests) for line, tests in of.items()} for path, of in lines.items()}
        written = self._file(unit).with_suffix(".new")
        rows = [(name, outcomes[name]["seconds"], outcomes[name]["waited"]) for name in names]
        written.write_text(json.dumps({"tests": rows, "lines": known}))
        written.replace(self._file(unit))

    def lines(self, units: list[str]) -> Lines:
        """Return what is known of all these tests together."""
        seconds: dict[str, float] = {}
        waiting: set[str] = set()
        found: dict[str, dict[int, set[str]]] = {}
        for unit in units:
            known = json.loads(self._file(unit).read_text())
            seconds |= {test: took for test, took, _ in known["tests"]}
            waiting |= {test for test, _, waited in known["tests"] if waited > WAITING_SECONDS}
            for path, lines in known["lines"].items():
                of_path = found.setdefault(path, {})
                for line, tests in lines.items():
                    of_path.setdefault(int(line), set()).update(known["tests"][place][0] for place in tests)
        return Lines(seconds, frozenset(waiting), found)

    def _file(self, unit: str) -> Path:
        return self._folder / f"{unit.replace('/', '-')}.json"


class Trial:
    """A copy of the checkout in which mutants are tried, one after the other."""

    def __init__(self, parent: Path) -> None:
        self._tree = Path(tempfile.mkdtemp(dir=parent)) / "checkout"
        copy_checkout(self._tree)

    def outcome(self, mutant: Mutant, tests: list[str]) -> tuple[str, float]:
        """Return what the tests make of a mutant, and the seconds that it took.

        Returns:
            "noticed by TEST", "noticed: no end within 60 s", "noticed at the import", "survived" or "no test"; and
            "unclear: ..." if the tests do the same without the mutant, which is then tried again in the next call.
        """
        if not tests:
            return "no test", 0.0
        path = self._tree / mutant.path
        source = path.read_text()
        begun = time.monotonic()
        try:
            self._put(path, mutant.apply(source))
            code, output = self._run(tests)
        finally:
            self._put(path, source)
        seconds = time.monotonic() - begun
        if code == 0:
            return "survived", seconds
        if code is None:
            is_slow = self._run(tests)[0] is None
            return (
                "unclear: no end" if is_slow else "noticed: no end"
            ) + f" within {MUTANT_SECONDS:.0f} s", seconds
        failed = next((line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
        test = failed.partition(" ")[2].partition(" - ")[0]
        if not test:
            return "noticed at the import", seconds
        return (
            f"noticed by {test}" if self._run([test])[0] == 0 else f"unclear: {test} fails without it"
        ), seconds

    @staticmethod
    def _put(path: Path, source: str) -> None:
        """Write a module, and remove its bytecode: it may be of the same second and the same length."""
        path.write_text(source)
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def _run(self, tests: list[str]) -> tuple[int | None, str]:
        environment = {**os.environ, "PYTHONPATH": str(self._tree)}
        arguments = ["-x", "--no-header", "-p", "no:cacheprovider", *tests]
        return run_pytest(arguments, self._tree, environment, MUTANT_SECONDS)


class Outcomes:
    """The outcome of each mutant, in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self.known: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}

    def add(self, mutant: Mutant, outcome: str) -> None:
        """Keep an outcome."""
        with self._lock:
            self.known[mutant.key] = outcome
            written = self._file.with_suffix(".new")
            written.write_text(json.dumps(self.known, indent=1))
            written.replace(self._file)


def try_all(chosen: list[tuple[str, Mutant]], lines: Lines, outcomes: Outcomes, until: float) -> None:
    """Try the mutants that have no outcome, two at a time.

    Args:
        chosen: area and mutant.
        lines: the recorded tests.
        outcomes: known ones, to which each new one is added.
        until: no mutant begins after this instant of `time.monotonic`.
    """
    waiting = iter([one for one in chosen if one[1].key not in outcomes.known and one[1].key not in EQUIVALENT])
    lock = threading.Lock()

    def work(parent: Path) -> None:
        trial = Trial(parent)
        while time.monotonic() < until:
            with lock:
                area, mutant = next(waiting, (None, None))
            if area is None or mutant is None:
                return
            outcome, seconds = trial.outcome(mutant, lines.select(mutant))
            if not outcome.startswith("unclear"):
                outcomes.add(mutant, outcome)
            print(f"{seconds:4.0f} s  {mutant.path}:{mutant.line}  {outcome}", flush=True)

    with tempfile.TemporaryDirectory() as parent, ThreadPoolExecutor(AT_ONCE) as pool:
        for one in [pool.submit(work, Path(parent)) for _ in range(AT_ONCE)]:
            one.result(max(0.0, until - time.monotonic()) + 4 * MUTANT_SECONDS)


def is_too_few(noticed: int, judged: int) -> bool:
    """Return whether the tests notice fewer than they should; with `FEW` mutants or more the share decides."""
    if judged >= FEW:
        return 100 * noticed < WANTED_PCT * judged
    share = WANTED_PCT / 100
    chance = sum(math.comb(judged, one) * share**one * (1 - share) ** (judged - one) for one in range(noticed + 1))
    return judged > 0 and chance < CHANCE


def summary(chosen: list[tuple[str, Mutant]], known: dict[str, str]) -> tuple[str, bool]:
    """Return the table with each mutant that no test noticed, and whether too few were noticed."""
    counts: dict[str, Counter[str]] = {}
    missed = []
    for area, mutant in chosen:
        outcome = "equivalent" if mutant.key in EQUIVALENT else known.get(mutant.key, "not tried")
        counts.setdefault(area, Counter())[outcome.split()[0].rstrip(":")] += 1
        if outcome in ("survived", "no test"):
            missed.append(
                f"{outcome}: {mutant.path}:{mutant.line}: {mutant.text}\n    {mutant.before} -> {mutant.after}"
            )
    columns = ("noticed", "survived", "no", "equivalent", "not")
    rows = [
        f"{'area':12}"
        + "".join(f"{name:>12}" for name in ("noticed", "survived", "no test", "equivalent", "not tried"))
    ]
    rows += [f"{area:12}" + "".join(f"{count[name]:12}" for name in columns) for area, count in counts.items()]
    total = sum(counts.values(), Counter[str]())
    judged = total["noticed"] + total["survived"] + total["no"]
    share = 100 * total["noticed"] / judged if judged else 0.0
    rows.append(f"{total['noticed']} of {judged} noticed: {share:.0f} % (at least {WANTED_PCT:.0f} % wanted)")
    return "\n".join([*rows, *missed]), is_too_few(total["noticed"], judged)


@cache
def all_units() -> tuple[str, ...]:
    """Return the folders and files of tests that are recorded one by one."""
    folder = REPOSITORY / "tests"
    found = {path.relative_to(folder).parts[0] for path in folder.rglob("test_*.py")}
    return tuple(f"tests/{name}" for name in sorted(found))


def _units(areas: list[str]) -> list[str]:
    return list(all_units()) if len(areas) == len(AREAS) else [unit for area in areas for unit in MIRRORS[area]]


def main() -> int:
    """Record, try and report."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants")
    parser.add_argument("--count", type=int, default=150, help="mutants (default: 150)")
    parser.add_argument("--areas", type=int, default=len(AREAS), help="areas that the seed chooses (default: all)")
    parser.add_argument("--minutes", type=float, default=120.0, help="of this call (default: 120)")
    parser.add_argument("--seed", help="default: the hash of the commit")
    parser.add_argument("--state", type=Path, default=REPOSITORY / ".cache" / "mutants")
    options = parser.parse_args()
    until = time.monotonic() + options.minutes * 60
    hash_of_commit = commit()
    seed = options.seed or hash_of_commit
    areas = sorted(random.Random(seed).sample(sorted(AREAS), options.areas))
    folder = options.state / hash_of_commit[:12]
    record = Record(folder / "lines")
    chosen = choose(seed, options.count, areas)
    outcomes = Outcomes(folder / "outcomes.json")
    for group in [areas] if len(areas) == len(AREAS) else [[area] for area in areas]:
        units = _units(group)
        if all(time.monotonic() < until and record.add(unit, until) for unit in record.missing(units)):
            try_all([one for one in chosen if one[0] in group], record.lines(units), outcomes, until)
        else:
            print(f"{len(record.missing(units))} of {len(units)} folders of tests are not recorded: run it again")
    text, are_too_few = summary(chosen, outcomes.known)
    print(text)
    if any(one.key not in outcomes.known and one.key not in EQUIVALENT for _, one in chosen):
        return NOT_DONE
    return int(are_too_few)


if __name__ == "__main__":
    sys.exit(main())
