"""The list of runs in terminals of any width."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmtop.bench.run.command_process import CommandProcess
from llmtop.errors import UnusableInput
from llmtop.runs import store
from tests.support.made_runs import write_run
from tests.support.preloaded import llmtop
from tests.support.processes import WAITS_FOR_RUN_FILE, environment, wait_for
from tests.support.terminal import Terminal


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    command = "/opt/very/long/path/of/an/environment/bin/python train.py --batch 8"
    write_run(tmp_path / "runs", "a", [0.5] * 60, command=command, error="OutOfMemoryError")
    write_run(tmp_path / "runs", "b", [0.5] * 600, started=1.7e9 + 5000, command=command)
    return tmp_path / "runs"


def test_a_list_in_a_pipe_has_all_columns(runs: Path) -> None:
    env = environment(LLMTOP_RUNS=str(runs), XDG_CONFIG_HOME=_old(runs))
    head, newest, older = llmtop("runs", env=env).stdout.splitlines()
    assert head.split()[-1] == "command"
    assert {"ranks", "starts", "goodput", "lasted"} <= set(head.split())
    assert newest.endswith("python train.py --batch 8")
    assert "failed: OutOfMemoryError" in older


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_row_is_one_line_and_keeps_the_command(runs: Path, columns: int) -> None:
    command = [sys.executable, "-m", "llmtop", "runs"]
    extra = {"LLMTOP_RUNS": str(runs), "XDG_CONFIG_HOME": _old(runs)}
    with Terminal(command, (columns, 15), **extra) as terminal:
        terminal.shows("2 runs in")
        lines = terminal.text().splitlines()
    assert lines[0].startswith("run ")
    assert all("python" in line for line in lines[1:3])
    assert lines[3].startswith("2 runs in")
    assert ("goodput" in lines[0]) == (columns == 200)


@pytest.mark.slow("one command stands for all; each is a process", kept=("runs show",))
@pytest.mark.parametrize("words", ["runs", "runs --json", "runs show", "runs show --json", "runs open --json"])
def test_a_reader_that_has_gone_is_no_error(runs: Path, words: str) -> None:
    gone, write = os.pipe()
    os.close(gone)
    env = environment(LLMTOP_RUNS=str(runs), XDG_CONFIG_HOME=_old(runs))
    command = [sys.executable, "-m", "llmtop", *words.split()]
    done = subprocess.run(command, env=env, stdout=write, stderr=subprocess.PIPE, timeout=240, check=False)
    os.close(write)
    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_a_full_disk_is_no_fault_of_the_runs(runs: Path) -> None:
    env = environment(LLMTOP_RUNS=str(runs), XDG_CONFIG_HOME=_old(runs))
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "llmtop", "runs"]
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, timeout=240, check=False)
    assert done.returncode == 3
    assert "standard output" in done.stderr.decode()


def test_one_letter_deletes_nothing(runs: Path) -> None:
    env = environment(LLMTOP_RUNS=str(runs), XDG_CONFIG_HOME=_old(runs))
    newest = store.list_runs(runs)[-1]
    short = newest.id[:3]
    refused = llmtop("runs", "delete", short, env=env)
    assert refused.returncode == 2
    assert f"{short} is too short. Give at least 4 characters" in refused.stderr
    assert len(store.list_runs(runs)) == 2
    assert llmtop("runs", "delete", newest.id[:4], env=env).returncode == 0
    assert llmtop("runs", "delete", "a", env=env).returncode == 0  # the whole name
    assert not store.list_runs(runs)


def test_a_run_without_any_length(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", [])
    env = environment(LLMTOP_RUNS=str(tmp_path / "runs"), XDG_CONFIG_HOME=_old(tmp_path / "runs"))
    for command in (("runs",), ("runs", "show"), ("runs", "show", "--json")):
        shown = llmtop(*command, env=env)
        assert (shown.returncode, "Traceback" in shown.stderr) == (0, False)


def test_the_longest_class_of_an_exception_of_python_is_whole(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", [0.5] * 60, error="ModuleNotFoundError")
    env = environment(LLMTOP_RUNS=str(tmp_path / "runs"), XDG_CONFIG_HOME=_old(tmp_path / "runs"))
    with Terminal(
        [sys.executable, "-m", "llmtop", "runs"], (80, 15), LLMTOP_RUNS=env["LLMTOP_RUNS"],
        XDG_CONFIG_HOME=env["XDG_CONFIG_HOME"],
    ) as terminal:  # fmt: skip
        terminal.shows("1 run in")
        assert "failed: ModuleNotFoundError" in terminal.text()


def _old(runs: Path) -> str:
    """Configuration by which runs of 2023 are kept."""
    folder = runs.parent / "config" / "llmtop"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text("[runs]\ndays = 36500\n")
    return str(runs.parent / "config")


@pytest.fixture
def bench(runs: Path) -> Path:
    """Folder with two runs of a bench after the trainings; the newer one crashed."""
    for place, error in enumerate(["KeyboardInterrupt", "RuntimeError"]):
        write_run(runs, f"bench{place}", [0.5] * 60, started=1.7e9 + 9000 + 100 * place, error=error, bench=True)
    return runs


def test_runs_of_a_bench_are_not_the_newest_and_did_not_fail(bench: Path) -> None:
    env = environment(LLMTOP_RUNS=str(bench), XDG_CONFIG_HOME=_old(bench))
    listed = llmtop("runs", env=env)
    assert len(listed.stdout.splitlines()) == 3
    assert "2 runs of llmtop bench left out; llmtop runs --all lists them" in listed.stderr
    everything = llmtop("runs", "--all", env=env).stdout
    assert "ended by bench" in everything
    assert "failed: RuntimeError" in everything
    lines = llmtop("runs", "--all", "--json", env=env).stdout.splitlines()
    assert [json.loads(line)["bench"] for line in lines] == [True, True, False, False]
    assert "(b)" in llmtop("runs", "show", env=env).stdout
    assert "ended by bench" in llmtop("runs", "show", "bench0", env=env).stdout
    assert store.find_run(bench, "-1").name == "b"
    assert store.find_run(bench, "-2").name == "a"


def test_where_only_a_bench_ran_the_newest_run_is_asked_for(tmp_path: Path) -> None:
    write_run(tmp_path, "one", [0.5] * 60, bench=True)
    with pytest.raises(UnusableInput, match="llmtop runs --all"):
        store.find_run(tmp_path, None)


def test_a_bench_goes_on_from_no_training(tmp_path: Path) -> None:
    """Neither where a training failed after a checkpoint, nor within one id (a SLURM job)."""
    same = {"source": "process", "run": "1", "error": "RuntimeError", "phases": {"checkpoint": 0.1}}
    write_run(tmp_path, "training", [0.5] * 60, **same)  # type: ignore[arg-type]
    write_run(tmp_path, "again", [0.5] * 60, started=1.7e9 + 100, bench=True, **same)  # type: ignore[arg-type]
    write_run(tmp_path, "training", [0.5] * 60, started=1.7e9 + 200, bench=True)
    assert [run.is_bench for run in store.list_runs(tmp_path)] == [False, True, True]


def test_a_bench_marks_what_it_starts(tmp_path: Path) -> None:
    program = WAITS_FOR_RUN_FILE + (
        "import llmtop, time\n"
        "for _ in range(20):\n"
        "    with llmtop.step():\n"
        "        time.sleep(0.01)\n"
        "raise KeyboardInterrupt\n"
    )
    env = environment(LLMTOP_RUN_LOG="1", LLMTOP_RUNS=str(tmp_path / "runs"))
    command = CommandProcess([sys.executable, "-c", program], env)
    wait_for(command.has_ended)
    command.close()
    (run,) = store.list_runs(tmp_path / "runs")
    assert run.is_bench
    assert run.how == store.ENDED
