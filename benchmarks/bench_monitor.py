"""What the monitor costs, beside nvitop in the same run: processor time, memory, time to the first frame.

Eight GPUs (the driver's stand-in, which answers at once), an attached training on each, terminals of 200x50.
LLMTOP_BENCH_SECONDS (60) is how long processor time and memory are watched; 600 shows that memory stays flat.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from benchmarks.result import Result, SkipBenchmark
from tests.support import nvml_stub
from tests.support.processes import environment as own_environment

COLUMNS, ROWS = 200, 50
SETTLE_SECONDS = 12.0
"""Until start-up and the history of the trainings are behind all programs."""
FIRST_FRAMES = 7
RANKS = 8
STEP_MS = 250

# The smallest thing that Textual can draw.
_BARE = (
    "from textual.app import App\n"
    "from textual.widgets import Static\n"
    "class Bare(App):\n"
    "    def compose(self): yield Static('painted')\n"
    "Bare().run()\n"
)
_PYTHON = sys.executable
_LLMTOP = [_PYTHON, "-m", "llmtop"]
_NVITOP = [_PYTHON, "-m", "nvitop", "--monitor", "full"]


def run() -> Iterator[Result]:
    """Processor time and memory first, then the first frames."""
    for module, package in (("nvitop", "nvitop"), ("pexpect", "pexpect")):
        if importlib.util.find_spec(module) is None:
            raise SkipBenchmark(f"{package} is not installed: pip install -e '.[bench]'")
    if shutil.which("tmux") is None or shutil.which("gcc") is None:
        raise SkipBenchmark("tmux and gcc are needed")
    with tempfile.TemporaryDirectory(prefix="lt-") as directory:
        scenario = nvml_stub.Scenario.eight_gpus()
        env = environment(scenario, Path(directory))
        with trainings(env) as pids:
            for gpu, pid in enumerate(pids):
                scenario.process(gpu, pid, 90 << 30, sm=95)
            scenario.write(Path(directory) / "scenario")
            yield from _running(env, float(os.environ.get("LLMTOP_BENCH_SECONDS", "60")))
            yield from _starting(env)


def environment(scenario: nvml_stub.Scenario, directory: Path) -> dict[str, str]:
    """Of a monitor over the stand-in that answers by `scenario`, with sockets in `directory`."""
    return nvml_stub.environment(
        nvml_stub.build(),
        scenario.write(directory / "scenario"),
        **own_environment(
            LLMTOP_DIR=str(directory), TERM="xterm-256color", COLORTERM="truecolor", LC_ALL="C.UTF-8"
        ),
    )


@contextmanager
def trainings(env: dict[str, str]) -> Iterator[list[int]]:
    """One training a GPU; their pids."""
    pids = []
    with ExitStack() as running:
        for rank in range(RANKS):
            ranked = {**env, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
            program = ["-m", "tests.support.toy_training", "--step-ms", str(STEP_MS), "--tokens", "4096"]
            training = subprocess.Popen([_PYTHON, *program], env=ranked, stdout=subprocess.DEVNULL)
            running.callback(training.wait)
            running.callback(training.kill)
            pids.append(training.pid)
        yield pids


class Pane:
    """A program in a tmux of its own."""

    def __init__(self, name: str, command: list[str], env: dict[str, str]) -> None:
        self._socket = f"llmtop-bench-{os.getpid()}-{name}"
        self._tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), *command, env=env)
        pid = self._tmux("list-panes", "-F", "#{pane_pid}").strip()
        self.process = psutil.Process(int(pid))

    def text(self) -> str:
        return self._tmux("capture-pane", "-p")

    def type(self, keys: str) -> None:
        """Press keys."""
        self._tmux("send-keys", keys)

    def processor_seconds(self) -> float:
        """Of the program and its children: llmtop asks the driver in a process of its own."""
        times = [process.cpu_times() for process in self._all()]
        return sum(one.user + one.system for one in times)

    def memory_mib(self) -> float:
        """Of both processes together, what they share counted once (PSS)."""
        return sum(float(process.memory_full_info().pss) for process in self._all()) / 2**20

    def _all(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def close(self) -> None:
        self._tmux("kill-server")

    def _tmux(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        return subprocess.run(
            ["tmux", "-f", "/dev/null", "-L", self._socket, *arguments],
            env=env,
            check=True,
            capture_output=True,
            text=True,
            timeout=3600,
        ).stdout


def _running(env: dict[str, str], seconds: float) -> Iterator[Result]:
    with ExitStack() as panes:

        def start(name: str, command: list[str]) -> Pane:
            pane = Pane(name, command, env)
            panes.callback(pane.close)
            return pane

        nvitop = start("nvitop", [*_NVITOP, "--interval", "1"])
        once_a_second = start("1hz", [*_LLMTOP, "--interval", "1"])
        twice = start("2hz", [*_LLMTOP, "--interval", "0.5"])
        all_three = (nvitop, once_a_second, twice)
        time.sleep(SETTLE_SECONDS)
        for pane, mark in zip(all_three, ("NVITOP", "time line", "time line"), strict=True):
            if mark not in pane.text():
                raise SkipBenchmark(
                    f"{mark} is not on the screen of {pane.process.cmdline()}: {pane.text()[:300]}"
                )
        before = [pane.processor_seconds() for pane in all_three]
        memory = once_a_second.memory_mib()
        started = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - started
        shares = [
            100 * (pane.processor_seconds() - start) / took for pane, start in zip(all_three, before, strict=True)
        ]
        after = once_a_second.memory_mib()
    yield Result(
        "processor time at 1 Hz / nvitop at 1 Hz", shares[1] / shares[0], "x", 1.25, _note(shares, 1, took)
    )
    yield Result(
        "processor time at 2 Hz / nvitop at 1 Hz", shares[2] / shares[0], "x", 2.0, _note(shares, 2, took)
    )
    yield Result("memory of both processes (PSS)", after, "MiB", 55, "8 GPUs, 8 ranks")
    yield Result("growth of memory", after - memory, "MiB", None, f"over {took:.0f} s")


def _note(shares: list[float], which: int, took: float) -> str:
    return f"{shares[which]:.2f} % of a core, nvitop {shares[0]:.2f} %, over {took:.0f} s"


def _starting(env: dict[str, str]) -> Iterator[Result]:
    programs: dict[str, Callable[[], float]] = {
        "bare": lambda: _first_frame([_PYTHON, "-c", _BARE], b"painted", env),
        "llmtop": lambda: _first_frame(_LLMTOP, b"quit", env),
        "nvitop": lambda: _first_frame(_NVITOP, b"NVITOP", env),
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(FIRST_FRAMES):
        for name, measure in programs.items():
            times[name].append(measure())
    median = {name: statistics.median(taken) for name, taken in times.items()}
    note = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in median.items())
    yield Result("exec to first frame / bare Textual app", median["llmtop"] / median["bare"], "x", 1.6, note)


def _first_frame(command: list[str], mark: bytes, env: dict[str, str]) -> float:
    """Seconds from exec until `mark` is written to the terminal."""
    import pexpect

    started = time.monotonic()
    child = pexpect.spawn(command[0], command[1:], env=env, dimensions=(ROWS, COLUMNS), timeout=30)
    try:
        child.expect_exact(mark)
        return time.monotonic() - started
    finally:
        child.close(force=True)
