"""Trainings that wait between two steps while a real nsys starts and stops, and what may happen meanwhile."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llmtop.capture import take, targets, trigger
from llmtop.capture.base.job import Cancelled, Plan, Progress, Target
from llmtop.capture.nsys import collection, orphans, pause
from llmtop.errors import NotPossibleHere
from llmtop.nsys_cli import tool as nsys
from llmtop.nsys_cli.tool import Nsys
from llmtop.protocol import wire
from llmtop.protocol.client import Connection
from tests.capture.conftest import Start, Training
from tests.capture.killed import kill_capture_at
from tests.capture.nsys.under_nsys import abandon, odd_notes, plan, ranges, session_state
from tests.support.captured_steps import whole_steps
from tests.support.installed import needs
from tests.support.processes import environment, wait_for
from tests.support.trainings import Heard

pytestmark = [pytest.mark.nsys, pytest.mark.usefixtures("real_nsys")]
PAUSE = frozenset({"pause"})


def heard(target: Target) -> Heard:
    """Listen to what a training says of its pauses, from now on."""
    assert target.socket is not None
    return Heard(Connection.open(target.socket, history=0))


def pauses(listener: Heard) -> list[wire.PauseState]:
    """Those that have ended."""
    ended = [one for one in listener.messages if isinstance(one, wire.PauseState)]
    return [one for one in ended if one.state == "resumed" and one.paused_ns is not None]


def test_the_window_holds_the_steps_asked_for_and_says_what_it_cost(
    start: Start, llmtop_run: tuple[str, ...], captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second pause is asked for after the first, and has to arrive within the six steps of the window.
    under_nsys = start("--step-ms", "200", behind=(*llmtop_run, "--nsys", "--"))
    # On a busy machine nsys takes longer to start and to stop, and would record steps before and after the window.
    monkeypatch.setattr(pause, "SETTLE_SECONDS", 3.0)
    monkeypatch.setattr(pause, "LONGEST_SECONDS", 9.0)
    monkeypatch.setattr(take, "PAUSED_STEP_SECONDS", 60.0)
    target = under_nsys.wait_attached()
    result = take.take(plan(target, captures, options=PAUSE))
    assert result.trace is not None
    assert ranges(result.trace, "step") == 6, "five whole ones, and one more to have five between their beginnings"
    assert whole_steps(result.report) == 5
    assert odd_notes(result) == []
    at_start, at_stop = result.info.paused_seconds
    assert at_start > 0
    assert at_stop >= pause.SETTLE_SECONDS
    assert (result.info.step_seconds.slowest_during or 0) > at_stop
    assert "; the training waited " in result.slowest_step_text
    assert session_state(target) == "Launched"
    under_nsys.wait_for_steps(5)
    assert under_nsys.end() == 0


@pytest.mark.slow("a capture more; test_the_window_holds_the_steps_asked_for_and_says_what_it_cost has one")
def test_seconds_are_kept_too(under_nsys: Training, captures: Path) -> None:
    target = under_nsys.wait_attached()
    result = take.take(plan(target, captures, steps=None, seconds=0.5, options=PAUSE))
    assert len(result.info.paused_seconds) == 2
    assert (result.info.window_seconds or 0) >= 0.5


@pytest.mark.slow("two ranks; test_the_window_holds_the_steps_asked_for_and_says_what_it_cost has one")
@pytest.mark.parametrize(("step_ms", "length"), [(20, {"steps": 30}), (4, {"steps": 3}), (4, {"seconds": 8.0})])
def test_ranks_that_wait_for_each_other_pause_after_the_same_step(
    start: Start,
    llmtop_run: tuple[str, ...],
    captures: Path,
    tmp_path: Path,
    step_ms: int,
    length: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine a request takes longer to reach both; 31 steps of 20 ms allow for twice this.
    monkeypatch.setattr(pause, "LEAD_SECONDS", 0.3)
    both = 'RANK=0 WORLD_SIZE=2 "$0" "$@" & RANK=1 WORLD_SIZE=2 "$0" "$@"; wait'
    start(
        "--step-ms", str(step_ms), "--lockstep", str(tmp_path / "s"),
        behind=(*llmtop_run, "--nsys", "--", "sh", "-c", both),
    )  # fmt: skip
    ranks = wait_for(lambda: found if len(found := targets.list_attached()) == 2 else None)
    listeners = [heard(target) for target in ranks]
    given = {"steps": None, **length, "options": PAUSE}
    # One that was not asked for is in the session too.
    result = take.take(Plan("nsys", ranks[:1], captures, **given))  # type: ignore[arg-type]
    assert odd_notes(result) == []
    assert len(result.info.paused_seconds) >= 2
    after = []
    for listener in listeners:
        listener.until(lambda listener=listener: len(pauses(listener)) >= 2)
        after.append({state.finished for state in pauses(listener)})
    assert after[0] == after[1]


@pytest.mark.slow("a capture more; test_the_window_holds_the_steps_asked_for_and_says_what_it_cost has one")
@pytest.mark.parametrize(
    ("stage", "ended"), [pytest.param("start", 1, marks=pytest.mark.slow("the shorter stage")), ("record", 2)]
)
def test_a_capture_that_is_given_up_is_stopped_in_a_pause(
    under_nsys: Training, captures: Path, stage: str, ended: int
) -> None:
    target = under_nsys.wait_attached()
    listener, cancelled = heard(target), threading.Event()

    def cancel_in_the_middle(progress: Progress) -> None:
        if progress.stage == stage and (stage == "start" or (progress.steps or 0) >= 2):
            cancelled.set()

    with pytest.raises(Cancelled):
        take.take(plan(target, captures, steps=500, options=PAUSE), cancel_in_the_middle, cancelled)
    listener.until(lambda: len(pauses(listener)) == ended)
    assert session_state(target) == "Launched"
    under_nsys.wait_for_steps(5)


@pytest.mark.slow(
    "test_killing_llmtop_at_any_stage_leaves_the_training_running_and_not_collected finds the same fault"
)
@pytest.mark.parametrize(("stage", "ends"), [("start", 2), ("record", 2), ("stop", 3)])
def test_killing_llmtop_lets_the_training_go_on_and_still_stops_nsys_in_a_pause(
    under_nsys: Training, captures: Path, stage: str, ends: int
) -> None:
    target = under_nsys.wait_attached()
    listener = heard(target)
    kill_capture_at(stage, target, captures, "nsys", *PAUSE)
    # The last one is of the shell that holds the collection, which is on its own now.
    listener.until(lambda: len(pauses(listener)) >= ends)
    under_nsys.wait_for_steps(5)
    wait_for(lambda: session_state(target) == "Launched", what="the collection to be stopped")
    under_nsys.wait_for_steps(5)
    assert take.take(plan(target, captures, options=PAUSE)).info.state == "done"


@pytest.mark.slow("a training of torch under nsys, collected from by hand")
def test_what_a_killed_llmtop_left_collecting_is_stopped_in_a_pause(
    start: Start, llmtop_run: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("torch")
    training = start("--torch", behind=(*llmtop_run, "--nsys", "--"))
    monkeypatch.setattr(Nsys, "needs_pause", True)
    monkeypatch.setattr("llmtop.system.procfs.uses_gpu", lambda pid: True)
    target = training.wait_attached()
    tool, session = nsys.find_session(target.pid)
    tool.run("start", f"--session={session.id}", "-o", str(tmp_path / "left"), "-f", "true")
    listener = heard(target)
    assert collection.stop_orphan(tool, session.id) == [tmp_path / "left.nsys-rep"]
    listener.until(lambda: len(pauses(listener)) == 1)
    assert orphans.orphan_messages() == []
    training.wait_for_steps(3)


@pytest.mark.slow("waits for a training that is stopped")
@pytest.mark.usefixtures("stops_training")
def test_a_training_that_cannot_be_paused_is_not_captured_unless_told_to(
    start: Start, llmtop_run: tuple[str, ...], captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pause, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr("llmtop.capture.base.wait_for_window.SILENCE_SECONDS", 0.5)
    training = start("--step-ms", "60", "--slow-every", "100000", behind=(*llmtop_run, "--nsys", "--"))
    target = training.wait_attached()
    os.kill(training.pid, signal.SIGSTOP)
    try:
        with pytest.raises(NotPossibleHere, match=r"not started: .* it may be stopped.*--option no-pause"):
            take.take(plan(target, captures, options=PAUSE))
        assert session_state(target) == "Launched"
        result = take.take(plan(target, captures, steps=None, seconds=0.2, options=frozenset({"no-pause"})))
        assert result.info.state == "done"
    finally:
        os.kill(training.pid, signal.SIGCONT)
    training.wait_for_steps(3)


@pytest.mark.slow("a capture by nsys; the pauses of an ordinary one are in the first test")
def test_a_pause_counts_though_the_training_replies_late(
    under_nsys: Training, captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pause, "RESUME_SECONDS", 0.0)
    result = take.take(plan(under_nsys.wait_attached(), captures, options=PAUSE))
    start, stop = result.info.paused_seconds
    assert start > 0
    assert stop >= pause.SETTLE_SECONDS


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_a_step_that_never_ends_is_not_waited_for_long(
    start: Start, llmtop_run: tuple[str, ...], captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After a short step one of 15 s: what precedes the request takes seconds on a busy machine.
    steps = ("--step-ms", "20", "--slow-every", "2", "--slow-times", "750")
    training = start(*steps, behind=(*llmtop_run, "--nsys", "--"))
    target = training.wait_attached()
    monkeypatch.setattr(pause, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(pause.SessionPause, "step_seconds", 0.0)
    with pytest.raises(NotPossibleHere, match=r"was not started: .*pid \d+ did not end a step within 0 s"):
        take.take(plan(target, captures, options=PAUSE))
    assert session_state(target) == "Launched"
    training.wait_for_steps(1)


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_both_at_once_make_no_sense(under_nsys: Training) -> None:
    under_nsys.wait_attached()
    done = subprocess.run(
        [sys.executable, "-m", "llmtop", "capture", "-o", "pause", "-o", "no-pause"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "--option pause and --option no-pause exclude each other: pass one of them" in done.stderr


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_a_training_that_counts_its_steps_oddly_is_not_kept_waiting(
    start: Start, llmtop_run: tuple[str, ...], captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pause, "LONGEST_SECONDS", 9.0)  # a busy machine takes seconds to stop nsys
    training = start("--odd-index", behind=(*llmtop_run, "--nsys", "--"))
    result = take.take(plan(training.wait_attached(), captures, options=PAUSE))
    assert odd_notes(result) == []
    assert result.info.paused_seconds[-1] < pause.LONGEST_SECONDS


@pytest.mark.slow("a capture more; test_the_window_holds_the_steps_asked_for_and_says_what_it_cost has one")
def test_what_a_killed_llmtop_left_is_stopped_before_the_next_capture_pauses(
    under_nsys: Training, captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pause, "LONGEST_SECONDS", 9.0)  # a busy machine takes seconds to start nsys
    target = under_nsys.wait_attached()
    tool, session = nsys.find_session(target.pid)
    abandon(tool, session, target, tmp_path)
    result = take.take(plan(target, captures, options=PAUSE))
    assert whole_steps(result.report) == 5
    assert len(result.info.paused_seconds) == 2
    assert max(result.info.paused_seconds) < pause.LONGEST_SECONDS


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_a_failure_within_the_window_stops_nsys_in_a_pause(under_nsys: Training, captures: Path) -> None:
    target = under_nsys.wait_attached()
    listener = heard(target)

    def break_down(progress: Progress) -> None:
        if progress.stage == "record" and (progress.steps or 0) >= 2:
            raise OSError("the screen has gone")

    with pytest.raises(OSError, match="the screen has gone"):
        take.take(plan(target, captures, steps=500, options=PAUSE), break_down)
    listener.until(lambda: len(pauses(listener)) == 2)
    wait_for(lambda: session_state(target) == "Launched")


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_what_is_not_attached_cannot_be_told_to_pause(start: Start, llmtop_run: tuple[str, ...]) -> None:
    training = start("--plain", behind=(*llmtop_run, "--nsys", "--"), LLMTOP_OFF="1")
    done = subprocess.run(
        [sys.executable, "-m", "llmtop", "capture", "-e", "nsys", "-o", "pause", "--pid", str(training.pid)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=240,
        check=False,
    )
    assert done.returncode == 3
    assert "cannot be paused (not attached to this llmtop" in done.stderr


@pytest.mark.slow("a capture of its own; a neighbour has the first such failure")
def test_the_pause_of_one_capture_does_not_set_off_the_next(
    start: Start, llmtop_run: tuple[str, ...], captures: Path
) -> None:
    training = start(
        "--step-ms", "20", "--slow-every", "40", "--slow-times", "100", behind=(*llmtop_run, "--nsys", "--")
    )
    target = training.wait_attached()
    listener = heard(target)
    armed = trigger.capture_on_conditions(
        plan(target, captures, options=PAUSE),
        [trigger.SlowStep(medians=20.0)],  # 400 ms; a pause of 500 ms would be over it too
        trigger.TriggerLimits(captures=3, cooldown_seconds=0.1),
    )
    slow = [int(found[1]) for fired in armed if (found := re.search(r"step (\d+) of", fired.reason))]
    assert len(slow) == 3
    listener.until(lambda: len(pauses(listener)) == 6)
    paused_before = {state.finished for state in pauses(listener)}
    assert [step for step in slow if step % 40 != 39 and step in paused_before] == []


@pytest.mark.slow("two ranks; test_the_window_holds_the_steps_asked_for_and_says_what_it_cost has one")
def test_of_two_that_do_not_run_in_step_none_waits_long_for_the_other(
    start: Start, llmtop_run: tuple[str, ...], captures: Path
) -> None:
    both = 'RANK=0 WORLD_SIZE=2 "$0" "$@" --step-ms 20 & RANK=1 WORLD_SIZE=2 "$0" "$@" --step-ms 500; wait'
    start(behind=(*llmtop_run, "--nsys", "--", "sh", "-c", both))
    ranks = wait_for(lambda: found if len(found := targets.list_attached()) == 2 else None)
    listeners = [heard(target) for target in ranks]
    # Until their counts of steps differ by more than the lead that a common pause has.
    listeners[0].until(lambda: listeners[0].steps and listeners[0].steps[-1].index > 30)
    result = take.take(Plan("nsys", ranks, captures, steps=4, options=PAUSE))
    assert odd_notes(result) == []
    after = []
    for listener in listeners:
        listener.until(lambda listener=listener: len(pauses(listener)) >= 2)
        after.append({state.finished for state in pauses(listener)})
    assert after[0].isdisjoint(after[1]), "each paused after the step that it was in"
    assert result.info.steps is not None
    assert result.info.steps >= 4, "of the slower one"
