"""Real trainings whose loader is slow for a known reason: which of its costs is named, and none wrongly."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from llmtop.analysis.load_stacks import load_stacks
from llmtop.capture import take
from llmtop.capture.base.job import Plan, Target
from llmtop.capture.py_spy import engine as py_spy
from llmtop.capture.py_spy.loading import LoadingMonitor, sample_burst
from llmtop.model.snapshot import LoadingCost
from llmtop.system import procfs
from tests.capture.py_spy.starved.slow_disk import held_back, put, slow_reads
from tests.support import machine, written
from tests.support.processes import wait_for

pytestmark = pytest.mark.torch
PLANT = Path(__file__).parent / "starved" / "plant.py"
ENOUGH = 30
"""Samples from which a cause that takes three quarters of the time is named (Wilson's lower end is 0.57); py-spy
takes fewer in three seconds where other programs have the CPUs."""


@contextmanager
def starved(kind: str, workers: int, folder: str = "") -> Iterator[subprocess.Popen[str]]:
    """A training that has made a few steps."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(PLANT), kind, str(workers), folder],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "go\n"
        yield process
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait(100)
        wait_for(lambda: not any(one.is_running() for one in children) or None, what="the end of its workers")
        process.stdout.close()


def captured(process: subprocess.Popen[str], folder: Path) -> LoadingCost | None:
    """What a capture of it says, a longer one where the first had too few samples."""
    cost = None
    for seconds in (3.0, 10.0, 30.0):
        cost = _captured(process, folder, seconds)
        if cost is not None and cost.looks >= ENOUGH:
            break
    return cost


def _captured(process: subprocess.Popen[str], folder: Path, seconds: float) -> LoadingCost | None:
    before = {one.pid for one in psutil.Process(process.pid).children(recursive=True)}
    plan = Plan(engine="py-spy", targets=(Target(process.pid),), parent=folder / "captures", seconds=seconds)
    result = take.take(plan)
    found = load_stacks([result.folder])
    assert found is not None
    assert process.poll() is None
    assert procfs.status(process.pid).get("TracerPid", "0") == "0", "nothing holds it"
    assert {one.pid for one in psutil.Process(process.pid).children(recursive=True)} >= before
    cost = next(iter(found.loading.values()), None)
    if cost is not None:
        assert " ".join(cost.summary.split()[:4]) in " ".join(written.short_stacks(found).split())
    return cost


@pytest.mark.slow("samples a training for seconds; tests/loading/test_cost.py has the causes alone")
@pytest.mark.parametrize(
    ("kind", "workers", "cause", "library"),
    [
        ("decode", 4, "decode", "PIL"),
        ("tokenize", 4, "tokenize", "tokenizers"),
        ("lock", 4, "lock", None),
        ("collate", 4, "collate", None),
        ("merges", 0, "collate_fn", None),
        ("python_tokens", 0, "tokenize", None),
        ("slow_worker", 8, "slow_worker", None),
        ("stream", 2, "decode", "PIL"),
        ("generator", 0, "decode", "PIL"),
        ("decode", 0, "decode", "PIL"),
    ],
)
def test_what_a_loader_waits_for_is_named(
    kind: str, workers: int, cause: str, library: str | None, tmp_path: Path
) -> None:
    if kind == "decode" or kind in ("stream", "generator"):
        pytest.importorskip("PIL")
    with starved(kind, workers) as process:
        cost = captured(process, tmp_path)
    assert cost is not None
    assert cost.cause == cause, cost.summary
    assert cost.workers == workers
    assert library is None or cost.library == library
    assert cost.wait_pct is not None
    assert cost.wait_pct > 50
    assert f"{cost.wait_pct:.0f} %) of the step" in cost.advice or (
        f"this can save up to {cost.wait_pct:.0f} % of the step" in cost.advice
    )


@pytest.mark.slow("test_more_workers_are_advised_only_where_there_is_a_cpu_for_one finds the same fault")
def test_the_scripts_own_code_is_told_by_its_line_and_more_workers_only_with_cpus_for_them(tmp_path: Path) -> None:
    with starved("own", 4) as process:
        cost = captured(process, tmp_path)
    assert cost is not None
    assert "Own.__getitem__" in (cost.place or "")
    assert cost.shares["own"] > 75
    # What other programs take of the CPUs meanwhile is not known beforehand.
    words = {"own_code", "cpu", "unknown"} | ({"too_few_workers"} if len(os.sched_getaffinity(0)) > 4 else set())
    assert cost.cause in words, cost.summary


@pytest.mark.slow("test_where_the_kernel_says_disk_the_library_is_not_blamed finds the same fault")
def test_a_slow_disk_is_named_by_the_state_of_the_threads(tmp_path: Path) -> None:
    with slow_reads(tmp_path, f"llmtop-test-{os.getpid()}") as group:
        if group is None:
            machine.cannot("no cgroup limits what is read from this disk")
        with open(tmp_path / "records.bin", "wb") as file:
            file.write(os.urandom(64 << 20))
            file.flush()
            os.fsync(file.fileno())
        with starved("disk", 4, str(tmp_path)) as process:
            put(group, [process.pid, *(one.pid for one in psutil.Process(process.pid).children(recursive=True))])
            workers = [one.pid for one in psutil.Process(process.pid).children(recursive=True)]
            if not held_back(workers, 60.0):
                machine.cannot("this disk ignores the limit that its cgroup accepted")
            cost = captured(process, tmp_path)
    assert cost is not None
    assert cost.cause == "disk", cost.summary
    assert "Files.__getitem__" in (cost.place or "")
    assert 0 < (cost.read_bytes_per_s or 0) < 50e6


class _Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        time.sleep(0.1)
        self.send_response(200)
        self.send_header("Content-Length", "512")
        self.end_headers()
        self.wfile.write(bytes(256))
        time.sleep(0.1)
        self.wfile.write(bytes(256))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.slow("samples a training for seconds; tests/loading/test_cost.py has the causes alone")
def test_a_slow_network_is_named(tmp_path: Path) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Slow)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with starved("network", 4, f"http://127.0.0.1:{server.server_port}") as process:
            cost = captured(process, tmp_path)
    finally:
        server.shutdown()
        server.server_close()
    assert cost is not None
    assert cost.cause == "network", cost.summary
    assert "socket" in cost.summary or "http" in cost.summary


@pytest.mark.slow("samples a training for seconds; tests/loading/test_cost.py has the causes alone")
def test_looks_of_the_screen_and_of_the_alert_say_the_same_and_leave_nothing() -> None:
    with starved("lock", 4) as process:
        cost = wait_for(lambda: _with_enough(sample_burst(process.pid, 0.01)), what="a burst with enough samples")
        watching = LoadingMonitor(process.pid)
        look = wait_for(lambda: _with_enough(watching.add(py_spy.dump(process.pid))), what="enough samples")
        watching.close()
        assert procfs.status(process.pid).get("TracerPid", "0") == "0"
        assert not [one for one in psutil.Process(process.pid).children() if "py-spy" in one.name()]
    assert cost is not None
    assert cost.cause == "lock", cost.summary
    assert look is not None
    assert look.cause == "lock", look.summary


def _with_enough(cost: LoadingCost | None) -> LoadingCost | None:
    return cost if cost is not None and cost.looks >= ENOUGH else None
