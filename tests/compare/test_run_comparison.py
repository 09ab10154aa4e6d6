"""Two runs: the same steps, where each changed, and what keeps them from being comparable."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from llmtop.compare.model import Comparison
from llmtop.compare.run_comparison import compare_runs
from llmtop.runs import records, store
from tests.runs.test_run_files import finish, start
from tests.support.made_runs import write_run
from tests.support.preloaded import llmtop
from tests.support.processes import environment

_TRAINING = """
import sys, time, llmtop
for number in range(60):
    with llmtop.step(tokens=10):
        with llmtop.phase("forward"):
            time.sleep(0.02 if number < 30 else float(sys.argv[1]))
    llmtop.log(loss=1 / (number + 1))
"""


def _lengths(minutes: int, seconds: float, *, seed: int, noise: float = 0.01) -> list[float]:
    chance = random.Random(seed)
    return [seconds * chance.gauss(1, noise) for _ in range(int(60 * minutes / seconds))]


def _compared(runs: Path) -> Comparison:
    return compare_runs(store.find_run(runs, "a"), store.find_run(runs, "b"))


@pytest.mark.slow("two trainings; test_hours_are_compared_by_their_minutes has two written runs")
def test_trainings_of_this_machine_are_compared_by_step(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name, seconds in (("a", "0.02"), ("b", "0.05")):
        finish(start(runs, 0, 0, _TRAINING.replace("sys.argv[1]", f"'{seconds}'"), LLMTOP_RUN_NAME=name))
    found = _compared(runs)
    assert found.runs is not None
    assert (found.runs.before.first_step, found.runs.before.last_step) == (0, 59)
    assert (found.runs.by_step[0].first, found.runs.by_step[-1].last) == (0, 59)
    assert all(row.step_seconds_before and row.step_seconds_after for row in found.runs.by_step)
    last = found.runs.by_step[-1].step_seconds_after
    assert last is not None
    assert last > 0.05  # it sleeps that long
    assert {row.name for row in found.phases} == {"forward", "untimed"}
    (loss,) = found.runs.values
    assert loss.last_after == pytest.approx(1 / 60)


def test_hours_are_compared_by_their_minutes(tmp_path: Path) -> None:
    slower = _lengths(90, 0.5, seed=1)[:5400] + _lengths(90, 0.65, seed=2)
    write_run(tmp_path, "a", _lengths(120, 0.5, seed=3))
    write_run(tmp_path, "b", slower)
    found = _compared(tmp_path)
    assert found.runs is not None
    assert found.step is not None
    (jump,) = (one for one in found.runs.regimes if one.kind == "jump")
    assert jump.side == "after"
    assert abs(jump.first_step - 5400) <= 120
    assert jump.change_pct == pytest.approx(30, abs=2)
    assert found.runs.by_step[0].change_pct == pytest.approx(0, abs=0.5)
    assert found.runs.by_step[-1].change_pct == pytest.approx(30, abs=1)
    assert f"step {jump.first_step}" in found.summary
    # The same clock: the slower run is behind.
    last = found.runs.by_time[5]
    assert last.last_step_before
    assert last.last_step_after
    assert last.last_step_before > last.last_step_after


def test_equal_runs_have_not_moved(tmp_path: Path) -> None:
    for seed, name in enumerate("ab"):
        write_run(tmp_path, name, _lengths(40, 0.4, seed=seed))
    found = _compared(tmp_path)
    assert found.same
    assert found.step is not None
    assert not found.step.moved
    assert not [row.name for row in found.phases if row.moved]
    assert not found.unlike


def test_steps_that_were_made_again_are_compared_by_the_last_time(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [0.2] * 200)
    write_run(tmp_path, "b", [0.2] * 200, error="RuntimeError")
    write_run(tmp_path, "b", [0.3] * 101, first_step=100, started=1.7e9 + 100)
    found = _compared(tmp_path)
    assert found.runs is not None
    assert [row.step_seconds_after for row in found.runs.by_step] == pytest.approx([0.2] * 4 + [0.3] * 4)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ({"world_size": 4}, "world size 1 before, 4 after"),
        ({"gpu_uuid": "GPU-1", "gpu_model": "NVIDIA H200"}, "GPU NVIDIA H100 before, NVIDIA H200 after"),
        ({"tokens": 8192.0}, "4096 tokens per step and rank before, 8192 after"),
        ({"dtype": "float32"}, "bfloat16 before, float32 after"),
    ],
)
def test_what_is_unlike_is_said_first_and_decides_nothing(
    tmp_path: Path, other: dict[str, object], word: str
) -> None:
    like: dict[str, object] = {
        "world_size": 1, "gpu_uuid": "GPU-0", "gpu_model": "NVIDIA H100", "tokens": 4096.0, "dtype": "bfloat16",
    }  # fmt: skip
    write_run(tmp_path, "a", [0.1] * 100, **like)  # type: ignore[arg-type]
    write_run(tmp_path, "b", [0.2] * 100, **{**like, **other})  # type: ignore[arg-type]
    assert _compared(tmp_path).summary.startswith(f"Not alike: {word}.")
    found = llmtop("compare", "run:a", "run:b", "--fail-over", "3", env=environment(LLMTOP_RUNS=str(tmp_path)))
    assert found.returncode == 3
    assert word in found.stderr


def test_signals_are_compared_where_a_monitor_saw_both(tmp_path: Path) -> None:
    def seen(watts: float, uuid: str = "GPU-0", at: float = 60.0) -> records.GpuMinute:
        return records.GpuMinute(
            at=1.7e9 + at, seconds=60.0, uuid=uuid, index=0, signals={"power_watts": (watts, watts, watts)}
        )

    own: dict[str, object] = {"gpu_uuid": "GPU-0"}
    write_run(tmp_path, "a", [0.5] * 300, gpu_minutes=[seen(400), seen(500, at=120), seen(9, "GPU-7")], **own)  # type: ignore[arg-type]
    write_run(tmp_path, "b", [0.5] * 300, gpu_minutes=[seen(600), seen(999, at=9000)], **own)  # type: ignore[arg-type]
    found = _compared(tmp_path)
    assert found.runs is not None
    (power,) = found.runs.signals
    assert (power.field, power.before, power.after) == ("power_watts", 450, 600)
    assert power.gpu_hours_before == pytest.approx(2 / 60)


def test_the_command_prints_json_and_exits_with_1_where_steps_got_slower(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [0.1] * 100)
    write_run(tmp_path, "b", [0.12] * 100, command="python train.py --new")
    args = ("run:-2", "run:-1", "--fail-over", "10", "--json")
    found = llmtop("compare", *args, env=environment(LLMTOP_RUNS=str(tmp_path)))
    assert found.returncode == 1, found.stderr
    data = json.loads(found.stdout)
    assert data["step"]["change_pct"] == pytest.approx(20, abs=2)
    assert data["unlike"] == []
    assert [row["name"] for row in data["environment"]] == ["command"]
    swapped = llmtop("compare", "run:b", "run:a", "--fail-over", "10", env=environment(LLMTOP_RUNS=str(tmp_path)))
    assert swapped.returncode == 0
    assert "faster" in swapped.stdout


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("run:baselin", "run:b"), "The nearest is baseline."),
        (("run:-3", "run:b"), "2 runs kept in"),
        (("run:b", "run:b"), "Both names are of run"),
        (("run:b", "README.md"), "README.md is no run"),
    ],
)
def test_a_name_without_a_run_gets_one_sentence(tmp_path: Path, names: tuple[str, str], sentence: str) -> None:
    write_run(tmp_path, "baseline", [0.1] * 30)
    write_run(tmp_path, "b", [0.1] * 30)
    found = llmtop("compare", *names, env=environment(LLMTOP_RUNS=str(tmp_path)))
    assert (found.returncode, found.stdout) == (2, "")
    assert sentence in found.stderr
    assert found.stderr.count("\n") == 1
