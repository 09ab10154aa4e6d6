"""Disks that hang, processes that are killed at any moment, workers, and clocks that are set."""

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
from llmtop.runs.run_file import RunFile
from llmtop.runs.series import series_of
from tests.runs.test_run_files import STEPS, finish, start
from tests.support import machine, quota
from tests.support.clock import Clock
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
        server.communicate(timeout=240)
        subprocess.run(["umount", "-l", str(folder)], check=False, timeout=240)


def test_a_disk_that_hangs_for_ever_holds_up_neither_steps_nor_the_exit(
    disk: tuple[Path, subprocess.Popen[str]], tmp_path: Path
) -> None:
    folder, server = disk
    sockets = tmp_path / "sockets"
    enough = tmp_path / "enough"
    script = STEPS.replace("    print(number", f"    if os.path.exists({str(enough)!r}): break\n    print(number")
    process = start(folder / "runs", 100_000, 0.02, script, opening="", LLMTOP_DIR=str(sockets))
    wait_for(lambda: list(folder.glob("runs/*/*.last*")))
    server.send_signal(signal.SIGUSR1)
    time.sleep(1.5)
    assert len(discover(sockets)) == 1  # it still serves monitors
    enough.touch()
    finish(process)  # within its limit, with the disk hanging, after one more step


_STEADY = """
import sys, time, llmtop
for number in range(int(sys.argv[1])):
    with llmtop.step(tokens=10):
        time.sleep(float(sys.argv[2]))
    print(number, flush=True)
    time.sleep(0.1 if number % 10 == 9 else 0)
"""


@pytest.mark.slow("a quota; test_a_full_disk_drops_data_and_says_so_once has a full disk")
def test_a_used_up_quota_drops_data_and_says_so_once(tmp_path: Path) -> None:
    """By LD_PRELOAD: few kernels of test machines have CONFIG_QUOTA."""
    runs, sockets = tmp_path / "runs", tmp_path / "sockets"
    extra = {**quota.environment(runs, 3000), "LLMTOP_DIR": str(sockets)}
    seen = tmp_path / "seen"
    stays = f"import os\nwhile not os.path.exists({str(seen)!r}):\n    time.sleep(0.05)\n"
    process = start(runs, 200, 0.03, _STEADY + stays, **extra)
    monitor = environment(LLMTOP_DIR=str(sockets), LLMTOP_RUNS=str(runs))
    wait_for(lambda: b"quota exceeded" in _seen(monitor))  # by the monitor, too
    seen.touch()
    out, err = finish(process)
    assert out.splitlines()[-1] == "199"
    assert err.count("data was dropped: Disk quota exceeded") == 1
    assert err.count("\n") == 1
    kept = [path for path in runs.glob("*/*.*") if path.suffix in (".run", ".last0", ".last1")]
    assert sum(path.stat().st_size for path in kept) <= 3000
    assert all(RunFile(path).damaged_bytes == 0 for path in kept)
    (run,) = store.list_runs(runs)
    (one,) = run.processes
    assert one.state is not None
    assert 10 < one.state.steps < 200  # what was written before the quota was used up


@pytest.mark.slow("a quota; test_a_full_disk_drops_data_and_says_so_once has a full disk")
def test_a_used_up_quota_of_a_network_s_disk_says_so_once(
    disk: tuple[Path, subprocess.Popen[str]], tmp_path: Path
) -> None:
    folder, server = disk
    process = start(folder / "runs", 200, 0.03, _STEADY, LLMTOP_DIR=str(tmp_path / "sockets"))
    wait_for(lambda: list(folder.glob("runs/*/*.last*")))
    server.send_signal(signal.SIGUSR2)
    out, err = finish(process)
    assert out.splitlines()[-1] == "199"
    assert err.count("data was dropped: Disk quota exceeded") == 1
    assert err.count("\n") == 1


def _seen(env: dict[str, str]) -> bytes:
    """What a monitor knows."""
    command = [sys.executable, "-m", "llmtop", "--once", "--json"]
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, timeout=240).stdout


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
        monitor.communicate(timeout=240)
        assert monitor.returncode == 0
    finally:
        monitor.kill()
        process.kill()
        process.communicate(timeout=240)


@pytest.mark.slow("200 trainings in all; test_a_killed_training_loses_at_most_its_last_second kills one")
@pytest.mark.timeout(1800)
def test_kills_at_random_moments_lose_at_most_a_second(tmp_path: Path) -> None:
    _kill_at_random(tmp_path, 200, seed=11)


@pytest.mark.slow("ten trainings; test_a_killed_training_loses_at_most_its_last_second kills one")
def test_ten_kills_at_random_moments_lose_at_most_a_second(tmp_path: Path) -> None:
    _kill_at_random(tmp_path, 10, seed=12)


