"""`llmtop bench --turns`: two real programs that are stopped and continued in turns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmtop.bench.run import memory_layout
from llmtop.system import procfs
from tests.support.processes import environment, wait_for
from tests.support.schemas import schema_faults

PROGRAM = """
import os, subprocess, sys, time
import llmtop

name, milliseconds, ends = sys.argv[1], float(sys.argv[2]), sys.argv[3]
TICKS = '''
import os, sys, time
parent = os.getppid()
with open(sys.argv[1], "w", buffering=1) as file:
    while os.getppid() == parent:
        print(time.monotonic(), file=file)
        time.sleep(0.002)
'''
if ends == "launcher":
    ticks = name + ".child"
    if os.path.exists(ticks):
        os.unlink(ticks)
    subprocess.Popen([sys.executable, "-c", TICKS, ticks], start_new_session=True)
    until = time.monotonic() + 100
    while not (os.path.exists(ticks) and os.path.getsize(ticks)) and time.monotonic() < until:
        time.sleep(0.01)
with open(name + ".start", "a") as file, open("/proc/self/personality") as persona:
    print(os.environ["PYTHONHASHSEED"], int(persona.read(), 16), file=file)
with open(name, "w", buffering=1) as file:
    for index in range(100_000):
        with llmtop.step(tokens=100):
            print(time.monotonic(), file=file)
            time.sleep(milliseconds / 1e3)
        if ends in ("crash", "early") and os.path.exists("end"):
            sys.exit("out of luck" if ends == "crash" else 0)
"""
"""A loop of sleeps, which writes how it was started and when each step begins; with "launcher" a child in a
session of its own ticks. With "crash" and "early" it ends once there is a file "end"."""
TURN_SECONDS = 0.06
ADDR_NO_RANDOMIZE = 0x0040000
"""Flag of personality(2)."""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start a bench of two programs: ``start(["--runs", "1"], second=6.0, ends="crash")``."""
    (tmp_path / "train.py").write_text(PROGRAM)

    def started(options: list[str], *, second: float = 4.0, ends: str = "") -> subprocess.Popen[str]:
        first = f"{sys.executable} train.py first 4.0 plain"
        bench = [sys.executable, "-m", "llmtop", "bench", "--warmup", "5", "--out", "a", "--turns", "60ms"]
        command = [sys.executable, "train.py", "second", str(second), ends or "plain"]
        return subprocess.Popen(
            [*bench, "--against", first, *options, "--", *command],
            cwd=tmp_path,
            env=environment(LLMTOP_DIR=str(tmp_path / "s"), PLANT=str(tmp_path)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return started


def _metrics(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "a" / "metrics.json").read_text())
    return found


def _stamps(path: Path) -> list[float]:
    """When each step of a program began; the last line may be cut."""
    return [float(line) for line in path.read_text().splitlines()[:-1]]


def _left(tmp_path: Path) -> list[tuple[int, str]]:
    """Processes of this test that are alive, whether stopped or not, with their commands."""
    entry = f"PLANT={tmp_path}".encode()
    found = [pid for pid in procfs.pids() if procfs.has_variable(pid, entry) and procfs.is_alive(pid)]
    return [(pid, procfs.command(pid) or "") for pid in found]


def _in_turns(tmp_path: Path) -> bool:
    """Return True if both programs have been paused, and have made steps for a while.

    A busy machine pauses them too, before any step of theirs was seen.
    """
    stamps = [_stamps(path) for path in (tmp_path / "first", tmp_path / "second") if path.exists()]
    return len(stamps) == 2 and all(
        len(one) > 100 and any(later - begun > TURN_SECONDS / 2 for begun, later in pairwise(one[6:]))
        for one in stamps
    )


def test_a_slower_program_is_a_regression_and_no_paused_step_counts(start: Start, tmp_path: Path) -> None:
    options = ["--steps", "60", "--runs", "3", "--fail-over", "5", "--json"]
    _, err = (done := start(options, second=12.0, ends="launcher")).communicate(timeout=240)
    assert done.returncode == 1, err
    found = _metrics(tmp_path)
    assert not schema_faults("bench", found)
    comparison = found["comparison"]
    assert (comparison["decision"], comparison["in_turns"], comparison["paired"]) == ("regression", True, True)
    order = "baseline candidate candidate baseline baseline candidate"
    assert [run["label"] for run in found["runs"]] == order.split()
    for run in found["runs"]:
        window = run["window"]
        assert len(window["step_rounds"]) == len(window["step_seconds"]) >= 60
        assert window["step_rounds"] == sorted(window["step_rounds"])
        assert window["interrupted_steps"] > 0
        for absent in ("power_watts", "energy_joules", "gpu_idle_pct", "mfu_pct"):
            assert run["figures"][absent] is None
        assert run["verdict"] == "unknown"
    for one, other in zip(found["runs"][::2], found["runs"][1::2], strict=True):
        assert set(one["window"]["step_rounds"]) == set(other["window"]["step_rounds"])
    starts = [(tmp_path / f"{name}.start").read_text().split() for name in ("first", "second")]
    assert starts[0] == starts[1], "both sides of a round start alike"
    assert len(set(starts[0][::2])) == 3, "each round has another seed of hashes"
    can_fix = subprocess.run(["setarch", "-R", "true"], check=False, timeout=240).returncode == 0
    assert all(bool(int(flags) & ADDR_NO_RANDOMIZE) is can_fix for flags in starts[0][1::2])
    assert (memory_layout.RANDOM_LAYOUT in found["notes"]) is not can_fix
    # What the programs of the last round wrote themselves.
    stamps = {name: _stamps(tmp_path / name) for name in ("first", "second")}
    for run, name in zip(found["runs"][-2:], stamps, strict=True):
        lengths = [later - one for one, later in pairwise(stamps[name])]
        pauses = [one for one in lengths if one > 0.8 * TURN_SECONDS]
        assert len(pauses) >= len(set(run["window"]["step_rounds"])) - 1
        steps = run["window"]["step_seconds"]
        long = [seconds for seconds in steps if seconds >= TURN_SECONDS * 1.1]
        other = [one for one in steps if min(abs(one - length) for length in lengths) >= 0.001]
        # A busy machine delays a few; a paused step that counted would be one of each turn of at most 15.
        assert len(long) <= 0.05 * len(steps), long
        assert len(other) <= 0.05 * len(steps), other
    child = [later - one for one, later in pairwise(_stamps(tmp_path / "second.child"))]
    assert sum(one > 0.8 * TURN_SECONDS for one in child) >= 3, "a session of its own is stopped too"


@pytest.mark.slow(
    "two programs in turns; test_a_slower_program_is_a_regression_and_no_paused_step_counts has them"
)
@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("crash", "the command ended with exit code 1 after"),
        ("early", "ended (exit code 0) after"),
    ],
)
def test_one_that_ends_early_ends_the_other(start: Start, tmp_path: Path, ends: str, said: str) -> None:
    with start(["--seconds", "3000", "--runs", "2"], ends=ends) as done:
        wait_for(lambda: _in_turns(tmp_path), 60, "the turns")
        (tmp_path / "end").touch()
        _, err = done.communicate(timeout=240)
    assert done.returncode == 3, err
    assert f"run 2: {said}" in err or f"run 2: the command {said}" in err
    assert "run 1: interrupted, because run 2 (candidate) ended" in err
    found = _metrics(tmp_path)
    assert (found["state"], len(found["runs"])) == ("failed", 2)
    if ends == "crash":
        assert found["runs"][1]["last_stderr_line"] == "out of luck"
    wait_for(lambda: not _left(tmp_path), what="the end of all that it started")


