"""What happens to trainings and monitors when the wall clock is set, and when the machine sleeps."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmtop.errors import LlmtopError
from llmtop.recording.reader_writer import Reader, Writer
from tests.support import nvml_stub
from tests.support.clock import Clock
from tests.support.processes import busy_limit, environment, wait_for
from tests.support.snapshots import snapshot

Start = Callable[..., subprocess.Popen[str]]
Moment = dict[str, Any]

HOUR = 3600.0
_PATIENT = "import collectors.trainings.training as t, sys; t.STALLED_SECONDS = 1.0\n"
_LLMTOP = "import sys\nfrom llmtop.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
def scenario(tmp_path: Path) -> nvml_stub.Scenario:
    one = nvml_stub.Scenario()
    one.write(tmp_path / "scenario")
    return one


@pytest.fixture
def start(runtime_dir: Path, clock: Clock, scenario: nvml_stub.Scenario) -> Iterator[Start]:
    """Start Python with these arguments under the clock and the stand-in for the driver."""
    started: list[subprocess.Popen[str]] = []
    assert scenario.path is not None
    env = nvml_stub.environment(nvml_stub.build(), scenario.path, **environment(LLMTOP_DIR=str(runtime_dir)))

    def python(*arguments: str, old_waits: bool = False) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, *arguments],
                env={**env, **clock.environment(old_waits=old_waits)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield python
    for one in started:
        one.kill()
        one.communicate(timeout=240)


def train(start: Start, *options: str) -> subprocess.Popen[str]:
    """Steps of 20 ms; returns when it has attached."""
    training = start("-m", "tests.support.toy_training", "--step-ms", "20", "--total", "1000000", *options)
    assert training.stdout is not None
    assert training.stdout.readline() == "attached\n"
    return training


class Monitor:
    """A stream of snapshots."""

    def __init__(self, start: Start, *, patient: bool = False, old_waits: bool = False) -> None:
        code = (_PATIENT if patient else "") + _LLMTOP
        self.process = start("-c", code, "--json", "--interval", "0.2", old_waits=old_waits)
        self.seen: list[Moment] = []

    def until(self, condition: Callable[[Moment], object], most: int = 300) -> Moment:
        """The next snapshot of which it holds; `most` is against hanging."""
        assert self.process.stdout is not None
        silent = threading.Timer(busy_limit(90.0), self.process.kill)
        silent.start()
        try:
            for _ in range(most):
                self.seen.append(json.loads(self.process.stdout.readline()))
                if condition(self.seen[-1]):
                    return self.seen[-1]
        finally:
            silent.cancel()
        raise AssertionError(f"not within {most} snapshots: {self.seen[-1]}")


def steps(moment: Moment) -> bool:
    """Whether its rank tells a rate."""
    return any(rank["steps_per_s"] is not None for rank in moment["ranks"])


def count_in(path: Path) -> int:
    """How many snapshots a recording has by now."""
    try:
        reader = Reader(path)
    except LlmtopError:
        return 0
    reader.close()
    return reader.count


def check_well(moment: Moment) -> None:
    """It trains, its figures are there, and nothing is claimed of it."""
    (rank,) = moment["ranks"]
    assert rank["state"] == "running"
    assert None not in (rank["steps_per_s"], rank["eta_seconds"], rank["step_seconds_p50"])
    assert abs(moment["time"] - rank["last_step_at"]) < 60
    assert all(alert["id"] != "stalled" for alert in moment["alerts"])


def has_moved(clock_seconds: float, before: float) -> Callable[[Moment], bool]:
    return lambda moment: abs(moment["time"] - before - clock_seconds) < HOUR / 2


MOVES = {"forward": (HOUR, Clock.step), "back": (-HOUR, Clock.step), "asleep": (HOUR, Clock.suspend)}


@pytest.mark.slow("a clock that is set back is the hardest case", kept=("back",))
@pytest.mark.parametrize("move", MOVES)
def test_a_training_goes_on_being_told_over_a_step_of_the_wall_clock(
    start: Start, clock: Clock, move: str
) -> None:
    train(start)
    monitor = Monitor(start)
    before = monitor.until(steps)["time"]
    seconds, change = MOVES[move]
    change(clock, seconds)
    first = monitor.until(has_moved(seconds, before))
    done = first["ranks"][0]["step"]
    monitor.until(lambda moment: moment["ranks"][0]["step"] > done + 100)
    for moment in monitor.seen[monitor.seen.index(first) :]:
        check_well(moment)
    stamps = [step["started_at"] for step in monitor.seen[-1]["ranks"][0]["new_steps"]]
    assert all(abs(stamp - monitor.seen[-1]["time"]) < 60 for stamp in stamps)


@pytest.mark.slow("test_a_training_goes_on_being_told_over_a_step_of_the_wall_clock finds much of it")
@pytest.mark.parametrize("move", MOVES)
def test_a_monitor_that_comes_after_the_step_is_told_the_truth(start: Start, clock: Clock, move: str) -> None:
    train(start)
    before = Monitor(start).until(steps)["time"]
    seconds, change = MOVES[move]
    change(clock, seconds)
    later = Monitor(start)
    found = later.until(steps)
    assert abs(found["time"] - before - seconds) < HOUR / 2
    check_well(found)
    # On a busy machine it shows the rank before its figures.
    assert all(alert["id"] != "stalled" for moment in later.seen for alert in moment["alerts"])


@pytest.mark.slow(
    "waits for a stall; test_a_training_goes_on_being_told_over_a_step_of_the_wall_clock has the steps before"
)
@pytest.mark.parametrize(
    "seconds",
    [pytest.param(2 * HOUR, marks=pytest.mark.slow("a clock that is set back is the harder case")), -2 * HOUR],
)
def test_a_stall_is_as_old_as_it_is_whatever_the_wall_clock_says(
    start: Start, clock: Clock, seconds: float
) -> None:
    def stalled(moment: Moment) -> list[Moment]:
        return [alert for alert in moment["alerts"] if alert["id"] == "stalled"]

    train(start, "--steps", "50", "--then", "sleep")
    monitor = Monitor(start, patient=True)
    before = monitor.until(stalled)["time"]
    clock.step(seconds)
    monitor.until(has_moved(seconds, before))
    (alert,) = stalled(monitor.until(stalled))
    (fresh,) = stalled(Monitor(start, patient=True).until(stalled))
    for one in (alert, fresh):
        assert 0 <= one["evidence"]["seconds_without_step"] < 300
        assert abs(one["since"] - before - seconds) < 300


@pytest.mark.slow(
    "as an old Python waits; test_a_training_goes_on_being_told_over_a_step_of_the_wall_clock has the usual waits"
)
def test_a_monitor_whose_python_waits_by_the_wall_clock_does_not_stop_when_that_is_set_back(
    start: Start, clock: Clock
) -> None:
    train(start)
    monitor = Monitor(start, old_waits=True)
    before = monitor.until(steps)
    clock.step(-HOUR)
    moved = monitor.until(has_moved(-HOUR, before["time"]))
    later = monitor.until(lambda moment: moment["ranks"][0]["step"] > moved["ranks"][0]["step"] + 100)
    sampled = {moment["gpus"][0]["sampled_at"] for moment in monitor.seen[monitor.seen.index(moved) :]}
    assert len(sampled) > 2
    check_well(later)


@pytest.mark.slow(
    "as an old Python waits; test_a_training_goes_on_being_told_over_a_step_of_the_wall_clock has the usual waits"
)
def test_a_replay_whose_python_waits_by_the_wall_clock_goes_on_when_that_is_set_back(
    start: Start, clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "r.llmtop.gz"
    writer = Writer(path, host="node")
    times = [1000.0 + second for second in range(8)]
    for second in times:
        writer.write(snapshot(second))
    writer.close()
    replay = start("-m", "llmtop", "replay", str(path), "--json", "--speed", "1", old_waits=True)
    silent = threading.Timer(busy_limit(90.0), replay.kill)
    silent.start()
    assert replay.stdout is not None
    seen = []
    for _ in times:
        seen.append(replay.stdout.readline())
        time.sleep(0.2)  # into its wait for the next one
        clock.step(-HOUR)
    silent.cancel()
    assert [json.loads(line)["time"] for line in seen if line] == times
    assert replay.wait(240) == 0


@pytest.mark.slow(
    "as an old Python waits; test_a_training_goes_on_being_told_over_a_step_of_the_wall_clock has the usual waits"
)
def test_a_recording_for_some_seconds_ends_though_the_clock_is_set_back(
    start: Start, clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "r.llmtop.gz"
    options = ("--interval", "0.2", "--seconds", "8")
    recorder = start("-m", "llmtop", "record", str(path), *options, old_waits=True)
    wait_for(lambda: count_in(path) > 0, 60)
    clock.step(-HOUR)
    assert recorder.wait(90) == 0
    assert count_in(path) > 0


@pytest.mark.slow(
    "a monitor of its own; test_a_training_goes_on_being_told_over_a_step_of_the_wall_clock has the clock"
)
def test_an_xid_stays_for_as_long_as_it_would_have(
    start: Start, clock: Clock, scenario: nvml_stub.Scenario
) -> None:
    monitor = Monitor(start)
    monitor.until(lambda moment: moment["gpus"] and moment["gpus"][0]["power_limit_watts"])
    scenario.xid(0, 79).write()
    before = monitor.until(lambda moment: "Xid 79" in str(moment["gpus"][0]["error"]))["time"]
    clock.step(HOUR)
    after = monitor.until(has_moved(HOUR, before))
    assert "Xid 79" in after["gpus"][0]["error"]
    assert any(alert["id"] == "gpu_error" for alert in after["alerts"])


@pytest.mark.slow("test_a_training_goes_on_being_told_over_a_step_of_the_wall_clock finds much of it")
def test_a_recording_over_a_clock_that_is_set_back_is_as_long_as_it_took(
    start: Start, clock: Clock, tmp_path: Path
) -> None:
    train(start)
    path = tmp_path / "back.llmtop.gz"
    recorder = start("-m", "llmtop", "record", str(path), "--interval", "0.1")

    wait_for(lambda: count_in(path) >= 20, 60)
    clock.step(-HOUR)
    known = count_in(path)
    wait_for(lambda: count_in(path) >= known + 20, 60)
    clock.step(2 * HOUR)
    known = count_in(path)
    wait_for(lambda: count_in(path) >= known + 20, 60)
    recorder.terminate()
    recorder.wait(240)
    reader = Reader(path)
    played = list(reader.snapshots())
    reader.close()
    times = [snapshot.time for _, snapshot in played]
    assert min(times) < times[0] - HOUR / 2
    assert max(times) > times[0] + HOUR / 2
    positions = [position for position, _ in played]
    assert len(played) == reader.count
    assert positions == sorted(positions)
    monotonic = [snapshot.monotonic or 0.0 for _, snapshot in played]
    assert positions == pytest.approx([one - monotonic[0] for one in monotonic], abs=0.01)
    assert reader.length == pytest.approx(positions[-1], abs=0.01)