_WITHOUT_A_CORE_SECONDS = 1.0
"""The writer wakes up each second; a busy machine runs it later."""


def _kill_at_random(folder: Path, kills: int, seed: int) -> None:
    """Kill trainings of their own, five at a time; what they did a second before their last words is there."""
    chance = random.Random(seed)
    for turn in range(0, kills, 5):
        runs = folder / f"runs{turn}"
        names = [f"r{number}" for number in range(min(5, kills - turn))]
        five = [(name, start(runs, 100_000, 0.005, _STAMPED, LLMTOP_RUN_NAME=name)) for name in names]
        begun = time.monotonic()
        for at, (_, process) in sorted(zip([chance.uniform(0.3, 4.0) for _ in five], five, strict=True)):
            time.sleep(max(0.0, begun + at - time.monotonic()))
            process.send_signal(signal.SIGKILL)
        stamps = {name: _stamps(process) for name, process in five}
        kept = {run.name: run.processes[0] for run in store.list_runs(runs)}
        for name, ended in stamps.items():
            last, waited = ended[-1] if ended else (0.0, 0.0)
            # While the training waits for a core, its writer may as well.
            due = [at for at, before in ended if at < last - 1.0 - _WITHOUT_A_CORE_SECONDS - (waited - before)]
            if not due:
                continue  # killed in its first second
            assert kept[name].how == store.KILLED
            assert kept[name].damaged_bytes == 0
            state = kept[name].state
            assert state is not None
            assert len(due) <= state.steps <= len(ended) + 5


_STAMPED = """
import os, sys, time, llmtop
from tests.support.processes import core_waits
for number in range(int(sys.argv[1])):
    with llmtop.step():
        time.sleep(float(sys.argv[2]))
    print(time.monotonic(), core_waits()[str(os.getpid())], flush=True)
"""


def _stamps(process: subprocess.Popen[str]) -> list[tuple[float, float]]:
    """When each step ended, and for how long it had waited for a core by then, by the training itself."""
    out, _ = process.communicate(timeout=240)
    lines = out.splitlines(keepends=True)
    whole = [line.split() for line in lines if line.endswith("\n")]
    return [(float(at), float(waited)) for at, waited in whole]


@pytest.mark.slow("torch in three processes; test_a_forked_child_writes_nothing_and_the_parent_goes_on has a fork")
@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_workers_of_a_data_loader_write_nothing(tmp_path: Path, way: str) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(_LOADED)
    env = environment(LLMTOP_RUN_LOG="1", LLMTOP_RUNS=str(tmp_path / "runs"))
    done = subprocess.run(
        [sys.executable, str(script), way], env=env, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout.split()[-1] == "2"  # workers, each a process of its own
    (run,) = store.list_runs(tmp_path / "runs")
    (process,) = run.processes
    assert process.how == store.ENDED
    assert process.damaged_bytes == 0
    assert process.state is not None
    assert process.state.steps == 20
    names = {path.name.partition(".run")[0].partition(".last")[0] for path in run.folder.iterdir()}
    assert names == {process.name.text}


_LOADED = """
import os, sys, time
import torch
import llmtop

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, place):
        return os.getpid()

if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(
        Data(), batch_size=2, num_workers=2, multiprocessing_context=sys.argv[1], persistent_workers=True
    )
    workers = set()
    for batch in loader:
        with llmtop.step():
            time.sleep(0.06)
            workers |= set(batch.tolist())
    print(len(workers - {os.getpid()}))
"""


_WAITS_FOR_CLOCK = f"""{STEPS}
    while number == 59 and not os.path.exists(os.environ["CLOCK_IS_SET"]):
        time.sleep(0.01)
"""
"""Its last steps come after the clock was set, however busy the machine is."""


@pytest.mark.slow("back is the harder way; each trains", kept=("-3600",))
@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_wall_clock_that_is_set_keeps_the_order_of_steps(tmp_path: Path, seconds: int) -> None:
    clock = Clock(tmp_path / "clock")
    is_set = tmp_path / "set"
    process = start(tmp_path / "runs", 80, 0.03, _WAITS_FOR_CLOCK, **clock.environment(), CLOCK_IS_SET=str(is_set))
    assert process.stdout is not None
    while int(process.stdout.readline()) < 40:
        pass
    clock.step(seconds)
    is_set.touch()
    finish(process)
    (run,) = store.list_runs(tmp_path / "runs")
    (process,) = run.processes
    assert process.state is not None
    assert process.state.steps == 80
    series = series_of(run)
    assert series.is_full
    ends = [point.elapsed for point in series.points]
    assert ends == sorted(ends)
    assert 80 * 0.03 <= ends[-1] < 60
