"""Run the suite under harsh conditions, to find the tests that fail in one of them.

make flaky, or:
python -m tests.support.flaky [--minutes 40] [--only CONDITION...] [--tests PATH...] [--state FOLDER]

Each call is one slice: it ends after at most that many minutes, and the next call continues. `state.json` in
the folder has the outcomes, and a file beside it each failure. What failed runs again once the commit has
changed; remove the folder to run all of it again. The last two conditions repeat the tests that start processes
or wait: the 200 that waited longest when the machine was quiet. A skip is a failure unless `ANYWHERE` or `SKIPS`
names its reason. The conditions that need another user or a mount need root.

Exit codes: 0 every cell of the table is 0, 1 a test failed, 3 not all has run yet: run it again.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.checkout import commit, copy_checkout
from tests.support.processes import REPOSITORY
from tests.support.repeat_tests import BUSY, KILLED_SECONDS

OVERFLOW_UID: Final = 65534
"""Uid of `nobody`. The kernel shows it for each user that a namespace does not know, so llmtop trusts no listener
with it."""
ORDINARY: Final = next((one for one in pwd.getpwall() if 0 < one.pw_uid < OVERFLOW_UID), None)
"""A user with a name and without rights, as `daemon` is."""
UID: Final = 1000 if ORDINARY is None else ORDINARY.pw_uid
USER_NAME: Final = "nobody" if ORDINARY is None else ORDINARY.pw_name
FILES_AT_ONCE: Final = 12
"""Test files of one run of pytest: minutes at most, so that a slice can end between two of them."""
REPEATED: Final = 200
REPEATS: Final = 20
WAITS_SECONDS: Final = 10.0
"""A test that waits longer is printed: their number may not grow (issue 35)."""
RUN_SECONDS: Final = 2400.0
NOT_DONE: Final = 3
SELECTED: Final = ("-m", "not slow and not shape")


@dataclass(frozen=True)
class Condition:
    """What the tests run under."""

    name: str
    runs: int = 1
    busy: int = 0
    """Loops beside the tests."""
    prefix: tuple[str, ...] = ()
    """Of the command; {home} and {checkout} are replaced by folders."""
    environment: tuple[tuple[str, str], ...] = ()
    own_checkout: bool = False
    """Run in a copy that belongs to the ordinary user."""
    is_repeated: bool = False
    """Only the tests that waited, `REPEATS` times."""


def _in_shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", f'{script} && exec "$@"', "sh")


def _read_only(folder: str) -> tuple[str, ...]:
    """Mount a folder over itself, read-only, in a mount namespace of its own."""
    script = f"mount --bind '{folder}' '{folder}' && mount -o remount,bind,ro '{folder}'"
    script += ' && cd "$PWD"'  # into the mount
    return ("unshare", "--mount", *_in_shell(script))


ONE_CORE: Final = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
USER: Final = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all")
CONDITIONS: Final = (
    Condition("quiet", runs=3),
    Condition("eight busy loops", busy=8),
    Condition("one core", prefix=ONE_CORE),
    Condition("nice 19", prefix=("nice", "-n", "19")),
    Condition("ordinary user", prefix=USER, own_checkout=True),
    Condition("LANG=C, Pacific/Apia", environment=(("LANG", "C"), ("LC_ALL", ""), ("TZ", "Pacific/Apia"))),
    Condition("umask 077", prefix=_in_shell("umask 077")),
    Condition("unwritable home", prefix=_read_only("{home}"), environment=(("HOME", "{home}"),)),
    Condition("read-only checkout", prefix=_read_only("{checkout}")),
    Condition("repeated beside eight busy loops", runs=REPEATS, busy=8, is_repeated=True),
    Condition("repeated on one core", runs=REPEATS, prefix=ONE_CORE, is_repeated=True),
)
ANYWHERE: Final = (
    r"^this machine cannot run it: ",
    r"^no (?!.*(history|unshare|openssl|namespace))",
    r"^could not import ",
    r"^needs [\w.-]+(, [\w.-]+)*$",
    r" is not installed$",
    r"^hatchling builds the wheel$",
    r"^PyYAML reads ",
    r"^JAX 0\.6, ",
    r"^this machine (allows no pid namespace|shows no disk with hardware behind it)",
    r"^the temporary folder is not on a counted disk$",
    r"^this environment was not installed with constraints\.txt",
    r"^four rows show no seven lines$",
    r"^root may$",
)
"""Reasons of skips that hold under every condition: a part is not installed, or a matrix lacks that cell."""
SKIPS: Final[dict[str, tuple[str, ...]]] = {
    "ordinary user": (
        r"\broot\b",
        r"^this user may not make a namespace",
        r"^no pid namespace can be made: .* not permitted$",
        r"^another user may not read",
        r"^no tmpfs can be mounted here",
        r"^no history of git here$",
        r"^the kernel does not allow it",
    ),
    "one core": (r"^one CPU cannot be narrowed$",),
    "repeated on one core": (r"^one CPU cannot be narrowed$",),
}
"""By condition, further reasons of skips that are no failure."""


@dataclass
class Done:
    """One run of some test files under a condition."""

    commit: str
    passed: int = 0
    skipped: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    """By test, the file of its output, or the reason of its skip."""
    waited: dict[str, float] = field(default_factory=dict)
    """Seconds, of tests that waited at all."""


class State:
    """What has run, in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file = folder / "state.json"
        known = json.loads(self._file.read_text()) if self._file.exists() else {}
        self.done = {name: Done(**one) for name, one in known.items()}

    def is_done(self, unit: Unit, hash_of_commit: str) -> bool:
        """Return whether a unit has passed, or has failed with this commit."""
        done = self.done.get(unit.key)
        return done is not None and (not done.failures or done.commit == hash_of_commit)

    def add(self, unit: Unit, hash_of_commit: str, outcomes: dict[str, dict[str, Any]]) -> Done:
        """Keep what became of the tests of a unit."""
        done = Done(hash_of_commit)
        reasons = (*ANYWHERE, *SKIPS.get(unit.condition.name, ()))
        for test, one in sorted(outcomes.items()):
            if one["outcome"] == "skipped" and any(re.search(reason, one["text"]) for reason in reasons):
                done.skipped += 1
            elif one["outcome"] == "skipped":
                done.failures[test] = f"skipped: {one['text']}"
            elif one["outcome"] == "failed":
                output = self._folder / f"{re.sub('[^A-Za-z0-9_.-]+', '-', f'{unit.key}-{test}')[-200:]}.txt"
                output.write_text(one["text"])
                done.failures[test] = output.name
            else:
                done.passed += 1
            if one["waited"] > 0.1:
                done.waited[test] = one["waited"]
        self.done[unit.key] = done
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps({name: asdict(one) for name, one in self.done.items()}, indent=1))
        written.replace(self._file)
        return done

    def waits(self) -> dict[str, float]:
        """Return the least seconds that each test waited in the runs on a quiet machine, the longest first."""
        least: dict[str, float] = {}
        for name, done in self.done.items():
            if name.startswith("quiet "):
                for test, seconds in done.waited.items():
                    least[test] = min(seconds, least.get(test, seconds))
        return dict(sorted(least.items(), key=lambda one: -one[1]))


