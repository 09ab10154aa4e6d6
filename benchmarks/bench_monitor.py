"""What the monitor costs: processor time, memory, time to the first frame, time from a key to its answer.

Eight GPUs (the driver's stand-in, which answers at once), terminals of 200x50; first without trainings, then with
one attached on each GPU. nvitop and an older commit of this repository run beside it, or in turns with it.
LLMTOP_BENCH_SECONDS (60) is how long processor time and memory are watched; 600 shows that memory stays flat.

All start as pip installs them, with compiled bytecode: compiling it anew takes 100 ms of a start. The trainings
keep their runs in a folder of their own: a monitor reads an earlier run of the same command, which takes 0.3 s.
"""

from __future__ import annotations

import compileall
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
from typing import TYPE_CHECKING, NamedTuple

import psutil

from benchmarks.older import checkout
from benchmarks.result import Result, SkipBenchmark
from tests.support import nvml_stub
from tests.support.processes import REPOSITORY
from tests.support.processes import environment as own_environment

if TYPE_CHECKING:
    import pexpect

COLUMNS, ROWS = 200, 50
SETTLE_SECONDS = 12.0
"""Until start-up and the history of the trainings are behind all programs."""
FIRST_FRAMES = 7
RANKS = 8
STEP_MS = 250
OLDER = "551f3bb"
KEYS = (b"\t", b"\x1b[B", b"\x1b[A", b"\x1b[B", b"?") * 6
"""Tab, down, up, down, help."""
_BACK = b"q"
_QUIET_SECONDS = 0.1
_MOST_ANSWER_SECONDS = 5.0

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
    seconds = float(os.environ.get("LLMTOP_BENCH_SECONDS", "60"))
    with tempfile.TemporaryDirectory(prefix="lt-") as directory:
        folder = Path(directory)
        (folder / "older").mkdir()
        checkout(OLDER, folder / "older")
        for root in (REPOSITORY, folder / "older"):
            for package in ("llmtop", "tui", "collectors"):
                compileall.compile_dir(root / package, quiet=2)
        scenario = nvml_stub.Scenario.eight_gpus()
        env = environment(scenario, folder)
        yield from _running_alone(env, folder, seconds)
        with trainings(env) as pids:
            for gpu, pid in enumerate(pids):
                scenario.process(gpu, pid, 90 << 30, sm=95)
            scenario.write(folder / "scenario")
            yield from _running_with_ranks(env, folder, seconds)
            yield from _starting(env, folder)
            yield _answering(env, folder)


def environment(scenario: nvml_stub.Scenario, directory: Path) -> dict[str, str]:
    """Of a monitor over the stand-in that answers by `scenario`, with sockets in `directory`."""
    env = nvml_stub.environment(
        nvml_stub.build(),
        scenario.write(directory / "scenario"),
        **own_environment(
            LLMTOP_DIR=str(directory),
            LLMTOP_RUNS=str(directory / "runs"),
            TERM="xterm-256color",
            COLORTERM="truecolor",
            LC_ALL="C.UTF-8",
        ),
    )
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def _of_older(env: dict[str, str], folder: Path) -> dict[str, str]:
    """The environment in which `python -m llmtop`, started in `folder`, is the older commit's."""
    return {**env, "PYTHONPATH": str(folder / "older")}


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

    def __init__(self, name: str, command: list[str], env: dict[str, str], folder: Path = REPOSITORY) -> None:
        self._socket = f"llmtop-bench-{os.getpid()}-{name}"
        size = ("-x", str(COLUMNS), "-y", str(ROWS))
        self._tmux("new-session", "-d", *size, "-c", str(folder), *command, env=env)
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


class _Cost(NamedTuple):
    """Of one program while it was watched."""

    share: float
    """Of one core, in percent."""
    mib: float
    growth_mib: float


class _Program(NamedTuple):
    """What is run in a pane."""

    command: list[str]
    env: dict[str, str]
    mark: str
    """Is on its screen once it runs."""


def _watch(programs: dict[str, _Program], folder: Path, seconds: float) -> dict[str, _Cost]:
    """Run programs side by side.

    Args:
        programs: by name, those that are to be watched.
        folder: where they start; in the repository `python -m llmtop` is its own whatever the path says.
        seconds: for how long they are watched after `SETTLE_SECONDS`.

    Raises:
        SkipBenchmark: one of them does not show what it should.
    """
    with ExitStack() as running:
        panes: dict[str, Pane] = {}
        for name, program in programs.items():
            panes[name] = Pane(name, program.command, program.env, folder)
            running.callback(panes[name].close)
        time.sleep(SETTLE_SECONDS)
        for name, pane in panes.items():
            if programs[name].mark not in pane.text():
                raise SkipBenchmark(f"{programs[name].mark} is not on the screen of {name}: {pane.text()[:300]}")
        before = {name: (pane.processor_seconds(), pane.memory_mib()) for name, pane in panes.items()}
        started = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - started
        found = {}
        for name, pane in panes.items():
            used, memory = pane.processor_seconds() - before[name][0], pane.memory_mib()
            found[name] = _Cost(100 * used / took, memory, memory - before[name][1])
    return found


def _programs(env: dict[str, str], folder: Path) -> dict[str, _Program]:
    """nvitop, the older commit and the present one, each once a second."""
    once = [*_LLMTOP, "--interval", "1"]
    return {
        "nvitop": _Program([*_NVITOP, "--interval", "1"], env, "NVITOP"),
        "older": _Program(once, _of_older(env, folder), "time line"),
        "now": _Program(once, env, "time line"),
    }


