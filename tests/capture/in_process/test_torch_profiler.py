"""torch.profiler captures that an attached training takes of itself, on its own thread."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llmtop.capture import take
from llmtop.capture.base.job import Cancelled, Plan, Progress, Target
from llmtop.errors import NotPossibleHere
from llmtop.protocol import client, wire
from tests.capture.conftest import Start, Training
from tests.capture.killed import kill_capture_at
from tests.support import nvml_stub
from tests.support.captured_steps import whole_steps
from tests.support.installed import needs
from tests.support.processes import environment, wait_for

needs("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def training(start_once: Start) -> Training:
    """One for all tests that must leave it running."""
    return start_once("--torch", "--step-ms", "50")


def plan(target: Target, parent: Path, **more: object) -> Plan:
    return Plan(**{"engine": "torch.profiler", "targets": (target,), "parent": parent, "steps": 5, **more})  # type: ignore[arg-type]


def at(stage: str, act: Callable[[], None]) -> Callable[[Progress], None]:
    """Act once when a stage is entered."""
    done: list[bool] = []

    def watch(progress: Progress) -> None:
        if progress.stage == stage and not done:
            done.append(True)
            act()

    return watch


def test_five_whole_steps_with_their_phases(training: Training, captures: Path) -> None:
    result = take.take(plan(training.wait_attached(), captures))
    assert result.trace is not None
    assert whole_steps(result.report) == 5
    assert result.info.steps == 6, "the last of five needs one after it to end on the device"
    assert result.info.last_step - result.info.first_step == 5  # type: ignore[operator]
    names = [event.get("name") for event in json.loads(result.trace.read_bytes())["traceEvents"]]
    assert sum(1 for name in names if str(name).startswith("ProfilerStep#")) == 6
    for phase in ("dataload", "forward", "backward", "optimizer"):
        assert names.count(phase) == 6, phase
    training.wait_for_steps(5)


@pytest.mark.slow("three captures; test_a_cancel_leaves_nothing_and_the_training_can_be_captured_again has two")
def test_captures_follow_one_another(training: Training, captures: Path) -> None:
    target = training.wait_attached()
    for steps in (1, 2, 3):
        assert whole_steps(take.take(plan(target, captures, steps=steps)).report) == steps
    training.wait_for_steps(3)


@pytest.mark.slow("test_a_cancel_leaves_nothing_and_the_training_can_be_captured_again finds the same fault")
@pytest.mark.parametrize("stage", ["start", "record", "stop"])
def test_a_cancel_leaves_nothing_and_the_training_running(training: Training, captures: Path, stage: str) -> None:
    target = training.wait_attached()
    cancelled = threading.Event()
    with pytest.raises(Cancelled):
        take.take(plan(target, captures, steps=40), at(stage, cancelled.set), cancelled)
    assert list(captures.iterdir()) == []
    training.wait_for_steps(5)
    assert whole_steps(take.take(plan(target, captures)).report) == 5


@pytest.mark.slow(
    "test_killing_llmtop_at_any_stage_leaves_the_training_running_and_not_collected finds the same fault"
)
@pytest.mark.parametrize("stage", ["start", "record", "stop"])
def test_killing_llmtop_leaves_the_training_running(training: Training, captures: Path, stage: str) -> None:
    target = training.wait_attached()
    kill_capture_at(stage, target, captures, "torch.profiler")
    training.wait_for_steps(10)
    result = wait_for(lambda: _try(target, captures), what="the process to be free for another capture")
    assert whole_steps(result.report) == 5


def _try(target: Target, captures: Path) -> take.Result | None:
    try:
        return take.take(plan(target, captures))
    except NotPossibleHere as refusal:
        if "is running in this process" not in str(refusal):
            raise
        return None


@pytest.mark.slow("a rare way to fail; each is a capture")
def test_an_unwritable_path_is_told_and_the_training_runs_on(training: Training, captures: Path) -> None:
    target = training.wait_attached()
    captures.mkdir()

    def remove_folder() -> None:
        for folder in captures.iterdir():
            folder.rename(captures.parent / "moved")

    with pytest.raises((NotPossibleHere, FileNotFoundError), match="could not be written"):
        # Two seconds of steps: time for the folder to go before the file is written.
        take.take(plan(target, captures, steps=40), at("record", remove_folder))
    training.wait_for_steps(5)


@pytest.mark.slow("test_a_captured_training_ends_as_it_would_without finds the same fault")
def test_a_captured_training_ends_as_ever(start: Start, captures: Path) -> None:
    training = start("--torch", "--step-ms", "50")
    take.take(plan(training.wait_attached(), captures, steps=2))
    assert training.end() == 0


@pytest.mark.slow("a rare way to fail, in a training of its own")
def test_a_full_disk_is_told_and_no_half_file_is_left(start: Start, captures: Path) -> None:
    # RLIMIT_FSIZE stands in for the full disk: write() fails in the same place, with another errno
    limited = (sys.executable, "-c", "import os, resource, signal, sys\n"
               "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
               "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
               "os.execv(sys.argv[1], sys.argv[1:])\n")  # fmt: skip
    training = start("--torch", "--step-ms", "50", behind=limited)
    target = training.wait_attached()
    with pytest.raises(NotPossibleHere, match=r"could not be written|no whole file"):
        take.take(plan(target, captures, steps=20))
    assert not list(captures.glob("*/*.part"))
    assert not list(captures.glob("*/*.json.part"))
    training.wait_for_steps(5)


@pytest.mark.slow("a training that is stopped, and a capture after it")
@pytest.mark.usefixtures("stops_training")
def test_a_hung_training_is_told_and_can_be_captured_later(
    training: Training, captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import signal

    target = training.wait_attached()
    os.kill(training.pid, signal.SIGSTOP)
    try:
        with monkeypatch.context() as impatient:  # only here: torch.profiler may take longer to begin
            impatient.setattr("llmtop.capture.in_process.engine.SILENCE_SECONDS", 1.0)
            with pytest.raises(NotPossibleHere, match=r"has not finished a step for \d+ s|cannot be reached"):
                take.take(plan(target, captures))
    finally:
        os.kill(training.pid, signal.SIGCONT)
    training.wait_for_steps(5)
    patient = functools.partial(client.Connection.open, timeout_s=60.0)
    monkeypatch.setattr(client.Connection, "open", staticmethod(patient))
    assert whole_steps(take.take(plan(target, captures)).report) == 5


@pytest.mark.slow("a capture by another engine; one whole capture of each is in make test")
def test_a_script_with_a_profiler_of_its_own_is_left_alone(start: Start, captures: Path, tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "import time, torch, llmtop\n"
        "from torch.profiler import profile, schedule\n"
        "own = profile(schedule=schedule(wait=1000, warmup=1, active=1))\n"
        "own.start()\n"
        "for index in range(100000):\n"
        "    with llmtop.step():\n"
        "        time.sleep(0.02)\n"
        "    own.step()\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], env=environment(), stdin=subprocess.DEVNULL)
    try:
        target = wait_for(lambda: _target(process.pid), seconds=60, what="the script to attach")
        with pytest.raises(NotPossibleHere, match=r"has a torch\.profiler of its own"):
            take.take(plan(target, captures))
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(100)


def _target(pid: int) -> Target | None:
    from llmtop.capture import targets

    return next((target for target in targets.list_attached() if target.pid == pid), None)


def test_a_request_while_one_runs_is_refused(training: Training, tmp_path: Path) -> None:
    target = training.wait_attached()
    assert target.socket is not None
    with client.Connection.open(target.socket, history=0) as connection:
        for name in ("first", "second"):
            connection.send(
                wire.CaptureRequest(id=name, engine="torch.profiler", path=str(tmp_path / name), steps=40)
            )
        states = _states(connection, "first")
    assert states["first"][-1].state == "done"
    assert states["second"][-1].state == "failed"
    assert "is running in this process" in states["second"][-1].detail


def _states(connection: client.Connection, until: str) -> dict[str, list[wire.CaptureState]]:
    states: dict[str, list[wire.CaptureState]] = {}
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        for message in connection.receive(0.1):
            if isinstance(message, wire.CaptureState):
                states.setdefault(message.id, []).append(message)
                if message.id == until and message.state in ("done", "failed"):
                    return states
    raise AssertionError(f"no end of {until} in {states}")


@pytest.mark.slow("test_a_request_while_one_runs_is_refused finds the same fault")
@pytest.mark.parametrize(
    ("engine", "path", "detail"),
    [
        ("no such engine", "/tmp/x", "is not offered"),
        ("torch.profiler", "relative/x", "not absolute"),
    ],
)
def test_a_request_that_cannot_be_met_is_answered(training: Training, engine: str, path: str, detail: str) -> None:
    target = training.wait_attached()
    assert target.socket is not None
    with client.Connection.open(target.socket, history=0) as connection:
        connection.send(wire.CaptureRequest(id="x", engine=engine, path=path, steps=5))
        assert detail in _states(connection, "x")["x"][-1].detail
    training.wait_for_steps(2)


@pytest.mark.slow("test_an_armed_capture_fires_and_prints_its_result finds the same fault")
def test_an_alert_of_the_live_rules_fires_an_armed_capture(
    training: Training, captures: Path, tmp_path: Path
) -> None:
    target = training.wait_attached()
    scenario = nvml_stub.Scenario(count=1).process(0, training.pid, 10 << 30, sm=95)
    env = nvml_stub.environment(
        nvml_stub.build(),
        scenario.write(tmp_path / "scenario"),
        **environment(LLMTOP_DIR=str(target.socket.parent if target.socket else "")),
    )
    command = ["capture", "--pid", str(training.pid), "--engine", "torch.profiler", "--out", str(captures)]
    armed = subprocess.Popen(
        [sys.executable, "-m", "llmtop", *command, "--when", "alert:low_power_full_util", "--json"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert armed.stderr is not None
    assert any("armed" in line for line in armed.stderr)
    scenario.set(0, util=100, power_watts=120, sm_active=0.5, dram_active=0, tensor_active=0).write()
    told, _ = armed.communicate(timeout=240)
    assert armed.returncode == 0
    assert any("low_power_full_util" in line for line in told.splitlines())
    assert len(list(captures.glob("*/report.json"))) == 1
    training.wait_for_steps(5)
