"""A training that is asked to wait between two steps: by whom, for how long, and what ends it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from llmtop.protocol import wire
from tests.support.trainings import STEPPING, Heard, Training, connect

REQUESTS = """
import time
import llmtop
while True:
    with llmtop.step(kind="request"):
        time.sleep(0.002)
"""
LATE_REQUESTS = """
import sys, time
import llmtop
from llmtop.instrument.record.state import State
go_concurrent = State.go_concurrent
def slowly(state):
    if state.tracks is None:
        time.sleep(0.5)  # as on a busy machine: what the monitor is told meanwhile is not yet so
    go_concurrent(state)
State.go_concurrent = slowly
llmtop.attach()
sys.stdin.readline()
while True:
    with llmtop.step(kind="request"):
        time.sleep(0.002)
"""
INTERRUPTED = """
import signal, time
import llmtop
class Stop(Exception): pass
def stop(*_): raise Stop
signal.signal(signal.SIGUSR1, stop)
llmtop.attach()
steps = 0
while True:
    try:
        with llmtop.step():
            time.sleep(0.002)
        steps += 1
    except Stop:
        print("interrupted", flush=True)
"""


GPU = """
import sys, time, types
import llmtop
class cuda:
    is_initialized = staticmethod(lambda: True)
    is_current_stream_capturing = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 2)
    @staticmethod
    def synchronize(device):
        assert device == 1, "only where there is a context"
        time.sleep({seconds})
sys.modules["torch"] = types.SimpleNamespace(
    cuda=cuda, __version__="2", _C=types.SimpleNamespace(_cuda_hasPrimaryContext=lambda device: device == 1)
)
while True:
    with llmtop.step():
        time.sleep(0.002)
