"""The shown alert: never cut in the middle of its reason, the keys that act on it, and those that have gone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmtop.capture.base.job import Target
from llmtop.capture.capabilities import Ability
from llmtop.model.snapshot import Alert, Change, Process, Snapshot
from llmtop.protocol.wire import Hello
from llmtop.recording.reader_writer import Reader
from llmtop.rules.engine import Rules
from screenshots.scenes import scene, uuid
from tests.support.snapshots import gpu, rank, snapshot
from tests.tui.driving import Held, reply, running, text, until
from tui.capture.form import CapturableProcess
from tui.core import keys
from tui.screens import capture
from tui.screens.capture import CaptureScreen
from tui.screens.stacks import StacksScreen
from tui.state import process_ref
from tui.state.alerts import AlertLog

SIZES = [(60, 15), (80, 24), (100, 12), (120, 30), (200, 50), (250, 70)]
DEMO = Path(__file__).resolve().parents[3] / "llmtop" / "data" / "demo.llmtop.gz"


def alert(kind: str, severity: str = "warning", since: float = 990.0, **fields: Any) -> Alert:
    return Alert(**{"id": kind, "severity": severity, "since": since, "summary": "why", **fields})


THREE = (
    alert("throttled", gpu=uuid(5), points=("too hot (hardware limit)", "84 °C"), next="look at cooling"),
    alert("gpu_error", "critical", gpu=uuid(2), points=("Xid 79", "the GPU has fallen off the bus")),
    alert("slower", pid=41_201, gpu=uuid(1), points=("dataload 10 ms → 60 ms", "1.50× since step 1234")),
)


def eight(*alerts: Alert) -> Snapshot:
    moment = scene(gpus=8, seconds=30)[-1]
    return replace(moment, alerts=tuple(replace(one, since=moment.time - 74.0) for one in alerts))


def slower() -> Snapshot:
    """A training whose loading takes six times as long, as the rules tell it."""
    rules, told = Rules(), None
    change = Change(
        since=1_000.0,
        since_step=1_234,
        before_seconds=0.111,
        after_seconds=0.166,
        part="dataload",
        part_before_seconds=0.011,
        part_after_seconds=0.066,
    )
    for tick in range(30):
        slow = rank(
            rank=0,
            gpu_uuid=gpu(0).uuid,
            step=1_300 + tick,
            step_seconds=0.166,
            state="running",
            change=change,
            last_step_at=1_012.0 + tick,
        )
        told = rules.apply(snapshot(1_012.0 + tick, gpus=(gpu(0),), ranks=(slow,)))
    assert told is not None
    return told


@pytest.mark.parametrize("size", SIZES)
async def test_the_cause_of_slower_steps_is_whole_at_every_size(size: tuple[int, int]) -> None:
    told = slower()
    assert [one.id for one in told.alerts] == ["slower"]
    async with running(Held(told), size) as (app, _pilot):
        assert "dataload 11.0 ms → 66.0 ms" in text(app)


def every_alert_of_the_demo() -> list[Snapshot]:
    rules, found = Rules(), {}
    for _, moment in Reader(DEMO).snapshots():
        told = rules.apply(moment)
        for one in told.alerts:
            found[one.id, one.points] = replace(told, alerts=(one,))
    return list(found.values())


@pytest.mark.slow("the smallest size stands for all; each shows every reason", kept=("size0",))
@pytest.mark.parametrize("size", SIZES)
async def test_every_reason_that_a_recording_knows_is_shown_in_whole_clauses(size: tuple[int, int]) -> None:
    moments = every_alert_of_the_demo()
    assert len({moment.alerts[0].id for moment in moments}) >= 4
    feed = Held(moments[0])
    async with running(feed, size) as (app, pilot):
        for moment in moments:
            one = moment.alerts[0]
            assert one.points, one.id
            feed.say(moment)
            await pilot.pause()
            row = text(app).splitlines()[app.screen.layout_now(*size).alerts.y]  # type: ignore[attr-defined]
            assert one.points[0] in row
            assert "…" not in row


@pytest.mark.slow(
    "the smallest and the largest size",
    kept=(
        "size0",
        "size5",
    ),
)
@pytest.mark.parametrize("size", SIZES)
async def test_the_gravest_comes_first_and_A_goes_round_the_others(size: tuple[int, int]) -> None:
    async with running(Held(eight(*THREE)), size) as (app, pilot):
        shown = text(app)
        assert "GPU ERROR" in shown
        assert "Xid 79" in shown
        assert "+2 more (A)" in shown
        seen = []
        for _ in range(4):
            seen.append(next(one.points[0] for one in THREE if one.points[0] in text(app)))
            await pilot.press("A")
            await pilot.pause()
        assert len(set(seen)) == 3
        assert seen[3] == seen[0]


@pytest.mark.slow(
    "the smallest and the largest size",
    kept=(
        "size0",
        "size5",
    ),
)
@pytest.mark.parametrize("size", SIZES)
async def test_keys_say_whom_they_are_about_and_act_on_it(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tuple(
        CapturableProcess(Target(41_200 + number, number, Hello()), (Ability("nsys", True, ""),))
        for number in range(8)
    )
    monkeypatch.setattr(capture, "capturable_processes", lambda: here)
    async with running(Held(eight(THREE[2])), size) as (app, pilot):
        app.view.rank_pid = 41_207  # the rank whose steps are shown is another one
        assert "rank 1" in text(app)
        await pilot.press("s")
        await pilot.pause()
        assert isinstance(app.screen, StacksScreen)
        assert "pid 41201" in text(app)
        await pilot.press("q")
        await pilot.press("c")
        await pilot.pause()
        assert isinstance(app.screen, CaptureScreen)
        await until(pilot, lambda: "‹ rank 1 (pid 41201)" in text(app))


async def test_without_an_alert_the_keys_are_about_the_rank_whose_steps_are_shown() -> None:
    async with running(Held(eight())) as (app, pilot):
        app.view.rank_pid = 41_207
        await pilot.press("s")
        await pilot.pause()
        assert "pid 41207" in text(app)


def test_an_alert_about_a_gpu_is_about_the_training_on_it_else_a_process_else_it_says_why_nobody() -> None:
    about = alert("low_power_full_util", gpu=gpu(0).uuid)
    on_it = rank(7, rank=3, gpu_uuid=gpu(0).uuid)
    stranger = Process(pid=9, gpu_uuid=gpu(0).uuid, command="python serve.py")
    unseen = Process(pid=11, gpu_uuid=gpu(0).uuid)
    assert (
        process_ref.alert_process(about, snapshot(gpus=(gpu(0),), ranks=(on_it,), processes=(stranger,))).name
        == "rank 3"
    )
    assert process_ref.alert_process(about, snapshot(gpus=(gpu(0),), processes=(unseen, stranger))).pid == 9
    nobody = process_ref.alert_process(about, snapshot(gpus=(gpu(0),), processes=(unseen,)))
    assert (nobody.pid, nobody.why) == (None, "no process on GPU 0 is visible from here")
    gone = process_ref.alert_process(alert("stalled", pid=7), snapshot(ranks=(rank(7, rank=3, state="gone"),)))
    assert (gone.pid, gone.why) == (None, "rank 3 has ended")


async def test_stacks_of_nobody_say_why() -> None:
    nobody = snapshot(gpus=(gpu(0),), alerts=(alert("gpu_error", gpu=gpu(0).uuid),))
    async with running(Held(nobody)) as (app, pilot):
        await pilot.press("s")
        await pilot.pause()
        assert "no process on GPU 0 is visible from here" in text(app)


async def test_a_muted_alert_gives_its_place_to_the_next_and_rings_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed, rung = Held(eight(THREE[0])), []
    async with running(feed, (120, 30)) as (app, pilot):
        monkeypatch.setattr(app, "bell", lambda: rung.append(1))
        await pilot.press("z")
        await pilot.pause()
        assert "THROTTLED" not in text(app).splitlines()[2]
        assert "no alerts, 1 muted (a)" in text(app)
        feed.say(replace(eight(THREE[0], THREE[2]), time=eight().time + 1))
        await pilot.pause()
        assert "SLOWER" in text(app).splitlines()[2]
        assert "more (A)" not in text(app)
        assert rung == [1]
        await pilot.press("a", "A")
        await pilot.pause()
        assert "muted" in text(app)
        await pilot.press("z", "q")
        await pilot.pause()
        assert "+1 more (A)" in text(app)


async def test_a_muted_alert_that_comes_again_is_heard() -> None:
    feed = Held(eight(THREE[0]))
    async with running(feed, (120, 30)) as (app, pilot):
        await pilot.press("z")
        feed.say(replace(eight(), time=eight().time + 1))
        feed.say(replace(eight(THREE[0]), time=eight().time + 2))
        await pilot.pause()
        assert "THROTTLED" in text(app).splitlines()[2]


def test_what_has_gone_is_remembered_with_how_long_it_held() -> None:
    alerts = AlertLog()
    throttled = alert("throttled", gpu="GPU-1", since=1_000.0)
    for second in range(100):
        up = (throttled,) if 10 <= second < 50 else ()
        alerts.take(snapshot(1_000.0 + second, alerts=tuple(replace(one, since=1_010.0) for one in up)))
    [past] = alerts.ended_alerts(math.inf)
    assert (past.alert.id, past.alert.since, past.until) == ("throttled", 1_010.0, 1_050.0)


def test_a_jump_back_forgets_what_came_after_it() -> None:
    alerts = AlertLog()
    early = [snapshot(1_000.0 + second, alerts=(alert("outside", pid=1),)) for second in range(3)]
    late = [snapshot(1_010.0), snapshot(1_011.0, alerts=(alert("slower", pid=1),)), snapshot(1_012.0)]
    for moment in (*early, *late):
        alerts.take(moment)
    assert [one.alert.id for one in alerts.ended_alerts(math.inf)] == ["slower", "outside"]
    alerts.replace(early)
    assert alerts.ended_alerts(math.inf) == []
    assert [one.id for one in alerts.unmuted(early[-1])] == ["outside"]


def test_alerts_of_before_stand_where_they_ended_and_not_before() -> None:
    alerts = AlertLog()
    alerts.take(snapshot(1_100.0, alerts=(alert("outside", pid=1),)))
    alerts.add_past([(alert("slower", since=1_000.0), 1_050.0)])
    alerts.take(snapshot(1_110.0))
    alerts.add_past([(alert("slower", since=1_000.0), 1_050.0), (alert("input_bound", since=900.0), 1_060.0)])
    alerts.add_past([(alert("throttled", since=950.0), 1_020.0), (alert("hot", since=1_101.0), 1_105.0)])
    ended = ["outside", "input_bound", "slower", "throttled"]  # what came after the first snapshot is known
    assert [one.alert.id for one in alerts.ended_alerts(math.inf)] == ended
    assert [one.alert.id for one in alerts.ended_alerts(1_055.0)] == ended[2:]
    assert alerts.ended_count(1_055.0) == 2
    last = alerts.last_ended(1_055.0)
    assert last is not None
    assert last.alert.id == "slower"
    assert alerts.last_ended(1_000.0) is None


def test_a_graver_alert_is_shown_though_another_was_chosen() -> None:
    alerts, two = AlertLog(), (alert("outside", pid=1), alert("slower", pid=2))
    alerts.take(snapshot(1_000.0, alerts=two))
    heard = alerts.unmuted(snapshot(1_000.0, alerts=two))
    alerts.advance(heard)
    assert alerts.selected_alert(heard) == heard[1]
    alerts.take(snapshot(1_001.0, alerts=two))
    assert alerts.selected_alert(heard) == heard[1]
    worse = snapshot(1_002.0, alerts=(*two, alert("stalled", "critical", pid=1)))
    alerts.take(worse)
    shown = alerts.selected_alert(alerts.unmuted(worse))
    assert shown is not None
    assert shown.id == "stalled"


async def test_the_alerts_screen_tells_those_that_have_gone() -> None:
    feed = Held(eight(THREE[0], THREE[2]))
    async with running(feed, (120, 30)) as (app, pilot):
        feed.say(replace(eight(THREE[2]), time=eight().time + 5))
        await pilot.pause()
        await pilot.press("a")
        await pilot.pause()
        past = next(line for line in text(app).splitlines() if "THROTTLED" in line)
        assert "for 1m 19s" in past
        assert "too hot (hardware limit), 84 °C" in past
        await pilot.press("q")
        assert "a evidence" in text(app)


async def test_a_key_that_cannot_work_here_says_why() -> None:
    async with running(Held(eight())) as (app, pilot):
        await pilot.press("p", "J")
        await pilot.pause()
        assert "works only on the main screen" in reply(app)
        await pilot.press("q", "z")
        await pilot.pause()
        assert "There is no active alert that could be muted" in reply(app)


WORST = (
    ("gpu_error", "the driver has not answered for 12 s"),
    ("low_power_full_util", "memory controller 100% busy"),
    ("slower", "forward/atte…ntion_0001 110 ms → 160 ms"),
    ("throttled", "power brake of the power supply"),
    ("hung_collective", "rank 127 has not called AllReduce 40123"),
    ("memory_pressure", "12 allocations failed or retried"),
    ("sync_bound", "waits for the GPU 100% of a step"),
)


@pytest.mark.slow(
    "each reason at one size",
    kept=(
        "size0-gpu_error-the driver has not answered for 12 s",
        "size0-low_power_full_util-memory controller 100% busy",
        r"size0-slower-forward/atte\u2026ntion_0001 110 ms \u2192 160 ms",
        "size0-throttled-power brake of the power supply",
        "size0-hung_collective-rank 127 has not called AllReduce 40123",
        "size0-memory_pressure-12 allocations failed or retried",
        "size0-sync_bound-waits for the GPU 100% of a step",
        "size1-hung_collective-rank 127 has not called AllReduce 40123",
        "size2-gpu_error-the driver has not answered for 12 s",
        r"size3-slower-forward/atte\u2026ntion_0001 110 ms \u2192 160 ms",
        "size4-hung_collective-rank 127 has not called AllReduce 40123",
        "size5-throttled-power brake of the power supply",
    ),
)
@pytest.mark.parametrize(("kind", "point"), WORST)
@pytest.mark.parametrize("size", SIZES)
async def test_the_longest_reasons_are_whole_beside_a_hundred_others(
    kind: str, point: str, size: tuple[int, int]
) -> None:
    worst = alert(kind, "critical", gpu=uuid(7), pid=41_207, points=(point, "and something else that may go"))
    others = tuple(alert("outside", pid=50_000 + number, points=("x",)) for number in range(100))
    async with running(Held(eight(worst, *others)), size) as (app, _pilot):
        row = text(app).splitlines()[app.screen.layout_now(*size).alerts.y]  # type: ignore[attr-defined]
        assert point in row
        assert "(A)" in row
        assert len(row) == size[0]


async def test_in_a_recording_keys_for_what_runs_now_say_so(tmp_path: Path) -> None:
    from collectors.replay import ReplayFeed

    feed = ReplayFeed(Reader(DEMO), lambda: lambda moment: moment)
    async with running(feed) as (app, pilot):
        await pilot.press("c")
        await pilot.pause()
        assert reply(app) == "c (capture) works only live; this is a recording."
        assert len(app.screen_stack) == 1


@pytest.mark.slow("a screen for each key; test_every_key_acts_or_is_answered finds the same fault")
async def test_no_key_of_the_main_screen_is_answered_with_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is nothing to act on, a key says so or changes the screen."""
    monkeypatch.chdir(tmp_path)  # S saves there
    bare = snapshot()
    for key in keys.for_screen(keys.MAIN):
        if (
            key.action in ("quit", "leave", "suspend_process")
            or key.keys in ("end,G", "home,g", "L", "H")
            or "seek_share" in key.action
        ):
            continue
        async with running(Held(bare)) as (app, pilot):
            before = (text(app), app.theme)
            await pilot.press(key.keys.split(",")[0])
            await pilot.pause(0.1)
            changed = len(app.screen_stack) > 1 or (text(app), app.theme) != before
            moves = key.keys.startswith(("up", "down"))
            assert changed or reply(app) or moves, key.keys
