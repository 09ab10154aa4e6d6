"""A live screen goes back to any instant, as a recording does, and says LIVE only when it is so."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from collectors import past as past_module
from collectors.past import PARTS, SnapshotHistory
from llmtop.model.snapshot import Snapshot
from screenshots.scenes import START, scene, uuid
from tests.tui.driving import Held, running, text
from tui import app as app_module
from tui.state.history import without_new_steps

MOMENTS = scene(gpus=2, spinning=(1,), seconds=160)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def first_line(shown: str) -> str:
    return shown.splitlines()[0]


async def test_every_pane_shows_the_instant_and_end_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "STALE_SECONDS", 600.0)  # a busy machine may hold the test up
    async with running(Held(*MOMENTS), (160, 50)) as (app, pilot):
        now = text(app)
        assert "LIVE" in first_line(now)
        assert now.count("LOW POWER") >= 2
        assert "now" in now.splitlines()[-10:][0] + now
        for _ in range(9):
            await pilot.press("less_than_sign")
        then = text(app)
        assert app.view.snapshot == MOMENTS[69]
        assert "LIVE" not in first_line(then)
        assert "REWOUND" in first_line(then)
        assert "1m 30s ago" in first_line(then)
        assert "LOW POWER" not in then, "it came later"
        assert "step 629" in then
        assert app.view.history.gpu(uuid(1), "power", 30)[-1] > 600
        await pilot.press("greater_than_sign")
        assert app.view.snapshot == MOMENTS[79]
        await pilot.press("L")
        assert text(app) == now


async def test_what_comes_meanwhile_is_kept_and_nothing_of_it_is_shown() -> None:
    feed = Held(*MOMENTS[:60])
    async with running(feed) as (app, pilot):
        app.view.history.span = 300.0
        await pilot.press("less_than_sign")
        then = text(app)
        for moment in MOMENTS[60:120]:
            feed.say(moment)
        await pilot.pause()
        app.redraw()
        changed = [
            one for one, other in zip(text(app).splitlines(), then.splitlines(), strict=True) if one != other
        ]
        assert all(line.startswith((" llmtop", " step")) for line in changed), (
            "the step that was under way has ended"
        )
        assert "1m 10s ago" in first_line(text(app))
        await pilot.press("L")
        assert app.view.snapshot == without_new_steps(MOMENTS[119])
        assert "LIVE" in first_line(text(app))


async def test_the_beginning_is_said_and_later_than_now_is_now() -> None:
    async with running(Held(*MOMENTS)) as (app, pilot):
        await pilot.press("H")
        assert app.view.snapshot == MOMENTS[0]
        await pilot.press("less_than_sign")
        assert app.view.snapshot == MOMENTS[0]
        await pilot.press("right_curly_bracket")
        assert app.view.snapshot == MOMENTS[60]
        for _ in range(3):
            await pilot.press("right_curly_bracket")
        assert app.view.history.instant is None
        assert "LIVE" in first_line(text(app))


async def test_a_frozen_screen_is_rewound_from_where_it_stands() -> None:
    async with running(Held(*MOMENTS)) as (app, pilot):
        await pilot.press("space")
        assert "PAUSED" in first_line(text(app))
        await pilot.press("less_than_sign")
        assert "REWOUND" in first_line(text(app))
        assert app.view.snapshot == MOMENTS[149]
        await pilot.press("space")
        assert "LIVE" in first_line(text(app))


async def test_a_feed_that_says_nothing_any_more_is_not_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "STALE_SECONDS", 0.5)
    monkeypatch.setattr(app_module, "STALE_TIMES", 0.5)
    feed = Held(*MOMENTS[:60])
    async with running(feed) as (app, pilot):
        while "NO DATA" not in first_line(text(app)):
            await pilot.pause(0.05)
        assert "LIVE" not in first_line(text(app))
        monkeypatch.setattr(app_module, "STALE_SECONDS", 600.0)
        feed.say(MOMENTS[60])
        await pilot.pause()
        assert "LIVE" in first_line(text(app))


async def test_the_span_is_the_same_everywhere_and_keys_and_the_wheel_change_it() -> None:
    async with running(Held(*MOMENTS), (160, 50)) as (app, pilot):
        assert text(app).count("3 min") == 2, "in the table's title and the time line's"
        await pilot.press("right_square_bracket")
        assert app.view.history.span == 300.0
        assert text(app).count("5 min") >= 2, "in the table's title and the time line's"
        for _ in range(4):
            await pilot.press("right_square_bracket")
        assert app.view.history.span is None
        assert "all, 3 min" in text(app)
        for _ in range(7):
            await pilot.press("left_square_bracket")
        assert app.view.history.span == 60.0
        assert "-50s" in text(app)
        await pilot.press("1")
        await pilot.pause()
        assert "-1m" in text(app), "the large charts have the same ruler"
        await pilot.press("right_square_bracket")
        assert "-1m─" not in text(app)
        assert "no data before " in text(app), "five minutes reach back before the first snapshot"


def test_the_past_leaves_no_file_and_keeps_to_its_room(tmp_path: Path) -> None:
    past = SnapshotHistory(tmp_path, limit_bytes=1 << 17)
    for moment in MOMENTS:
        past.write(moment)
    assert list(tmp_path.iterdir()) == []
    assert past.shortened is None
    numbers = [int(link.name) for link in Path("/proc/self/fd").iterdir() if str(tmp_path) in _target(link)]
    assert len(numbers) <= PARTS + 1, "each part is read, the newest is written"
    sizes = {(of := os.fstat(number)).st_ino: of.st_size for number in numbers}
    assert sum(sizes.values()) <= 1 << 18
    assert past.first_time is not None
    assert past.first_time > START, "the oldest has made room"
    found = past.snapshot_at(START + 150)
    assert found == (START + 150, MOMENTS[150])
    oldest = past.snapshot_at(0.0)
    assert oldest is not None
    assert oldest[0] == past.first_time
    past.close()
    assert past.snapshot_at(START) is None
    past.write(MOMENTS[0])  # a feed's last word after the screen has gone
    assert past.first_time is None


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""  # the folder was listed with it


class Disk(io.FileIO):
    """A file on a disk that may have no room any more."""

    is_full = False

    def write(self, data: Any) -> int:
        """Write, where there is room."""
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().write(data)


def test_a_full_disk_shortens_the_past_says_so_and_what_was_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[Disk] = []

    def opened(number: int, mode: str) -> Disk:
        files.append(Disk(number, mode))
        return files[-1]

    monkeypatch.setattr(past_module, "io", SimpleNamespace(FileIO=opened))
    past = SnapshotHistory(tmp_path, limit_bytes=1 << 20)
    for moment in MOMENTS[:40]:
        past.write(moment)
    files[-1].is_full = True
    for moment in MOMENTS[40:]:
        past.write(moment)
    assert past.shortened is not None
    assert "No space left on device" in past.shortened
    assert past.snapshot_at(START + 30) == (START + 30, MOMENTS[30])
    assert past.snapshot_at(START + 150) == (START + 150, MOMENTS[150])
    past.close()


def test_a_disk_with_little_room_is_left_to_others(tmp_path: Path) -> None:
    past = SnapshotHistory(tmp_path, limit_bytes=1 << 50)
    for moment in MOMENTS[:20]:
        past.write(moment)
    assert past.shortened is not None
    assert "are free" in past.shortened
    assert past.snapshot_at(START + 5) == (START + 5, MOMENTS[5])
    past.close()


def test_where_no_further_part_can_be_made_the_past_goes_on_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_module, "IN_MEMORY_BYTES", 1 << 14)
    past = SnapshotHistory(tmp_path / "gone")
    past.write(MOMENTS[0])
    make = os.memfd_create
    refused = []

    def refuse(name: str) -> int:
        refused.append(name)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    for moment in MOMENTS[1:100]:
        past.write(moment)
    assert len(refused) > 1, "it was tried again after the first part was full"
    monkeypatch.setattr(os, "memfd_create", make)
    for moment in MOMENTS[100:]:
        past.write(moment)
    assert past.snapshot_at(START + 150) == (START + 150, MOMENTS[150])
    past.close()


def test_without_a_folder_for_temporary_files_there_is_still_a_past(tmp_path: Path) -> None:
    past = SnapshotHistory(tmp_path / "gone")
    for moment in MOMENTS[:20]:
        past.write(moment)
    assert past.shortened is not None
    assert past.snapshot_at(START + 5) == (START + 5, MOMENTS[5])
    past.close()


async def test_a_shorter_past_says_so_on_the_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_module.tempfile, "gettempdir", lambda: str(tmp_path / "gone"))
    said: list[str] = []
    async with running(Held(*MOMENTS)) as (app, pilot):
        monkeypatch.setattr(app, "notify", lambda text, **_: said.append(text))
        await pilot.press("H")
    assert any("some minutes only" in one for one in said)


async def test_a_clock_that_was_set_moves_nothing(tmp_path: Path) -> None:
    def at(second: int) -> Snapshot:
        jumped = START + second - (3600 if second >= 50 else 0)
        return replace(MOMENTS[second], time=jumped, monotonic=100.0 + second)

    moments = [at(second) for second in range(100)]
    async with running(Held(*moments)) as (app, pilot):
        await pilot.press("less_than_sign")
        assert app.view.snapshot == moments[89]
        for _ in range(6):
            await pilot.press("less_than_sign")
        assert app.view.snapshot == moments[29]
        await pilot.press("L")
        assert app.view.snapshot == without_new_steps(moments[99])
