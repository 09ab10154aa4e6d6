"""What hostile monitors cost a training with steps of about 1 ms, one attack after the other.

A training that computes on its host, a monitor that watches it, and an attacker (`tests.support.attackers`), which
is stopped and let go in turns: a block without it, a block with it, LLMTOP_BENCH_BLOCKS (20) of each. The figure
is the median over the pairs. Training and attacker each have a core of their own, so that what is measured is the
work that the attack makes in the training. On a machine that does other work as well that figure is noise: beside
it stands the processor time of llmtop's threads in the training, to which other work adds nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.result import Result, SkipBenchmark, part
from llmtop.errors import LlmtopError
from llmtop.protocol.client import Connection, discover
from tests.support.attackers import ATTACKS
from tests.support.processes import environment, wait_for

BLOCKS = 20
BLOCK_SECONDS = 1.0 * part()
SETTLE_SECONDS = 0.1
MOST_PCT = 3.0
MOST_WAIT_SECONDS = 5.0
_LAST = ("watchers",)
"""What goes on while the attacker is stopped: its sockets hold seconds of steps, and so no block is without it."""

# Steps of a host that is busy with Python all the time: whoever takes the GIL is felt at once.
_TRAINING = """
import mmap, struct, sys
import llmtop
file = open(sys.argv[1], "r+b")
counter = mmap.mmap(file.fileno(), 8)
llmtop.attach()
done = 0
while True:
    with llmtop.step(tokens=1):
        with llmtop.phase("forward"):
            sum(range(20_000))
        with llmtop.phase("backward"):
            sum(range(40_000))
    done += 1
    struct.pack_into("<q", counter, 0, done)
"""
_WATCH = """
import sys
from pathlib import Path
from llmtop.protocol.client import Connection
connection = Connection.open(Path(sys.argv[1]))
while True:
    connection.receive(5)
"""


def run() -> Iterator[Result]:
    """One attack after the other, or those that LLMTOP_BENCH_ATTACKS names."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SkipBenchmark("two cores are needed")
    wanted = os.environ.get("LLMTOP_BENCH_ATTACKS")
    for name in wanted.split(",") if wanted else [name for name in ATTACKS if name not in _LAST]:
        yield from _attacked(name, cores[0], set(cores[1:]))


def _attacked(name: str, core: int, others: set[int]) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="lt-") as directory, contextlib.ExitStack() as closing:
        counter = _counter(Path(directory) / "count", closing)
        sockets = Path(directory) / "run"
        env = environment(LLMTOP_DIR=str(sockets))

        def start(affinity: set[int], *arguments: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen([sys.executable, *arguments], env=env, stdout=subprocess.DEVNULL)
            os.sched_setaffinity(process.pid, affinity)
            closing.callback(process.wait)
            closing.callback(process.kill)
            return process

        training = start({core}, "-c", _TRAINING, str(Path(directory) / "count"))
        path = wait_for(lambda: discover(sockets) if sockets.is_dir() else [])[0].path
        start(others, "-c", _WATCH, str(path))
        attacker = start(others, "-m", "tests.support.attackers", name, str(path))
        time.sleep(1.0)
        pairs = int(os.environ.get("LLMTOP_BENCH_BLOCKS", BLOCKS))
        slower, busy_quiet, busy_attacked = [], [], []
        for _ in range(pairs):
            attacker.send_signal(signal.SIGSTOP)
            quiet, busy = _block(counter, training.pid)
            busy_quiet.append(busy)
            attacker.send_signal(signal.SIGCONT)
            attacked, busy = _block(counter, training.pid)
            busy_attacked.append(busy)
            slower.append(100 * (attacked / quiet - 1))
        attacker.kill()
        over = time.monotonic()
        wait_for(lambda: _is_admitted(path), 60)
        waited = time.monotonic() - over
    quiet_ms = f"{1000 * quiet:.2f} ms a step"
    spread = f"{pairs} pairs of blocks from {min(slower):.1f} to {max(slower):.1f} %"
    decided = max(slower) - min(slower) <= 2 * MOST_PCT
    limit, note = (MOST_PCT, "") if decided else (None, ": too uncertain")
    yield Result(f"{name}: step slower by", statistics.median(slower), "%", limit, f"{quiet_ms}, {spread}{note}")
    added = statistics.median(busy_attacked) - statistics.median(busy_quiet)
    yield Result("  processor time of llmtop's threads, more by", added, "%", MOST_PCT, "of the time of a core")
    yield Result("  until a new monitor is in, after it", waited, "s", MOST_WAIT_SECONDS)


def _is_admitted(path: Path) -> bool:
    try:
        Connection.open(path).close()
    except (LlmtopError, ConnectionError):
        return False
    return True


def _counter(path: Path, closing: contextlib.ExitStack) -> mmap.mmap:
    path.write_bytes(bytes(8))
    file = closing.enter_context(path.open("r+b"))
    return closing.enter_context(mmap.mmap(file.fileno(), 8))


def _block(counter: mmap.mmap, pid: int) -> tuple[float, float]:
    """The mean seconds of a step over one block, and the percentage of it that llmtop's threads were at work."""
    time.sleep(SETTLE_SECONDS)
    before, used, began = struct.unpack_from("<q", counter)[0], _threads_ns(pid), time.monotonic()
    time.sleep(BLOCK_SECONDS)
    took = time.monotonic() - began
    steps = max(1, struct.unpack_from("<q", counter)[0] - before)
    return took / steps, 100 * (_threads_ns(pid) - used) / 1e9 / took


def _threads_ns(pid: int) -> int:
    """Processor time of all threads but the one that trains (proc(5): schedstat)."""
    tasks = [path for path in Path(f"/proc/{pid}/task").iterdir() if path.name != str(pid)]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
