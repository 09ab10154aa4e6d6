"""Disks that hang, and processes that are killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmtop.protocol.client import discover
from llmtop.runs import store
from tests.runs.test_run_files import finish, start
from tests.support import machine
from tests.support.processes import environment, wait_for


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A disk that hangs from SIGUSR1 on, and the process that serves it."""
    if os.geteuid() or not os.path.exists("/dev/fuse"):
        machine.cannot("mount a FUSE file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.hanging_disk", str(folder)],
        env=environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "mounted\n"
        yield folder, server
    finally:
        server.kill()  # which fails all requests that hang
        server.communicate(timeout=60)
        subprocess.run(["umount", "-l", str(folder)], check=False, timeout=60)


def test_a_disk_that_hangs_for_ever_holds_up_neither_steps_nor_the_exit(
    disk: tuple[Path, subprocess.Popen[str]], tmp_path: Path
) -> None:
    folder, server = disk
    sockets = tmp_path / "sockets"
    process = start(folder / "runs", 200, 0.02, LLMTOP_DIR=str(sockets))
    wait_for(lambda: list(folder.glob("runs/*/*.last*")))
    server.send_signal(signal.SIGUSR1)
    time.sleep(1.5)
    assert len(discover(sockets)) == 1  # it still serves monitors
    out, _ = finish(process)  # within its limit, with the disk hanging
    assert out.splitlines()[-1] == "199"


@pytest.mark.slow("a monitor beside it; the test above hangs the disk of a training")
def test_a_disk_that_hangs_holds_up_no_monitor(disk: tuple[Path, subprocess.Popen[str]], tmp_path: Path) -> None:
    folder, server = disk
    process = start(folder / "runs", 100_000, 0.05, LLMTOP_DIR=str(tmp_path / "sockets"))
    env = environment(LLMTOP_RUNS=str(folder / "runs"), LLMTOP_DIR=str(tmp_path / "sockets"))
    command = [sys.executable, "-m", "llmtop", "--json", "-i", "0.5"]
    monitor = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: list(folder.glob("runs/*/*.node")))
        server.send_signal(signal.SIGUSR1)
        assert monitor.stdout is not None
        last = ""
        for _ in range(30):  # 15 s of samples, with flushes that hang
            last = monitor.stdout.readline()
        assert '"ranks":[{' in last
        monitor.terminate()
        monitor.communicate(timeout=60)
        assert monitor.returncode == 0
    finally:
        monitor.kill()
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.slow("200 trainings; test_a_killed_training_loses_at_most_its_last_second kills one")
@pytest.mark.timeout(900)
def test_kills_at_random_moments_leave_files_that_can_be_read(tmp_path: Path) -> None:
    random.seed(7)
    for turn in range(50):
        four = [start(tmp_path / f"runs{turn}", 100_000, 0.004, LLMTOP_RUN_NAME=f"r{n}") for n in range(4)]
        for one in four:
            time.sleep(random.random() * 0.8)
            one.send_signal(signal.SIGKILL)
        for one in four:
            one.communicate(timeout=60)
        for run in store.list_runs(tmp_path / f"runs{turn}"):
            for process in run.processes:
                assert process.how == store.KILLED
                assert process.damaged_bytes == 0
                assert process.start is not None
