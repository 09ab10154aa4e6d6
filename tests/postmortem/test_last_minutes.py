"""What a killed training leaves of its last minutes, as `llmtop tail` and `llmtop postmortem` read it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from llmtop.__main__ import main
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.postmortem.answer.decide import find_culprits
from llmtop.postmortem.last_minutes import find_run, rank_tail, read_tail
from llmtop.runs import records
from llmtop.runs.store import RankProcess
from tests.support.processes import environment

_SCRIPT = """
import os, signal, sys, time, llmtop

def evaluate():
    time.sleep(2.5)

def next_batch():
    time.sleep(float(sys.argv[1]))
    os.kill(os.getpid(), signal.SIGKILL)

for number in range(12):
    with llmtop.step():
        with llmtop.phase("forward"):
            time.sleep(0.05)
        if number == 8:
            with llmtop.phase("evaluation"):
                evaluate()
with llmtop.phase("dataload"):
    next_batch()
"""


def _train(runs: Path, *, rank: int, seconds: float) -> subprocess.Popen[bytes]:
    env = environment(
        LLMTOP_RUN_LOG="1", LLMTOP_RUNS=str(runs), LLMTOP_RUN_NAME="plant", RANK=str(rank), WORLD_SIZE="2"
    )
    return subprocess.Popen([sys.executable, "-c", _SCRIPT, str(seconds)], env=env)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, both killed: rank 1 long before rank 0, whose last signs may come late on a busy machine."""
    runs = tmp_path_factory.mktemp("runs")
    processes = [_train(runs, rank=0, seconds=45.0), _train(runs, rank=1, seconds=8.0)]
    for process in processes:
        assert process.wait(240) == -signal.SIGKILL
    return runs


_WHY = "a training of some 50 s; tests/instrument/run_log has the sampling alone"


@pytest.mark.slow(_WHY)
def test_the_slow_step_that_is_over_has_its_stacks(killed: Path) -> None:
    report = read_tail(find_run(str(killed)))
    assert [one.rank for one in report.ranks] == [0, 1]
    for one in report.ranks:
        assert one.how == "killed"
        assert one.steps == 12
        assert one.slowest is not None
        assert one.slowest.number == 8
        assert max(one.slowest.phases, key=lambda name: one.slowest.phases[name]) == "evaluation"  # type: ignore[union-attr]
        assert one.slowest.stacks
        assert {stack.frames[0].function for stack in one.slowest.stacks} == {"evaluate"}
        assert {stack.frames[0].function for stack in one.running} == {"next_batch"}


@pytest.mark.slow(_WHY)
def test_the_rank_whose_file_ends_first_is_the_culprit(killed: Path) -> None:
    report = find_culprits([killed])
    assert [one.rank for one in report.culprits] == [1]
    assert "run file ends" in report.culprits[0].summary or any(
        "run file ends" in one.text for one in report.culprits[0].evidence
    )
    assert report.culprits[0].phase == "dataload"


@pytest.mark.slow(_WHY)
def test_the_command_prints_json_and_text(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--json"], [], ["--slowest"]):
        with pytest.raises(SystemExit) as ended:
            main(["tail", str(killed), *words])
        assert not ended.value.code
        out = capsys.readouterr().out
        if words == ["--json"]:
            assert [one["rank"] for one in json.loads(out)["ranks"]] == [0, 1]
        elif words:
            assert "step 8" in out
            assert "in evaluate" in out
        else:
            assert "in next_batch" in out


def test_what_runs_between_two_steps_belongs_to_the_first_of_them() -> None:
    """Steps that hooks find end with the optimizer: what the loop does then is in none of them."""

    def stacks(finished: int, at: float, seconds: float) -> records.Stacks:
        thread = records.StackOfThread(name="MainThread", frames=[("read", "train.py", 5)])
        return records.Stacks(at=at, mono=at, finished=finished, seconds=seconds, threads=[thread])

    starts = (10.0, 10.1, 13.2, 13.3)
    steps = [(n, (n + 1, int(at * 1e9), 50_000_000, None, None, None, [])) for n, at in enumerate(starts)]
    found = [stacks(2, 11.0, 0.85), stacks(2, 12.0, 1.85), stacks(4, 14.0, 0.65), stacks(4, 14.0, 0.65)]
    process = SimpleNamespace(
        last_records=lambda: found, last_steps=lambda: steps, start=None, end=None, state=None, rank=0,
        name=SimpleNamespace(pid=7), how="killed", last_sign=14.0,
    )  # fmt: skip
    tail = rank_tail(cast("RankProcess", process))
    assert tail.slowest is not None
    assert tail.slowest.number == 2
    assert [round(one.into_seconds, 2) for one in tail.slowest.stacks] == [0.9, 1.9]
    assert len(tail.running) == 1
    steps[0] = (0, (*steps[0][1][:3], 300_000_000_000, *steps[0][1][4:]))  # a step that is in neither file
    found.append(stacks(0, -2.0, 280.0))
    tail = rank_tail(cast("RankProcess", process))
    assert tail.slowest is not None
    assert (tail.slowest.number, tail.slowest.seconds, len(tail.slowest.stacks)) == (0, 300.0, 1)


def test_no_run_is_told_from_a_wrong_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMTOP_RUNS", str(tmp_path / "none"))
    with pytest.raises(NotPossibleHere, match="holds no run"):
        find_run(None)
    with pytest.raises(UnusableInput, match="no run is called abc"):
        find_run("abc")
    with pytest.raises(UnusableInput, match="holds no files of a run"):
        find_run(str(tmp_path))
