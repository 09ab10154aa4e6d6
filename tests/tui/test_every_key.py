"""Every key on every screen: it acts, or one sentence says why not; none ends in an error, none is silent."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from llmtop.capture.base.folder import PARENT
from screenshots.scenes import scene
from tests.support import shelf
from tests.support.ncu_reports import unpacked
from tests.tui.driving import Held, reply, running, text
from tui.app import LlmtopApp
from tui.core import keys
from tui.core.board_screen import BoardScreen
from tui.screens import report_picker

ENDING = {"ctrl+c", "ctrl+z", "ctrl+p"}
"""These quit, stop, or open what Textual draws."""
WRONG = ("i", "I", "Q", "P", "f5", "ctrl+a", "ctrl+x", "dollar_sign", "insert", "é", "%", "1", "tab", "delete")
"""Keys without a meaning on most screens."""
WAYS: dict[str, tuple[tuple[str, ...], str]] = {
    keys.MAIN: ((), "util"),
    keys.GPU: (("1",), "GPU 1"),
    keys.ALERTS: (("a",), "holds if"),
    keys.HELP: (("question_mark",), "Keys on"),
    keys.PROCESSES: (("p",), "processes"),
    keys.RANKS: (("r",), "phases"),
    keys.CAPTURE: (("c",), "No training can be captured"),
    keys.STACKS: (("s",), "Python stacks"),
    keys.CAPTURES: (("o",), "memory"),
    keys.MEMORY: (("o", "enter"), "memory snapshot"),
    keys.FLAME: (("o", "down", "enter"), "MainThread"),
    keys.KERNELS: (("o", "down", "u"), "Limited by"),
    keys.REPORT: (("o", "down", "down", "enter"), "Findings"),
    keys.TIMELINE: (("o", "down", "down", "enter", "l"), "Timeline"),
    keys.COMPARISON: (("o", "down", "down", "v"), "ms to"),
}
"""How each screen is opened over the captures of the test, and words that it shows then."""


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("ready")
    parent = shelf.with_reports(here)
    unpacked("gpt0", shelf.with_stacks(parent))
    shelf.with_memory(parent)
    return here


@pytest.fixture
def here(ready: Path, tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with captures to run in, on a machine where nothing can be captured."""
    monkeypatch.setattr("llmtop.capture.targets.list_unattached", lambda known=frozenset(): ())
    shutil.copytree(ready / PARENT, tmp_path / PARENT)
    monkeypatch.chdir(tmp_path)
    report_picker.mark(None)
    yield tmp_path
    report_picker.mark(None)


async def shows(app: LlmtopApp, pilot: Pilot[int], words: str) -> None:
    """Wait for words; a sentence may go on in the next row."""
    deadline = time.monotonic() + 60
    while not (isinstance(app.screen, BoardScreen) and words in " ".join(text(app).split())):
        assert time.monotonic() < deadline, f"no {words} in\n{text(app)}"
        await asyncio.sleep(0.01)
        await pilot.pause()


async def open_screen(app: LlmtopApp, pilot: Pilot[int], name: str) -> None:
    """Go to the screen as a person does."""
    while len(app.screen_stack) > 1:
        app.pop_screen()
    await pilot.pause()
    assert isinstance(app.screen, BoardScreen)
    app.screen.prompt = None
    app.view.selected, app.view.rank_pid, app.view.history.span = None, None, 300.0
    app.clear_reply()
    way, words = WAYS[name]
    for key in way[:-1]:
        await pilot.press(key)
        await shows(app, pilot, "launch-bound" if key == "o" else "Findings" if key == "enter" else "captures")
    await pilot.press(*way[-1:])
    await shows(app, pilot, words)
    assert isinstance(app.screen, BoardScreen)
    assert name == app.screen.NAME


def seen(app: LlmtopApp) -> object:
    """What a person sees."""
    top = app.screen
    drawn = text(app) if isinstance(top, BoardScreen) and top.query("Board") else ""
    return drawn, len(app.screen_stack), type(top), reply(app), app.theme


async def is_answered(app: LlmtopApp, pilot: Pilot[int], before: object) -> bool:
    """Whether something is seen to change; on a busy machine another screen takes more than a second."""
    deadline = time.monotonic() + 20.0
    while seen(app) == before and time.monotonic() < deadline:
        await pilot.pause(0.01)
    return seen(app) != before


MOVES = {"move", "page", "edge", "match", "pan", "zoom", "change", "keep_more", "fold", "sort", "whole", "seek"}
"""Actions that may change nothing: at an end, or where a page fits the screen."""


@pytest.mark.slow("the main screen stands for all; each takes every key", kept=("main",))
@pytest.mark.parametrize("name", WAYS)
async def test_every_key_acts_or_is_answered(here: Path, name: str) -> None:
    table = {one for key in keys.KEYS for one in key.names}
    works = {one: key.action.partition("(")[0] for key in keys.for_screen(name) for one in key.names}
    silent = []
    async with running(Held(*scene(gpus=2, spinning=(1,), seconds=40)), (100, 30)) as (app, pilot):
        app.view.alerts.since = None  # how long there is no alert would change by itself
        opened = False
        for one in sorted((table | set(WRONG)) - ENDING - ({"q"} if name == keys.MAIN else set())):
            if not opened:
                await open_screen(app, pilot, name)
            app.clear_reply()
            await pilot.pause()
            before = seen(app)
            await pilot.press(one)
            may_rest = works.get(one) in MOVES
            if not may_rest and not await is_answered(app, pilot, before):
                silent.append(one)
            await pilot.pause()
            top = app.screen
            opened = isinstance(top, BoardScreen) and name == top.NAME and top.prompt is None
    assert silent == []


async def test_enter_in_a_list_without_captures_is_answered(runtime_dir: Path, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        async with running(Held(*scene(gpus=1, seconds=5)), (80, 24)) as (app, pilot):
            await pilot.press("o")
            await shows(app, pilot, "No captures in")
            await pilot.press("enter")
            await pilot.pause()
            assert reply(app) == "The list has no capture to open."
