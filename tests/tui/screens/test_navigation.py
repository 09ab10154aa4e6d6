"""Search, jumps, wheel and clicks: the same on every list and page; messages cover nothing."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.events import MouseScrollDown, MouseScrollUp
from textual.pilot import Pilot

from collectors.replay import ReplayFeed
from llmtop.model.snapshot import Process
from llmtop.recording.reader_writer import Reader
from screenshots.scenes import low_power, scene, uuid
from tests.support.processes import REPOSITORY
from tests.tui.driving import Held, reply, running, text, until
from tui.app import LlmtopApp
from tui.core import keys
from tui.core.board_screen import BoardScreen
from tui.screens.alert import AlertScreen
from tui.screens.gpu import GpuScreen
from tui.screens.help import HelpScreen
from tui.screens.processes import ProcessesScreen
from tui.screens.ranks import RanksScreen

DEMO = REPOSITORY / "llmtop" / "data" / "demo.llmtop.gz"
SIZES = [(60, 15), (80, 24), (120, 30), (200, 50)]


def many() -> Held:
    """Eight GPUs and sixty processes."""
    moments = scene(gpus=8, ranks=8, seconds=10)
    processes = tuple(
        Process(
            pid=1000 + i, gpu_uuid=uuid(i % 8), gpu_mem_bytes=1 << 30, command=f"python job{i:02d}.py", user="u"
        )
        for i in range(60)
    )
    return Held(replace(moments[-1], processes=processes))


def chosen(app: LlmtopApp) -> str:
    return next(line for line in text(app).splitlines()[2:] if line.startswith("▸"))


async def wheel(
    app: LlmtopApp, pilot: Pilot[int], kind: type[MouseScrollDown | MouseScrollUp], y: int = 5
) -> None:
    """One notch, as the terminal reports it."""
    at = {"x": 5, "y": y, "screen_x": 5, "screen_y": y}
    app.post_message(kind(None, delta_x=0, delta_y=0, button=0, shift=False, meta=False, ctrl=False, **at))
    await pilot.pause()


async def click_key(app: LlmtopApp, pilot: Pilot[int], shown: str) -> None:
    """Click a key of the footer where it is written."""
    row = text(app).splitlines()[-1]
    assert f" {shown} " in row, row
    await pilot.click(offset=(row.index(f" {shown} ") + 1, app.size.height - 1))
    await pilot.pause()


@pytest.mark.slow(
    "the smallest and the largest size",
    kept=(
        "size0",
        "size3",
    ),
)
@pytest.mark.parametrize("size", SIZES)
async def test_the_footer_names_c_and_help_at_every_size_and_a_click_presses_a_key(size: tuple[int, int]) -> None:
    alerted = replace(scene(gpus=2, seconds=5)[-1], alerts=(low_power(1, 5.0, 1.0),))
    async with running(Held(alerted), size) as (app, pilot):
        assert " c capture" in text(app).splitlines()[-1]
        await click_key(app, pilot, "?")
        assert isinstance(app.screen, HelpScreen)
        await click_key(app, pilot, "q")
        await click_key(app, pilot, "a")
        assert isinstance(app.screen, AlertScreen)


async def test_a_click_on_either_half_of_a_pair_presses_that_key() -> None:
    async with running(Held(*scene(gpus=1, seconds=60)), (200, 50)) as (app, pilot):
        await pilot.press("left_square_bracket")
        shorter = app.view.history.span
        row = text(app).splitlines()[-1]
        at = row.index("[ ]")
        await pilot.click(offset=(at + 2, 49))
        assert app.view.history.span != shorter
        await pilot.click(offset=(at, 49))
        assert app.view.history.span == shorter


async def test_a_list_is_searched_jumped_through_and_clicked() -> None:
    async with running(many(), (80, 24)) as (app, pilot):
        await pilot.press("p", "R")
        await pilot.press("slash", *"job4")
        assert "job40.py" in chosen(app), "while it is typed"
        assert "10 lines found" in text(app)
        await pilot.press("enter", "n")
        assert "job41.py" in chosen(app)
        assert "match 2 of 10" in reply(app)
        await pilot.press("N", "N")
        assert "job49.py" in chosen(app), "round the end"
        await pilot.press("slash", "j", "escape")
        assert "job49.py" in chosen(app), "escape leads back"
        for first, last in (("g", "G"), ("home", "end")):
            await pilot.press(first)
            assert "job00.py" in chosen(app)
            await pilot.press(last)
            assert "job59.py" in chosen(app)
        await pilot.press("g", "ctrl+d")
        half = int(chosen(app).partition("job")[2][:2])
        await pilot.press("g", "pagedown")
        page = int(chosen(app).partition("job")[2][:2])
        assert page == pytest.approx(2 * half, abs=1)
        assert half >= 8
        await pilot.press("ctrl+u", "pageup")
        assert "job00.py" in chosen(app)
        await pilot.click(offset=(10, 8))
        assert "job05.py" in chosen(app)
        await wheel(app, pilot, MouseScrollDown)
        assert "job06.py" in chosen(app)
        await wheel(app, pilot, MouseScrollUp)
        assert "job05.py" in chosen(app)


async def test_a_click_on_a_title_sorts_by_it_and_again_the_other_way() -> None:
    async with running(many(), (120, 30)) as (app, pilot):
        await pilot.press("p")
        await pilot.pause()
        titles = text(app).splitlines()[2]
        await pilot.click(offset=(titles.index("pid") + 1, 2))
        await pilot.pause()
        assert "pid" in text(app).splitlines()[2].split()[0]
        assert text(app).splitlines()[3].split()[1] == "1000"
        await pilot.click(offset=(titles.index("pid") + 1, 2))
        await pilot.pause()
        assert text(app).splitlines()[3].split()[1] == "1059"


@pytest.mark.slow("one screen stands for all", kept=("way0",))
@pytest.mark.parametrize("way", [("question_mark",), ("a",), ("r",)])
async def test_jumps_move_the_page_and_not_the_hidden_recording(way: tuple[str, ...]) -> None:
    feed = ReplayFeed(Reader(DEMO), lambda: lambda moment: moment)
    async with running(feed, (80, 24)) as (app, pilot):

        def shown() -> float:
            return 0.0 if app.view.snapshot is None else app.view.snapshot.time - feed.started_at

        await pilot.press("space", "greater_than_sign")
        await until(pilot, lambda: shown() > 5.0)  # until the jump has ended the position may be the old one
        at = feed.position
        await pilot.press(*way)
        for key in ("end", "home", "G", "g", "n", "N"):
            await pilot.press(key)
        await pilot.pause(0.1)
        assert feed.position == at


async def test_ranks_scroll_by_pages_and_are_found() -> None:
    async with running(Held(*scene(gpus=8, ranks=8, seconds=5)), (80, 10)) as (app, pilot):
        await pilot.press("r")
        await pilot.press("pagedown")
        assert isinstance(app.screen, RanksScreen)
        assert app.view.rank() is not None
        assert app.view.rank().rank == 5  # type: ignore[union-attr]
        await pilot.press("slash", *"rank 2", "enter")
        assert app.view.rank().rank == 2  # type: ignore[union-attr]
        assert "▸" in text(app)


async def test_on_the_main_screen_the_wheel_selects_on_the_table_and_zooms_elsewhere() -> None:
    async with running(Held(*scene(gpus=4, seconds=60)), (120, 30)) as (app, pilot):
        table = app.screen.layout_now(120, 30).entries[0][1].y  # type: ignore[attr-defined]
        await wheel(app, pilot, MouseScrollDown, table)
        await wheel(app, pilot, MouseScrollDown, table)
        assert app.view.selected == uuid(1)
        assert not app.view.history.chosen
        await wheel(app, pilot, MouseScrollDown, 25)
        assert app.view.history.chosen
        assert app.view.history.span == 300.0


@pytest.mark.parametrize("size", SIZES)
async def test_a_message_stands_above_the_footer_covers_nothing_and_goes_with_its_screen(
    size: tuple[int, int],
) -> None:
    async with running(Held(*scene(gpus=2, seconds=60)), size) as (app, pilot):
        before = text(app).splitlines()
        await pilot.press("f5")
        await pilot.pause()
        after = text(app).splitlines()
        assert "f5 does nothing here. ? lists the keys of this screen." in after[-2]
        assert after[-1] == before[-1], "the footer stays"
        table = app.screen.layout_now(*size).entries[-1][1].y + 1  # type: ignore[attr-defined]
        assert after[:table] == before[:table], "nothing above moves"
        await pilot.press("f6")
        await pilot.pause()
        assert not [line for line in text(app).splitlines() if "f5 does" in line], "one at a time"
        await pilot.press("p")
        await pilot.pause()
        assert isinstance(app.screen, ProcessesScreen)
        assert "does nothing" not in text(app)
        await pilot.press("q")
        await pilot.pause()
        assert text(app).splitlines()[-2] == before[-2], "it does not come back"


async def test_at_no_height_is_a_message_painted_over() -> None:
    for gpus in (0, 1, 8):
        async with running(Held(*scene(gpus=gpus, seconds=20)), (80, 24)) as (app, pilot):
            app.notify("f5 does nothing here", timeout=600)
            await pilot.pause()
            screen = app.screen
            assert isinstance(screen, BoardScreen)
            for width, height in product((60, 80, 120, 200), range(8, 71)):
                lines = [0] * height
                for rect, rows in screen.painted(width, height):
                    for y in {rect.y + at for at in range(len(rows))}:
                        lines[y] += rect.x == 0
                assert max(lines) == 1, (gpus, width, height)
                [reply_at] = [
                    part.rect for part in screen.painted(width, height) if "f5 does" in part.rows[0].plain()
                ]
                assert reply_at == (0, height - 2, width, 1)


async def test_pages_scroll_by_the_wheel_and_alerts_are_chosen_by_a_click() -> None:
    alerts = (low_power(0, 9.0, 1.0), low_power(1, 5.0, 2.0))
    async with running(Held(replace(scene(gpus=2, seconds=5)[-1], alerts=alerts)), (120, 40)) as (app, pilot):
        await pilot.press("question_mark")
        await pilot.pause()
        first = text(app).splitlines()[1]
        await wheel(app, pilot, MouseScrollDown)
        assert text(app).splitlines()[1] != first
        await wheel(app, pilot, MouseScrollUp)
        assert text(app).splitlines()[1] == first
        await pilot.press("q", "a")
        await pilot.pause()
        assert isinstance(app.screen, AlertScreen)
        was = app.screen.alert()
        lines = text(app).splitlines()
        other = next(
            y for y, line in enumerate(lines) if "LOW POWER" in line and not line.lstrip().startswith("▸")
        )
        await pilot.click(offset=(20, other))
        assert app.screen.alert() is not was


async def test_digits_open_gpus_and_edges_go_to_the_first_and_the_last() -> None:
    async with running(Held(*scene(gpus=8, seconds=5)), (120, 30)) as (app, pilot):
        await pilot.press("G")
        assert app.view.selected == uuid(7)
        await pilot.press("g")
        assert app.view.selected == uuid(0)
        await pilot.press("slash", *"rank 5", "enter")
        assert app.view.selected == uuid(5)
        await pilot.press("2", "end")
        assert isinstance(app.screen, GpuScreen)
        assert app.view.selected == uuid(7)


@pytest.mark.parametrize("name", [keys.MAIN, keys.ALERTS])
async def test_in_a_recording_and_without_a_pid_no_advice_names_a_key_that_refuses(
    name: str, tmp_path: Path
) -> None:
    from llmtop.recording.reader_writer import Writer

    alerted = replace(
        low_power(0, 5.0, 1.0), pid=None, next="press s for the stacks; look at its NVLink (press c)"
    )
    moment = replace(scene(gpus=1, ranks=0, seconds=5)[-1], alerts=(alerted,), processes=())
    writer = Writer(tmp_path / "recording", host="h")
    writer.write(moment)
    writer.close()
    way = ("a",) if name == keys.ALERTS else ()
    recorded = ReplayFeed(Reader(tmp_path / "recording"), lambda: lambda one: replace(one, alerts=(alerted,)), 1.0)
    for feed in (Held(moment), recorded):
        async with running(feed, (120, 30)) as (app, pilot):
            await pilot.pause(0.3)
            await pilot.press(*way)
            await pilot.pause()
            assert isinstance(app.screen, BoardScreen)
            assert "look at its NVLink" in text(app)
            assert "press s" not in text(app)
            assert "press c" not in text(app)


async def test_without_a_gpu_the_main_screen_moves_over_the_trainings() -> None:
    moment = scene(gpus=2, ranks=2, seconds=10)[-1]
    ranks = tuple(replace(rank, gpu_uuid=None) for rank in moment.ranks)
    async with running(Held(replace(moment, gpus=(), ranks=ranks)), (120, 30)) as (app, pilot):
        seen = []
        for key in ("G", "g", "down", "down", "up"):
            await pilot.press(key)
            shown = app.view.rank()
            assert shown is not None
            seen.append([rank.pid for rank in ranks].index(shown.pid))
        assert seen == [1, 0, 1, 0, 1]
        await pilot.press("f")
        assert "no GPU" in (reply(app) or "")
        assert app.view.selection == "all"
