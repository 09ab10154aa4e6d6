"""Whether anything grows in an hour: monitors at 1 and at 10 Hz, a recording and a training with steps of 1 ms.

Eight stand-in GPUs, the real screen in a pseudo-terminal. After a sixth of the time (10 minutes of an hour)
resident memory and open descriptors of each are watched to the end. LLMTOP_BENCH_MINUTES (60) shortens it; what is
then said of an hour is an extrapolation, and the first minutes of any Python program still grow.
"""

from __future__ import annotations

import os
import pty
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil

from benchmarks.result import Result, SkipBenchmark
from collectors.past import PARTS
from tests.support import nvml_stub
from tests.support.processes import environment

MINUTES = 60.0
SETTLE_SHARE = 1 / 6
"""Of the time: 10 minutes of an hour."""
EDGE_SHARE = 1 / 10
"""Of what is watched: its first and last part, whose medians are compared."""
SAMPLE_SECONDS = 5.0
STEP_MS = 1.0
MOST_MIB_PER_HOUR = 1.0
FAST_SECONDS = 0.1
COLUMNS, LINES = 200, 50
_LLMTOP = [sys.executable, "-m", "llmtop"]


class _Watched:
    """One program with its children: what it holds, sample by sample."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.process = process
        self._root = psutil.Process(process.pid)
        self.mib: list[float] = []
        self.descriptors: list[int] = []

    def sample(self) -> None:
        """Look at it now.

        Raises:
            SkipBenchmark: it has ended.
        """
        if self.process.poll() is not None:
            raise SkipBenchmark(f"the {self.name} ended with {self.process.returncode}")
        family = [self._root, *self._root.children(recursive=True)]
        self.mib.append(sum(one.memory_info().rss for one in family) / 2**20)
        self.descriptors.append(sum(one.num_fds() for one in family))


def run() -> Iterator[Result]:
    """Start them, wait, and compare."""
    if shutil.which("gcc") is None:
        raise SkipBenchmark("gcc is needed")
    minutes = float(os.environ.get("LLMTOP_BENCH_MINUTES", MINUTES))
    with tempfile.TemporaryDirectory(prefix="lt-") as directory, ExitStack() as closing:
        watched = list(_start(Path(directory), closing))
        time.sleep(60 * minutes * SETTLE_SHARE)
        began = time.monotonic()
        while time.monotonic() - began < 60 * minutes * (1 - SETTLE_SHARE):
            for one in watched:
                one.sample()
            time.sleep(SAMPLE_SECONDS)
        hours = (time.monotonic() - began) / 3600
    for one in watched:
        yield from _results(one, hours)


def _results(one: _Watched, hours: float) -> Iterator[Result]:
    edge = max(1, int(len(one.mib) * EDGE_SHARE))
    first, last = statistics.median(one.mib[:edge]), statistics.median(one.mib[-edge:])
    grown = (last - first) / (hours * (1 - EDGE_SHARE))
    note = f"{first:.2f} to {last:.2f} MiB within {60 * hours:.0f} minutes"
    yield Result(f"{one.name}: growth of resident memory an hour", grown, "MiB", MOST_MIB_PER_HOUR, note)
    before, after = statistics.median(one.descriptors[:edge]), statistics.median(one.descriptors[-edge:])
    most = PARTS - 1 if one.name.startswith("monitor") else 0  # of its past, which fills by and by
    yield Result(f"{one.name}: descriptors gained", after - before, "", most, f"at most {max(one.descriptors)}")


def _start(directory: Path, closing: ExitStack) -> Iterator[_Watched]:
    scenario = nvml_stub.Scenario.eight_gpus()
    sockets = directory / "run"
    env = nvml_stub.environment(
        nvml_stub.build(),
        scenario.write(directory / "scenario"),
        **environment(
            LLMTOP_DIR=str(sockets),
            LLMTOP_RUNS=str(directory / "runs"),
            TERM="xterm-256color",
            COLORTERM="truecolor",
            LC_ALL="C.UTF-8",
        ),
    )
    training = [
        sys.executable,
        "-m",
        "tests.support.toy_training",
        "--step-ms",
        str(STEP_MS),
        "--steps",
        str(10**9),
    ]
    yield _Watched("training", _background([*training, "--tokens", "4096"], env, closing))
    recording = [*_LLMTOP, "record", str(directory / "soak.llmtop.gz")]
    yield _Watched("recording", _background(recording, env, closing))
    yield _Watched("monitor", _in_terminal(_LLMTOP, env, closing))
    fast = [*_LLMTOP, "--interval", str(FAST_SECONDS)]
    yield _Watched("monitor at 10 Hz", _in_terminal(fast, env, closing))


def _background(command: list[str], env: dict[str, str], closing: ExitStack) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    closing.callback(process.wait)
    closing.callback(process.send_signal, signal.SIGTERM)
    return process


def _in_terminal(command: list[str], env: dict[str, str], closing: ExitStack) -> subprocess.Popen[bytes]:
    """The screen, drawn into a terminal that reads at once and remembers nothing."""
    master, slave = pty.openpty()
    size = os.terminal_size((COLUMNS, LINES))
    import fcntl
    import struct
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size.lines, size.columns, 0, 0))
    process = subprocess.Popen(command, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    reader = threading.Thread(target=_read_all, args=(master,), daemon=True)
    reader.start()
    closing.callback(process.wait)
    closing.callback(process.kill)
    return process


def _read_all(descriptor: int) -> None:
    try:
        while os.read(descriptor, 1 << 16):
            pass
    except OSError:
        return  # its program has ended
