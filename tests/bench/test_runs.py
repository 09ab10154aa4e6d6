"""Whole benches through the command line: what is measured, what is kept, and how each ending is told."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from llmtop.recording.reader_writer import Reader
from tests.bench.conftest import Bench
from tests.support.processes import wait_for
from tests.support.schemas import schema_faults


def _metrics(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return found


def test_each_run_is_measured_after_its_warm_up_ended_and_kept(bench: Bench, tmp_path: Path) -> None:
    out, err = (done := bench(["--steps", "30", "--runs", "2", "--json"])).communicate(timeout=240)
    assert done.returncode == 0, err
    found = _metrics(tmp_path / "a")
    assert json.loads(out) == found
    assert not schema_faults("bench", found)
    assert err.index("will be run 2 times") < err.index("run 1\n")
    assert found["state"] == "done"
    for number, run in enumerate(found["runs"], 1):
        folder = tmp_path / "a" / run["folder"]
        assert (run["ended"], run["signal"], run["number"]) == ("window", "SIGINT", number)
        window = run["window"]
        assert len(window["step_seconds"]) == len(window["step_tokens"]) == 30
        assert sum(window["step_tokens"]) == 3000
        assert min(window["step_seconds"]) >= 0.005
        seconds = sum(window["step_seconds"])
        assert run["figures"]["tokens_per_s"] == pytest.approx(3000 / seconds)
        assert run["figures"]["steps_per_s"] == pytest.approx(30 / seconds)
        assert json.loads((folder / "metrics.json").read_text()) == run
        assert (folder / "gpu.csv").read_text().startswith("timestamp, index, name, uuid, utilization.gpu [%]")
        reader = Reader(folder / "recording.llmtop.gz")
        recorded = [step for _, one in reader.snapshots() for rank in one.ranks for step in rank.new_steps]
        assert len(recorded) > 35
        around = json.loads((folder / "environment.json").read_text())
        assert around["command"][1:] == ["train.py", "1000000", "well"]
        assert reader.header.environment == around
    rates = [run["figures"]["tokens_per_s"] for run in found["runs"]]
    over = found["figures"][""]["tokens_per_s"]
    assert (over["lowest"], over["highest"]) == (min(rates), max(rates))


@pytest.mark.slow("a bench of its own; test_each_run_is_measured_after_its_warm_up_ended_and_kept has one")
@pytest.mark.parametrize(
    ("steps", "ends", "said", "ended"),
    [
        # Two seconds: a program that lives for 0.1 s may end before a busy machine looks for it.
        (400, "well", "ended (exit code 0) after 399 whole steps", "itself"),
        (1000, "crash", "the command ended with exit code 7 after ", "crashed"),
    ],
    ids=["early", "crash"],
)
def test_a_command_that_ends_before_its_window_fails_the_bench(
    bench: Bench, tmp_path: Path, steps: int, ends: str, said: str, ended: str
) -> None:
    _, err = (done := bench(["--steps", "4000", "--runs", "2"], steps, ends)).communicate(timeout=240)
    assert done.returncode == 3, err
    assert said in err
    found = _metrics(tmp_path / "a")
    assert (found["state"], len(found["runs"]), found["runs"][0]["ended"]) == ("failed", 1, ended)
    assert found["runs"][0]["window"]["whole"] is False


@pytest.mark.slow("a bench of its own; test_each_run_is_measured_after_its_warm_up_ended_and_kept has one")
def test_a_command_that_never_steps_is_told_and_why(bench: Bench, tmp_path: Path) -> None:
    _, err = (done := bench(["--runs", "2"], command=[sys.executable, "-c", "print(1)"])).communicate(timeout=240)
    assert done.returncode == 3
    assert "not one whole step was seen: nothing of it attached" in err
    assert _metrics(tmp_path / "a")["runs"][0]["window"] is None


@pytest.mark.slow("a bench of its own; test_each_run_is_measured_after_its_warm_up_ended_and_kept has one")
def test_a_crash_before_the_first_step_is_told_with_its_last_line(bench: Bench, tmp_path: Path) -> None:
    program = "import os, sys; print('out'); os.write(2, b'no weights here: m.pt\\n'); sys.exit(5)"
    _, err = (done := bench(["--runs", "2"], command=[sys.executable, "-c", program])).communicate(timeout=240)
    assert done.returncode == 3
    said = (
        "the command ended with exit code 5 before a whole step of it was seen; its last line on standard error: "
        "no weights here: m.pt"
    )
    assert f"run 1: {said} (asked for were " in err
    assert "attached" not in err
    assert "\nno weights here: m.pt\n" in err, "what the command prints is passed on"
    [run] = _metrics(tmp_path / "a")["runs"]
    assert (run["exit_code"], run["last_stderr_line"], run["notes"][0][: len(said)]) == (
        5,
        "no weights here: m.pt",
        said,
    )


@pytest.mark.slow("a bench of its own; test_each_run_is_measured_after_its_warm_up_ended_and_kept has one")
@pytest.mark.parametrize(
    "program", ["import time; time.sleep(600)", "import llmtop, time; llmtop.step(); time.sleep(600)"]
)
def test_a_run_without_steps_ends_after_the_time_that_is_stated(
    bench: Bench, tmp_path: Path, program: str
) -> None:
    options = ["--runs", "2", "--step-timeout", "2"]
    _, err = (done := bench(options, command=[sys.executable, "-c", program])).communicate(timeout=240)
    assert done.returncode == 3
    assert "a run ends when no step ends for 2.00 s (--step-timeout)" in err
    found = _metrics(tmp_path / "a")
    [run] = found["runs"]
    assert (found["state"], run["ended"], run["signal"]) == ("failed", "failed", "SIGINT")
    assert run["notes"][0] == "no step ended for 2.00 s (--step-timeout), so the command was interrupted"
    assert run["wall_seconds"] < 30


@pytest.mark.slow("a bench of its own; test_each_run_is_measured_after_its_warm_up_ended_and_kept has one")
def test_ctrl_c_before_the_first_run_leaves_a_summary_and_no_traceback(bench: Bench, tmp_path: Path) -> None:
    with bench(["--seconds", "3000", "--runs", "2"]) as started:
        wait_for((tmp_path / "a" / "metrics.json").exists, 60, "the file")
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=240)
    assert started.returncode == 130
    assert "Traceback" not in err
    assert ": interrupted" in out.splitlines()[0]
    assert _metrics(tmp_path / "a")["state"] == "interrupted"


def test_a_command_that_is_not_there_is_a_wrong_argument(bench: Bench, tmp_path: Path) -> None:
    _, err = (done := bench([], command=["no-such-command"])).communicate(timeout=240)
    assert (done.returncode, "no such command" in err) == (2, True)
    assert not (tmp_path / "a").exists()


@pytest.mark.slow("a bench of its own; test_each_run_is_measured_after_its_warm_up_ended_and_kept has one")
def test_one_that_ignores_ctrl_c_is_waited_for_and_never_killed_by_itself(bench: Bench, tmp_path: Path) -> None:
    with bench(["--steps", "10", "--runs", "1"], ends="deaf") as started:
        assert started.stderr is not None
        waits = next(line for line in started.stderr if line.startswith("waiting for pid"))
        pid = int(waits.split()[3])
        assert Path(f"/proc/{pid}").exists()
        started.send_signal(signal.SIGINT)
        assert any("once more, and it is left running" in line for line in started.stderr)
        started.send_signal(signal.SIGINT)
        assert started.wait(timeout=240) == 130
        try:
            assert Path(f"/proc/{pid}").exists()
        finally:
            os.kill(pid, signal.SIGKILL)
    found = _metrics(tmp_path / "a")
    assert found["state"] == "interrupted"
    assert "left running" in "".join(found["runs"][0]["notes"])


@pytest.mark.slow("a bench of its own; test_each_run_is_measured_after_its_warm_up_ended_and_kept has one")
def test_ctrl_c_in_the_middle_ends_the_command_and_keeps_what_there_is(bench: Bench, tmp_path: Path) -> None:
    with bench(["--seconds", "3000", "--runs", "2"]) as started:
        csv = tmp_path / "a" / "run-1" / "gpu.csv"
        wait_for(csv.exists, 60, "the first run")
        wait_for(lambda: list((tmp_path / "s").glob("*.sock")), 60, "the training")
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=240)
    assert started.returncode == 130
    assert "told to end" in err
    found = _metrics(tmp_path / "a")
    assert (found["state"], found["runs"][0]["ended"], len(found["runs"])) == ("interrupted", "interrupted", 1)
    assert Reader(tmp_path / "a" / "run-1" / "recording.llmtop.gz").count >= 0


@pytest.mark.slow("a bench of its own; test_each_run_is_measured_after_its_warm_up_ended_and_kept has one")
def test_a_bench_that_is_killed_says_so_in_its_file_and_leaves_no_training(bench: Bench, tmp_path: Path) -> None:
    with bench(["--seconds", "3000", "--runs", "2"]) as started:
        sockets = wait_for(lambda: list((tmp_path / "s").glob("*.sock")), 60, "the training")
        pid = int(sockets[0].name.partition("-")[0])
        started.kill()
        started.wait(timeout=240)
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), 60, "the training's end")
    assert _metrics(tmp_path / "a")["state"] == "running"
    assert (tmp_path / "a" / "environment.json").exists()


@pytest.mark.slow("a bench of its own; test_each_run_is_measured_after_its_warm_up_ended_and_kept has one")
def test_on_a_full_disk_the_command_is_ended_and_the_bench_says_so(bench: Bench, tmp_path: Path) -> None:
    limited = ["prlimit", "--fsize=20000", "--"]
    with bench(["--seconds", "3000", "--runs", "2"], wrapped=limited) as started:
        _, err = started.communicate(timeout=240)
    assert started.returncode == 3, err
    assert "File too large" in err
    assert "llmtop/bench" not in err  # no traceback of ours
    assert not list((tmp_path / "s").glob("*.sock"))


def test_the_folder_of_another_bench_is_left_alone(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "metrics.json").write_text("{}")
    _, err = (done := bench(["--runs", "1"])).communicate(timeout=240)
    assert (done.returncode, "holds the runs of another bench" in err) == (2, True)


@pytest.mark.slow("test_each_run_is_measured_after_its_warm_up_ended_and_kept finds the same fault")
def test_a_bare_run_says_what_being_attached_costs(bench: Bench, tmp_path: Path) -> None:
    options = ["--steps", "30", "--runs", "1", "--to-end", "--bare"]
    out, err = (done := bench(options, steps=400)).communicate(timeout=240)
    assert done.returncode == 0, err
    assert "an attached run took" in out
    bare, run = _metrics(tmp_path / "a")["runs"]
    assert (bare["attached"], bare["steps_seen"], run["ended"]) == (False, 0, "itself")


def test_bare_needs_a_whole_run(bench: Bench) -> None:
    _, err = (done := bench(["--bare"])).communicate(timeout=240)
    assert (done.returncode, "add --to-end" in err) == (2, True)
