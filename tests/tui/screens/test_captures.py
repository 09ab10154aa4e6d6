"""The list of captures, driven by keys over real ones: opened, compared, marked, deleted, thinned out."""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from llmtop.capture import capture_list as capture_store
from llmtop.capture.base.folder import PARENT, read_info, write_info
from screenshots.scenes import scene
from tests.support import shelf as made
from tests.tui.driving import Held, reply, running, text
from tui.app import LlmtopApp
from tui.screens import report_picker
from tui.screens.captures import CapturesScreen
from tui.screens.comparison import ComparisonScreen
from tui.screens.flame import FlameScreen
from tui.screens.report import ReportScreen
from tui.terminal.textual_private import driver_of

SIZES = [(60, 15), (80, 24), (120, 30), (200, 50)]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("ready")
    made.with_stacks(made.with_reports(here))
    return here


@pytest.fixture
def parent(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """llmtop-captures of the folder that the screen runs in: healthy, launch-bound, stacks."""
    shutil.copytree(ready / PARENT, tmp_path / PARENT)
    monkeypatch.chdir(tmp_path)
    report_picker.mark(None)
    yield tmp_path / PARENT
    report_picker.mark(None)


async def shows(app: LlmtopApp, pilot: Pilot[int], *words: str) -> str:
    """Wait for the thread that reads."""
    for _ in range(6000):
        await pilot.pause()
        if all(word in text(app) for word in words):
            return text(app)
        await asyncio.sleep(0.02)
    raise AssertionError(f"no {words} in\n{text(app)}")


def feed() -> Held:
    return Held(*scene(gpus=1, seconds=5))


def chosen(app: LlmtopApp) -> str:
    return next(line for line in text(app).splitlines() if line.startswith("▸"))


@pytest.mark.slow("the smallest size stands for all", kept=("size0",))
@pytest.mark.parametrize("size", SIZES)
async def test_o_lists_captures_with_what_they_say_the_newest_first(size: tuple[int, int], parent: Path) -> None:
    async with running(feed(), size) as (app, pilot):
        await pilot.press("o")
        shown = await shows(app, pilot, "launch-bound")
        lines = [line for line in shown.splitlines() if "05-" in line]
        assert ["stacks" in lines[0], "launch-bound" in lines[1], "gpu-bound" in lines[2]] == [True] * 3
        assert "59.6 ms" in lines[1]
        assert "KiB" in lines[1]
        assert "scp -r" in shown
        assert "speedscope" in shown
        await pilot.press("down")
        await shows(app, pilot, "nsys-ui")


async def test_each_opens_in_what_shows_it_and_q_goes_back_to_its_line(parent: Path) -> None:
    async with running(feed()) as (app, pilot):
        await pilot.press("o")
        await shows(app, pilot, "launch-bound")
        await pilot.press("enter")
        await shows(app, pilot, "MainThread", "train_gpt.py:41")
        assert isinstance(app.screen, FlameScreen)
        await pilot.press("q", "down", "enter")
        await shows(app, pilot, "Findings", "launch_bound")
        assert isinstance(app.screen, ReportScreen)
        await pilot.press("q")
        await pilot.pause()
        assert "launch-bound" in chosen(app)


async def test_any_two_are_compared_the_marked_one_as_before(parent: Path) -> None:
    async with running(feed()) as (app, pilot):
        await pilot.press("o")
        await shows(app, pilot, "launch-bound")
        await pilot.press("v")
        assert "First mark the other capture" in reply(app)
        await pilot.press("down", "down", "m", "up", "v")
        await shows(app, pilot, "113 ms to 59.6 ms")
        assert isinstance(app.screen, ComparisonScreen)


async def test_stacks_are_not_compared_and_it_is_said_why(parent: Path) -> None:
    async with running(feed()) as (app, pilot):
        await pilot.press("o")
        await shows(app, pilot, "launch-bound")
        await pilot.press("m", "down", "v")
        for _ in range(6000):
            await asyncio.sleep(0.02)
            await pilot.pause()
            if reply(app):
                break
        assert "3-stacks (py-spy) has no steps" in reply(app)
        assert isinstance(app.screen, CapturesScreen)


@pytest.mark.slow("two screens; test_a_baseline_is_held_against_the_next_capture has the baseline of one")
async def test_the_baseline_outlives_the_program(parent: Path) -> None:
    async with running(feed()) as (app, pilot):
        await pilot.press("o")
        await shows(app, pilot, "launch-bound")
        await pilot.press("down", "down", "b")
        await shows(app, pilot, "B baseline")
    assert capture_store.baseline(parent) == parent / "1-healthy"
    report_picker.mark(None)  # another run of the program
    async with running(feed()) as (app, pilot):
        await pilot.press("o")
        await shows(app, pilot, "B baseline")
        await pilot.press("down", "enter")
        await shows(app, pilot, "Against the baseline 1-healthy")
        await pilot.press("q", "v")
        await shows(app, pilot, "113 ms to 59.6 ms")
        await pilot.press("q", "down", "b")
        await pilot.pause()
    assert capture_store.baseline(parent) is None


async def test_a_capture_is_deleted_only_after_it_was_asked(parent: Path) -> None:
    async with running(feed()) as (app, pilot):
        await pilot.press("o")
        await shows(app, pilot, "launch-bound")
        await pilot.press("down", "d")
        await shows(app, pilot, "Delete 2-launch")
        await pilot.press("q")
        await pilot.pause()
        assert (parent / "2-launch").is_dir()
        await pilot.press("d", "enter")
        for _ in range(6000):
            await asyncio.sleep(0.02)
            await pilot.pause()
            if "launch-bound" not in text(app):
                break
        assert not (parent / "2-launch").exists()
        assert (parent / "1-healthy" / "report.json").is_file()
        assert (parent / "3-stacks" / "report.json").is_file()
        await shows(app, pilot, "gpu-bound")


async def test_the_newest_are_kept_and_the_baseline(parent: Path) -> None:
    made.with_stacks(parent, number=3)
    capture_store.mark_baseline(parent, parent / "1-healthy")
    async with running(feed()) as (app, pilot):
        await pilot.press("o")
        await shows(app, pilot, "launch-bound")
        await pilot.press("K", "left", "left", "left", "left")
        await shows(app, pilot, "Keep the newest", "deletes 2 captures")
        await pilot.press("enter")
        for _ in range(6000):
            await asyncio.sleep(0.02)
            await pilot.pause()
            if "launch-bound" not in text(app):
                break
    assert sorted(path.name for path in parent.iterdir() if path.is_dir()) == ["1-healthy", "4-stacks"]


async def test_damaged_and_foreign_folders_do_not_hide_the_others(parent: Path) -> None:
    (parent / "1-healthy" / "report.json").write_bytes(b"{")
    (parent / "2-launch" / "capture.json").write_bytes(b"\x00")
    (parent / "notes").mkdir()
    (parent / "gone").symlink_to(parent / "nowhere")
    async with running(feed()) as (app, pilot):
        await pilot.press("o")
        shown = await shows(app, pilot, "launch-bound", "no report", "stacks")
        assert "notes" not in shown
        await pilot.press("d", "enter")  # the first is the one whose time is that of its file
        await pilot.pause()
    assert (parent / "2-launch").is_dir(), "what does not say that it is a capture is never removed"


async def test_one_that_is_under_way_is_neither_opened_nor_deleted(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = read_info(parent / "3-stacks")
    info.state = "running"
    write_info(parent / "3-stacks", info)
    async with running(feed()) as (app, pilot):
        await pilot.press("o")
        await shows(app, pilot, "cut short")  # nobody captures it any more
        await pilot.press("d")
        await shows(app, pilot, "Delete 3-stacks")


async def test_without_any_it_says_how_to_take_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with running(feed()) as (app, pilot):
        await pilot.press("o")
        await shows(app, pilot, "No captures in", "llmtop capture")
        await pilot.press("d", "K", "v", "b", "m", "enter")
        await pilot.pause()
        assert isinstance(app.screen, CapturesScreen)


async def test_a_tree_of_stacks_folds_and_unfolds(parent: Path) -> None:
    async with running(feed()) as (app, pilot):
        app.push_screen(FlameScreen(parent / "3-stacks"))
        shown = await shows(app, pilot, "train_gpt.py:41")
        assert "70.0%" in shown
        assert "threading.py:331" not in shown
        await pilot.press("down", "down", "enter")  # main
        await pilot.pause()
        assert "train_gpt.py:70" in text(app)
        assert "train_gpt.py:41" not in text(app)
        await pilot.press("right")
        await shows(app, pilot, "train_gpt.py:41")
        await pilot.press("w")
        await shows(app, pilot, "waits")


async def test_y_sends_the_line_that_copies_the_capture_to_the_clipboard(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    async with running(feed()) as (app, pilot):
        driver = driver_of(app)
        assert driver is not None
        monkeypatch.setattr(driver, "write", sent.append)
        await pilot.press("o")
        await shows(app, pilot, "launch-bound")
        await pilot.press("y")
        await pilot.pause()
    [osc] = [data for data in sent if data.startswith("\x1b]52;c;")]
    line = base64.b64decode(osc.removeprefix("\x1b]52;c;").rstrip("\a")).decode()
    assert line.startswith("scp -r ")
    assert line.endswith(f"{parent / '3-stacks'} .")


async def test_S_saves_what_is_shown_as_picture_and_text(parent: Path) -> None:
    async with running(feed()) as (app, pilot):
        await pilot.press("o")
        shown = await shows(app, pilot, "launch-bound")
        await pilot.press("S")
        await pilot.pause()
    [picture], [words] = list(Path().glob("llmtop-2*.svg")), list(Path().glob("llmtop-2*.txt"))
    assert picture.read_text().startswith("<svg")
    assert [line.rstrip() for line in shown.splitlines()] == words.read_text().splitlines()


async def test_where_the_folder_is_gone_a_picture_is_one_sentence_and_the_list_is_empty(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    async with running(feed()) as (app, pilot):
        await pilot.press("S")
        await pilot.pause()
        assert "cannot be written here" in reply(app)
        await pilot.press("o")
        await shows(app, pilot, "No captures in")


async def test_the_list_is_sorted_by_a_click_on_a_title_and_by_keys(parent: Path) -> None:
    async with running(feed(), (160, 30)) as (app, pilot):
        await pilot.press("o")
        await shows(app, pilot, "▾taken")
        first = chosen(app)
        y = next(place for place, line in enumerate(text(app).splitlines()) if "▾taken" in line)

        def sizes() -> list[float]:
            found = [re.search(r" ([\d.]+) ([KM])iB ", line) for line in text(app).splitlines()[y + 1 : y + 4]]
            return [float(one[1]) * (1024 if one[2] == "M" else 1) for one in found if one]

        assert len(sizes()) == 3
        await pilot.click(offset=(text(app).splitlines()[y].index("size") + 1, y))
        await shows(app, pilot, "▾size")
        assert sizes() == sorted(sizes(), reverse=True)
        assert chosen(app).split()[1:4] == first.split()[1:4], "the chosen capture stays the chosen one"
        await pilot.press("R")
        await shows(app, pilot, "▴size")
        assert sizes() == sorted(sizes())
        await pilot.press("O")
        assert "▴size" not in text(app)
