"""Trainings that end while a capture of theirs is armed, recording or being written: they end as without it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmtop.protocol import wire
from tests.support import clock, endings
from tests.support.endings import WAYS, Ready, Way, command, crash_a_rank, end
from tests.support.installed import needs
from tests.support.trainings import PATIENT_SERVER, Heard, Training, connect, sockets

needs("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMTOP_TESTS_PATIENT", "1")  # the last state of a capture is sent while the training ends


@pytest.mark.slow("one end stands for all; each is a capture", kept=("500 steps asked for",))
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_captured_training_ends_as_it_would_without(way: Way, runtime_dir: Path, tmp_path: Path) -> None:
    ending = end(way, runtime_dir, tmp_path)
    assert ending.code == way.code
    if way.state is not None:
        assert ending.states[-1] == way.state
    else:
        assert "done" not in ending.states
    assert ending.left == []
    if way.name not in ("os._exit", "SIGTERM", "exec"):
        assert sockets(runtime_dir) == []


@pytest.mark.slow("a wait that is planted; test_a_captured_training_ends_as_it_would_without has ends without one")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize(
    ("name", "deaf"),
    [
        ("SIGINT", False),
        pytest.param("3 steps left of 5", False, marks=pytest.mark.slow("SIGINT has the same wait")),
        pytest.param("5 steps recorded", False, marks=pytest.mark.slow("SIGINT has the same wait")),
        pytest.param("sys.exit", True, marks=pytest.mark.slow("it waits for as long as it may")),
    ],
)
def test_what_waits_in_pytorch_after_a_recording_holds_no_end_up(
    name: str, deaf: bool, runtime_dir: Path, tmp_path: Path
) -> None:
    ways = (*WAYS, Way("5 steps recorded", 0, "done", after=("step 7", "return")))
    way = next(way for way in ways if way.name == name)
    library = str(clock.build(Path(__file__).parents[1] / "cupti_stub" / "teardown.c"))
    ending = end(way, runtime_dir, tmp_path, "--cupti", library, *["--deaf"] * deaf)
    assert (ending.code, ending.states[-1]) == (way.code, way.state)


@pytest.mark.slow("test_a_captured_training_ends_as_it_would_without finds the same fault")
@pytest.mark.parametrize("name", ["500 steps asked for", "raise", "SIGINT"])
def test_the_same_below_llmtop_run(name: str, runtime_dir: Path, tmp_path: Path) -> None:
    way = next(way for way in WAYS if way.name == name)
    ending = end(way, runtime_dir, tmp_path, run=True)
    assert (ending.code, ending.states[-1], ending.left) == (way.code, way.state, [])
    assert ending.detail == "the training ended before it was complete"


@pytest.mark.slow("test_a_captured_training_ends_as_it_would_without finds the same fault")
@pytest.mark.parametrize("name", ["3 steps left of 5", "no further step", "raise", "fork"])
def test_the_same_with_the_history_of_the_allocator(name: str, runtime_dir: Path, tmp_path: Path) -> None:
    way = next(way for way in WAYS if way.name == name)
    ending = end(way, runtime_dir, tmp_path, "--fake-cuda", engine="memory")
    assert (ending.code, ending.states[-1], ending.left) == (way.code, way.state, [])


@pytest.mark.slow("test_a_captured_training_ends_as_it_would_without finds the same fault")
def test_the_exit_codes_are_those_of_the_same_training_without_llmtop(runtime_dir: Path) -> None:
    for way in WAYS:
        if way.name in ("raise", "SIGINT", "exec", "fork"):
            assert endings.bare(way, runtime_dir).code == way.code


@pytest.mark.slow("test_a_captured_training_ends_as_it_would_without finds the same fault")
def test_a_rank_that_crashes_is_not_held_up_by_its_capture(runtime_dir: Path, tmp_path: Path) -> None:
    ending = crash_a_rank(runtime_dir, tmp_path)
    assert ending.code == 1
    assert ending.states[-1] == "failed"


@pytest.mark.slow("test_a_captured_training_ends_as_it_would_without finds the same fault")
@pytest.mark.parametrize("where", ["thread", "daemon"])
def test_a_training_in_a_second_thread_ends_too(where: str, runtime_dir: Path, tmp_path: Path) -> None:
    # The end of that thread stops what only it can stop; a daemon still has it open when the process ends.
    way = Way(where, 0, "failed", steps=500, after=(where, "step 5", "return"))
    with Ready(command(), LLMTOP_DIR=str(runtime_dir)) as training:
        heard = Heard(connect(runtime_dir, training))
        heard.connection.send(
            wire.CaptureRequest(id="it", engine="torch.profiler", path=str(tmp_path / "t"), steps=way.steps)
        )
        heard.until(lambda: any(isinstance(one, wire.CaptureState) for one in heard.messages))
        training.tell(where)
        training.tell("step 5")
        if where == "thread":
            training.tell("return")
        assert training.wait(endings.LONG_SECONDS) == 0
        heard.to_the_end()
        states = [one.state for one in heard.messages if isinstance(one, wire.CaptureState)]
        if where == "thread":
            assert states[-1] == "failed"
        assert "done" not in states


WRITING = """
import sys, time
import torch, torch.profiler
import llmtop
def slowly(self, path):
    open(path, "w").close()
    print("writing", flush=True)
    time.sleep({seconds})
