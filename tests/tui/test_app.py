"""The app driven by keys, on scenes, without a terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual.pilot import Pilot

from llmtop.errors import UnusableInput
from llmtop.snapshot import Snapshot
from screenshots.draw import Still
from screenshots.scenes import scene, uuid
from tui.app import LlmtopApp
from tui.widgets.board import Board

SIZES = [(60, 15), (80, 24), (120, 30), (200, 50)]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)


@asynccontextmanager
async def running(
    snapshots: list[Snapshot], size: tuple[int, int] = (120, 30), **options: Any
) -> AsyncIterator[tuple[LlmtopApp, Pilot[int]]]:
    app = LlmtopApp(Still(snapshots), **options)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot


def text(app: LlmtopApp) -> str:
    """What the screen on top shows, line by line."""
    board = app.screen.query_one(Board)
    return "\n".join(board.render_line(y).text for y in range(board.size.height))


@pytest.mark.parametrize("size", SIZES)
async def test_every_gpu_and_the_training_are_on_the_screen(size: tuple[int, int]) -> None:
    async with running(scene(gpus=8, seconds=30), size) as (app, _):
        shown = text(app)
        assert shown.count("H200") >= 8
        assert "step 269" in shown
        assert "forward" in shown
        assert all(len(line) == size[0] for line in shown.splitlines())


@pytest.mark.parametrize("size", SIZES)
async def test_a_gpu_that_only_looks_busy_is_named_with_reason_and_age(size: tuple[int, int]) -> None:
    async with running(scene(gpus=8, spinning=(3,)), size) as (app, _):
        shown = text(app)
        assert shown.count("BUSY BUT IDLE") >= 2
        assert "GPU 3" in shown
        assert "1m 14s" in shown
        assert "100% util but 122 of" in shown
        assert "press s" in shown


async def test_an_unknown_theme_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UnusableInput, match="dark, light"):
        LlmtopApp(Still([]), theme="solarised-mauve")


async def test_a_number_opens_that_gpu_and_q_goes_back() -> None:
    async with running(scene(gpus=8, seconds=30)) as (app, pilot):
        await pilot.press("4")
        await pilot.pause()
        assert app.view.selected == uuid(3)
        assert "GPU 3" in text(app)
        await pilot.press("q")
        await pilot.pause()
        assert len(app.screen_stack) == 1
