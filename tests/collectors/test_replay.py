"""A recording as a feed: pace, pause, speed, jumps, growth, and today's rules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from collectors.base.source import Feed, ReplayControls
from collectors.replay import MAX_SPEED, MIN_SPEED, ReplayFeed
from llmtop.errors import UnusableInput
from llmtop.model.snapshot import Alert, Snapshot
from llmtop.recording.reader_writer import Reader, Writer
from tests.support.processes import wait_for
from tests.support.snapshots import gpu, snapshot


class Watch:
    """What a screen would be told."""

    def __init__(self, feed: ReplayFeed) -> None:
        self.feed = feed
        self.shown: list[float] = []
        self.snapshots: list[Snapshot] = []
        self.jumps: list[list[Snapshot]] = []
        feed.on_jump(self.jumps.append)

    def __call__(self, one: Snapshot) -> None:
        self.snapshots.append(one)
        self.shown.append(one.time - 1000)


def counting_rules() -> Callable[[Snapshot], Snapshot]:
    """Rules that remember: each alert says how many snapshots they have seen."""
    seen = 0

    def apply(one: Snapshot) -> Snapshot:
        nonlocal seen
        seen += 1
        alert = Alert(id="gpu_error", severity="info", since=one.time, summary="", evidence={"seen": seen})
        return replace(one, alerts=(alert,))

    return apply


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    stale = Alert(id="stalled", severity="critical", since=0.0, summary="as recorded")
    writer = Writer(tmp_path / "r", host="node")
    for i in range(120):
        writer.write(snapshot(1000.0 + i / 10, gpus=(gpu(util_pct=i),), alerts=(stale,)))
    writer.close()
    return tmp_path / "r"


@pytest.fixture
def feed(recording: Path) -> Iterator[ReplayFeed]:
    feed = ReplayFeed(Reader(recording), counting_rules, speed=float("inf"))
    yield feed
    feed.close()


def test_it_is_a_feed_with_controls(feed: ReplayFeed) -> None:
    as_feed: Feed = feed
    assert isinstance(as_feed, ReplayControls)
    assert feed.length == pytest.approx(11.9)
    assert feed.started_at == 1000.0
    assert feed.interval == pytest.approx(0.1, rel=0.01) or feed.speed > MAX_SPEED


def test_it_plays_everything_in_order_marked_as_replay_and_judged_anew(feed: ReplayFeed) -> None:
    ended = threading.Event()
    feed.on_end(ended.set)
    watch = Watch(feed)
    feed.start(watch)
    assert ended.wait(20)
    assert watch.shown == pytest.approx([i / 10 for i in range(120)])
    assert {one.source for one in watch.snapshots} == {"replay"}
    assert [one.alerts[0].evidence["seen"] for one in watch.snapshots] == list(range(1, 121))
    assert {alert.id for one in watch.snapshots for alert in one.alerts} == {"gpu_error"}
    assert feed.ended
    assert feed.position == pytest.approx(feed.length)


def test_a_jump_gives_the_history_before_it_then_goes_on_from_there(feed: ReplayFeed) -> None:
    watch = Watch(feed)
    feed.toggle()
    feed.start(watch)
    feed.seek(5.0)
    wait_for(lambda: watch.shown)
    assert watch.shown == [pytest.approx(5.0)]
    assert [one.time - 1000 for one in watch.jumps[0]] == pytest.approx([i / 10 for i in range(50)])
    # Rules were made anew and have seen the history and the snapshot itself.
    assert watch.snapshots[0].alerts[0].evidence["seen"] == 51
    assert watch.jumps[0][-1].alerts[0].evidence["seen"] == 50
    feed.toggle()
    wait_for(lambda: feed.ended)
    assert watch.shown == pytest.approx([i / 10 for i in range(50, 120)])


def test_a_jump_past_either_end_lands_on_it(feed: ReplayFeed) -> None:
    watch = Watch(feed)
    feed.toggle()
    feed.start(watch)
    feed.seek(1e9)
    wait_for(lambda: watch.shown)
    assert watch.shown == [pytest.approx(11.9)]
    feed.seek(-5)
    wait_for(lambda: len(watch.shown) == 2)
    assert watch.shown[1] == pytest.approx(0.0)
    assert watch.jumps[1] == []


def test_jumps_in_quick_succession_add_up(feed: ReplayFeed) -> None:
    """As when a key is held: the next jump starts from where the last one goes, not from what is still shown."""
    for _ in range(4):
        feed.seek(feed.position + 2.0)
    assert feed.position == pytest.approx(8.0)
    watch = Watch(feed)
    feed.toggle()
    feed.start(watch)
    wait_for(lambda: watch.shown)
    assert watch.shown == [pytest.approx(8.0)]
    assert feed.position == pytest.approx(8.0)


def test_a_jump_from_the_end_plays_again_and_so_does_toggle(feed: ReplayFeed) -> None:
    watch = Watch(feed)
    feed.start(watch)
    wait_for(lambda: feed.ended)
    feed.seek(11.0)
    wait_for(lambda: len(watch.shown) == 130 and feed.ended)
    assert watch.shown[120:] == pytest.approx([11 + i / 10 for i in range(10)])
    feed.toggle()
    wait_for(lambda: len(watch.shown) == 250 and feed.ended)
    assert watch.shown[130:] == pytest.approx([i / 10 for i in range(120)])


def test_nothing_comes_while_paused(recording: Path) -> None:
    feed = ReplayFeed(Reader(recording), counting_rules, speed=1.0)  # slow: it must not end before the pause
    watch = Watch(feed)
    feed.start(watch)
    wait_for(lambda: len(watch.shown) > 3)
    feed.toggle()
    assert feed.paused
    held = feed.position
    feed.seek(3.0)  # the thread passes through its waiting point and stays paused
    wait_for(lambda: watch.shown[-1] == pytest.approx(3.0))
    assert feed.position == pytest.approx(3.0)
    count = len(watch.shown)
    assert held != feed.position
    feed.set_speed(2.0)
    assert len(watch.shown) == count
    feed.close()
    assert len(watch.shown) == count


def test_speed_is_held_between_its_limits(feed: ReplayFeed) -> None:
    feed.set_speed(1e6)
    assert feed.speed == MAX_SPEED
    feed.set_speed(0.0)
    assert feed.speed == MIN_SPEED


def test_it_goes_on_when_the_recording_grows(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r", host="node")
    writer.write(snapshot(1000.0))
    writer.write(snapshot(1000.1))
    writer.flush()
    feed = ReplayFeed(Reader(tmp_path / "r"), counting_rules, speed=float("inf"))
    watch = Watch(feed)
    feed.start(watch)
    wait_for(lambda: feed.ended)
    writer.write(snapshot(1000.2))
    writer.close()
    wait_for(lambda: len(watch.shown) == 3)
    assert watch.shown == pytest.approx([0.0, 0.1, 0.2])
    feed.close()


def test_a_damaged_recording_says_so_on_every_snapshot(recording: Path) -> None:
    last = Reader(recording).members[-1].number
    recording.write_bytes(recording.read_bytes()[:-20])
    feed = ReplayFeed(Reader(recording), counting_rules, speed=float("inf"))
    watch = Watch(feed)
    feed.start(watch)
    wait_for(lambda: feed.ended)
    assert len(watch.snapshots) == 120 - last
    assert "left out" in watch.snapshots[-1].host.notes[-1]
    feed.close()


def test_a_recording_without_a_snapshot_is_refused(tmp_path: Path) -> None:
    Writer(tmp_path / "r", host="node").close()
    with pytest.raises(UnusableInput, match="holds no snapshot"):
        ReplayFeed(Reader(tmp_path / "r"), counting_rules)


def written(path: Path, times: list[float]) -> Path:
    writer = Writer(path, host="node")
    for time in times:
        writer.write(snapshot(1000.0 + time))
    writer.close()
    return path


@pytest.fixture
def sparse(tmp_path: Path) -> Iterator[ReplayFeed]:
    """A snapshot each 30 s for five minutes, a hole of eight hours, and five minutes more; paused at its start."""
    hole = 8 * 3600.0
    times = [30.0 * i for i in range(11)]
    feed = ReplayFeed(Reader(written(tmp_path / "r", [*times, *(300 + hole + t for t in times)])), counting_rules)
    feed.toggle()
    yield feed
    feed.close()


def test_back_where_snapshots_are_far_apart_goes_back(sparse: ReplayFeed) -> None:
    watch = Watch(sparse)
    sparse.start(watch)
    sparse.seek(90.0)
    wait_for(lambda: watch.shown[-1:] == [90.0])
    for expected in (60.0, 30.0, 0.0, 0.0):
        count = len(watch.shown)
        sparse.seek(sparse.position - 10)
        wait_for(lambda count=count: len(watch.shown) > count)
        assert watch.shown[-1] == expected
    for expected in (30.0, 60.0):
        count = len(watch.shown)
        sparse.seek(sparse.position + 10)
        wait_for(lambda count=count: len(watch.shown) > count)
        assert watch.shown[-1] == expected


def test_a_jump_crosses_a_hole_both_ways(sparse: ReplayFeed) -> None:
    watch = Watch(sparse)
    sparse.start(watch)
    sparse.seek(300.0)
    wait_for(lambda: watch.shown[-1:] == [300.0])
    sparse.seek(sparse.position + 10)
    wait_for(lambda: watch.shown[-1:] == [300.0 + 8 * 3600])
    sparse.seek(sparse.position - 10)
    wait_for(lambda: watch.shown[-2:] == [300.0 + 8 * 3600, 300.0])


def test_a_hole_is_skipped_and_said_and_what_is_only_slow_is_played(tmp_path: Path) -> None:
    path = written(tmp_path / "r", [0.0, 1.0, 2.0, 8 * 3600.0, 8 * 3600.0 + 1, 8 * 3600.0 + 20])
    feed = ReplayFeed(Reader(path), counting_rules, speed=MAX_SPEED)
    assert feed.interval < 2, "the hole does not count as an interval"
    watch = Watch(feed)
    feed.start(watch)
    wait_for(lambda: len(watch.shown) == 6, 60)  # at 16 times the speed eight hours would take half an hour
    notes = [one.host.notes for one in watch.snapshots]
    said = ("nothing was recorded for 7h 59m before this; skipped",)
    assert notes == [(), (), (), said, said, ()]
    feed.close()


def test_hourly_snapshots_are_no_holes(tmp_path: Path) -> None:
    path = written(tmp_path / "r", [3600.0 * i for i in range(5)])
    feed = ReplayFeed(Reader(path), counting_rules, speed=float("inf"))
    watch = Watch(feed)
    feed.start(watch)
    wait_for(lambda: len(watch.shown) == 5)
    assert not any(one.host.notes for one in watch.snapshots)
    feed.close()


def test_recordings_one_after_the_other_are_played_and_said(recording: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    both.write_bytes(recording.read_bytes() + written(tmp_path / "later", [60.0, 61.0]).read_bytes())
    feed = ReplayFeed(Reader(both), counting_rules, speed=float("inf"))
    watch = Watch(feed)
    feed.start(watch)
    wait_for(lambda: len(watch.shown) == 122)
    assert watch.snapshots[-1].host.notes == (f"{both} holds 2 recordings, played one after the other",)
    feed.close()
