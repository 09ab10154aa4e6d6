"""Run tests again and again beside busy loops, to find those that fail now and then.

python -m tests.support.repeat_tests TEST_ID... [--busy 8] [--runs 200] [--minutes 60] [--jobs 2] [--state FOLDER]

Each run is a pytest of its own. `state.json` in the folder has the counts, a file beside it the output of each
failure. Ctrl+C or SIGTERM ends it at any time, and the same command continues. Remove the folder to begin anew.
Exit codes: 0 no failure so far, 1 a failure, 2 a test id that pytest cannot run here, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.support.processes import REPOSITORY

BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))\n"
"""A busy loop that ends with its parent, however that ends."""
RUN_SECONDS = 900
"""Against hanging: pytest itself ends a test after 120 s, and each of its fixtures."""
KILLED_SECONDS = 60
"""How long a process may take to end after SIGKILL."""


@dataclass
class Count:
    """What is known of one test."""

    runs: int = 0
    failures: int = 0
    seconds: float = 0.0
    """Of all runs together."""
    outputs: list[str] = field(default_factory=list)
    """Files with the output of each failure."""


class State:
    """The counts of all tests, in a folder; safe to be used by several threads."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file = folder / "state.json"
        self._lock = threading.Lock()
        known = json.loads(self._file.read_text()) if self._file.exists() else {}
        self.counts = {test: Count(**count) for test, count in known.items()}

    def add(self, test: str, seconds: float, failure: str | None) -> Count:
        """Count one run, and keep its output if it failed."""
        with self._lock:
            count = self.counts.setdefault(test, Count())
            count.runs += 1
            count.seconds += seconds
            if failure is not None:
                count.failures += 1
                output = self._folder / f"{re.sub('[^A-Za-z0-9_.-]+', '-', test)}.{count.runs}.txt"
                output.write_text(failure)
                count.outputs.append(output.name)
            written = self._file.with_suffix(".new")
            written.write_text(json.dumps({test: asdict(one) for test, one in self.counts.items()}, indent=1))
            written.replace(self._file)
            return count

    def summary(self, tests: list[str]) -> str:
        """Return one line a test."""
        counts = [(test, self.counts.get(test, Count())) for test in tests]
        return "\n".join(
            f"{one.failures} failures in {one.runs} runs, {one.seconds / 60:.1f} minutes: {test}"
            + "".join(f"\n    {self._folder / output}" for output in one.outputs)
            for test, one in counts
        )


class CannotRun(Exception):
    """pytest did not run the test: it is not there, or it was skipped."""


class Runs:
    """Runs of tests, which can be ended from another thread."""

    def __init__(self, state: State, runs: int, seconds: float) -> None:
        self._state, self._runs, self._seconds = state, runs, seconds
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False

    def repeat(self, test: str) -> None:
        """Run a test until it has had all its runs or all its time.

        Raises:
            CannotRun: pytest did not run it.
        """
        count = self._state.counts.get(test, Count())
        while count.runs < self._runs and count.seconds < self._seconds:
            begun = time.monotonic()
            outcome = self._run(test)
            if outcome is None:
                return
            code, output = outcome
            if code not in {0, 1} or (code == 0 and not re.search(r"\b\d+ passed\b", output)):
                raise CannotRun(f"pytest did not run {test} (exit code {code}):\n{output}")
            count = self._state.add(test, time.monotonic() - begun, output if code else None)
            if code or count.runs % 10 == 0:
                print(self._state.summary([test]), flush=True)

    def end(self) -> None:
        """End all runs; they do not count."""
        with self._lock:
            self._ended = True
            running = list(self._running)
        for process in running:
            process.send_signal(signal.SIGINT)  # pytest then leaves its fixtures, which end what they have started

    def _run(self, test: str) -> tuple[int, str] | None:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow", test]
        with self._lock:
            if self._ended:
                return None
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # ctrl+c is for this process, which ends the runs itself
            )
            self._running.add(process)
        try:
            output, _ = process.communicate(timeout=RUN_SECONDS)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate(timeout=KILLED_SECONDS)
            code, output = 1, f"{output}\nnot done within {RUN_SECONDS} s\n"
        with self._lock:
            self._running.discard(process)
            return None if self._ended else (code, output)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep cores busy: so many processes that compute and do nothing else."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait(KILLED_SECONDS)


def main() -> int:
    """Repeat the tests that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.repeat_tests")
    parser.add_argument("tests", nargs="+", metavar="TEST_ID", help="as pytest takes it")
    parser.add_argument("--busy", type=int, default=8, help="busy loops beside the tests (default: 8)")
    parser.add_argument("--runs", type=int, default=200, help="runs of each test (default: 200)")
    parser.add_argument("--minutes", type=float, default=60.0, help="at most, of each test (default: 60)")
    parser.add_argument("--jobs", type=int, default=2, help="tests at the same time (default: 2)")
    parser.add_argument(
        "--state", type=Path, default=REPOSITORY / ".cache" / "repeated", help="where the counts are"
    )
    options = parser.parse_args()
    # A shell has what it starts with `&` ignore ctrl+c; the tests inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    state = State(options.state)
    runs = Runs(state, options.runs, options.minutes * 60)
    code = 0
    with busy(options.busy), ThreadPoolExecutor(options.jobs) as pool:
        try:
            for repeated in as_completed([pool.submit(runs.repeat, test) for test in options.tests]):
                repeated.result()
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # a second one would end this before its summary
            code = 130
        except CannotRun as error:
            print(error, file=sys.stderr)
            code = 2
        finally:
            runs.end()
    print(state.summary(options.tests))
    return code or int(any(state.counts[test].failures for test in options.tests if test in state.counts))


if __name__ == "__main__":
    sys.exit(main())
