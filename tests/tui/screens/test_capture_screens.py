"""The capture dialog and the stacks, driven by keys, on a real training; and the whole of it in a real tmux."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from llmtop.analysis.analyze import analyze
from llmtop.capture.base.job import CaptureJob, Recorded, Target
from llmtop.capture.capabilities import Ability
from llmtop.capture.engines import ENGINES
from llmtop.model.snapshot import Alert, Rank, Snapshot
from llmtop.nsys_cli import tool as nsys
from screenshots import captures as pictured
from screenshots.draw import StaticFeed
from screenshots.scenes import scene
from tests.capture.conftest import NVTX, TRAINING, Start, Training, captures, llmtop_run, real_nsys, start
from tests.support.data import HEALTHY, LAUNCH_BOUND
from tests.support.made_up_engine import MadeUpEngine
from tests.support.processes import REPOSITORY, environment, wait_for
from tests.support.terminal import Terminal
from tests.tui.driving import Held
from tests.tui.driving import running as held
from tui.app import LlmtopApp
from tui.capture import session
from tui.capture.form import CapturableProcess
from tui.core.canvas import Board

__all__ = ["captures", "llmtop_run", "real_nsys", "start"]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)  # where the dialog's captures go


def beside(training: Training) -> list[Snapshot]:
    """A scene in which the training is the one rank."""
    snapshots = scene(gpus=1, ranks=1)
    rank = snapshots[-1].ranks[0]
    mine = Rank(pid=training.pid, host=rank.host, command="training.py", step=1, state="running")
    return [*snapshots[:-1], replace(snapshots[-1], ranks=(mine,))]


@asynccontextmanager
async def running(
    snapshots: list[Snapshot], size: tuple[int, int] = (120, 30)
) -> AsyncIterator[tuple[LlmtopApp, Pilot[int]]]:
    app = LlmtopApp(StaticFeed(snapshots))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot
        session.capture_of(app, lambda: None).end()


def text(app: LlmtopApp) -> str:
    board = app.screen.query_one(Board)
    return "\n".join(board.render_line(y).text for y in range(board.size.height))


async def shows(app: LlmtopApp, pilot: Pilot[int], *words: str, seconds: float = 120.0) -> str:
    """Wait until all the words are on the screen."""
    deadline = time.monotonic() + seconds
    while not all(word in text(app) for word in words):
        assert time.monotonic() < deadline, f"no {words} in\n{text(app)}"
        await asyncio.sleep(0.02)
        await pilot.pause()
    return text(app)


async def test_c_opens_a_filled_dialog_and_enter_captures_and_shows_the_report(
    start: Start, tmp_path: Path
) -> None:
    training = start()
    training.wait_attached()
    async with running(beside(training)) as (app, pilot):
        await pilot.press("c")
        asked = await shows(app, pilot, "target", "‹ pid", "py-spy", "5 steps", "GiB free")
        assert re.search(r"nsys +unavailable", asked), "it is always listed"
        assert "unavailable: " in asked
        assert not re.search(r"kineto +unavailable", asked)
        await pilot.press("w")
        await shows(
            app, pilot, "kineto          unavailable", "jax.profiler    unavailable", "it has not imported jax"
        )
        await pilot.press("enter")
        await shows(app, pilot, "record the steps")
        shown = await shows(
            app, pilot, "py-spy: ", "copy  scp -r", "open  open https://www.speedscope.app", "MainThread"
        )
        assert "whole steps in" in shown
        (made,) = (tmp_path / "llmtop-captures").iterdir()
        assert str(made) in shown.replace("\n", "") or made.name in shown
    training.wait_for_steps(2)


@pytest.mark.slow("test_from_an_alert_to_a_compared_fix_in_eight_keys captures by such an engine as well")
async def test_an_engine_more_in_the_registry_is_in_the_dialog_and_captures(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = start()
    training.wait_attached()
    monkeypatch.setitem(ENGINES, "made-up", MadeUpEngine())
    async with running(beside(training)) as (app, pilot):
        await pilot.press("c")
        await shows(app, pilot, "‹ pid", "made-up         nothing of it is true")
        await pilot.press("down", "right")
        for _ in ENGINES:
            if "‹ made-up" not in text(app):
                await pilot.press("right")
                await pilot.pause()
        await shows(app, pilot, "‹ made-up ›  a file that says hello", "[ ] loudly", "cost: some ink")
        await pilot.press("enter")
        await shows(app, pilot, "made-up: ", "# hello from 1", "copy  scp -r")
        await pilot.press("escape", "o")
        await shows(app, pilot, "made-up", "text")
        await pilot.press("enter")
        await shows(app, pilot, "# hello from 1")
    training.wait_for_steps(2)


class Recorded200(MadeUpEngine):
    """Has two captures of a real H200 to give, one after the other: before a fix and after it."""

    report_kind = "steps"

    def record(self, job: CaptureJob) -> Recorded:
        """See `Engine.record`."""
        source = (LAUNCH_BOUND, HEALTHY)[len(list(job.folder.parent.iterdir())) > 1]
        return Recorded(report=("# a report", msgspec.to_builtins(analyze(source))))


async def test_from_an_alert_to_a_compared_fix_in_eight_keys(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in reversed(list(ENGINES)):  # put back the other way round: their order says how good each is
        monkeypatch.delitem(ENGINES, name)
    monkeypatch.setitem(ENGINES, "made-up", Recorded200())
    training = start()
    training.wait_attached()
    *before, last = beside(training)
    slow = Alert(
        id="launch_bound", severity="warning", pid=training.pid, since=last.time - 9, summary="it launches"
    )
    pressed: list[str] = []
    async with running([*before, replace(last, alerts=(slow,))]) as (app, pilot):

        async def press(key: str, *words: str) -> None:
            pressed.append(key)
            await pilot.press(key)
            await shows(app, pilot, *words)

        await press("c", "‹ pid", "made-up")
        await press("enter", "copy  scp")
        await press("o", "launch-bound")
        await press("b", "B baseline")
        # here the person mends the script
        await press("C", "copy  scp")
        await press("o", "gpu-bound", "B baseline")
        await press("v", "59.6 ms to 113 ms")
    assert len(pressed) <= 8


@pytest.mark.slow("two captures; test_from_an_alert_to_a_compared_fix_in_eight_keys presses the key as well")
async def test_capital_c_repeats_the_last_capture_without_asking(start: Start, tmp_path: Path) -> None:
    training = start()
    training.wait_attached()
    async with running(beside(training)) as (app, pilot):
        await pilot.press("c")
        await shows(app, pilot, "‹ pid")
        await pilot.press("enter")
        await shows(app, pilot, "copy  scp")
        await pilot.press("q")
        await pilot.press("C")
        await shows(app, pilot, "copy  scp")
        assert len(list((tmp_path / "llmtop-captures").iterdir())) == 2


async def test_a_capture_under_way_is_called_off(start: Start, tmp_path: Path) -> None:
    training = start()
    training.wait_attached()
    async with running(beside(training)) as (app, pilot):
        await pilot.press("c")
        await shows(app, pilot, "‹ pid")
        await pilot.press("down", "down")
        await pilot.press(*["right"] * 4)
        await shows(app, pilot, "‹ 100 steps ›")
        await pilot.press("enter")
        await shows(app, pilot, "of 100 steps")
        await pilot.press("x")
        await shows(app, pilot, "cancelled; the training continues")
        assert list((tmp_path / "llmtop-captures").iterdir()) == []
        await pilot.press("x")
        await pilot.pause()
        assert len(app.screen_stack) == 1, "with nothing to call off it goes back"
    training.wait_for_steps(2)


@pytest.mark.slow("a capture of its own; test_a_capture_under_way_is_called_off has one under way")
async def test_a_capture_goes_on_without_its_dialog_and_is_there_again(start: Start) -> None:
    training = start("--step-ms", "1000")  # on a busy machine too, ten steps outlast what is done meanwhile
    training.wait_attached()
    async with running(beside(training)) as (app, pilot):
        await pilot.press("c")
        await shows(app, pilot, "‹ pid")
        await pilot.press("down", "down", "right", "enter")
        await shows(app, pilot, "of 10 steps")
        await pilot.press("q")
        await pilot.pause()
        assert len(app.screen_stack) == 1
        await pilot.press("c")
        await shows(app, pilot, "copy  scp")


@pytest.mark.slow("a training with slow steps; tests/capture has the triggers without a screen")
async def test_the_switch_arms_a_trigger_that_fires_by_itself(start: Start, tmp_path: Path) -> None:
    training = start("--step-ms", "20", "--slow-every", "20")
    training.wait_attached()
    async with running(beside(training)) as (app, pilot):
        await pilot.press("c")
        await shows(app, pilot, "‹ pid")
        await pilot.press(*["down"] * 8, "right", "right")
        await shows(app, pilot, "‹ step > 2x ›", "at most 3 captures")
        await pilot.press("enter")
        await shows(app, pilot, "Armed: waits for step > 2x", "step > 2x: step")
        await pilot.press("x")
        await shows(app, pilot, "the capture is disarmed; the training continues")
        assert len(list((tmp_path / "llmtop-captures").glob("*/report.md"))) >= 1


async def test_a_failure_is_shown_as_one_sentence_and_the_monitor_goes_on(start: Start, tmp_path: Path) -> None:
    training = start()
    training.wait_attached()
    (tmp_path / "llmtop-captures").write_text("in the way")
    async with running(beside(training)) as (app, pilot):
        await pilot.press("c")
        await shows(app, pilot, "‹ pid")
        await pilot.press("enter")
        await shows(app, pilot, "choose another folder with --out")
        await pilot.press("q")
        await pilot.pause()
        assert len(app.screen_stack) == 1


async def test_nothing_to_capture_says_how_to_start_one(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmtop.capture.targets.list_unattached", lambda known=frozenset(): ())
    async with running(scene(gpus=1, ranks=0)) as (app, pilot):
        await pilot.press("c")
        await shows(app, pilot, "No training can be captured", "llmtop run -- COMMAND")
        await pilot.press("enter", "right", "down")
        await pilot.press("q")
        await pilot.pause()
        assert len(app.screen_stack) == 1


async def test_the_open_dialog_follows_trainings_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    import tui.screens.capture as module

    abilities = tuple(Ability(name, name in ("nsys", "py-spy"), "") for name in ENGINES)
    there: list[CapturableProcess] = []
    monkeypatch.setattr(module, "capturable_processes", lambda: tuple(there))
    moments = scene(gpus=1, ranks=1, seconds=5)
    alone, joined = replace(moments[-1], ranks=()), moments[-1]
    feed = Held(alone)
    async with held(feed, (80, 24)) as (app, pilot):
        await pilot.press("c")
        await shows(app, pilot, "No training can be captured")
        there.append(CapturableProcess(Target(joined.ranks[0].pid), abilities))
        feed.say(replace(joined, time=joined.time + 1))
        await shows(app, pilot, f"‹ pid {joined.ranks[0].pid} ›", "nsys            available")
        there.clear()
        feed.say(replace(alone, time=alone.time + 2))
        await shows(app, pilot, "No training can be captured", "The chosen training has ended, choose another one")


@pytest.mark.slow(
    "the smallest and the largest size, of one moment each",
    kept=(
        "dialog-size3",
        "under_way-size0",
    ),
)
@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 30), (200, 50)])
@pytest.mark.parametrize("moment", [pictured.dialog, pictured.under_way, pictured.stacks])
async def test_at_every_size_nothing_is_wider_than_the_screen_and_the_line_in_question_is_seen(
    size: tuple[int, int], moment: Callable[[object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import tui.screens.capture
    import tui.screens.stacks

    monkeypatch.setattr(tui.screens.capture, "capturable_processes", tui.screens.capture.capturable_processes)
    monkeypatch.setattr(tui.screens.stacks, "py_spy", tui.screens.stacks.py_spy)
    monkeypatch.setattr("llmtop.capture.base.folder.PARENT", "llmtop-captures")
    async with running(pictured.training(), size) as (app, pilot):
        moment(app)
        await pilot.press("s" if moment is pictured.stacks else "c")
        shown = await shows(app, pilot, "▸")
        if moment is pictured.dialog and size[1] >= 24:
            said = ", some 0.2 s to start and 0.5 s to stop" * (size[0] >= 120)
            assert f"nsys            pauses the training after a step{said} " in shown
        for _ in range(10):
            await pilot.press("down")
            lines = text(app).splitlines()
            assert all(len(line) == size[0] for line in lines)
            if moment is pictured.dialog:
                assert sum("‹" in line and "▸" in line for line in lines) == 1


async def test_s_shows_the_main_thread_first_with_the_scripts_own_line_marked(start: Start) -> None:
    training = start()
    training.wait_attached()
    async with running(beside(training)) as (app, pilot):
        await pilot.press("s")
        shown = await shows(app, pilot, "MainThread", "main (training.py:")
        marked = [line for line in shown.splitlines() if "▸" in line]
        assert len(marked) == 1
        assert "main (training.py:" in marked[0]
        assert "llmtop-server" not in shown
        await pilot.press("w")
        await shows(app, pilot, "llmtop-server")


@pytest.mark.slow(
    "test_s_shows_the_main_thread_first_with_the_scripts_own_line_marked has the stacks of one moment"
)
async def test_the_stacks_are_those_of_now(start: Start) -> None:
    training = start("--step-ms", "400")
    training.wait_attached()
    seen: set[str] = set()
    async with running(beside(training)) as (app, pilot):
        await pilot.press("s")
        await shows(app, pilot, "MainThread")
        deadline = time.monotonic() + 120
        while len(seen) < 2:
            assert time.monotonic() < deadline, seen
            seen |= {line for line in text(app).splitlines() if "▸" in line}
            await asyncio.sleep(0.1)
            await pilot.pause()


async def test_stacks_that_cannot_be_read_say_why() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        async with running(beside(Training(process))) as (app, pilot):  # type: ignore[arg-type]
            await pilot.press("s")
            await shows(app, pilot, "py-spy cannot read process", "it must be a Python process")
    finally:
        process.kill()
        process.wait(100)


@pytest.fixture
def tmux() -> Iterator[list[str]]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    command = ["tmux", "-L", f"llmtop-{uuid.uuid4().hex[:8]}", "-f", "/dev/null"]
    yield command
    subprocess.run([*command, "kill-server"], check=False, capture_output=True, timeout=240)


@pytest.mark.slow(
    "by nsys in tmux; test_c_opens_a_filled_dialog_and_enter_captures_and_shows_the_report has these keys"
)
@pytest.mark.tmux
@pytest.mark.nsys
def test_the_key_in_a_real_tmux_captures_five_steps_with_the_real_nsys(
    tmux: list[str], runtime_dir: Path, real_nsys: Path, tmp_path: Path
) -> None:
    # the training in one pane, llmtop in the other, as a person has them
    where = environment(
        LC_ALL="C.UTF-8",
        LLMTOP_DIR=str(runtime_dir),
        LLMTOP_NSYS=str(real_nsys),
        PYTHONPATH=os.pathsep.join([str(NVTX), str(REPOSITORY)]),
    )
    run = (
        f"{sys.executable} -m llmtop run --no-auto --nsys -- {sys.executable} {TRAINING}; echo ended $?; sleep 100"
    )
    watch = f"cd {tmp_path}; {sys.executable} -m llmtop; echo left with $?; sleep 100"
    subprocess.run([*tmux, "new-session", "-d", "-x", "130", "-y", "60", run], check=True, env=where, timeout=240)
    subprocess.run([*tmux, "split-window", "-l", "40", watch], check=True, env=where, timeout=240)

    def pane(number: int) -> str:
        shown = [*tmux, "capture-pane", "-p", "-t", str(number)]
        return subprocess.run(shown, check=True, capture_output=True, text=True, timeout=240).stdout

    def press(key: str) -> None:
        subprocess.run([*tmux, "send-keys", "-t", "1", key], check=True, timeout=240)

    wait_for(lambda: "forward" in pane(1), 60, "the training on the monitor")
    press("c")
    wait_for(lambda: "‹ pid" in pane(1) and "nsys            available" in pane(1), 30, "the dialog")
    press("Enter")
    wait_for(lambda: "copy  scp" in pane(1), 60, "the result")
    assert "5 whole steps" in pane(1)
    (folder,) = (tmp_path / "llmtop-captures").iterdir()
    with closing(sqlite3.connect(folder / "trace.sqlite")) as database:
        (steps,) = database.execute(
            "SELECT count(*) FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = id "
            "WHERE coalesce(text, value) = 'step' AND end IS NOT NULL"
        ).fetchone()
    assert 5 <= steps <= 100  # nsys takes a while to stop, on a busy machine the longer
    press("q")
    wait_for(lambda: "q quit" in pane(1), what="the main screen")
    press("q")
    wait_for(lambda: "left with 0" in pane(1), what="the end of llmtop")
    before = pane(0)
    wait_for(lambda: pane(0) != before, what="the training to go on")
    assert "ended" not in pane(0)


@pytest.mark.slow("test_a_capture_under_way_is_called_off finds the same fault")
@pytest.mark.nsys
@pytest.mark.usefixtures("real_nsys")
def test_leaving_the_monitor_calls_the_capture_off(
    start: Start, llmtop_run: tuple[str, ...], tmp_path: Path
) -> None:
    training = start(behind=(*llmtop_run, "--nsys", "--"))
    target = training.wait_attached()
    with Terminal(["sh", "-c", f"cd {tmp_path} && exec {sys.executable} -m llmtop"], (120, 40)) as terminal:
        terminal.shows("forward")
        terminal.keys("c")
        terminal.shows("‹ pid")
        for key in ("\x1b[B", "\x1b[B", *["\x1b[C"] * 4, "\r"):
            terminal.keys(key)
        terminal.shows("of 100 steps")
        terminal.keys("q")
        terminal.shows("q quit")
        terminal.keys("q")
        assert terminal.ends() == 0
    assert nsys.find_session(target.pid)[1].state == "Launched"
    assert list((tmp_path / "llmtop-captures").iterdir()) == []
    training.wait_for_steps(3)