def _running_alone(env: dict[str, str], folder: Path, seconds: float) -> Iterator[Result]:
    costs = _watch(_programs(env, folder), folder, seconds)
    yield _ratio("at 1 Hz, no trainings / nvitop", costs, "now", "nvitop", 0.65)
    yield _ratio(f"at 1 Hz, no trainings / {OLDER}", costs, "now", "older", None)


def _running_with_ranks(env: dict[str, str], folder: Path, seconds: float) -> Iterator[Result]:
    twice = [*_LLMTOP, "--interval", "0.5"]
    programs = {**_programs(env, folder), "twice": _Program(twice, env, "time line")}
    costs = _watch(programs, folder, seconds)
    yield _ratio("at 1 Hz / nvitop", costs, "now", "nvitop", 1.05)
    yield _ratio(f"at 1 Hz / {OLDER}", costs, "now", "older", None)
    yield _ratio("at 2 Hz / nvitop at 1 Hz", costs, "twice", "nvitop", 1.5)
    now, older = costs["now"], costs["older"]
    note = f"8 GPUs, 8 ranks; {OLDER} {older.mib:.1f} MiB"
    yield Result("memory of both processes (PSS)", now.mib, "MiB", 55, note)
    grown = f"over {seconds:.0f} s; {OLDER} {older.growth_mib:.1f} MiB"
    yield Result("growth of memory", now.growth_mib, "MiB", None, grown)


def _ratio(name: str, costs: dict[str, _Cost], one: str, other: str, limit: float | None) -> Result:
    note = f"{costs[one].share:.2f} % of a core against {costs[other].share:.2f} %"
    return Result(f"processor time {name}", costs[one].share / costs[other].share, "x", limit, note)


def _starting(env: dict[str, str], folder: Path) -> Iterator[Result]:
    older = _of_older(env, folder)
    programs: dict[str, Callable[[], float]] = {
        "bare": lambda: _first_frame([_PYTHON, "-c", _BARE], b"painted", env, folder),
        "llmtop": lambda: _first_frame(_LLMTOP, b"quit", env, folder),
        OLDER: lambda: _first_frame(_LLMTOP, b"quit", older, folder),
        "nvitop": lambda: _first_frame(_NVITOP, b"NVITOP", env, folder),
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(FIRST_FRAMES):
        for name, measure in programs.items():
            times[name].append(measure())
    median = {name: statistics.median(taken) for name, taken in times.items()}
    note = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in median.items())
    yield Result("exec to first frame / bare Textual app", median["llmtop"] / median["bare"], "x", 1.45, note)
    yield Result("exec to first frame", 1000 * median["llmtop"], "ms", 300, f"median of {FIRST_FRAMES}, in turns")


def _first_frame(command: list[str], mark: bytes, env: dict[str, str], folder: Path) -> float:
    """Seconds from exec until `mark` is written to the terminal."""
    started = time.monotonic()
    with _terminal(command, env, folder) as child:
        child.expect_exact(mark)
        return time.monotonic() - started


def _answering(env: dict[str, str], folder: Path) -> Result:
    """How long a key waits for the first byte of its answer; each is pressed just after a frame of the clock."""
    taken = []
    with _terminal([*_LLMTOP, "--interval", "1"], env, folder) as child:
        child.expect_exact(b"quit")
        _read_until(child, time.monotonic() + SETTLE_SECONDS)
        for key in KEYS:
            _wait_for_frame(child)
            started = time.monotonic()
            child.send(key)
            child.read_nonblocking(1, timeout=_MOST_ANSWER_SECONDS)
            taken.append(time.monotonic() - started)
            if key == b"?":
                _wait_for_frame(child)
                child.send(_BACK)
    median, longest = (1000 * seconds for seconds in (statistics.median(taken), max(taken)))
    note = f"median {median:.0f} ms, longest {longest:.0f} ms, of {len(taken)} keys"
    return Result("a key to its answer, p95", 1000 * statistics.quantiles(taken, n=20)[-1], "ms", 60, note)


def _wait_for_frame(child: pexpect.spawn[bytes]) -> None:
    """Read until a frame has been written: the next one is most of a second away."""
    child.read_nonblocking(1 << 16, timeout=_MOST_ANSWER_SECONDS)
    while _has_output(child, _QUIET_SECONDS):
        pass


def _read_until(child: pexpect.spawn[bytes], deadline: float) -> None:
    while time.monotonic() < deadline:
        _has_output(child, _QUIET_SECONDS)


def _has_output(child: pexpect.spawn[bytes], seconds: float) -> bool:
    """Read what is there within so many seconds; False if that was nothing."""
    import pexpect

    try:
        return bool(child.read_nonblocking(1 << 16, timeout=seconds))
    except pexpect.TIMEOUT:
        return False


@contextmanager
def _terminal(command: list[str], env: dict[str, str], folder: Path) -> Iterator[pexpect.spawn[bytes]]:
    """A program in a pseudo-terminal, ended at the end."""
    import pexpect

    size = (ROWS, COLUMNS)
    child = pexpect.spawn(command[0], command[1:], env=env, cwd=str(folder), dimensions=size, timeout=30)
    child.delaybeforesend = None  # 50 ms, which would count as the answer's
    try:
        yield child
    finally:
        child.close(force=True)
