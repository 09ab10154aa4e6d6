"""A capture of memory, opened from the list: its tables at every size, and what cannot be read."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from llmtop.capture.base.folder import PARENT
from screenshots.scenes import scene
from tests.support import shelf as made
from tests.tui.driving import Held, running, text
from tui.app import LlmtopApp
from tui.screens import report_picker
from tui.screens.memory import MemoryScreen

SIZES = [(60, 15), (80, 24), (120, 30), (200, 50)]


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    report_picker.mark(None)
    return made.with_memory(tmp_path / PARENT)


async def opened(app: LlmtopApp, pilot: Pilot[int], *words: str) -> None:
    await pilot.press("o")
    await shows(app, pilot, "memory")
    await pilot.press("enter")
    await shows(app, pilot, *words)


async def shows(app: LlmtopApp, pilot: Pilot[int], *words: str) -> None:
    for _ in range(6000):
        await pilot.pause()
        shown = " ".join(text(app).split())  # a sentence may go on in the next row
        if all(word in shown for word in words):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"no {words} in\n{text(app)}")


async def whole(app: LlmtopApp, pilot: Pilot[int]) -> list[str]:
    """Every line of the text, scrolled through."""
    found: list[str] = []
    while True:
        body = text(app).splitlines()[1:-1]
        found += [line.rstrip() for line in body if "more lines" not in line]
        if not any("more lines" in line for line in body):
            return found
        await pilot.press("pagedown")


@pytest.mark.slow("the smallest size stands for all", kept=("size0",))
@pytest.mark.parametrize("size", SIZES)
async def test_enter_on_a_memory_capture_shows_who_holds_what(capture: Path, size: tuple[int, int]) -> None:
    async with running(Held(*scene(gpus=1, seconds=5)), size) as (app, pilot):
        await opened(app, pilot, "memory", "history of")
        assert isinstance(app.screen, MemoryScreen)
        shown = await whole(app, pilot)
        for title in (
            "Allocated and reserved",
            "Peak by phase",
            "Held by",
            "Lines that allocated it",
            "Kept in every",
        ):
            assert any(title in line for line in shown), title
        assert any(re.search(r"forward +\d[\d.]* MiB", line) for line in shown), "the peak of a phase"
        assert any(re.search(r"parameters +32\.0 MiB", line) for line in shown), "a holder"
        assert any("train.py:42" in line for line in shown), "the line that leaks"
        assert any("largest free piece" in " ".join(" ".join(pair).split()) for pair in pairwise(shown))
        assert all(cell_len(line) <= size[0] for line in shown)


async def test_a_column_is_whole_or_not_there(capture: Path) -> None:
    async with running(Held(*scene(gpus=1, seconds=5)), (60, 15)) as (app, pilot):
        await opened(app, pilot, "memory", "history of")
        shown = await whole(app, pilot)
        at = next(place for place, line in enumerate(shown) if "Lines that allocated it" in line)
        assert "…" not in shown[at + 1], "its titles"
        assert all(not re.search(r"\d…$", line) for line in shown)


async def test_q_goes_back_to_the_list_and_y_copies_the_command(
    capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(Held(*scene(gpus=1, seconds=5))) as (app, pilot):
        await opened(app, pilot, "history of")
        copied: list[str] = []
        monkeypatch.setattr(app, "copy_to_clipboard", copied.append)
        await pilot.press("y", "q")
        assert copied == [f"llmtop report {capture}"]
        await shows(app, pilot, "captures")


@pytest.mark.parametrize("damage", ["gone", "garbage"])
async def test_what_cannot_be_read_is_one_sentence(capture: Path, damage: str) -> None:
    snapshot = capture / "rank0.memory.pickle"
    if damage == "gone":
        snapshot.unlink()
    else:
        snapshot.write_bytes(b"\x80\x04" + b"nonsense" * 100)
    async with running(Held(*scene(gpus=1, seconds=5))) as (app, pilot):
        await opened(app, pilot, "no memory snapshot" if damage == "gone" else capture.name)
        assert "Traceback" not in text(app)
        assert "reading" not in text(app)
