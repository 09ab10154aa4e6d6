"""What real trainings leave, and what a reader makes of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmtop.runs import folder, records, store
from llmtop.runs.run_file import RunFile
from tests.support.processes import WAITS_FOR_RUN_FILE, environment, wait_for

STEPS = """
import os, sys, time, llmtop
for number in range(int(sys.argv[1])):
    with llmtop.step(tokens=10):
        with llmtop.phase("forward"):
            time.sleep(float(sys.argv[2]))
    llmtop.log(loss=1 / (number + 1))
    if number % 10 == 9:
        with llmtop.phase("checkpoint"):
            time.sleep(0.02)
    print(number, flush=True)
"""


def start(
    runs: Path, steps: int, seconds: float, script: str = STEPS, opening: str = WAITS_FOR_RUN_FILE, **extra: str
) -> subprocess.Popen[str]:
    env = environment(**{"LLMTOP_RUN_LOG": "1", "LLMTOP_RUNS": str(runs), **extra})
    command = [sys.executable, "-c", opening + script, str(steps), str(seconds)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == code, err
    return out, err


def one_process(runs: Path) -> store.RankProcess:
    (run,) = store.list_runs(runs)
    (process,) = run.processes
    return process


def test_an_orderly_end_is_kept_with_every_step(tmp_path: Path) -> None:
    finish(start(tmp_path / "runs", 35, 0.03))
    process = one_process(tmp_path / "runs")
    assert process.how == store.ENDED
    assert process.state is not None
    assert process.state.steps == 35
    assert process.state.tokens == 350
    assert [index for index, _ in process.last_steps()] == list(range(35))
    ((names, minute),) = process.minutes()
    assert names == records.Names(["forward", "checkpoint"], ["loss"])
    assert minute.steps == 35
    reasons = [reason for _, reason in process.kept_steps()]
    assert reasons.count("first") == 10
    assert reasons.count("checkpoint") == 3
    modes = {path.stat().st_mode & 0o777 for path in process.folder.iterdir()}
    assert modes == {0o600}


def test_a_killed_training_loses_at_most_its_last_second(tmp_path: Path) -> None:
    taken = "from llmtop.instrument.record.recorder import get\nget().first_batch = time.perf_counter_ns()\n"
    process = start(tmp_path / "runs", 100_000, 0.005, STEPS.replace("for number", f"{taken}for number", 1))
    assert process.stdout is not None
    wait_for(lambda: list((tmp_path / "runs").glob("*/*.last*")))
    begun = time.monotonic()
    told = 0
    times: list[float] = []
    while time.monotonic() - begun < 2.5 + random.random():
        told = int(process.stdout.readline())
        times.append(time.monotonic())
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().splitlines(keepends=True)
    told = max([told, *(int(line) for line in rest if line.endswith("\n"))])
    process.communicate(timeout=240)
    kept = one_process(tmp_path / "runs")
    assert kept.how == store.KILLED
    assert kept.state is not None
    # A busy machine may run the writer late, the training as well: what it had done 2 s before is there.
    assert kept.state.steps >= sum(at < times[-1] - 2.0 for at in times)
    assert kept.state.steps <= told + 5
    assert kept.state.first_batch_mono is not None
    assert kept.damaged_bytes == 0


CHECKPOINT = """
import os, pathlib, signal, sys, time, torch
import tests.support.light_optimizer
from llmtop.instrument.run_log import writer
from llmtop.runs import store
writer.TURN_S = 60.0  # so a checkpoint that is kept within 40 s has woken the writer
def is_kept():
    runs = store.list_runs(pathlib.Path(os.environ["LLMTOP_RUNS"]))
    return any(one.state and one.state.checkpoint_mono for run in runs for one in run.processes)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(40):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
    if number == 30:
        before = time.monotonic()
        torch.save(model.state_dict(), sys.argv[1])
        after = time.monotonic()
        print(before, after, flush=True)
        while not is_kept() and time.monotonic() < after + 40.0:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow("a training of torch; test_an_orderly_end_is_kept_with_every_step keeps checkpoints")
def test_a_checkpoint_is_kept_though_the_process_is_killed_right_after_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(CHECKPOINT)
    command = [
        sys.executable,
        "-m",
        "llmtop",
        "run",
        "--",
        sys.executable,
        str(script),
        str(tmp_path / "model.pt"),
    ]
    env = environment(LLMTOP_RUN_LOG="1", LLMTOP_RUNS=str(tmp_path / "runs"), LLMTOP_DIR=str(tmp_path / "sockets"))
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL
    process = one_process(tmp_path / "runs")
    assert process.how == store.KILLED
    assert process.state is not None
    before, after = map(float, done.stdout.split())
    assert before <= (process.state.checkpoint_mono or 0.0) <= after
    assert process.state.steps >= 29


def test_an_exception_is_named(tmp_path: Path) -> None:
    script = STEPS + "\nraise FileNotFoundError('token=hf_abcdefghijklmnopqrstuvwxyz012345')\n"
    finish(start(tmp_path / "runs", 5, 0.2, script), 1)
    process = one_process(tmp_path / "runs")
    assert process.how == store.FAILED
    assert process.end is not None
    assert process.end.error == "FileNotFoundError"


