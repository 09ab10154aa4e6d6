"""Python stacks of a real process by the real py-spy, and what is drawn from them."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llmtop.analysis.load_stacks import load_stacks
from llmtop.capture import take
from llmtop.capture.base.engine import Refusal
from llmtop.capture.base.job import Cancelled, CaptureJob, Plan, Progress, Target
from llmtop.capture.base.step_listener import StepListener
from llmtop.capture.py_spy import engine as py_spy
from llmtop.capture.py_spy import outside, ptrace_permission, stacks
from llmtop.capture.py_spy import program as py_spy_program
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.stacks.model import StackNode, StackReport
from llmtop.system import procfs
from tests.capture.conftest import Start, Training
from tests.capture.windows import sampled
from tests.support.processes import running, wait_for

SCRIPT = """
import threading, time
def burn(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(200))
def wait_for_data():
    time.sleep(0.03)
def train():
    while True:
        wait_for_data()
        burn(0.03)
threading.Thread(target=threading.Event().wait, name="pin memory", daemon=True).start()
print("go", flush=True)
train()
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with running(script) as process:
        yield process


LOADS = """
import multiprocessing, os, time
def decode():
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        sum(range(200))
def busy():
    while True:
        decode()
def idle(orders):
    while True:
        orders.get()
fork = multiprocessing.get_context("fork")
orders = fork.Queue()
workers = [fork.Process(target=busy, daemon=True), fork.Process(target=idle, args=(orders,), daemon=True)]
for worker in workers:
    worker.start()
print(*(worker.pid for worker in workers), flush=True)
while True:
    time.sleep(0.01)
"""


@dataclass
class Loading:
    """A process with one worker that works and one that waits to be given work."""

    pid: int
    busy: int
    idle: int


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[Loading]:
    script = tmp_path / "loads.py"
    script.write_text(LOADS)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    busy, idle = map(int, process.stdout.readline().split())
    yield Loading(process.pid, busy, idle)
    process.kill()
    process.wait(100)
    for pid in (busy, idle):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A py-spy that says what the real one says of a Python that it does not know."""
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho 'Error: Unsupported version of Python: 3.14.0' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(py_spy_program, "find_py_spy", lambda: program)
    return program


def plan(pid: int, parent: Path, **more: object) -> Plan:
    return Plan(**{"engine": "py-spy", "targets": (Target(pid),), "parent": parent, "seconds": 0.7, **more})  # type: ignore[arg-type]


def test_a_dump_has_the_main_thread_first_and_knows_the_users_own_frame(process: subprocess.Popen[str]) -> None:
    def look() -> tuple[stacks.ThreadStack, ...] | None:
        found = py_spy.dump(process.pid)
        return found if [thread.name for thread in found] == ["MainThread", "pin memory"] else None

    threads = wait_for(look, what="both threads")
    assert threads is not None
    own = threads[0].own_frame()
    assert own is not None
    assert (
        threads[0].frames[own].text.startswith(("burn (train.py:", "wait_for_data (train.py:", "train (train.py:"))
    )
    waiting = threads[1]
    assert waiting.own_frame() is None, "all of it is the standard library's"


def test_a_recording_is_a_speedscope_file_and_a_tree(process: subprocess.Popen[str], tmp_path: Path) -> None:
    def capture(seconds: float) -> tuple[take.Result, float, Any, Any]:
        began = time.monotonic()
        result = take.take(plan(process.pid, tmp_path / "captures", seconds=seconds))
        took = time.monotonic() - began
        profile = json.loads((result.folder / f"pid{process.pid}.speedscope.json").read_bytes())
        return result, took, profile, json.loads((result.folder / "report.json").read_bytes())

    def weight(profile: Any) -> float:
        return sum(profile["profiles"][0]["weights"])

    def samples(data: Any) -> int:
        return data["processes"][0]["threads"][0]["samples"]  # type: ignore[no-any-return]

    result, took, profile, data = sampled(
        capture, lambda found: weight(found[2]) >= 0.28 and samples(found[3]) > 20, first=0.7
    )
    assert profile["profiles"][0]["name"] == "MainThread"
    # 0.7 s are asked for; a busy machine makes it more, and takes some of it from the thread.
    assert 0.28 <= weight(profile) <= took
    report = (result.folder / "report.md").read_text()
    assert "wait_for_data (train.py:" in report
    assert "burn (train.py:" in report
    assert samples(data) > 20
    assert result.trace == result.folder / f"pid{process.pid}.folded"
    assert "speedscope.json there" in result.open_command
    tree = load_stacks([result.trace])
    assert tree is not None
    assert tree.processes[0].threads[0].samples == samples(data)
    assert sorted(path.name for path in result.folder.iterdir()) == [
        "capture.json", "environment.json", f"pid{process.pid}.folded", f"pid{process.pid}.speedscope.json",
        "report.json", "report.md",
    ]  # fmt: skip
    around = json.loads((result.folder / "environment.json").read_bytes())
    assert around["command"][-1].endswith("train.py")
    assert process.poll() is None


def test_whole_steps_of_an_attached_training(start: Start, captures: Path) -> None:
    training: Training = start()
    target = training.wait_attached()
    wanted = [0]

    def capture(seconds: float) -> take.Result:
        wanted[0] = round(seconds / 0.06)
        return take.take(plan(training.pid, captures, targets=(target,), steps=wanted[0], seconds=None))

    result = sampled(capture)
    assert result.info.steps is not None
    assert result.info.steps >= wanted[0] >= 5
    training.wait_for_steps(3)


def test_a_cancel_leaves_nothing(process: subprocess.Popen[str], tmp_path: Path) -> None:
    cancelled = threading.Event()

    def cancel(progress: Progress) -> None:
        if progress.stage == "record":
            cancelled.set()

    with pytest.raises(Cancelled):
        take.take(plan(process.pid, tmp_path / "captures", seconds=30.0), cancel, cancelled)
    assert list((tmp_path / "captures").iterdir()) == []
    assert process.poll() is None


def test_a_process_that_is_no_python_is_told() -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        with pytest.raises(NotPossibleHere, match="it must be a Python process"):
            py_spy.dump(other.pid)
    finally:
        other.kill()
        other.wait(100)


def test_a_process_that_is_gone_is_told() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait(100)
    with pytest.raises(NotPossibleHere, match=f"no process {gone.pid}|has ended"):
        py_spy.dump(gone.pid)


def test_the_stacks_of_workers_are_in_it_and_who_only_waits_is_apart(loading: Loading, tmp_path: Path) -> None:
    everyone = {loading.pid, loading.busy, loading.idle}

    def capture(seconds: float) -> tuple[take.Result, StackReport | None]:
        result = take.take(plan(loading.pid, tmp_path / "captures", seconds=seconds))
        return result, load_stacks([result.folder])

    def has_everyone(captured: tuple[take.Result, StackReport | None]) -> bool:
        # py-spy has no samples of a worker until it has read its symbols.
        return captured[1] is not None and {process.pid for process in captured[1].processes} == everyone

    result, found = sampled(capture, has_everyone, first=1.0)
    assert found is not None
    kinds = {
        process.pid: next(thread.kind for thread in process.threads if thread.thread == "MainThread")
        for process in found.processes
    }
    assert kinds == {loading.pid: "working", loading.busy: "working", loading.idle: "waiting"}
    assert all(process.started_by == loading.pid for process in found.processes[1:])
    busy = next(process for process in found.processes if process.pid == loading.busy).threads[0]
    assert any(hot.frame.startswith("decode (loads.py:") and hot.own for hot in busy.hottest)
    assert busy.cpu_pct is not None
    assert busy.cpu_pct > 0
    text = (result.folder / "report.md").read_text()
    assert "1 of 2 workers of pid" in text
    assert "decode (loads.py:" in text


def test_a_look_shows_workers_after_the_training(loading: Loading) -> None:
    def look() -> dict[int | None, stacks.ThreadStack] | None:
        threads = py_spy.dump(loading.pid)
        assert threads[0].name == "MainThread"
        assert threads[0].worker is None
        found = {thread.worker: thread for thread in threads if thread.name == "MainThread"}
        return found if set(found) == {None, loading.busy, loading.idle} else None

    # A worker that could not be read within its limit is left out of a look.
    mains = wait_for(look, what="a look with both workers")
    assert mains is not None
    assert not mains[loading.idle].is_working
    assert any(frame.own and frame.name == "decode" for frame in mains[loading.busy].frames)


@pytest.mark.slow("a capture by another engine; one whole capture of each is in make test")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="py-spy reads native stacks on x86-64 alone")
def test_native_frames_are_read_when_asked_for_and_the_training_runs_on(loading: Loading, tmp_path: Path) -> None:
    def capture(seconds: float) -> tuple[bool, set[str]]:
        options = frozenset({"native"})
        result = take.take(plan(loading.pid, tmp_path / "captures", seconds=seconds, options=options))
        found = load_stacks([result.folder])
        assert found is not None
        threads = [thread for process in found.processes for thread in process.threads]
        return found.native, {node.file for thread in threads for node in below(thread.tree)}

    native, files = sampled(capture, lambda found: any(".so" in file for file in found[1]), first=0.7)
    assert native
    assert any(".so" in file for file in files), files
    assert not procfs.is_stopped(loading.pid)


@pytest.mark.slow("a capture by another engine; one whole capture of each is in make test")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="py-spy reads native stacks on x86-64 alone")
def test_a_py_spy_that_is_killed_while_it_holds_the_training_leaves_it_running(
    process: subprocess.Popen[str], tmp_path: Path
) -> None:
    native = plan(process.pid, tmp_path, options=frozenset({"native"}), seconds=30.0)
    for _ in range(5):
        with_py_spy = job(native, tmp_path)
        recording = outside.PySpyRecording(with_py_spy, native.targets[0])
        recording.await_start(with_py_spy)
        recording.close()  # which kills it wherever it is
        wait_for(lambda: not procfs.is_stopped(process.pid), what="the training to run")
    assert process.poll() is None


def test_a_version_that_py_spy_cannot_read_is_told(
    process: subprocess.Popen[str], refusing: Path, tmp_path: Path
) -> None:
    for ask in (lambda: py_spy.dump(process.pid), lambda: take.take(plan(process.pid, tmp_path / "captures"))):
        with pytest.raises(NotPossibleHere, match=r"cannot read the Python of process \d+ \(Unsupported version"):
            ask()
    assert list((tmp_path / "captures").iterdir()) == []


def test_an_attached_training_tells_its_own_stacks_where_py_spy_refuses(
    start: Start, refusing: Path, captures: Path
) -> None:
    training: Training = start()
    target = training.wait_attached()
    before = tasks(training.pid)
    threads = py_spy.dump(training.pid)
    assert threads[0].name == "MainThread"
    assert any(frame.text.startswith("main (training.py:") for frame in threads[0].frames)
    assert not any(thread.is_working for thread in threads[1:]), "llmtop's own"
    result = take.take(plan(training.pid, captures, targets=(target,), steps=10, seconds=None))
    assert any("Unsupported version of Python: 3.14.0" in note for note in result.info.notes)
    assert any("workers" in note for note in result.info.notes)
    found = load_stacks([result.folder])
    assert found is not None
    assert found.taken_by == "training"
    (own,) = found.processes
    assert own.pid == training.pid
    assert own.threads[0].thread == "MainThread"
    assert any(hot.frame.startswith("main (training.py:") for hot in own.threads[0].hottest)
    assert {thread.kind for thread in own.threads[1:]} <= {"llmtop", "waiting"}
    training.wait_for_steps(3)
    wait_for(lambda: tasks(training.pid) <= before, what="no thread of it to stay behind")


def test_a_target_that_tells_its_own_is_not_refused_for_want_of_permission(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ptrace_permission, "refusal", lambda pid: Refusal("the kernel forbids it", "reboot"))
    training: Training = start()
    target = training.wait_attached()
    engine = py_spy.PySpyEngine()
    assert engine.refusal(target) is None
    assert engine.refusal(Target(training.pid)) == Refusal("the kernel forbids it", "reboot")
    assert py_spy.dump(training.pid)[0].name == "MainThread"


def tasks(pid: int) -> set[str]:
    return set(os.listdir(f"/proc/{pid}/task"))


def job(plan: Plan, folder: Path) -> CaptureJob:
    return CaptureJob(plan, folder, StepListener([]))


def below(node: StackNode | None) -> Iterator[StackNode]:
    if node is not None:
        yield node
        for child in node.children:
            yield from below(child)


def test_a_dump_that_is_no_json_is_refused() -> None:
    with pytest.raises(UnusableInput, match="py-spy"):
        stacks.read_dump(b"not json", 1)
