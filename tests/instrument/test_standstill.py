"""A training that waits for a person is paused: at a breakpoint, at a prompt, between the cells of a notebook."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from collectors.trainings import source as steps_module
from collectors.trainings import training as training_module
from collectors.trainings.source import StepsSource
from llmtop.model.snapshot import Rank
from llmtop.protocol import wire
from llmtop.protocol.client import Connection
from tests.support.processes import environment, wait_for
from tests.support.trainings import Heard, Training, socket_of

STEPS = """
import llmtop, time
def steps(number):
    for _ in range(number):
        with llmtop.step():
            with llmtop.phase("forward"):
                time.sleep(0.005)
def one_more(stop):
    with llmtop.step(), llmtop.phase("forward"):
        stop()
"""
LONG = 3.0
"""Seconds without a step after which a training would be stalled, here; it waits for longer."""


@pytest.fixture
def source(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StepsSource]:
    monkeypatch.setattr(steps_module, "ROUND_SECONDS", 0.1)
    monkeypatch.setattr(training_module, "STALLED_SECONDS", LONG)
    source = StepsSource(runtime_dir)
    source.start()
    yield source
    source.close()


def rank_of(source: StepsSource) -> Rank | None:
    return next(iter(source.latest().ranks), None)


def in_state(source: StepsSource, state: str) -> Rank:
    return wait_for(lambda: (rank := rank_of(source)) is not None and rank.state == state and rank, 60, state)


def _stays(source: StepsSource, state: str) -> None:
    """For longer than it takes to be stalled."""
    until = time.monotonic() + LONG + 1.0
    while time.monotonic() < until:
        rank = rank_of(source)
        assert rank is not None
        assert rank.state == state
        time.sleep(0.05)


WAYS = {
    "breakpoint": (["-c", STEPS + "steps(60)\nbreakpoint()\nsteps(10**6)"], r"\(Pdb\)", "c"),
    "breakpoint in a phase": (
        ["-c", STEPS + "steps(60)\none_more(breakpoint)\nsteps(10**6)"],
        r"\(Pdb\)",
        "c",
    ),
    "prompt": (["-i", "-c", STEPS + "steps(60)"], ">>> ", "steps(10**6)"),
    "console": (
        ["-c", STEPS + "import code\nsteps(60)\ncode.interact(local=globals())\n"],
        ">>> ",
        "steps(10**6)",
    ),
}


@pytest.mark.slow("one way of waiting; each trains", kept=("prompt",))
@pytest.mark.parametrize("way", WAYS)
def test_who_waits_for_a_person_is_paused_and_no_step_goes_across(
    way: str, runtime_dir: Path, source: StepsSource
) -> None:
    options, prompt, answer = WAYS[way]
    child = pexpect.spawn(sys.executable, options, env=environment(), encoding="utf-8", timeout=240)
    try:
        child.expect(prompt)
        with Connection.open(socket_of(runtime_dir, child.pid), timeout_s=20) as connection:
            heard = Heard(connection)
            paused = in_state(source, "paused")
            assert (paused.steps_per_s, paused.eta_seconds) == (None, None)
            assert paused.note is not None
            assert paused.note.startswith("it waits at a ")
            heard.until(lambda: any(isinstance(message, wire.StalledAt) for message in heard.messages))
            before = len(heard.steps)
            # Longer than what would be a stall.
            _stays(source, "paused")
            child.sendline(answer)
            in_state(source, "running")
            heard.until(lambda: len(heard.steps) >= before + 60)
            told = [message.where for message in heard.messages if isinstance(message, wire.StalledAt)]
            assert told[0].startswith("at a ")
            assert set(told[1:]) <= {""}
            intervals = [done.interval_ns for done in heard.steps]
            unknown = [number for number, ns in enumerate(intervals) if ns is None]
            # In a phase, the step after the one that was open when it waited is the first to start after the wait.
            assert unknown == [0, 61 if way == "breakpoint in a phase" else 60], "no step goes across the wait"
    finally:
        child.close(force=True)


@pytest.mark.slow("test_who_waits_for_a_person_is_paused_and_no_step_goes_across finds the same fault")
def test_who_comes_while_it_waits_is_told_and_who_sleeps_is_not_paused(
    runtime_dir: Path, source: StepsSource
) -> None:
    child = pexpect.spawn(
        sys.executable,
        ["-c", STEPS + "steps(60)\nbreakpoint()\ntime.sleep(100)"],
        env=environment(),
        encoding="utf-8",
    )
    try:
        child.expect(r"\(Pdb\)", timeout=240)
        in_state(source, "paused")
        with Connection.open(socket_of(runtime_dir, child.pid), timeout_s=20) as connection:
            heard = Heard(connection)
            heard.until(lambda: any(isinstance(message, wire.StalledAt) for message in heard.messages))
        child.sendline("c")
        # It goes on with nothing that is a step: the time to a stall runs from then on, not from its last step.
        in_state(source, "running")
        in_state(source, "stalled")
    finally:
        child.close(force=True)


@pytest.mark.slow("one way of waiting; each stands still for seconds", kept=("time.sleep(100)",))
@pytest.mark.parametrize(
    "idle", ["time.sleep(100)", "threading.Event().wait()", "subprocess.run(['sleep', '100'])"]
)
def test_what_waits_for_no_person_is_not_paused(idle: str, source: StepsSource) -> None:
    # Until "running" was seen it steps: a monitor that has its first contact late would see "stalled" at once.
    stepping = f"{STEPS}while not select.select([0], [], [], 0)[0]: steps(1)\n"
    with Training(f"import select, subprocess, threading\n{stepping}{idle}\n") as training:
        in_state(source, "running")
        training.go()
        states = set()

        def has_stalled() -> bool:
            rank = rank_of(source)
            states.update({rank.state} if rank else ())
            return "stalled" in states

        wait_for(has_stalled, 60)
        assert states <= {"running", "stalled"}


@pytest.mark.slow("stands still for seconds; test_what_waits_for_no_person_is_not_paused has steps before it")
def test_a_launcher_that_attaches_and_sleeps_is_no_alarm(source: StepsSource) -> None:
    with Training("import llmtop, time\nllmtop.attach()\ntime.sleep(100)\n"):
        in_state(source, "running")
        _stays(source, "running")


@pytest.mark.slow(
    "a real kernel of Jupyter; test_who_waits_for_a_person_is_paused_and_no_step_goes_across has prompts"
)
def test_between_the_cells_of_a_notebook_it_is_paused(
    runtime_dir: Path, source: StepsSource, tmp_path: Path
) -> None:
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import KernelManager

    kernel = KernelManager()
    kernel.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.start_kernel(env={**os.environ, **environment()}, cwd=str(tmp_path))
    client = kernel.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=240)
        client.execute(STEPS + "steps(60)")
        paused = in_state(source, "paused")
        assert paused.note == "it waits between the cells of a notebook"
        # A file ends each cell: however late a state is looked at, it lasts until it was seen.
        client.execute("import os\nwhile not os.path.exists('stepped'): steps(1)")
        in_state(source, "running")
        (tmp_path / "stepped").touch()
        in_state(source, "paused")
        client.execute("while not os.path.exists('hung'): time.sleep(0.05)")
        in_state(source, "stalled")
        (tmp_path / "hung").touch()
        in_state(source, "paused")
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
