"""The app driven by keys, on scenes, without a terminal."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from collectors.replay import ReplayFeed
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.model.snapshot import Process
from llmtop.recording.reader_writer import Reader, Writer
from llmtop.rules.engine import Rules
from screenshots.scenes import START, low_power, scene, uuid
from tests.support.processes import environment, wait_for
from tests.tui.driving import Held, reply, running, text
from tui.core import keys
from tui.core.key_lookup import TITLES
from tui.screens.processes import ProcessesScreen
from tui.screens.send_signal import SIGNALS, send

SIZES = [(60, 15), (80, 24), (120, 30), (200, 50)]
NOT_WITHOUT = {"DemoEndScreen", "RepeatScreen"}
"""Screens that open at the end of a demo, and after a capture."""


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize("size", SIZES)
async def test_every_gpu_and_the_training_are_on_the_screen(size: tuple[int, int]) -> None:
    async with running(Held(*scene(gpus=8, seconds=30)), size) as (app, _):
        shown = text(app)
        lines = shown.splitlines()
        rows = [line for line in lines if re.match(r"[▸▲■ ] +[0-7] +[0-7] +\d+W +\d+% ", line)]
        assert [int(line[1:].split()[0]) for line in rows] == list(range(8))
        assert "step 269" in shown
        assert ("backward 5" if size == (60, 15) else "forward") in shown
        assert all(len(line) == size[0] for line in shown.splitlines())


@pytest.mark.parametrize("size", SIZES)
async def test_a_gpu_that_only_looks_busy_is_named_with_reason_age_and_next_key(size: tuple[int, int]) -> None:
    async with running(Held(*scene(gpus=8, spinning=(3,))), size) as (app, _):
        shown = text(app)
        assert shown.count("LOW POWER") >= 2
        assert "GPU 3" in shown
        assert "1m 14s" in shown
        assert "122 of 700 W" in shown
        assert "s stacks" in shown
        assert "rank 3" in shown


async def test_an_unknown_theme_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UnusableInput, match="dark, light"):
        async with running(Held(), theme="solarised-mauve"):
            pass


async def test_a_number_opens_that_gpu_and_q_goes_back() -> None:
    async with running(Held(*scene(gpus=8, seconds=30))) as (app, pilot):
        await pilot.press("3")
        assert app.view.selected == uuid(3)
        assert "GPU 3" in text(app)
        await pilot.press("right")
        assert "GPU 4" in text(app)
        await pilot.press("0")
        assert "GPU 0" in text(app)
        await pilot.press("q")
        assert len(app.screen_stack) == 1


async def test_arrows_select_and_enter_opens_and_without_a_selection_the_worst_is_opened() -> None:
    async with running(Held(*scene(gpus=8, spinning=(5,)))) as (app, pilot):
        await pilot.press("enter")
        assert "GPU 5" in text(app)
        await pilot.press("escape", "down", "down", "up", "enter")
        assert app.view.selected == uuid(6)


async def test_the_selected_gpus_training_is_the_one_in_the_steps_pane_and_tab_goes_on() -> None:
    async with running(Held(*scene(gpus=4, seconds=30))) as (app, pilot):
        await pilot.press("down", "down", "down")
        assert "rank 2 of 4" in text(app)
        await pilot.press("tab")
        assert "rank 3 of 4" in text(app)
        await pilot.press("tab")
        assert "rank 0 of 4" in text(app)


async def test_pause_freezes_the_view_and_nothing_is_lost_meanwhile() -> None:
    moments = scene(gpus=1, seconds=40)
    feed = Held(*moments[:20])
    async with running(feed) as (app, pilot):
        app.view.history.span = 600.0  # in finer cells the step that is under way would be seen to end
        await pilot.press("space")
        frozen = text(app)
        assert "PAUSED" in frozen
        for moment in moments[20:]:
            feed.say(moment)
        await pilot.pause()
        app.redraw()
        assert text(app) == frozen
        await pilot.press("space")
        assert "PAUSED" not in text(app)
        assert "step 359 " in text(app)
        assert app.view.history.newest == moments[-1].time
        assert app.view.history.instant is None


async def test_plus_and_minus_change_the_rate_of_the_feed() -> None:
    feed = Held(*scene(gpus=1, seconds=3))
    async with running(feed) as (app, pilot):
        await pilot.press("plus")
        assert feed.interval == 0.5
        assert "every 0.5 s" in text(app)
        await pilot.press("minus", "minus")
        assert feed.interval == 2.0
        for _ in range(20):
            await pilot.press("plus")
        assert feed.interval == 0.1


async def test_f_shows_only_gpus_that_trainings_use() -> None:
    async with running(Held(*scene(gpus=8, ranks=2, seconds=10))) as (app, pilot):
        await pilot.press("f")
        shown = text(app)
        assert "GPUs shown: attached" in shown
        assert "2 × H200" in shown
        await pilot.press("f")
        assert "8 × H200" in text(app)


async def test_t_goes_round_the_themes_and_draws_anew() -> None:
    async with running(Held(*scene(gpus=1, seconds=3))) as (app, pilot):
        seen = []
        for _ in range(4):
            await pilot.press("t")
            await pilot.pause()
            seen.append((app.theme, app.cell_theme.palette.name))
        assert [name for name, _ in seen] == ["llmtop-light", "llmtop-contrast", "llmtop-terminal", "llmtop-dark"]
        assert all(theme == palette for theme, palette in seen)


@pytest.mark.slow(
    "all themes of Textual; test_any_snapshot_is_painted_at_any_size_in_exactly_its_place has some of our own"
)
async def test_any_theme_of_textual_gives_a_palette() -> None:
    async with running(Held(*scene(gpus=2, spinning=(1,)))) as (app, pilot):
        for name in app.available_themes:
            app.theme = name
            await pilot.pause()
            assert "LOW POWER" in text(app)


async def test_help_names_every_key_of_the_main_screen_and_every_note() -> None:
    moments = scene(gpus=1, seconds=3, notes=("first note", "second note"))
    async with running(Held(*moments), (120, 150)) as (app, pilot):
        assert "first note" in text(app)
        await pilot.press("question_mark")
        shown = " ".join(text(app).split())
        assert "second note" in shown
        for key in keys.for_screen(keys.MAIN):
            assert " ".join(key.help.split()[:3]) in shown
            assert key.shown in shown


@pytest.mark.slow("test_every_key_acts_or_is_answered finds much of it, with the same keys")
async def test_every_screen_that_a_key_opens_exists_and_can_be_left() -> None:
    opened = [key for key in keys.KEYS if key.screen and key.works(keys.MAIN, replaying=False)]
    assert opened
    async with running(Held(*scene(gpus=2, seconds=10))) as (app, pilot):
        for key in opened:
            await pilot.press(key.keys.split(",")[0])
            await pilot.pause()
            assert type(app.screen).__name__ == key.screen or key.screen in NOT_WITHOUT
            if len(app.screen_stack) > 1:
                await pilot.press("q")
                await pilot.pause()
            assert len(app.screen_stack) == 1, key.screen


def test_a_screen_has_a_title_and_no_key_twice() -> None:
    for screen in {screen for key in keys.KEYS for screen in key.where if screen != keys.EVERYWHERE}:
        assert screen in TITLES
        for replaying, demo in product((False, True), repeat=2):
            own = [
                one
                for key in keys.KEYS
                if screen in key.where and key.fits(replaying=replaying, demo=demo)
                for one in key.keys.split(",")
            ]
            assert [one for one, count in Counter(own).items() if count > 1] == [], screen


async def test_footer_names_keys_and_always_the_help() -> None:
    for size in ((60, 15), (30, 10), (200, 50)):
        async with running(Held(*scene(gpus=1, seconds=3)), size) as (app, _):
            assert text(app).splitlines()[-1].rstrip().endswith("help")


async def test_a_new_alert_rings_once_and_one_there_at_the_start_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = scene(gpus=2, seconds=10)
    feed = Held(moments[0])
    rung: list[int] = []
    async with running(feed) as (app, pilot):
        monkeypatch.setattr(app, "bell", lambda: rung.append(1))
        for number, count in ((0, 1), (0, 1), (1, 2)):
            for moment in moments[1:4]:
                feed.say(replace(moment, alerts=(low_power(number, 5.0, moments[0].time),)))
                await pilot.pause()
            assert len(rung) == count
    rung.clear()
    there = replace(moments[0], alerts=(low_power(0, 5.0, moments[0].time),))
    async with running(Held(there)) as (app, pilot):
        monkeypatch.setattr(app, "bell", lambda: rung.append(1))
        await pilot.pause()
        assert not rung


def _recorded(path: Path, seconds: int = 60) -> ReplayFeed:
    writer = Writer(path, host="gpu-node-07")
    for moment in scene(gpus=1, seconds=seconds):
        writer.write(moment)
    writer.close()
    return ReplayFeed(Reader(path), lambda: Rules().apply, 16.0)


async def test_a_replay_says_so_and_space_speed_and_seek_work(tmp_path: Path) -> None:
    feed = _recorded(tmp_path / "recording")
    async with running(feed) as (app, pilot):
        assert "REPLAY 16×" in text(app)
        assert "of 00:59" in text(app)
        await pilot.press("minus")
        assert feed.speed == 8.0
        await pilot.press("space")
        assert feed.paused
        await pilot.pause()
        assert "PAUSED" in text(app)
        at = feed.position
        await pilot.press("greater_than_sign", "greater_than_sign")
        wait_for(lambda: feed.position >= min(at + 10, 59))
        await pilot.pause(0.3)
        assert app.view.snapshot is not None
        assert app.view.snapshot.time >= START + min(at + 10, 59)
        assert app.view.history.instant == pytest.approx(START + feed.position)
        await pilot.press("less_than_sign")
        await pilot.pause(0.3)
        assert feed.position < 59
    both = [{key.keys for key in keys.for_screen(keys.MAIN, replaying=mode)} for mode in (False, True)]
    moving = {
        key.keys for key in keys.KEYS if ("seek" in key.action or key.action in ("first", "last")) and key.help
    }
    assert all(moving <= known for known in both), "a live screen and a recording are rewound by the same keys"


async def test_the_alert_strip_names_only_keys_that_do_something(tmp_path: Path) -> None:
    _recorded(tmp_path / "recording").close()
    alerted = (low_power(0, 5.0, START),)
    feed = ReplayFeed(Reader(tmp_path / "recording"), lambda: lambda moment: replace(moment, alerts=alerted), 16.0)
    async with running(feed, (200, 50)) as (app, pilot):
        await pilot.pause(0.3)
        assert "a evidence" in text(app)
        assert "c capture" not in text(app)
        assert "s stacks" not in text(app)
    async with running(Held(replace(scene(gpus=1)[-1], alerts=alerted)), (200, 50)) as (app, _pilot):
        advice = text(app).splitlines()[3]
        assert re.findall(r"press (\S) | (\S) (?=stacks|capture|mute)", advice) == [
            ("s", ""),
            ("", "c"),
            ("", "z"),
        ]


async def test_processes_are_sorted_filtered_and_chosen_by_name_not_by_line() -> None:
    moments = scene(gpus=4, seconds=10)
    async with running(Held(*moments)) as (app, pilot):
        await pilot.press("p")
        await pilot.pause()
        assert isinstance(app.screen, ProcessesScreen)
        lines = text(app).splitlines()
        assert "GPU mem" in lines[2]
        await pilot.press("R", "down")
        chosen = next(line for line in text(app).splitlines() if line.startswith("▸"))
        await pilot.press("R")
        assert (
            next(line for line in text(app).splitlines() if line.startswith("▸")).split()[1] == chosen.split()[1]
        )
        await pilot.press("f", *"41202", "enter")
        await pilot.pause()
        assert "1 of 4" in text(app)
        await pilot.press("f", "escape")
        await pilot.pause()
        assert "processes · 4" in text(app)
        await pilot.press("q")
        assert len(app.screen_stack) == 1


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], env=environment())


async def test_a_signal_is_sent_only_after_it_was_chosen(tmp_path: Path) -> None:
    child = _sleeper()
    try:
        started = psutil.Process(child.pid).create_time()
        process = Process(pid=child.pid, gpu_uuid=uuid(0), gpu_mem_bytes=1, command="sleeper", started_at=started)
        moment = replace(scene(gpus=1, seconds=2)[-1], processes=(process,))
        async with running(Held(moment)) as (_, pilot):
            await pilot.press("p", "X")
            await pilot.pause()
            await pilot.press("enter")
            await pilot.pause()
            assert child.poll() is None
            await pilot.press("X")
            await pilot.pause()
            await pilot.press("down", "enter")
            assert wait_for(lambda: child.poll()) == -signal.SIGTERM
    finally:
        child.kill()
        child.wait(100)


async def test_the_signals_are_a_page_as_any_other() -> None:
    process = Process(pid=2**22 + 1, gpu_uuid=uuid(0), gpu_mem_bytes=1, user="mira", command="python train.py")
    moment = replace(scene(gpus=1, seconds=2)[-1], processes=(process,))
    async with running(Held(moment), (60, 15)) as (app, pilot):
        await pilot.press("p", "X")
        await pilot.pause()
        assert "Send a signal to process 4194305 of mira" in text(app)
        assert [sent for sent in SIGNALS if f"{sent[0].name:<8} {sent[1]}" not in text(app)] == []
        for pressed, chosen in (("G", "SIGKILL"), ("k", "SIGCONT"), ("g", "send nothing"), ("j", "SIGTERM")):
            await pilot.press(pressed)
            await pilot.pause()
            assert f" ▸ {chosen}" in text(app)
        await pilot.press("slash", *"stopped", "enter")
        await pilot.pause()
        assert " ▸ SIGCONT" in text(app)
        row = next(y for y, line in enumerate(text(app).splitlines()) if "SIGINT" in line)
        await pilot.click(offset=(10, row))
        await pilot.pause()
        assert " ▸ SIGINT" in text(app), "a click selects, and sends nothing"
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, ProcessesScreen)
        assert "process 4194305 has ended" in reply(app)


def test_a_signal_is_refused_for_a_process_that_is_not_the_one_on_screen() -> None:
    child = _sleeper()
    try:
        with pytest.raises(NotPossibleHere, match="another process now"):
            send(Process(pid=child.pid, started_at=1.0), signal.SIGTERM)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait(100)
    with pytest.raises(NotPossibleHere, match="has ended"):
        send(Process(pid=child.pid, started_at=1.0), signal.SIGTERM)


async def test_the_feed_is_closed_when_the_app_ends() -> None:
    feed = Held(*scene(gpus=1, seconds=2))
    async with running(feed):
        pass
    assert feed.closed


def test_the_first_screen_loads_no_widget_that_only_another_one_needs() -> None:
    code = (
        "import sys, textual.app; before = set(sys.modules); import tui.app; "
        "print('\\n'.join(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True, timeout=240
    )
    loaded = set(done.stdout.split())
    assert "tui.screens.main" in loaded
    assert not [name for name in loaded if name.startswith("textual.widgets") or name in ("psutil", "pynvml")]
    assert not {"tui.screens.processes", "tui.screens.capture", "tui.screens.help"} & loaded


async def test_ctrl_p_opens_the_palette_and_an_action_can_be_chosen_by_name() -> None:
    async with running(Held(*scene(gpus=2, seconds=5))) as (app, pilot):
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"processes")
        await pilot.pause(0.5)
        await pilot.press("enter")
        await pilot.pause(0.3)
        assert isinstance(app.screen, ProcessesScreen)


async def test_a_click_selects_a_gpu_and_a_second_one_opens_it() -> None:
    async with running(Held(*scene(gpus=2, seconds=5)), (120, 30)) as (app, pilot):
        await pilot.click(offset=(90, 6))
        assert app.view.selected == uuid(1)
        await pilot.click(offset=(90, 6))
        await pilot.pause()
        assert "GPU 1" in text(app)
        assert len(app.screen_stack) == 2


async def test_a_number_that_no_gpu_has_is_answered_with_those_there_are() -> None:
    shown = tuple(gpu for gpu in scene(gpus=8, seconds=5)[-1].gpus if gpu.index in (2, 5))
    async with running(Held(replace(scene(gpus=8, seconds=5)[-1], gpus=shown))) as (app, pilot):
        await pilot.press("1")
        await pilot.pause()
        assert reply(app) == "There is no GPU 1. GPUs on the screen: 2, 5."
        await pilot.press("5")
        await pilot.pause()
        assert app.view.selected == uuid(5)


async def test_a_gpu_that_is_gone_while_it_is_shown_large_is_said_to_be() -> None:
    moments = scene(gpus=2, seconds=5)
    feed = Held(*moments)
    async with running(feed) as (app, pilot):
        await pilot.press("1")
        feed.say(replace(moments[-1], gpus=moments[-1].gpus[:1]))
        await pilot.pause()
        assert "The driver no longer lists this GPU" in text(app)


async def test_what_is_selected_stays_selected_when_another_gpu_goes() -> None:
    moments = scene(gpus=3, seconds=5)
    feed = Held(*moments)
    async with running(feed) as (app, pilot):
        await pilot.press("down", "down", "down")
        feed.say(replace(moments[-1], gpus=moments[-1].gpus[1:]))
        await pilot.pause()
        await pilot.press("enter")
        assert "GPU 2" in text(app)
