"""The demo: from an alert to a compared fix on prepared captures, its last frame, and no key without an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from collectors.replay import ReplayFeed
from llmtop.capture.base.job import Plan
from llmtop.capture.prepared import FIXED, LAUNCHING, STARVED, STORIES, PreparedCaptures
from llmtop.errors import NotPossibleHere
from llmtop.model.snapshot import Snapshot
from llmtop.recording.reader_writer import Reader
from llmtop.rules.engine import Rules
from tests.support.processes import REPOSITORY
from tests.tui.driving import reply, text
from tui.app import LlmtopApp
from tui.core import keys
from tui.core.canvas import Board
from tui.screens import report_picker
from tui.screens.base import LlmtopScreen
from tui.screens.demo_end import DemoEndScreen

DATA = Path(REPOSITORY) / "llmtop" / "data"
SIZES = [(60, 15), (80, 24), (120, 30), (200, 50)]
STARVES = 40.0
"""Seconds into the recording: its alert holds."""


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    report_picker.mark(None)


@pytest.fixture
def prepared() -> Iterator[PreparedCaptures]:
    found = PreparedCaptures(DATA / "demo-captures.tar.xz")
    yield found
    found.close()


def stopped_feed() -> ReplayFeed:
    """The demo's recording, stopped where its alert holds."""
    feed = ReplayFeed(Reader(DATA / "demo.llmtop.gz"), lambda: Rules().apply, 1.0)
    feed.seek(STARVES)
    feed.toggle()
    return feed


@asynccontextmanager
async def demo(
    prepared: PreparedCaptures, size: tuple[int, int] = (120, 30), feed: ReplayFeed | None = None
) -> AsyncIterator[tuple[LlmtopApp, Pilot[int]]]:
    """The demo over this feed, else over a stopped one."""
    app = LlmtopApp(stopped_feed() if feed is None else feed, prepared=prepared)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.view.snapshot is not None)
        yield app, pilot


async def until(pilot: Pilot[int], holds: object, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, pilot.app.screen
        await asyncio.sleep(0.02)
        await pilot.pause()


@pytest.mark.slow("the smallest size stands for all", kept=("size0",))
@pytest.mark.parametrize("size", SIZES)
async def test_from_the_alert_to_a_compared_fix_in_eight_keys(
    prepared: PreparedCaptures, size: tuple[int, int]
) -> None:
    async with demo(prepared, size) as (app, pilot):
        assert app.view.snapshot is not None
        assert "input_bound" in {alert.id for alert in app.view.snapshot.alerts}
        pressed = 0
        for key, *words in (
            ("c", "beforehand", "starved"),
            ("enter", "copy  scp", "prepared: A GPT"),
            ("enter", "beforehand", "fixed"),
            ("enter", "copy  scp", "prepared: The same"),
            ("o", "input-bound", "gpu-bound"),
            ("v", "32.9 ms to 14.2 ms"),
        ):
            await pilot.press(key)
            pressed += 1
            await until(pilot, lambda expected=tuple(words): all(word in text(app) for word in expected))
        assert pressed <= 8


async def test_the_report_names_the_fix_and_says_it_is_prepared(prepared: PreparedCaptures) -> None:
    async with demo(prepared, (120, 60)) as (app, pilot):
        await pilot.press("c")
        await until(pilot, lambda: "The demo captures nothing" in text(app))
        await pilot.press("enter")
        await until(pilot, lambda: "DataLoader(num_workers=8" in text(app))
        assert "recorded beforehand" in text(app)


def ends(app: LlmtopApp) -> bool:
    """Whether the last frame is there."""
    return isinstance(app.screen, DemoEndScreen) and bool(app.screen.query(Board))


@pytest.mark.slow("the smallest size stands for all", kept=("size0",))
@pytest.mark.parametrize("size", SIZES)
async def test_it_ends_on_what_to_do_next(prepared: PreparedCaptures, size: tuple[int, int]) -> None:
    async with demo(prepared, size) as (app, pilot):
        await pilot.press("L")
        await until(pilot, lambda: ends(app) and "The recording has ended" in text(app))
        shown = text(app)
        assert "llmtop run -- python train.py" in shown
        assert "SLOWER" in shown, "what the demo showed"
        await pilot.press("q")
        await until(pilot, lambda: "GPU" in text(app))
        assert len(app.screen_stack) == 1, "it is told once"
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, DemoEndScreen))
        await pilot.press("space")
        await until(pilot, lambda: not app.view.ended)
        await until(pilot, lambda: len(app.screen_stack) == 1)


@pytest.mark.slow("test_it_ends_on_what_to_do_next has the end without another screen above it")
async def test_the_end_covers_no_other_screen_and_comes_when_that_is_left(prepared: PreparedCaptures) -> None:
    async with demo(prepared) as (app, pilot):
        await pilot.press("a", "L")
        await until(pilot, lambda: app.view.ended)
        assert not isinstance(app.screen, DemoEndScreen)
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, DemoEndScreen))


