"""A run on disk as snapshots, its alerts, and its past on the time line."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from collectors.replay import ReplayFeed
from collectors.runs import alerts as alerts_module
from collectors.runs import snapshots as snapshots_module
from collectors.runs.alerts import RunAlerts, RunFigures, add_recomputed, join_alerts
from collectors.runs.past import pasts_of
from collectors.runs.snapshots import RunSnapshots
from llmtop.model.snapshot import Snapshot
from llmtop.runs import store
from llmtop.runs.node_notes import NodeNotes, RunAlert, read_notes
from tests.support import made_runs
from tests.support.generated_run import LAST_SECONDS, PID, STEP_SECONDS, UUID, write_run
from tests.support.processes import wait_for
from tests.support.snapshots import rank as rank_seen
from tests.support.snapshots import snapshot
from tests.tui.driving import Held, running, text
from tui.state.history import DAY_SECONDS, History
from tui.state.past_rows import rows_of

END = 1_700_000_000.0
HOURS = 4.0
BEGIN = END - HOURS * 3600


@pytest.fixture(name="run")
def written_run(tmp_path: Path) -> store.Run:
    write_run(tmp_path, END, HOURS, 2, with_gpu=True)
    (run,) = store.list_runs(tmp_path)
    return run


def test_minutes_become_snapshots_with_their_figures(run: store.Run) -> None:
    reader = RunSnapshots(run, read_notes(run))
    assert reader.length == pytest.approx(HOURS * 3600, abs=5)
    shown = reader.snapshot_at(BEGIN + 0.65 * HOURS * 3600, BEGIN + 0.65 * HOURS * 3600 - 30)
    assert [rank.rank for rank in shown.ranks] == [0, 1]
    first = shown.ranks[0]
    assert first.step_seconds_p50 == pytest.approx(STEP_SECONDS, rel=0.01)
    assert {phase.name: round(phase.host_seconds, 2) for phase in first.phases} == {"data": 2.5, "forward": 2.4}
    assert first.outside_seconds == pytest.approx(0.1, abs=0.01)
    assert first.tokens_per_s == pytest.approx(200, rel=0.01)
    assert len(first.new_steps) == 6
    assert [(gpu.uuid, gpu.util_pct, gpu.power_watts) for gpu in shown.gpus] == [(UUID, 70.0, 300.0)]
    early = reader.snapshot_at(BEGIN + 3600, BEGIN + 3570)
    assert not early.gpus  # nobody watched then


def test_the_last_minute_has_every_step_and_the_end(run: store.Run) -> None:
    reader = RunSnapshots(run, read_notes(run))
    assert reader.is_in_full(END - 30)
    assert not reader.is_in_full(END - LAST_SECONDS - 60)
    last = list(reader.snapshots(reader.length - LAST_SECONDS - 1))
    steps = [step.index for _, one in last for step in one.ranks[0].new_steps]
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert len(steps) >= 11
    assert last[-1][1].ranks[0].state == "gone"
    for position, one in last[:5]:
        assert reader.position_before(position) == pytest.approx(position)
        assert reader.members[0].first + position == pytest.approx(one.time)


def test_a_position_is_approached_in_few_snapshots_with_all_steps(
    run: store.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots_module, "APPROACH_RANKS", 40)
    reader = RunSnapshots(run, read_notes(run))
    whole = list(reader.snapshots(reader.length - 300))
    thin = list(reader.approach(reader.length - 10, 290))
    assert len(thin) < len(whole) / 2
    places = [position for position, _ in thin if position >= reader.length - 10]
    assert places == [position for position, _ in whole if position >= reader.length - 10]
    full = reader.tracks[0].full_since

    def numbers(found: list[tuple[float, Snapshot]]) -> list[int]:
        return [step.index for _, one in found for step in one.ranks[0].new_steps if step.started_at > full]

    assert numbers(thin) == numbers(whole)


def test_alerts_that_were_seen_and_those_that_are_recomputed(run: store.Run) -> None:
    notes = read_notes(run)
    add_recomputed(run, notes)
    seen = [alert for alert in notes.alerts if not alert.recomputed]
    middle = (BEGIN + END) / 2
    assert [(alert.id, alert.since, alert.until) for alert in seen] == [("hot", middle + 50, middle + 300)]
    assert all(
        alert.since < middle for alert in notes.alerts if alert.recomputed
    )  # a monitor saw the slow stretch


def test_nobody_watched_and_the_slow_stretch_is_found_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = write_run(tmp_path, END, HOURS, 2)
    (run,) = store.list_runs(tmp_path)
    notes = NodeNotes()
    add_recomputed(run, notes)
    with (
        monkeypatch.context() as patch
    ):  # of a run that has ended they are kept, as long as its files are the same
        patch.setattr(alerts_module, "RunSnapshots", None)
        again = NodeNotes()
        add_recomputed(run, again)
        assert (again.alerts, again.recomputed_since) == (notes.alerts, notes.recomputed_since)
        with monkeypatch.context() as other_rules:  # as in a checkout
            other_rules.setattr(alerts_module, "RULE_PACKAGES", ())
            with pytest.raises(TypeError):
                add_recomputed(run, NodeNotes())
        add_recomputed(run, NodeNotes())
        next(where.glob("*.run")).touch()
        with pytest.raises(TypeError):
            add_recomputed(run, NodeNotes())
    waits = [alert for alert in notes.alerts if alert.id == "input_bound"]
    assert sorted(alert.rank or 0 for alert in waits) == [0, 1]
    for alert in waits:
        assert alert.recomputed
        assert alert.since == pytest.approx(BEGIN + 0.6 * HOURS * 3600, abs=120)
        assert alert.until == pytest.approx(BEGIN + 0.7 * HOURS * 3600, abs=120)


def test_short_visits_of_monitors_split_no_alert(tmp_path: Path) -> None:
    write_run(tmp_path, END, HOURS, 2)
    (run,) = store.list_runs(tmp_path)
    begin, end = BEGIN + 0.6 * HOURS * 3600, BEGIN + 0.7 * HOURS * 3600
    visits = [(begin + after, begin + after + 40) for after in (250.0, 400.0, 700.0)]
    add_recomputed(run, notes := NodeNotes(watched=visits))
    waits = [alert for alert in notes.alerts if alert.id == "input_bound"]
    assert sorted(alert.rank or 0 for alert in waits) == [0, 1]
    for alert in waits:
        assert alert.since == pytest.approx(begin, abs=120)
        assert alert.until == pytest.approx(end, abs=120)


def test_what_a_monitor_saw_and_what_is_recomputed_around_it_is_one_alert(tmp_path: Path) -> None:
    write_run(tmp_path, END, HOURS, 2)
    (run,) = store.list_runs(tmp_path)
    begin, end = BEGIN + 0.6 * HOURS * 3600, BEGIN + 0.7 * HOURS * 3600
    add_recomputed(run, whole := NodeNotes())
    pid = next(alert.pid for alert in whole.alerts if alert.id == "input_bound" and alert.rank == 1)
    seen = [
        RunAlert(id="input_bound", severity="warning", since=at, until=at + 30, summary="seen", rank=1, pid=pid)
        for at in (begin + 300, begin + 400)
    ]
    add_recomputed(run, notes := NodeNotes(alerts=seen, watched=[(begin + 300, begin + 430)]))
    (joined,) = [alert for alert in notes.alerts if alert.id == "input_bound" and alert.rank == 1]
    assert not joined.recomputed
    assert joined.summary == "seen"
    assert joined.since == pytest.approx(begin, abs=120)
    assert joined.until == pytest.approx(end, abs=120)


def test_alerts_of_other_times_and_processes_stay_apart() -> None:
    def one(since: float, until: float | None, pid: int = 1, *, recomputed: bool = True) -> RunAlert:
        return RunAlert(
            id="outside", severity="info", since=since, until=until, summary="", pid=pid, recomputed=recomputed
        )

    apart = [one(0, 10), one(0, 10, 2), one(100, 110), one(105, None, 3), one(200, 210), one(300, None)]
    assert len(join_alerts(apart)) == len(apart)
    seen_twice = [one(0, 10, recomputed=False), one(5, 20, recomputed=False)]
    assert len(join_alerts(seen_twice)) == 2
    assert [(alert.since, alert.until) for alert in join_alerts([one(0, 10), one(5, None), one(7, 8)])] == [
        (0, None)
    ]


@pytest.mark.parametrize("share", [0.1, 0.0])
def test_checkpoints_of_the_steps_are_judged_without_a_monitor(tmp_path: Path, share: float) -> None:
    """A checkpoint of 3 s every 30 s, of one GPU: the optimum is one in some hours."""
    phases = {"checkpoint": share, "forward": 0.8} if share else {"forward": 0.8}
    made_runs.write_run(tmp_path, "saves", [30.0] * 60, phases=phases)
    (run,) = store.list_runs(tmp_path)
    add_recomputed(run, notes := NodeNotes())
    found = [alert.points[0] for alert in notes.alerts if alert.id == "checkpoint_interval"]
    assert found == (["a checkpoint every 30.0 s"] if share else [])


def test_a_replay_shows_what_was_seen_and_marks_what_is_recomputed(run: store.Run) -> None:
    reader = RunSnapshots(run, read_notes(run))
    feed = ReplayFeed(reader, lambda: RunAlerts(reader), make_figures=lambda: RunFigures(reader))
    shown: list[Snapshot] = []
    feed.seek(HOURS * 1800 + 120)
    feed.start(shown.append)
    try:
        wait_for(lambda: shown)
        assert [alert.id for alert in shown[0].alerts] == ["hot"]
        assert "a monitor saw" in shown[0].host.notes[-1]
        feed.seek(1800)
        wait_for(lambda: shown[-1].time < BEGIN + 2000)
        assert "recomputed" in shown[-1].host.notes[-1]
        windows = {window.name: window for window in shown[-1].ranks[0].windows}
        assert windows["run"].steps == HOURS * 720
    finally:
        feed.close()


def take(history: History, run: store.Run) -> None:
    """Have the past of a run taken in."""
    for past in pasts_of(run, until=run.last_sign):
        for rows in rows_of(past):
            history.take_past(rows)


def test_the_past_fills_the_time_line_and_leaves_what_is_known(run: store.Run) -> None:
    history = History()
    history.add(snapshot(END + 30))
    take(history, run)
    history.span = None
    assert history.seconds >= HOURS * 3600
    key = ("vm", PID, BEGIN)
    steps = [one for one in history.spreads((key, "step"), 100) if one is not None]
    assert len(steps) >= 75
    assert all(one.mean == pytest.approx(STEP_SECONDS, rel=0.01) for one in steps)
    utils = [one for one in history.spreads((UUID, "util"), 100) if one is not None]
    assert 30 <= len(utils) <= 60  # the second half alone
    assert {(one.mean, one.low, one.high) for one in utils} == {(70.0, 60.0, 80.0)}
    before = history.spreads((key, "step"), 100)
    take(history, run)
    assert history.spreads((key, "step"), 100) == before


def test_phases_of_a_day_are_drawn_from_the_minutes(run: store.Run) -> None:
    history = History()
    history.add(snapshot(END + 30))
    take(history, run)
    history.span = DAY_SECONDS
    reader = RunSnapshots(run, read_notes(run))
    rank = reader.snapshot_at(END - 100, END - 130).ranks[0]
    phases = history.phases_of(rank)
    assert phases is not None
    slow = phases.mean_phases(BEGIN + 0.62 * HOURS * 3600, BEGIN + 0.68 * HOURS * 3600)
    fast = phases.mean_phases(BEGIN + 0.1 * HOURS * 3600, BEGIN + 0.5 * HOURS * 3600)
    assert slow is not None
    assert fast is not None
    assert slow["data"] == pytest.approx(2.5, rel=0.01)
    assert fast["data"] == pytest.approx(0.1, rel=0.05)


@pytest.mark.slow("ten days; test_the_past_fills_the_time_line_and_leaves_what_is_known has four hours")
def test_a_run_of_ten_days_is_taken_in_and_room_stays_bounded(tmp_path: Path) -> None:
    write_run(tmp_path, time.time(), 10 * 24.0)
    (run,) = store.list_runs(tmp_path)
    end = run.last_sign
    history = History()
    history.add(snapshot(end + 1))
    take(history, run)
    history.span = None
    assert history.seconds >= 10 * DAY_SECONDS
    (key,) = [name[0] for name in history.store.slots if isinstance(name, tuple) and name[-1] == "step"]
    steps = [one for one in history.spreads((key, "step"), 100) if one is not None]
    assert len(steps) >= 75
    history.span = DAY_SECONDS
    day = [one for one in history.spreads((key, "step"), 40) if one is not None]
    assert len(day) >= 38


async def test_a_live_screen_is_rewound_to_before_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the files of the run: what ranks did then, under the names that the live screen has for them."""
    monkeypatch.setenv("LLMTOP_RUNS", str(tmp_path))
    write_run(tmp_path, END, HOURS, 2, with_gpu=True)
    ranks = [
        rank_seen(PID + number, host="vm", rank=number, job="the job", attached_at=BEGIN, uid=os.geteuid())
        for number in range(2)
    ]
    live = replace(snapshot(), time=END + 5, monotonic=END + 5, ranks=tuple(ranks))
    async with running(Held(live, replace(live, time=END + 6, monotonic=END + 6))) as (app, pilot):
        while not app.view.history.alerts:  # the run's files are read
            await pilot.pause(0.05)
        app.action_seek(-HOURS * 3600 / 2 + 120)
        while app.view.snapshot is None or app.view.snapshot.time > END:
            await pilot.pause(0.05)
        shown = app.view.snapshot
        middle = (BEGIN + END) / 2
        assert shown.time == pytest.approx(middle + 126, abs=31)
        names = [(rank.pid, rank.rank, rank.job) for rank in shown.ranks]
        assert names == [(PID, 0, "the job"), (PID + 1, 1, "the job")]
        assert shown.ranks[0].step_seconds_p50 == pytest.approx(STEP_SECONDS, rel=0.01)
        assert [gpu.power_watts for gpu in shown.gpus] == [300.0]
        assert [alert.id for alert in shown.alerts] == ["hot"]
        assert "REWOUND" in text(app)
        await pilot.press("H")
        while app.view.snapshot.time > BEGIN + 60:
            await pilot.pause(0.05)
        assert not app.view.snapshot.gpus
        assert "no monitor recorded GPUs" in app.view.snapshot.host.notes[-1]
        await pilot.press("L")
        assert app.view.snapshot.time > END
