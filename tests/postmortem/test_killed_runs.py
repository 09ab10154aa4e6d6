"""The run files alone of trainings that a signal ended: who was killed is what the test itself has killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmtop.postmortem.answer.decide import find_culprits
from llmtop.runs import store
from llmtop.runs.report import report_of
from tests.support.preloaded import llmtop
from tests.support.processes import REPOSITORY, WAITS_FOR_RUN_FILE, environment, wait_for

_SCRIPT = f"""{WAITS_FOR_RUN_FILE}
import os, socket, sys, time, llmtop

peer = None
if len(sys.argv) > 2:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.environ["RANK"] == "0":
        peer.bind(sys.argv[2]); peer.listen(); peer = peer.accept()[0]
    else:
        while peer.connect_ex(sys.argv[2]):
            time.sleep(0.05)

def all_reduce():
    if peer is not None:
        try:
            peer.sendall(b"x")
            answer = peer.recv(1)
        except OSError:
            answer = b""
        if not answer:
            raise RuntimeError("Connection closed by peer [127.0.0.1]:6553, api_key=Zq81vTt0aLw93nXk2PbD")

while True:
    with llmtop.step():
        time.sleep(0.05)
        with llmtop.phase("all_reduce"):
            all_reduce()
    open(sys.argv[1], "a").write(".")
"""


def _train(runs: Path, done: Path, *options: str, **variables: str) -> subprocess.Popen[bytes]:
    env = environment(LLMTOP_RUN_LOG="1", LLMTOP_RUNS=str(runs), LLMTOP_RUN_NAME="plant", **variables)
    return subprocess.Popen([sys.executable, "-c", _SCRIPT, str(done), *options], env=env)


def _has_made(done: Path, steps: int) -> bool:
    return done.exists() and done.stat().st_size >= steps


def _has_kept(runs: Path, ranks: int = 1) -> bool:
    """Return True if the files of the run have steps of so many ranks."""
    states = [one.state for run in store.list_runs(runs) for one in run.processes]
    return sum(bool(state and state.steps > 1) for state in states) >= ranks


@pytest.mark.slow("one signal stands for both; each trains", kept=("9",))
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_single_process(tmp_path: Path, number: signal.Signals) -> None:
    runs, done = tmp_path / "runs", tmp_path / "done"
    with _train(runs, done) as process:
        wait_for(lambda: _has_made(done, 45) and _has_kept(runs))
        process.send_signal(number)
    (folder,) = [one for one in runs.iterdir() if one.is_dir()]
    report = find_culprits([folder])
    assert [(one.rank, one.failure) for one in report.culprits] == [(0, "killed")]
    assert report.culprits[0].pid == process.pid
    # The last second is not written; a busy machine runs the writer later.
    assert 0 < (report.culprits[0].step or 0) <= done.stat().st_size
    assert any("which signal" in one and "sent it" in one for one in report.missing)
    assert not any("flight-recorder" in one for one in report.missing)
    shown = llmtop("postmortem", str(folder), "--json")
    assert (shown.returncode, json.loads(shown.stdout)["verdict"]) == (0, "killed")


@pytest.mark.slow("one rank stands for both; each trains twice", kept=("1",))
@pytest.mark.parametrize("victim", [0, 1])
def test_the_other_rank_lost_its_peer(tmp_path: Path, victim: int) -> None:
    runs = tmp_path / "runs"
    done = [tmp_path / f"done{rank}" for rank in range(2)]
    ranks = [_train(runs, done[rank], str(tmp_path / "s"), RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    wait_for(lambda: all(_has_made(one, 30) for one in done) and _has_kept(runs, 2))
    ranks[victim].kill()
    assert [one.wait(240) for one in ranks] == [-signal.SIGKILL if rank == victim else 1 for rank in range(2)]
    (folder,) = [one for one in runs.iterdir() if one.is_dir()]
    report = find_culprits([folder])
    assert [(one.rank, one.failure) for one in report.culprits] == [(victim, "killed")]
    assert report.victims == (1 - victim,)
    (run,) = store.list_runs(runs)
    (attempt,) = report_of(run).attempts
    assert attempt.message.startswith("Connection closed by peer")
    assert "Zq81vTt0aLw93nXk2PbD" not in attempt.message
    assert attempt.line.endswith("in all_reduce")


@pytest.mark.slow("test_the_exit_codes_name_the_first_of_two_that_wrote_no_end finds the same fault")
def test_of_two_ranks_that_were_killed_at_once_none_is_named(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    done = [tmp_path / f"done{rank}" for rank in range(2)]
    ranks = [_train(runs, done[rank], RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    wait_for(lambda: all(_has_made(one, 30) for one in done) and _has_kept(runs, 2))
    for process in ranks:
        process.kill()
    for process in ranks:
        process.wait(240)
    report = find_culprits([runs])
    assert (report.culprits, report.verdict, report.candidates) == ((), "killed", (0, 1))
    assert "ranks 0-1 ended without writing an end" in report.summary
    assert any("output of the launcher" in one for one in report.missing)


def test_an_interrupted_training_is_no_failure(tmp_path: Path) -> None:
    runs, done = tmp_path / "runs", tmp_path / "done"
    with _train(runs, done) as process:
        wait_for(lambda: _has_made(done, 25))
        process.send_signal(signal.SIGINT)
    report = find_culprits([runs])
    assert report.culprits == ()
    assert "interrupted (Ctrl+C" in report.summary
    env = environment(LLMTOP_RUNS=str(runs))
    for command in (("runs",), ("runs", "show")):
        shown = llmtop(*command, env=env)
        assert "interrupted (Ctrl+C)" in " ".join(shown.stdout.split())
        assert "KeyboardInterrupt" not in shown.stdout


@pytest.mark.torch
@pytest.mark.slow("two ranks of torchrun; tests/instrument/run_log/test_torchrun_exits.py has the codes alone")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_below_torchrun(tmp_path: Path, victim: int) -> None:
    pytest.importorskip("torch")
    runs, log = tmp_path / "runs", tmp_path / "job.log"
    env = environment(LLMTOP_RUN_LOG="1", LLMTOP_RUNS=str(runs), OMP_NUM_THREADS="1")
    train = [str(REPOSITORY / "examples" / "train_gpt.py"), "--cpu"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with log.open("wb") as out:
        command = [sys.executable, "-m", "llmtop", "run", *torchrun, *train]
        job = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT)
    wait_for(lambda: b"step 80:" in log.read_bytes(), seconds=200)
    (folder,) = [one for one in runs.iterdir() if one.is_dir()]
    pids = {int(one.name.split(".")[0]): int(one.name.split(".")[2]) for one in folder.glob("*.run")}
    os.kill(pids[victim], signal.SIGKILL)
    assert job.wait(240) == 1
    for paths in ([folder], [folder, log], [log]):
        report = find_culprits(paths)
        assert [(one.rank, one.failure) for one in report.culprits] == [(victim, "killed")]
        assert report.summary.endswith("ended by SIGKILL.")