@dataclass(frozen=True)
class Unit:
    """What runs between two looks at the clock: one pytest."""

    condition: Condition
    run: int
    tests: tuple[str, ...]

    @property
    def key(self) -> str:
        """Its name in the state."""
        first = f"{self.tests[0]} and {len(self.tests) - 1} more" if len(self.tests) > 1 else self.tests[0]
        return f"{self.condition.name} {self.run}: {first}"


def units(conditions: list[Condition], paths: list[str], state: State) -> Iterator[Unit]:
    """Yield what is to run, in order; the repeated tests are known once a quiet run has measured who waits.

    Args:
        conditions: of `CONDITIONS`.
        paths: files and folders of tests.
        state: what has run.
    """
    files = sorted({str(file) for path in paths for file in _test_files(Path(path))})
    chunks = [tuple(files[place : place + FILES_AT_ONCE]) for place in range(0, len(files), FILES_AT_ONCE)]
    for condition in conditions:
        if condition.is_repeated:
            longest = list(state.waits())[:REPEATED]
            chosen = [tuple(longest)] if longest else []
        else:
            chosen = chunks
        yield from (Unit(condition, run, tests) for run in range(1, condition.runs + 1) for tests in chosen)


def _test_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("test_*.py") if "data" not in file.parts]


class Ground:
    """The folders that the conditions need: a home and, for the ordinary user, a checkout of its own."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self._folder = folder
        self.home = folder / "home"
        self.home.mkdir(mode=0o755)
        self._checkout = folder / "checkout"

    def opened_interpreter(self) -> tuple[str, ...]:
        """Return what begins a command in whose mount namespace the ordinary user may run this interpreter.

        A folder above the interpreter that others may not enter (such as /root) is replaced by one that holds the
        way to the interpreter alone.
        """
        path = Path(sys.executable).resolve()
        closed = next((one for one in reversed(path.parents) if not one.stat().st_mode & stat.S_IXOTH), None)
        if closed is None:
            return ()
        way = closed / path.relative_to(closed).parts[0]
        stand_in = self._folder / "opened"
        (stand_in / way.name).mkdir(parents=True, exist_ok=True)
        script = f"mount --bind '{way}' '{stand_in / way.name}' && mount --rbind '{stand_in}' '{closed}'"
        return ("unshare", "--mount", *_in_shell(script))

    def checkout(self, condition: Condition) -> Path:
        """Return where the tests of a condition run; a copy is made the first time that one is needed."""
        if not condition.own_checkout:
            return REPOSITORY
        if not self._checkout.exists():
            copy_checkout(self._checkout)
            for path in (self._checkout, *self._checkout.rglob("*")):
                os.chown(path, UID, UID, follow_symlinks=False)
        return self._checkout


def run(unit: Unit, ground: Ground, workers: int, seconds: float) -> dict[str, dict[str, Any]] | None:
    """Run the tests of a unit.

    Args:
        unit: condition and tests.
        ground: the folders of the conditions.
        workers: of pytest-xdist; 0 for none.
        seconds: at most.

    Returns:
        By test its outcome (see `outcomes_plugin`); None if the time ended first.
    """
    condition = unit.condition
    checkout = ground.checkout(condition)
    places = {"home": str(ground.home), "checkout": str(checkout)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        owner = UID if condition.own_checkout else os.getuid()
        os.chown(folder, owner, -1)
        temporary = folder / "tmp"
        temporary.mkdir()
        os.chown(temporary, owner, -1)
        folder.chmod(0o755)
        temporary.chmod(0o1777)  # as /tmp: tests start processes of other users
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {"LLMTOP_OUTCOMES": str(folder / "outcomes.json"), "TMPDIR": str(temporary)}
        if condition.own_checkout:
            environment |= {"HOME": str(temporary), "USER": USER_NAME, "LOGNAME": USER_NAME}
        environment |= {name: value.format(**places) for name, value in condition.environment}
        environment["PYTHONPATH"] = str(checkout)
        command = [
            *_beside(condition.busy),
            *(ground.opened_interpreter() if condition.own_checkout else ()),
            *(_filled(word, places) for word in condition.prefix),
            *(sys.executable, "-m", "pytest", "-q", "-c", "pyproject.toml", "-p", "no:cacheprovider"),
            *("-p", "tests.support.outcomes_plugin", "-n", str(workers), "--dist", "worksteal"),
            f"--basetemp={folder / 't'}",  # a socket's path has 107 characters at most
            *(*SELECTED, *unit.tests),
        ]
        return _outcomes(command, checkout, environment, folder / "outcomes.json", seconds)


def _filled(word: str, places: dict[str, str]) -> str:
    for name, folder in places.items():
        word = word.replace(f"{{{name}}}", folder)
    return word


def _outcomes(
    command: list[str], checkout: Path, environment: dict[str, str], file: Path, seconds: float
) -> dict[str, dict[str, Any]] | None:
    with subprocess.Popen(
        command,
        cwd=checkout,
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
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.send_signal(signal.SIGINT)  # pytest then leaves its fixtures, which end what they have started
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILLED_SECONDS)
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode not in (0, 1) or not file.exists():
        said = f"pytest did not run (exit code {process.returncode}): {' '.join(command[:12])}"
        raise SystemExit(f"{said}\n{output[-3000:]}")
    known: dict[str, dict[str, Any]] = json.loads(file.read_text())
    return known


def _beside(loops: int) -> tuple[str, ...]:
    """Return what begins a command beside so many busy loops.

    They are in the session of the command, as in one terminal: the kernel gives each session the same share of the
    CPUs (sched_autogroup_enabled), so eight loops with sessions of their own would leave a ninth for all tests.
    """
    loop = f"{shlex.quote(sys.executable)} -c {shlex.quote(BUSY)} > /dev/null 2>&1 &"
    return _in_shell(f"for _ in {' '.join(map(str, range(loops)))}; do {loop} done") if loops else ()


def table(conditions: list[Condition], state: State) -> str:
    """Return the counts of each condition, failures by test and condition, and the tests that wait for long."""
    rows = [f"{'condition':34}{'runs':>6}{'passed':>9}{'skipped':>9}{'failures':>10}"]
    cells: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    outputs = []
    for condition in conditions:
        done = {name: one for name, one in state.done.items() if name.startswith(f"{condition.name} ")}
        runs = len({name.partition(":")[0] for name in done})
        failures = sum(len(one.failures) for one in done.values())
        counts = (
            runs,
            sum(one.passed for one in done.values()),
            sum(one.skipped for one in done.values()),
            failures,
        )
        rows.append(f"{condition.name:34}{counts[0]:6}{counts[1]:9}{counts[2]:9}{counts[3]:10}")
        for one in done.values():
            for test, output in one.failures.items():
                cells[test][condition.name] += 1
                outputs.append(f"  {condition.name}: {test}: {output}")
    for test, failed in sorted(cells.items()):
        rows.append(f"{test}: " + ", ".join(f"{name} {count}" for name, count in failed.items()))
    long = {test: seconds for test, seconds in state.waits().items() if seconds > WAITS_SECONDS}
    rows.append(f"{len(long)} tests wait over {WAITS_SECONDS:.0f} s on a quiet machine")
    rows += [f"  {seconds:5.1f} s  {test}" for test, seconds in long.items()]
    return "\n".join([*rows, *sorted(outputs)])


def missing_tools(conditions: list[Condition]) -> list[str]:
    """Return why conditions cannot be made here."""
    if os.getuid() == 0:
        return []
    return [f"{one.name}: needs root" for one in conditions if one.own_checkout or "unshare" in one.prefix]


def main() -> int:
    """Run one slice and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.flaky")
    parser.add_argument("--minutes", type=float, default=40.0, help="of this slice (default: 40)")
    parser.add_argument("--only", nargs="+", metavar="CONDITION", choices=[one.name for one in CONDITIONS])
    parser.add_argument("--tests", nargs="+", default=["tests"], metavar="PATH", help="default: all")
    parser.add_argument("--state", type=Path, default=REPOSITORY / ".cache" / "flaky")
    parser.add_argument(
        "--workers", type=int, default=3 * (os.cpu_count() or 2), help="as make test has (default)"
    )
    options = parser.parse_args()
    conditions = [one for one in CONDITIONS if not options.only or one.name in options.only]
    if missing := missing_tools(conditions):
        parser.error("; ".join(missing))
    until = time.monotonic() + options.minutes * 60
    state, hash_of_commit, is_done = State(options.state.absolute()), commit(), True
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder))
        for unit in units(conditions, options.tests, state):
            if state.is_done(unit, hash_of_commit):
                continue
            left = min(until - time.monotonic(), RUN_SECONDS)
            outcomes = run(unit, ground, options.workers, left) if left > 0 else None
            if outcomes is None:
                is_done = False
                break
            done = state.add(unit, hash_of_commit, outcomes)
            print(f"{unit.key}: {done.passed} passed, {len(done.failures)} failed", flush=True)
    print(table(conditions, state))
    if not is_done:
        return NOT_DONE
    return int(any(one.failures for one in state.done.values()))


if __name__ == "__main__":
    sys.exit(main())