@pytest.mark.slow(
    "two programs in turns; test_a_slower_program_is_a_regression_and_no_paused_step_counts has them"
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_no_stopped_process(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    with start(["--seconds", "3000", "--runs", "2"]) as started:
        wait_for(lambda: _in_turns(tmp_path), 60, "the turns")
        started.send_signal(number)
        _, err = started.communicate(timeout=240)
    assert started.returncode == 130
    assert err.count("told to end") == 1
    assert "Traceback" not in err
    found = _metrics(tmp_path)
    assert [run["ended"] for run in found["runs"]] == ["interrupted", "interrupted"]
    wait_for(lambda: not _left(tmp_path), what="the end of all that it started")


@pytest.mark.slow(
    "two programs in turns; test_a_slower_program_is_a_regression_and_no_paused_step_counts has them"
)
def test_a_killed_bench_leaves_no_process(start: Start, tmp_path: Path) -> None:
    with start(["--seconds", "3000", "--runs", "2"]) as started:
        wait_for(lambda: _in_turns(tmp_path), 60, "the turns")
        started.kill()
        started.wait(timeout=240)
        wait_for(lambda: not _left(tmp_path), 60, "the programs' end")


@pytest.mark.slow(
    "two programs in turns; test_a_slower_program_is_a_regression_and_no_paused_step_counts has them"
)
def test_a_killed_turn_taker_fails_the_bench_and_leaves_no_stopped_process(start: Start, tmp_path: Path) -> None:
    with start(["--seconds", "3000", "--runs", "2"]) as started:
        wait_for(lambda: _in_turns(tmp_path), 60, "the turns")
        children = psutil.Process(started.pid).children()
        [taker] = [child for child in children if "turn_taker.py" in " ".join(child.cmdline())]
        os.kill(taker.pid, signal.SIGKILL)
        _, err = started.communicate(timeout=240)
    assert started.returncode == 3
    assert f"interrupted, because the process that takes the turns (pid {taker.pid}) was ended" in err
    wait_for(lambda: not _left(tmp_path), what="the end of all that it started")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--turns", "100ms"], "--turns needs several commands: add --against or --vary"),
        (["--turns", "soon", "--against", "true"], "pass auto, or a time from 10 ms to 1 h"),
        (["--turns", "1ms", "--against", "true"], "pass auto, or a time from 10 ms to 1 h"),
        (["--turns", "auto", "--against", "true", "--to-end"], "--turns excludes --to-end and --bare"),
        (["--turns", "auto", "--against", "true", "--metric", "mfu"], "MFU is unknown while commands share"),
    ],
)
def test_what_turns_cannot_do_is_refused(tmp_path: Path, options: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llmtop", "bench", *options, "--", "true"],
        cwd=tmp_path,
        env=environment(LLMTOP_DIR=str(tmp_path / "s")),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr
