"""Python stacks of a real process by the real py-spy, and what is drawn from them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtop.capture import take
from llmtop.capture.job import Cancelled, Plan, Progress, Target
from llmtop.capture.py_spy import engine as py_spy
from llmtop.capture.py_spy import stacks
from llmtop.errors import NotPossibleHere, UnusableInput
from tests.capture.conftest import Start, Training

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
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def plan(pid: int, parent: Path, **more: object) -> Plan:
    return Plan(**{"engine": "py-spy", "targets": (Target(pid),), "parent": parent, "seconds": 0.7, **more})  # type: ignore[arg-type]


def test_a_dump_has_the_main_thread_first_and_knows_the_users_own_frame(process: subprocess.Popen[str]) -> None:
    threads = py_spy.dump(process.pid)
    assert [thread.name for thread in threads] == ["MainThread", "pin memory"]
    own = threads[0].own_frame()
    assert own is not None
    assert (
        threads[0].frames[own].text.startswith(("burn (train.py:", "wait_for_data (train.py:", "train (train.py:"))
    )
    waiting = threads[1]
    assert waiting.own_frame() is None, "all of it is the standard library's"


def test_a_recording_is_a_speedscope_file_and_a_tree(process: subprocess.Popen[str], tmp_path: Path) -> None:
    result = take.take(plan(process.pid, tmp_path / "captures"))
    profile = json.loads((result.folder / f"pid{process.pid}.speedscope.json").read_bytes())
    assert profile["profiles"][0]["name"] == "MainThread"
    assert sum(profile["profiles"][0]["weights"]) == pytest.approx(0.7, rel=0.6)
    report = (result.folder / "report.md").read_text()
    assert "wait_for_data (train.py:" in report
    assert "burn (train.py:" in report
    data = json.loads((result.folder / "report.json").read_bytes())
    assert data["processes"][0]["threads"][0]["samples"] > 20
    assert process.poll() is None


def test_whole_steps_of_an_attached_training(start: Start, captures: Path) -> None:
    training: Training = start()
    target = training.wait_attached()
    result = take.take(plan(training.pid, captures, targets=(target,), steps=5, seconds=None))
    assert result.info.steps is not None
    assert result.info.steps >= 5
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
        with pytest.raises(NotPossibleHere, match="is it a Python process"):
            py_spy.dump(other.pid)
    finally:
        other.kill()
        other.wait()


def test_a_process_that_is_gone_is_told() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(NotPossibleHere, match=f"no process {gone.pid}|has ended"):
        py_spy.dump(gone.pid)


def test_waiting_and_working_are_told_apart_in_the_samples() -> None:
    samples = stacks.from_raw(
        "thread (7): MainThread;<module> (/w/train.py:9);step (/w/train.py:4) 30\n"
        "thread (7): MainThread;<module> (/w/train.py:9);wait (/usr/lib/python3.11/queue.py:171) 60\n"
        "thread (8): pin memory;run (/usr/lib/python3.11/threading.py:982) 90\n"
        "thread (7): MainThread;<module> (/w/train.py:9) 10\n"
    )
    assert samples.threads == ("MainThread", "pin memory (8)")
    assert stacks.hottest(samples, "MainThread") == [
        ("wait (queue.py:171)", 60, 60),
        ("step (train.py:4)", 30, 30),
        ("<module> (train.py:9)", 10, 100),
    ]
    root = samples.flame("MainThread")
    assert root.samples == 100
    (module,) = root.ordered()
    assert (module.samples, module.own_samples) == (100, 10)
    assert [child.name for child in module.ordered()] == ["wait (queue.py:171)", "step (train.py:4)"]
    assert list(stacks.tree_lines(root))[1].startswith(" 60.0%     wait")


def test_control_characters_of_names_do_not_reach_a_terminal() -> None:
    samples = stacks.from_raw("thread (7): \x1b]0;owned\x07;f\x1b[2J (/w/a.py:1) 1")
    text = "\n".join(stacks.tree_lines(samples.flame(samples.threads[0]))) + samples.threads[0]
    assert "\x1b" not in text
    assert "\x07" not in text


@given(st.text(max_size=200))
def test_what_is_no_stack_is_refused_or_read_never_a_crash(text: str) -> None:
    with suppress(UnusableInput):
        stacks.speedscope(stacks.from_raw(text), "x", 100)


@given(
    st.lists(st.tuples(st.lists(st.sampled_from("abcd"), min_size=1, max_size=6), st.integers(1, 50)), max_size=20)
)
def test_a_flame_neither_loses_nor_invents_samples(recorded: list[tuple[list[str], int]]) -> None:
    raw = "\n".join(";".join(f"{name} (x.py:1)" for name in names) + f" {count}" for names, count in recorded)
    root = stacks.from_raw(raw).flame("MainThread")
    assert root.samples == sum(count for _, count in recorded)

    def check(node: stacks.Flame) -> None:
        below = sum(child.samples for child in node.children.values())
        assert node.samples == below + node.own_samples
        for child in node.children.values():
            check(child)

    check(root)


def test_a_dump_that_is_no_json_is_refused() -> None:
    with pytest.raises(UnusableInput, match="py-spy"):
        stacks.from_dump(b"not json", 1)