"""
"""A stand-in for PyTorch, whose GPU has so many seconds of work at any time."""


def ask(heard: Heard, name: str, finished: int | None = None, seconds: float = 9.0, drain: float = 3.0) -> None:
    heard.connection.send(wire.Pause(id=name, finished=finished, seconds=seconds, drain_seconds=drain))


def done(heard: Heard) -> int:
    """How many steps it has finished, as far as it has told; waits for the first."""
    heard.until(lambda: heard.batches)
    batch = heard.batches[-1]
    return batch.first_ordinal + len(batch.steps)


def states(heard: Heard, name: str) -> list[str]:
    return [one.state for one in heard.messages if isinstance(one, wire.PauseState) and one.id == name]


def last(heard: Heard, name: str) -> wire.PauseState:
    return [one for one in heard.messages if isinstance(one, wire.PauseState) and one.id == name][-1]


def until(heard: Heard, name: str, state: str) -> wire.PauseState:
    heard.until(lambda: state in states(heard, name))
    return last(heard, name)


def test_it_waits_after_a_step_until_it_is_let_go(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        heard = Heard(connect(runtime_dir, training))
        assert heard.connection.hello.pauses
        ask(heard, "one")
        paused = until(heard, "one", "paused")
        heard.until(lambda: done(heard) == paused.finished)
        time.sleep(0.3)  # a hundred steps, if it did not wait
        heard.connection.send(wire.Resume(id="one"))
        resumed = until(heard, "one", "resumed")
        assert resumed.finished == paused.finished, "none ended in between"
        assert resumed.paused_ns is not None
        assert resumed.paused_ns >= 0.3e9
        heard.until(lambda: done(heard) > paused.finished + 20)
        before, after = (step for step in heard.steps if step.index in (paused.finished - 1, paused.finished))
        assert states(heard, "one") == ["armed", "paused", "resumed"]
        between_ns = after.started_unix_ns - before.started_unix_ns - before.host_ns
        assert between_ns > resumed.paused_ns - 1_000_000, "the wait lies between steps"


def test_it_waits_when_the_number_of_steps_that_was_named_has_ended(runtime_dir: Path) -> None:
    script = STEPPING.replace("tokens=10", "index=0")  # the script's own count may be anything
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: heard.steps)
        ahead = 200
        while True:
            named, name = done(heard) + ahead, f"later {ahead}"
            ask(heard, name, finished=named)
            heard.until(lambda name=name: {"paused", "late"} & set(states(heard, name)))
            if "late" not in states(heard, name):
                break
            ahead *= 2  # so many steps had ended before it was asked, on a busy machine
        assert last(heard, name).finished == named


def test_it_does_not_wait_for_a_step_that_has_ended(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: heard.steps and done(heard) > 10)
        ask(heard, "past", finished=3)
        assert until(heard, "past", "late").paused_ns is None
        ask(heard, "now")
        until(heard, "now", "paused")


def test_it_is_paused_when_its_gpu_has_done_its_work(runtime_dir: Path) -> None:
    with Training(GPU.format(seconds=0.3)) as training:
        heard = Heard(connect(runtime_dir, training))
        ask(heard, "idle", seconds=0.1)
        until(heard, "idle", "paused")
        assert (until(heard, "idle", "resumed").paused_ns or 0) >= 0.4e9, "the wait for the GPU counts"


def test_a_gpu_that_does_not_come_to_an_end_is_not_waited_for(runtime_dir: Path) -> None:
    with Training(GPU.format(seconds=1000)) as training:
        heard = Heard(connect(runtime_dir, training))
        ask(heard, "busy", drain=0.2)
        assert until(heard, "busy", "failed").detail.startswith("the GPU was still at work 0 s after step ")
        here = done(heard)
        heard.until(lambda: done(heard) > here + 20)


@pytest.mark.parametrize("seconds", [float("nan"), -1.0])
def test_a_length_that_is_none_is_no_pause(runtime_dir: Path, seconds: float) -> None:
    with Training(GPU.format(seconds=1000)) as training:
        heard = Heard(connect(runtime_dir, training))
        ask(heard, "odd", seconds=seconds, drain=seconds)
        until(heard, "odd", "failed")
        here = done(heard)
        heard.until(lambda: done(heard) > here + 20)


def test_it_goes_on_by_itself_when_the_time_is_over(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        heard = Heard(connect(runtime_dir, training))
        ask(heard, "short", seconds=0.2)
        assert 0.2e9 <= (until(heard, "short", "resumed").paused_ns or 0) < 10e9
        heard.until(lambda: done(heard) > last(heard, "short").finished + 20)


@pytest.mark.parametrize("paused", [True, False])
def test_it_goes_on_when_its_monitor_is_gone(runtime_dir: Path, paused: bool) -> None:
    with Training(STEPPING) as training:
        heard, asker = Heard(connect(runtime_dir, training)), Heard(connect(runtime_dir, training))
        ask(asker, "gone", finished=None if paused else 1 << 40)
        until(asker, "gone", "paused" if paused else "armed")
        asker.connection.close()
        ask(heard, "next")  # which is not refused
        here = done(heard.until(lambda: heard.steps))
        until(heard, "next", "paused")
        heard.connection.send(wire.Resume(id="next"))
        heard.until(lambda: done(heard) > here + 20)
        ask(heard, "next")
        until(heard, "next", "paused")


def test_a_pause_that_has_not_begun_can_be_taken_back(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        heard = Heard(connect(runtime_dir, training))
        ask(heard, "never", finished=1 << 40)
        heard.connection.send(wire.Resume(id="never"))
        assert until(heard, "never", "resumed").paused_ns is None
        ask(heard, "now")
        until(heard, "now", "paused")


def test_a_second_monitor_is_refused_and_ends_nothing(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        first, second = Heard(connect(runtime_dir, training)), Heard(connect(runtime_dir, training))
        ask(first, "mine")
        paused = until(first, "mine", "paused")
        ask(second, "yours")
        assert until(second, "yours", "failed").detail == "another llmtop is pausing it"
        second.connection.send(wire.Resume(id="yours"))
        second.connection.close()
        third = Heard(connect(runtime_dir, training))  # by its answer the server has met what the second did
        ask(third, "theirs")
        assert until(third, "theirs", "failed").detail == "another llmtop is pausing it"
        first.connection.send(wire.Resume(id="mine"))
        assert until(first, "mine", "resumed").finished == paused.finished, "no step ended in between"


def test_requests_that_overlap_cannot_be_paused(runtime_dir: Path) -> None:
    with Training(REQUESTS) as training:
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: heard.steps and not heard.connection.hello.pauses)
        ask(heard, "no")
        assert "overlap" in until(heard, "no", "failed").detail


def test_that_steps_overlap_from_now_on_is_told_to_who_listens_already(runtime_dir: Path) -> None:
    with Training(LATE_REQUESTS) as training:
        heard = Heard(connect(runtime_dir, training))
        assert heard.connection.hello.pauses
        training.go()
        heard.until(lambda: not heard.connection.hello.pauses)


def test_a_signal_s_handler_that_raises_ends_the_pause_and_nothing_else(runtime_dir: Path) -> None:
    with Training(INTERRUPTED) as training:
        heard = Heard(connect(runtime_dir, training))
        ask(heard, "cut")
        until(heard, "cut", "paused")
        os.kill(training.pid, signal.SIGUSR1)
        training.hear("interrupted")
        assert until(heard, "cut", "failed").detail == "the training was interrupted"
        here = done(heard)
        heard.until(lambda: done(heard) > here + 20)


def test_an_error_of_the_gpu_is_told_at_once_and_left_to_the_script(runtime_dir: Path) -> None:
    script = GPU.format(seconds=0).replace("time.sleep(0)", 'raise RuntimeError("device-side assert")')
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        ask(heard, "broken", drain=9.0)
        ended = until(heard, "broken", "failed")
        assert ended.detail == "RuntimeError: device-side assert"
        assert (ended.paused_ns or 0) < 5e9
        here = done(heard)
        heard.until(lambda: done(heard) > here + 20)
