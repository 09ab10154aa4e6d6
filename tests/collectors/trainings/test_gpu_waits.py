"""For how much of the time a host waits for its GPU, told by a training itself and shown by a monitor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.trainings.bounds import MAX_CAUSES, MAX_WORDS, Bounds
from collectors.trainings.gpu_waits import GpuWaits
from collectors.trainings.source import StepsSource
from llmtop.instrument.serve.stacks.waiting_calls import WaitingCalls
from llmtop.model.snapshot import Rank
from llmtop.protocol import wire
from tests.support.processes import wait_for
from tests.support.trainings import Training

LOOP = """
import functools, threading, time, llmtop
class Device:  # what these do is C's, as it is torch's: it waits without Python's lock
    synchronize = item = to = staticmethod(time.sleep)
class Truth:
    held = threading.Lock()
    held.acquire()
    __bool__ = staticmethod(functools.partial(held.acquire, True, 0.02))
device, tensor = Device(), Truth()
def compute(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end: sum(range(50))
while True:
    with llmtop.step():
        with llmtop.phase("forward"):
            compute(0.01)
            {work}
"""


def _watched(runtime_dir: Path, path: Path, work: str, enough: Callable[[Rank], bool]) -> Rank:
    script = path / "train.py"
    script.write_text(LOOP.format(work=work))
    source = StepsSource(runtime_dir)
    with Training(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"):
        source.start()
        try:
            return wait_for(lambda: next((one for one in source.latest().ranks if enough(one)), None), 90)
        finally:
            source.close()


@pytest.mark.slow("trains; test_which_calls_wait_is_told_from_the_call_that_runs has the calls")
@pytest.mark.parametrize(
    ("work", "call"),
    [
        ("device.synchronize(0.02)", "device.synchronize(0.02)"),
        ("loss = device.item(0.02)", "device.item(0.02)"),
        ("if tensor: raise SystemExit", "if tensor: raise SystemExit"),
    ],
)
def test_a_call_that_waits_is_told_with_its_share_in_whatever_phase(
    runtime_dir: Path, tmp_path: Path, work: str, call: str
) -> None:
    one = _watched(runtime_dir, tmp_path, work, lambda one: bool(one.gpu_waits))
    (wait,) = one.gpu_waits
    assert wait.what == f"train.py:17 {call}"
    assert one.gpu_wait_pct is not None
    assert one.step_seconds_mean is not None
    assert wait.seconds == pytest.approx(one.gpu_wait_pct / 100 * one.step_seconds_mean)


@pytest.mark.slow("trains; test_which_calls_wait_is_told_from_the_call_that_runs has the calls")
@pytest.mark.parametrize(
    "work",
    ["compute(0.02)", pytest.param("time.sleep(0.02)", marks=pytest.mark.slow("sleeping is the easier case"))],
)
def test_a_host_that_computes_or_sleeps_does_not_wait_for_a_gpu(
    runtime_dir: Path, tmp_path: Path, work: str
) -> None:
    one = _watched(runtime_dir, tmp_path, work, lambda one: one.gpu_wait_pct is not None)
    assert (one.gpu_wait_pct, one.gpu_waits) == (0.0, ())


class Stand:
    """What a look finds of a thread that stands in a call: C runs below the innermost frame of Python's."""

    def __init__(self) -> None:
        self.waits: list[bool] = []

    def __call__(self, *_given: object, **_named: object) -> Stand:
        frame = sys._getframe(1)
        self.waits.append(WaitingCalls().waits(frame.f_code, frame.f_lasti, frame.f_lineno or 0))
        return self

    def __getattr__(self, _name: str) -> Stand:
        return self

    def __bool__(self) -> bool:
        self()
        caller = sys._getframe(1)
        self.waits[-1] = WaitingCalls().waits(caller.f_code, caller.f_lasti, caller.f_lineno)
        return False


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        ("it.item()", True),
        ("it.loss.detach().float().sum().item()", True),
        ("it.to('cpu')", True),
        ("it.to('cuda', non_blocking=True)", False),
        ("it.to('cuda', non_blocking=False)", True),
        ("it.cuda.synchronize()", True),
        ("it.forward(it)", False),
        ("it.items()", False),
        ("it.log('x.item()')", False),
        ("it.matmul('\\d)')", False),
        ("1 if it else 2", True),
        ("not it", True),
        ("it and 1", True),
    ],
)
def test_which_calls_wait_is_told_from_the_call_that_runs(
    call: str, waits: bool, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    # What lies around it on the same line is another call's affair.
    script = tmp_path / "odd.py"
    script.write_text(f"def run(it):\n    return ({call}, )\n")
    names: dict[str, Callable[[Stand], object]] = {}
    exec(compile(script.read_text(), str(script), "exec"), names)
    recwarn.clear()
    stand = Stand()
    names["run"](stand)
    assert stand.waits[-1] is waits
    assert not list(recwarn), "a word about the script's own text is not ours to say"


def test_a_message_of_an_old_training_tells_nothing_of_waits() -> None:
    waits = GpuWaits()
    for _ in range(20):
        waits.add(wire.Outside(over_ns=10**9, found={"a": 10**9}))
    assert waits.figures(0.1, 15.0) == {}


def test_the_share_is_of_what_was_judged_and_needs_enough_of_it() -> None:
    waits = GpuWaits()
    waits.add(wire.Outside(over_ns=10**9, judged_ns=10**9, waited={"a": 3 * 10**8}))
    assert waits.figures(0.1, 15.0) == {}, "too few looks"
    for _ in range(4):
        waits.add(wire.Outside(over_ns=10**9, judged_ns=10**9, waited={"a": 3 * 10**8, "b": 10**8}))
    figures = waits.figures(0.1, 15.0)
    assert figures["gpu_wait_pct"] == pytest.approx(38.0)
    assert [(one.what, one.seconds) for one in figures["gpu_waits"]] == [
        ("a", pytest.approx(0.03)),
        ("b", pytest.approx(0.008)),
    ]
    assert waits.figures(None, None)["gpu_waits"] == ()


def test_what_no_training_tells_is_cut_down_and_the_rest_is_taken() -> None:
    odd = {"": 5, "no time": 0, "less": -1, "too long": 1 << 60, "w" * 5000: 7, "good": 9}
    odd |= {f"cause {number}": 1 for number in range(500)}
    (taken,) = Bounds().take([wire.Outside(over_ns=5, judged_ns=-3, waited=odd)])
    assert isinstance(taken, wire.Outside)
    assert taken.judged_ns is None
    assert len(taken.waited) <= MAX_CAUSES
    assert max(map(len, taken.waited)) == MAX_WORDS
    assert taken.waited["good"] == 9
    waits = GpuWaits()
    waits.add(taken)
    assert waits.figures(0.1, 15.0) == {}