torch.profiler.profile.export_chrome_trace = slowly
work = torch.nn.Linear(8, 8)
print("ready", flush=True)
input()
for _ in range(4):
    with llmtop.step(): work(torch.ones(8)).sum().backward()
input()
sys.exit(5)
"""


@pytest.mark.slow("an end beside a profiler; test_a_captured_training_ends_as_it_would_without has one")
@pytest.mark.parametrize("seconds", [2, 1000])
def test_only_a_file_that_is_being_written_is_waited_for_and_not_for_ever(
    runtime_dir: Path, tmp_path: Path, seconds: int
) -> None:
    script = f"{PATIENT_SERVER}import llmtop; llmtop.attach()\n" + WRITING.format(seconds=seconds)
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        training.hear("ready")
        heard.connection.send(
            wire.CaptureRequest(id="it", engine="torch.profiler", path=str(tmp_path / "trace"), steps=2)
        )
        heard.until(lambda: any(isinstance(one, wire.CaptureState) for one in heard.messages))
        training.go()
        training.hear("writing")
        training.go()
        training.finish(5)
        heard.to_the_end()
    states = [one.state for one in heard.messages if isinstance(one, wire.CaptureState)]
    assert states[-1] == ("done" if seconds == 2 else "failed")
    assert [path.name for path in tmp_path.iterdir()] == (["trace"] if seconds == 2 else [])


def test_a_pause_that_the_end_interrupts_ends_with_it(runtime_dir: Path) -> None:
    script = f"""{PATIENT_SERVER}
import signal, sys, time
import llmtop
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
while True:
    with llmtop.step(): time.sleep(0.002)
"""
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        heard.connection.send(wire.Pause(id="p", seconds=9.0))
        heard.until(lambda: any(getattr(one, "state", "") == "paused" for one in heard.messages))
        training.send_signal(signal.SIGTERM)
        training.finish(3)
        heard.to_the_end()
    states = [one.state for one in heard.messages if isinstance(one, wire.PauseState)]
    assert states[-1] == "failed"


@pytest.mark.slow("test_a_captured_training_ends_as_it_would_without finds the same fault")
def test_llmtop_capture_says_that_the_training_has_ended(runtime_dir: Path, tmp_path: Path) -> None:
    with Ready(command(), LLMTOP_DIR=str(runtime_dir)) as training:
        engine = ["--engine", "torch.profiler", "--steps", "500", "--out", str(tmp_path / "captures")]
        with subprocess.Popen(
            [sys.executable, "-m", "llmtop", "capture", "--pid", str(training.pid), *engine],
            env=endings.environment(LLMTOP_DIR=str(runtime_dir)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as capture:
            heard = Heard(connect(runtime_dir, training))
            while not any(getattr(one, "state", "") == "recording" for one in heard.messages):
                training.tell("step 1")
                heard.messages += heard.connection.receive(0.1)
            training.tell("return")
            said = capture.communicate(timeout=endings.LONG_SECONDS)[1]
        assert training.wait(endings.LONG_SECONDS) == 0
    assert "the training ended before it was complete" in said
    assert "runs on" not in said
    assert capture.returncode == 3
    assert list((tmp_path / "captures").iterdir()) == []
    assert not list(runtime_dir.glob("*.lock"))
