"""Earlier hours than the charts' buckets reach back to: of a long monitor, of a long recording, and of a run."""

from __future__ import annotations

import math
import os
import time
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from collectors import past as past_module
from collectors.past import SnapshotHistory
from collectors.replay import ReplayFeed
from llmtop.model.snapshot import Snapshot
from llmtop.recording.reader_writer import Reader, Writer
from llmtop.rules.engine import Rules
from screenshots.scenes import scene, uuid
from tests.support.generated_run import PID, STEP_SECONDS, write_run
from tests.tui.driving import Held, reply, running, text, until
from tui.app import NO_OLDER_SAMPLE
from tui.state.history import History

HOURS, APART = 4.0, 10
MADE = scene(gpus=2, ranks=2, seconds=2)[-1]
FORWARD = next(phase.host_seconds for phase in MADE.ranks[0].phases if phase.name == "forward")


def moment(begin: float, seconds: float) -> Snapshot:
    """A sample whose GPUs draw 100 W and one more for each minute."""
    gpus = tuple(replace(gpu, power_watts=100.0 + seconds / 60) for gpu in MADE.gpus)
    ranks = tuple(replace(rank, new_steps=(), last_step_at=begin + seconds) for rank in MADE.ranks)
    return replace(
        MADE, time=begin + seconds, monotonic=1000.0 + seconds, gpus=gpus, ranks=ranks, alerts=(), host=MADE.host
    )


def phases_at(history: History, at: float) -> float | None:
    """Mean seconds of "forward" of the first rank around an instant; None where nothing is known."""
    known = history.phases_of(MADE.ranks[0])
    parts = None if known is None else known.mean_phases(at - 60, at)
    return None if parts is None else parts["forward"]


@pytest.mark.slow("one size stands for both; each takes hours in", kept=("size0",))
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_long_monitor_shows_its_first_hour(size: tuple[int, int]) -> None:
    begin = time.time() - HOURS * 3600
    feed = Held(moment(begin, 0.0))
    async with running(feed, size) as (app, pilot):
        for second in range(APART, int(HOURS * 3600), APART):
            feed.say(moment(begin, second))
            if second % 1200 == 0:
                await pilot.pause()
        await pilot.pause()
        history = app.view.history
        app.action_seek(begin + 3600 - history.end)
        assert history.instant == pytest.approx(begin + 3600, abs=APART)
        await until(pilot, lambda: not any(one is None for one in history.spreads((uuid(0), "power"), 10)))
        minutes = (history.end - begin) / 60
        for place, mean in enumerate(history.gpu(uuid(0), "power", 5)):
            assert mean == pytest.approx(100 + minutes - 5 + place + 0.5, abs=1.0), "a cell is a minute"
        app.redraw()
        assert "power" in text(app)
        row = next(line for line in text(app).splitlines() if line.startswith(" GPU0 power"))
        assert "no value" not in row


@pytest.mark.slow("hours of a recording; test_a_long_monitor_shows_its_first_hour has hours of a monitor")
async def test_a_jump_in_a_long_recording_leaves_no_hole_before_it(tmp_path: Path) -> None:
    path, begin = tmp_path / "long.llmtop.gz", 1.7e9
    writer = Writer(path, host="gpu-node-07")
    for second in range(0, int(HOURS * 3600), APART):
        writer.write(moment(begin, second))
    writer.close()
    feed = ReplayFeed(Reader(path), lambda: Rules().apply)
    async with running(feed, (120, 40), recording=partial(Reader, path)) as (app, pilot):
        await until(pilot, lambda: app.view.snapshot is not None)
        await pilot.press("space", "L")
        history = app.view.history
        history.span = 7200.0
        for span in (7200.0, None):
            history.span = span
            await until(pilot, lambda: history.first is not None and history.first < begin + 60)
            assert history.seconds == (span or HOURS * 3600)
            await until(pilot, lambda: largest_error(history, begin) < 3.0)
            await until(pilot, lambda s=history.seconds: phases_at(history, history.end - 0.9 * s) is not None)
            assert phases_at(history, history.end - 0.9 * history.seconds) == pytest.approx(FORWARD)


def largest_error(history: History, begin: float, number: int = 24) -> float:
    """The largest distance in watts of a cell's mean power from the planted one, but for the outermost cells."""
    cell, first = history.seconds / number, history.cells(number).first
    errors = [0.0]
    for place, spread in enumerate(history.spreads((uuid(1), "power"), number)):
        middle = (first + place + 0.5) * cell - begin
        if cell < middle < HOURS * 3600 - cell:
            errors.append(math.inf if spread is None else abs(spread.mean - 100 - middle / 60))
    return max(errors)


async def test_older_than_the_oldest_sample_is_what_the_run_s_files_keep(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LLMTOP_RUNS", str(tmp_path))
    past = SnapshotHistory(limit_bytes=1 << 15)
    monkeypatch.setattr(past_module, "SnapshotHistory", lambda: past)
    end = float(int(time.time()))
    begin = end - 3 * 3600
    write_run(tmp_path, end, 3.0)
    trained = replace(
        MADE.ranks[0], host="vm", pid=PID, rank=0, world_size=1, uid=os.geteuid(), attached_at=begin, step=2000
    )

    def sample(at: float) -> Snapshot:
        made = moment(at, 0.0)
        return replace(made, monotonic=at, ranks=(replace(trained, last_step_at=at, new_steps=()),))

    feed = Held(sample(begin - 30.0))
    async with running(feed, (120, 40)) as (app, pilot):
        for at in range(0, 3 * 3600, 30):
            feed.say(sample(begin + at))
            if at % 600 == 0:
                await pilot.pause()
        await pilot.pause()
        seen = past.first_time
        assert seen is not None
        assert seen > begin + 3600, "the oldest have made room"
        app.action_seek(begin + 1800 - app.view.history.end)
        assert "llmtop reads the files of the run" in reply(app)
        await until(pilot, lambda: app.view.snapshot is not None and app.view.snapshot.time < begin + 1900)
        assert app.view.history.instant == pytest.approx(begin + 1800)
        shown = app.view.snapshot
        assert shown is not None
        assert shown.ranks[0].step_seconds_p50 == pytest.approx(STEP_SECONDS, rel=0.05)
        key = ("vm", PID, begin)
        await until(pilot, lambda: not any(one is None for one in app.view.history.spreads((key, "step"), 5)))
        assert app.view.history.spreads((key, "step"), 5)[0].mean == pytest.approx(STEP_SECONDS, rel=0.05)  # type: ignore[union-attr]
        app.redraw()
        assert "REWOUND" in text(app).splitlines()[0]


async def test_what_is_kept_nowhere_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLMTOP_RUNS", str(tmp_path))
    begin = time.time() - 600
    async with running(Held(*(moment(begin, second) for second in range(0, 600, 10)))) as (app, pilot):
        await pilot.press("H")
        assert reply(app) == NO_OLDER_SAMPLE
        app.view.history.span = 1200.0
        app.redraw()
        assert any(
            "step" in line and "no value is known of this span" in line for line in text(app).splitlines()
        ), "the ranks made no step"
