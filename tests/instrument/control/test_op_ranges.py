"""Operators marked for nsys in a training of its own: from a step's end to a step's end, whatever goes away."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.instrument.control.op_ranges import COMPILED
from llmtop.protocol import wire
from tests.support.trainings import Heard, Training, connect

pytestmark = pytest.mark.torch

PROGRAM = """
import os, time
import torch
from tests.support import torch_nvtx
import llmtop

ranges = []
torch_nvtx.register(begin=ranges.append, end=lambda: ranges.append(""))
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
while True:
    with llmtop.step():
        ranges.clear()
        model(torch.randn(4, 8)).sum().backward()
        time.sleep(0.02)
    on = torch.autograd._profiler_enabled()
    print("ranges", len(ranges), "open", ranges.count("") * 2 - len(ranges), "on", int(on), flush=True)
    if on and FORK:
        pid = os.fork()
        if pid == 0:
            ranges.clear()
            model(torch.randn(4, 8))
            print("child", len(ranges), int(torch.autograd._profiler_enabled()), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
"""


def program(fork: bool = False) -> str:
    return PROGRAM.replace("FORK", str(fork))


def ask(heard: Heard, want: str, name: str = "a", seconds: float = 60.0) -> None:
    heard.connection.send(wire.OpRanges(id=name, want=want, seconds=seconds))


def states(heard: Heard, name: str = "a") -> list[str]:
    return [one.state for one in heard.messages if isinstance(one, wire.OpRangesState) and one.id == name]


def until(heard: Heard, state: str, name: str = "a") -> None:
    heard.until(lambda: states(heard, name)[-1:] == [state])


def ended(training: Training) -> list[str]:
    """The whole lines that it printed until now: it may be killed in the middle of one."""
    training.kill()
    return training.communicate(timeout=240)[0].rpartition("\n")[0].splitlines()


def test_marks_begin_and_end_with_a_step(runtime_dir: Path) -> None:
    with Training(program()) as training:
        heard = Heard(connect(runtime_dir, training))
        ask(heard, "ready")
        until(heard, "ready")
        ask(heard, "on")
        until(heard, "on")
        steps = len(heard.steps)
        heard.until(lambda: len(heard.steps) >= steps + 3)
        ask(heard, "off")
        until(heard, "off")
        steps = len(heard.steps)
        heard.until(lambda: len(heard.steps) >= steps + 3)
        said = ended(training)
        told = [line.split() for line in said if line.startswith("ranges")]
        counts = [int(line[1]) for line in told]
        assert {line[3] for line in told} == {"0"}, "whatever began has ended"
        assert len(set(counts) - {0}) == 1, "a step has all of its marks or none"
        assert max(counts) >= 8
        assert counts[-1] == 0
        assert told[-1][5] == "0"


@pytest.mark.parametrize(
    "how", ["hangs up", pytest.param("runs out of time", marks=pytest.mark.slow("waits for a limit to pass"))]
)
def test_marks_end_without_a_word(runtime_dir: Path, how: str) -> None:
    with Training(program()) as training:
        heard, watching = (Heard(connect(runtime_dir, training)) for _ in range(2))
        watching.until(lambda: watching.steps)  # it is told of what comes from now on
        # The limit counts from the request. Marking begins at the next step boundary, which must come before it.
        ask(heard, "on", seconds=5.0 if how == "runs out of time" else 60.0)
        watching.until(lambda: "on" in states(watching))  # "off" may have come in the same read
        if how == "hangs up":
            heard.connection.close()
        until(watching, "off")
        ask(watching, "ready", "b")
        until(watching, "ready", "b")


@pytest.mark.slow("test_marks_end_without_a_word finds the same fault")
def test_one_monitor_at_a_time(runtime_dir: Path) -> None:
    with Training(program()) as training:
        heard = Heard(connect(runtime_dir, training))
        ask(heard, "on")
        until(heard, "on")
        ask(heard, "on", "b")
        until(heard, "failed", "b")
        heard.connection.send(wire.CaptureRequest(id="c", engine="torch.profiler", path="/nowhere/x"))
        heard.until(lambda: any(isinstance(one, wire.CaptureState) for one in heard.messages))
        (refused,) = (one for one in heard.messages if isinstance(one, wire.CaptureState))
        assert refused.detail == "its operators are being marked for nsys: try again"
        ask(heard, "off")
        until(heard, "off")


@pytest.mark.slow("a capture by another engine; one whole capture of each is in make test")
def test_a_forked_child_marks_nothing(runtime_dir: Path) -> None:
    with Training(program(fork=True)) as training:
        heard = Heard(connect(runtime_dir, training))
        ask(heard, "on")
        until(heard, "on")
        steps = len(heard.steps)
        heard.until(lambda: len(heard.steps) >= steps + 3)
        said = ended(training)
        children = [line for line in said if line.startswith("child")]
        assert children
        assert set(children) == {"child 0 0"}


def test_without_pytorch_it_is_not_offered(runtime_dir: Path) -> None:
    with Training("import time, llmtop\nwhile True:\n with llmtop.step(): time.sleep(0.01)\n") as training:
        heard = Heard(connect(runtime_dir, training))
        assert not heard.connection.hello.op_ranges
        ask(heard, "on")
        until(heard, "failed")


@pytest.mark.slow("torch.compile itself")
def test_a_compiled_model_is_said_to_tell_less(runtime_dir: Path) -> None:
    compiled = program().replace("Linear(8, 8)", 'Linear(8, 8)\nmodel = torch.compile(model, backend="eager")')
    with Training(compiled) as training:
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: heard.steps, 240)
        ask(heard, "ready")
        until(heard, "ready")
        (said,) = (one for one in heard.messages if isinstance(one, wire.OpRangesState))
        assert said.detail == COMPILED


@pytest.mark.slow("a capture by another engine; one whole capture of each is in make test")
def test_a_profiler_that_the_script_starts_meanwhile_works_and_ends_the_marks(runtime_dir: Path) -> None:
    profiles = """
    if on:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
            model(torch.randn(4, 8))
        begins = torch.autograd.profiler._enable_profiler is torch._C._autograd._enable_profiler
        print("profiled", len(found.events()) > 0, int(torch.autograd._profiler_enabled()), begins, flush=True)
"""
    with Training(program() + profiles) as training:
        heard = Heard(connect(runtime_dir, training))
        ask(heard, "on")
        until(heard, "failed")
        lines = [line for line in ended(training) if line.startswith("profiled")]
    assert lines == ["profiled True 0 True"], "it saw its operators, and nothing of ours stays"


@pytest.mark.slow("a capture by another engine; one whole capture of each is in make test")
def test_what_the_script_puts_in_the_place_of_a_profilers_beginning_stays(runtime_dir: Path) -> None:
    replaces = """
    mine = torch.autograd.profiler._enable_profiler
    if on:
        inner = mine
        torch.autograd.profiler._enable_profiler = own = lambda *given: inner(*given)
    elif "own" in globals():
        print("stays", mine is own, flush=True)
"""
    with Training(program() + replaces) as training:
        heard = Heard(connect(runtime_dir, training))
        ask(heard, "on")
        until(heard, "on")
        ask(heard, "off")
        until(heard, "off")
        assert training.stdout is not None
        assert next(line for line in training.stdout if line.startswith("stays")) == "stays True\n"