def test_nothing_is_kept_where_it_is_off(tmp_path: Path) -> None:
    finish(start(tmp_path / "runs", 5, 0.01, LLMTOP_RUN_LOG="0"))
    assert not (tmp_path / "runs").exists()


def test_a_secret_of_the_command_line_is_not_kept(tmp_path: Path) -> None:
    secret = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF"
    env = environment(LLMTOP_RUN_LOG="1", LLMTOP_RUNS=str(tmp_path / "runs"))
    command = [sys.executable, "-c", WAITS_FOR_RUN_FILE + STEPS, "5", "0.2", "--token", secret]
    finish(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    process = one_process(tmp_path / "runs")
    assert process.start is not None
    assert "--token" in process.start.command
    for path in process.folder.iterdir():
        lines = records.lines_of(list(RunFile(path).records()))
        assert lines
        assert secret.encode() not in lines


def test_a_forked_child_writes_nothing_and_the_parent_goes_on(tmp_path: Path) -> None:
    script = STEPS.replace(
        "    print(number",
        """    if number % 5 == 0:
        child = os.fork()
        if not child:
            time.sleep(0.01)
            os._exit(0)
        os.waitpid(child, 0)
    print(number""",
    )
    finish(start(tmp_path / "runs", 40, 0.03, script))
    process = one_process(tmp_path / "runs")
    assert process.damaged_bytes == 0
    assert process.state is not None
    assert process.state.steps == 40


def test_two_trainings_of_one_name_at_once_are_two_runs(tmp_path: Path) -> None:
    both = [start(tmp_path / "runs", 60, 0.03, LLMTOP_RUN_NAME="mine") for _ in range(2)]
    for one in both:
        finish(one)
    runs = store.list_runs(tmp_path / "runs")
    assert len(runs) == 2
    assert len({run.folder for run in runs}) == 1
    assert {run.number for run in runs} == {1, 2}
    states = [process.state for run in runs for process in run.processes]
    assert [state and state.steps for state in states] == [60, 60]


def test_a_restart_of_one_name_is_one_run(tmp_path: Path) -> None:
    for _ in range(2):
        finish(start(tmp_path / "runs", 10, 0.1, LLMTOP_RUN_NAME="mine"))
    (run,) = store.list_runs(tmp_path / "runs")
    assert len(run.attempts) == 2


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> store.RankProcess:
    """A run of thirty steps, for tests that change copies of its files."""
    runs = tmp_path_factory.mktemp("ended") / "runs"
    finish(start(runs, 30, 0.03))
    return one_process(runs)


@pytest.mark.parametrize("cut", [1, 30, 60, 200])
def test_a_file_that_was_cut_gives_what_was_whole(tmp_path: Path, ended: store.RankProcess, cut: int) -> None:
    original = next(ended.folder.glob("*.last*"))
    path = tmp_path / original.name
    whole = list(RunFile(original).records())
    path.write_bytes(original.read_bytes()[:-cut])
    file = RunFile(path)
    assert list(file.records()) == whole[: len(list(file.records()))]
    assert file.damaged_bytes > 0


def test_a_full_disk_drops_data_and_says_so_once(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("mounting needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True, timeout=240)
    try:
        (disk / "ballast").write_bytes(bytes(60 << 10))
        _, err = finish(start(disk / "runs", 60, 0.05))
        assert err.count("data was dropped") == 1
        wait_for(lambda: list((disk / "runs").rglob("*")))
        for path in (disk / "runs").rglob("*.*[0-9n]"):
            assert RunFile(path).damaged_bytes == 0
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True, timeout=240)


def test_a_name_of_a_file_is_read_as_it_was_made() -> None:
    name = folder.new_name(None, 1_700_000_000.5)
    assert folder.parsed_name(name.text + folder.RUN) == (name, folder.RUN)
    assert folder.parsed_name("notes.txt") is None


@pytest.mark.slow(
    "one summary and none; each trains",
    kept=(
        "short-2",
        "off-0",
    ),
)
@pytest.mark.parametrize(("summary", "lines"), [("short", 2), ("long", 5), ("off", 0), ("auto", 0)])
def test_the_summary_goes_to_stderr_where_it_is_wanted(tmp_path: Path, summary: str, lines: int) -> None:
    out, err = finish(start(tmp_path / "runs", 25, 0.02, LLMTOP_RUN_SUMMARY=summary))
    told = [line for line in err.splitlines() if line.startswith("llmtop: ")]
    assert len(told) == lines
    assert out.splitlines() == [str(number) for number in range(25)]
    if lines:
        (run,) = store.list_runs(tmp_path / "runs")
        assert "25 steps, step p50 " in told[0]
        assert told[-1].endswith(f"llmtop runs show {run.id}")


def test_the_summary_may_go_to_a_file(tmp_path: Path) -> None:
    wanted = tmp_path / "summary.txt"
    _, err = finish(start(tmp_path / "runs", 25, 0.02, LLMTOP_RUN_SUMMARY=str(wanted)))
    assert wanted.read_text().startswith("25 steps, step p50 ")
    assert "llmtop:" not in err