ENDING = {"q", "ctrl+c", "ctrl+z", "ctrl+p"}
"""These quit, stop or open what Textual draws."""
WAYS = {
    "main": (),
    "GPU": ("enter",),
    "alerts": ("a",),
    "help": ("question_mark",),
    "processes": ("p",),
    "ranks": ("r",),
    "capture": ("c",),
    "captures": ("o",),
    "end": ("e",),
}


@pytest.mark.slow("test_every_key_acts_or_is_answered finds the same fault")
@pytest.mark.parametrize("way", WAYS)
async def test_no_key_is_answered_with_silence(prepared: PreparedCaptures, way: str) -> None:
    feed = stopped_feed()
    async with demo(prepared, (120, 20), feed) as (app, pilot):
        named = {name for key in keys.KEYS for name in key.keys.split(",") if key.label or key.screen or key.alert}
        silent = []
        for name in sorted(named - ENDING):
            while len(app.screen_stack) > 1:
                app.pop_screen()
            await back(feed, app, pilot)
            await pilot.press(*WAYS[way])
            await settled(app, pilot)
            before = state(app)
            await pilot.press(name)
            if name not in MOVES and (way, name) != ("GPU", "0") and not await changes(app, pilot, before):
                silent.append(name)
            app.clear_reply()
        assert silent == []


async def back(feed: ReplayFeed, app: LlmtopApp, pilot: Pilot[int]) -> None:
    """The recording stands where it stood at first."""
    if not feed.paused:
        feed.toggle()
    feed.seek(STARVES)
    await until(pilot, lambda: abs((app.view.history.instant or 0.0) - feed.started_at - STARVES) < 1.0)


async def settled(app: LlmtopApp, pilot: Pilot[int]) -> None:
    """What a screen looks up in the background is there."""
    seen = None
    while seen != (seen := state(app)):
        await pilot.pause(0.05)


async def changes(app: LlmtopApp, pilot: Pilot[int], before: object) -> bool:
    """Whether a person sees something else; the limit is for a key that is answered with silence alone."""
    deadline = time.monotonic() + 60.0
    while state(app) == before and time.monotonic() < deadline:
        await pilot.pause(0.02)
    return state(app) != before


MOVES = {"up", "down", "left", "right", "pageup", "pagedown", "tab", "shift+tab", "enter", "escape", "j", "k"}
"""Where there is nothing to move in."""


def state(app: LlmtopApp) -> object:
    """What a person sees."""
    top = app.screen
    shown = text(app) if isinstance(top, LlmtopScreen) and top.query(Board) else ""
    return shown, len(app.screen_stack), type(top), reply(app), app.theme


def snapshot(*ids: str) -> Snapshot:
    """What the recording shows while these alerts hold."""
    rules = Rules()
    for _, one in Reader(DATA / "demo.llmtop.gz").snapshots():
        judged = rules.apply(one)
        if {alert.id for alert in judged.alerts} >= set(ids):
            return judged
    raise AssertionError(ids)


def test_what_fits_the_moment_is_proposed_first(prepared: PreparedCaptures) -> None:
    def first(*ids: str) -> str:
        return prepared.targets(snapshot(*ids))[0].name

    assert first("input_bound") == STARVED.name
    assert first("launch_bound") == LAUNCHING.name
    prepared.taken.append(STARVED)
    assert first("input_bound") == FIXED.name
    assert len(prepared.targets(None)) == len(STORIES)


@pytest.mark.slow("unpacks all captures; test_from_the_alert_to_a_compared_fix_in_eight_keys unpacks two")
def test_what_is_unpacked_goes_with_the_demo(prepared: PreparedCaptures) -> None:
    engine = next(one.engine for one in prepared.abilities() if one.is_supported)
    parent = prepared.parent
    for target in prepared.targets(None):
        prepared.take(Plan(engine=engine, targets=(target,), parent=parent, steps=5))
    assert len(list(parent.iterdir())) == len(STORIES)
    prepared.close()
    assert not parent.exists()


@pytest.mark.parametrize("damage", ["missing", "cut", "garbage"])
def test_captures_that_cannot_be_read_are_one_sentence(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "captures.tar.xz"
    whole = (DATA / "demo-captures.tar.xz").read_bytes()
    if damage != "missing":
        path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"no archive")
    found = PreparedCaptures(path)
    with pytest.raises(NotPossibleHere, match="install llmtop anew"):
        found.abilities()


async def test_the_dialog_says_why_it_can_open_none(tmp_path: Path) -> None:
    async with demo(PreparedCaptures(tmp_path / "none")) as (app, pilot):
        await pilot.press("c")
        await until(pilot, lambda: "install llmtop anew" in reply(app))
