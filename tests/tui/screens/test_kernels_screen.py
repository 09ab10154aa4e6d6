"""o on the list of captures opens what ncu wrote beside one, and says how to get it where there is nothing."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from textual.pilot import Pilot

from llmtop.capture.base.folder import PARENT
from screenshots.scenes import scene
from tests.support import shelf
from tests.support.ncu_reports import unpacked
from tests.tui.driving import Held, reply, running, text
from tui.app import LlmtopApp
from tui.screens.captures import CapturesScreen
from tui.screens.kernels import KernelsScreen

SIZES = [(60, 15), (80, 24), (120, 30), (200, 50)]


@pytest.fixture
def stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the one capture that there is."""
    (tmp_path / PARENT).mkdir()
    monkeypatch.chdir(tmp_path)
    return shelf.with_stacks(tmp_path / PARENT)


async def shows(app: LlmtopApp, pilot: Pilot[int], *words: str) -> str:
    """Wait for the thread that reads."""
    for _ in range(6000):
        await pilot.pause()
        if all(word in text(app) for word in words):
            return text(app)
        await asyncio.sleep(0.02)
    raise AssertionError(f"no {words} in\n{text(app)}")


@pytest.mark.slow("the smallest size stands for all", kept=("size0",))
@pytest.mark.parametrize("size", SIZES)
async def test_u_opens_what_lies_beside_a_capture(size: tuple[int, int], stacks: Path) -> None:
    unpacked("conflicts", stacks)
    unpacked("gpt0", stacks)
    async with running(Held(*scene(gpus=1, seconds=5)), size) as (app, pilot):
        await pilot.press("o")
        await shows(app, pilot, "stacks")
        await pilot.press("u")
        shown = await shows(app, pilot, "Limited by", "bank conflicts")
        assert isinstance(app.screen, KernelsScreen)
        assert "conflicts.ncu-rep" in shown, "in the order of their names"
        for _ in range(20):
            await pilot.press("pagedown")
        assert "waves" in text(app), "the last line of the last kernel"
        await pilot.press("q")
        assert isinstance(app.screen, CapturesScreen)


async def test_where_nothing_lies_it_is_said_how_it_is_made(stacks: Path) -> None:
    async with running(Held(*scene(gpus=1, seconds=5))) as (app, pilot):
        await pilot.press("o")
        await shows(app, pilot, "stacks")
        await pilot.press("u")
        await pilot.pause()
        assert isinstance(app.screen, CapturesScreen)
        assert f"llmtop kernel {stacks.name} --run" in reply(app)


async def test_a_damaged_one_is_a_sentence_beside_the_others(stacks: Path) -> None:
    shutil.copyfile(unpacked("gpt0", stacks), stacks / "b.ncu-rep")
    (stacks / "a.ncu-rep").write_bytes(b"NVR\0" + b"x" * 100)
    async with running(Held(*scene(gpus=1, seconds=5)), (120, 60)) as (app, pilot):
        await pilot.press("o")
        await shows(app, pilot, "stacks")
        await pilot.press("u")
        shown = await shows(app, pilot, "Limited by compute (tensor)")
        assert "finds no kernel in it" in " ".join(shown.split())
