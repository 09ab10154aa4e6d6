"""What is remembered: nothing vanishes at any zoom, all room is taken at once, all that is drawn ends together."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llmtop.model.snapshot import Alert, Phase, Rank, Step
from screenshots.scenes import scene
from tests.support.examples import EXAMPLES
from tests.support.snapshots import gpu, rank, snapshot
from tui.series.heights import SPIKE, height, level
from tui.series.phase_history import PhaseHistory
from tui.series.series_store import COARSE_BUCKETS, COARSE_SECONDS, INF, Cells, SeriesStore, Spread
from tui.state.history import SPANS, History, key_of

NOW = 1_780_000_000.0


def filled(values: dict[float, float], series: int = 2) -> tuple[SeriesStore, int]:
    """A store with these values a second each, by seconds after NOW."""
    store = SeriesStore(series)
    slot = store.make("x")
    assert slot is not None
    for at, value in sorted(values.items()):
        store.advance(NOW + at)
        store.put([slot], [value], NOW + at - 1, NOW + at)
    return store, slot


@pytest.fixture
def room_bytes() -> Iterator[Callable[[], int]]:
    """Memory that was taken since, by the interpreter's own count."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    yield lambda: tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()


def test_the_room_is_taken_at_once_and_is_what_was_promised(room_bytes: Callable[[], int]) -> None:
    store = SeriesStore()
    first = store.make(0)
    few = room_bytes()
    slots = [slot for slot in (store.make(name) for name in range(1000)) if slot is not None]
    before = room_bytes()
    assert slots[0] == first
    assert few < before / 10, "a series that nobody has takes none"
    assert before <= 6 * 2**20
    for second in range(3000):
        store.advance(NOW + second)
        store.put(slots[:3], [1.0, 2.0, 3.0], NOW + second - 1, NOW + second)
    assert room_bytes() == pytest.approx(before, rel=0.01)
    assert len(slots) == len(set(slots)) < 1000


@settings(deadline=None, max_examples=EXAMPLES)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=120), st.integers(1, 120), st.sampled_from([60.0, 300.0]))
def test_no_extreme_is_lost_at_any_zoom(values: list[float], cells: int, span: float) -> None:
    values = values[: int(span)]
    store, slot = filled(dict(enumerate(values)))
    end = NOW + len(values) - 1
    found = store.spreads(slot, Cells.ending_at(end, span, cells), 0, end)
    known = [one for one in found if one is not None]
    # The oldest may lie just before the first cell, which begins at a cut that stays where it is.
    missed = values[:-1] if len(values) >= span - span / cells else []
    most, least = max(values), min(values)
    if most not in missed:
        assert max(one.high for one in known) == pytest.approx(most, rel=1e-6)
    if least not in missed:
        assert min(one.low for one in known) == pytest.approx(least, rel=1e-6)
    assert all(one.low - 1e-3 <= one.mean <= one.high * (1 + 1e-6) + 1e-3 for one in known)


def test_two_hours_are_kept_and_a_spike_of_a_second_is_seen_in_them() -> None:
    store, slot = filled({second: 10.0 + 90.0 * (second == 1000) for second in range(7200)})
    end = NOW + 7199
    found = [one for one in store.spreads(slot, Cells.ending_at(end, 7200.0, 90), 0, end) if one is not None]
    assert len(found) >= 89
    assert max(one.high for one in found) == pytest.approx(100.0)
    drawn = [height(one, 0.0, 100.0) for one in found]
    assert [one for one in drawn if one >= SPIKE] == [8 + SPIKE]
    assert COARSE_BUCKETS * COARSE_SECONDS >= 7200


def test_what_was_drawn_stays_where_it_is_while_time_goes_on() -> None:
    dice = random.Random(3)
    values = {float(second): dice.uniform(0, 100) for second in range(600)}
    history = History()
    drawn: dict[int, Spread | None] = {}
    for second, value in values.items():
        history.add(snapshot(NOW + second, gpus=(gpu(0, util_pct=value),)))
        cells = history.cells(70)
        shown = history.spreads((gpu(0).uuid, "util"), 70)
        for place, spread in enumerate(shown[:-4]):
            number = cells.first + place
            if number in drawn and number * cells.seconds > NOW + 1:
                assert drawn[number] == spread
            drawn[number] = spread
    fresh = history.store.spreads(
        history.store.slot((gpu(0).uuid, "util")) or 0, history.cells(70), 0, history.end
    )
    assert fresh == history.spreads((gpu(0).uuid, "util"), 70), "worked out piece by piece, the same as at once"


def test_absent_is_absent_and_a_hole_is_a_hole() -> None:
    history = History()
    for second in range(30):
        history.add(snapshot(NOW + second, gpus=(gpu(0, util_pct=None if 10 <= second < 20 else 50.0),)))
    history.span = 60.0
    shown = history.spreads((gpu(0).uuid, "util"), 60)
    known = [one is not None for one in shown]
    assert known[-30:] == [True] * 10 + [False] * 10 + [True] * 10
    assert not any(known[:-31])
    history.add(snapshot(NOW + 600, gpus=(gpu(0, util_pct=50.0),)))
    history.span = 1200.0
    assert sum(one is not None for one in history.spreads((gpu(0).uuid, "util"), 120)) <= 6, "nobody looked"


def test_charts_take_in_two_samples_a_second_together() -> None:
    history = History()
    ends = []
    for tick in range(20):
        history.add(snapshot(NOW + tick / 2, gpus=(gpu(0, util_pct=50.0),)))
        ends.append(history.end - NOW)
        assert history.newest == NOW + tick / 2
    assert ends == [float(tick // 2) for tick in range(20)]
    history.instant = history.newest
    assert history.end == NOW + 9.5, "the instant that is shown"


def test_a_slower_rate_leaves_no_gaps() -> None:
    history = History()
    for tick in range(20):
        history.add(snapshot(NOW + 10 * tick, gpus=(gpu(0, util_pct=50.0),)))
    history.span = 60.0
    assert all(history.spreads((gpu(0).uuid, "util"), 60))


def test_steps_lie_where_they_were_and_those_from_before_the_monitor_too() -> None:
    steps = tuple(
        Step(index=i, started_at=NOW - 100 + 2.0 * i, seconds=1.0, interval_seconds=2.0 if i != 30 else 9.0)
        for i in range(1, 50)
    )
    training = rank(step=50, new_steps=steps, attached_at=NOW - 200)
    history = History()
    history.add(snapshot(NOW, ranks=(training,)))
    history.span = 300.0
    past = history.heights_from_zero((key_of(training), "step"), 100)
    assert past.most == pytest.approx(9.0)
    assert past.least == pytest.approx(2.0)
    cells = history.cells(100)
    known = [place for place, one in enumerate(past.heights) if one]
    assert known[0] == pytest.approx(cells.index_of(NOW - 100), abs=2)
    assert max(past.heights) >= SPIKE
    assert history.first is not None
    assert history.first <= NOW - 98


def test_a_storm_of_short_steps_keeps_its_mean() -> None:
    steps = tuple(
        Step(index=i, started_at=NOW - 1 + i / 1000, seconds=0.001, interval_seconds=0.001 + 0.001 * (i % 2))
        for i in range(1, 1000)
    )
    training = rank(step=999, new_steps=steps)
    history = History()
    history.add(snapshot(NOW - 1))
    history.add(snapshot(NOW, ranks=(training,)))
    history.span = 60.0
    known = [one for one in history.spreads((key_of(training), "step"), 60) if one is not None]
    assert known[-1].mean == pytest.approx(0.0015, rel=0.01)


def test_the_span_and_the_instant_move_everything_and_nothing_comes_from_the_future() -> None:
    history = History()
    for second in range(200):
        history.add(snapshot(NOW + second, gpus=(gpu(0, util_pct=float(second % 100)),)))
    name = (gpu(0).uuid, "util")
    history.span, history.instant = 60.0, NOW + 49
    assert [round(one.mean) for one in history.spreads(name, 60)[-50:] if one] == list(range(50))
    history.instant = None
    assert history.spreads(name, 60)[-1] == Spread(99.0, 99.0, 99.0)
    assert [history.seconds for history.span in SPANS] == [60.0, 300.0, 1200.0, 7200.0, 86400.0, 240.0]


def test_going_back_in_a_recording_forgets_nothing_and_adds_nothing_twice() -> None:
    moments = [snapshot(NOW + second, gpus=(gpu(0, util_pct=50.0),)) for second in range(100)]
    history = History()
    for moment in moments:
        history.add(moment)
    name = (gpu(0).uuid, "util")
    before = history.spreads(name, 50)
    history.join(moments[20:40])
    assert history.add(moments[40]) == NOW + 40
    history.instant = None
    assert history.spreads(name, 50) == before


def test_more_gpus_than_there_is_room_for_keep_the_first_figures_of_each() -> None:
    history = History()
    many = scene(gpus=40, ranks=2, seconds=3)
    for moment in many:
        history.add(moment)
    for one in many[-1].gpus:
        assert any(history.heights_of((one.uuid, "power"), 10, 700.0).heights), one.index
    assert any(history.heights_of((key_of(many[-1].ranks[0]), "tokens"), 10, 1e6).heights), (
        "room is kept for trainings"
    )


def test_a_series_that_nobody_writes_makes_room_and_one_that_is_written_never_does() -> None:
    store = SeriesStore(2)
    first, second = store.make("a"), store.make("b")
    assert first is not None
    store.advance(NOW)
    store.put([first], [1.0], NOW - 1, NOW)
    assert store.make("c", idle_since=NOW - 600) == second
    assert store.make("d", idle_since=-INF) is None
    assert store.slot("b") is None


def test_alerts_are_remembered_from_when_to_when() -> None:
    def moment(second: float, *ids: str) -> object:
        alerts = tuple(Alert(id=one, severity="warning", pid=7, since=NOW + 10, summary="") for one in ids)
        return snapshot(NOW + second, alerts=alerts)

    history = History()
    for second in range(40):
        held = ["straggler"] if 10 <= second < 20 or second >= 25 else []
        history.add(moment(second, *held, *(["throttled"] if second == 30 else [])))  # type: ignore[arg-type]
    found = [(one.alert.id, one.since - NOW, one.until - NOW) for one in history.alerts]
    assert found == [("straggler", 10.0, 39.0), ("throttled", 10.0, 30.0)]


def test_phases_are_means_of_a_stretch_and_absent_before_it() -> None:
    def with_phases(load: float) -> Rank:
        phases = (Phase(name="load", host_seconds=load), Phase(name="load/x", host_seconds=9.0))
        return rank(phases=phases, outside_seconds=0.5)

    known = PhaseHistory()
    for second in range(0, 600, 5):
        known.add(with_phases(1.0 if second < 300 else 3.0), NOW + second)
    assert known.mean_phases(NOW, NOW + 280) == pytest.approx({"load": 1.0, "outside": 0.5})
    assert known.mean_phases(NOW + 320, NOW + 590) == pytest.approx({"load": 3.0, "outside": 0.5})
    assert known.mean_phases(NOW - 7000, NOW - 100) is None
    turn = (NOW // 15.0 + 20) * 15.0  # the bucket in which it changes, or the one before
    assert known.mean_phases(turn - 30.0, turn) == pytest.approx({"load": 1.0, "outside": 0.5}), (
        "its end is not in"
    )


@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(allow_nan=True, allow_infinity=True))
def test_a_level_is_a_level_whatever_the_value(value: float, limit: float) -> None:
    assert 0 <= level(value, limit) <= 8
    if math.isfinite(value) and 0 < limit < math.inf:
        assert level(value, limit) >= 1


def test_a_value_that_cannot_be_drawn_hurts_no_neighbour() -> None:
    history = History()
    moments = scene(gpus=2, seconds=3)
    for moment in moments:
        odd = replace(moment.gpus[0], power_watts=float("inf"), sm_active_pct=float("nan"))
        history.add(replace(moment, gpus=(odd, moment.gpus[1])))
    assert not any(history.heights_of((moments[0].gpus[0].uuid, "power"), 30, 700.0).heights)
    assert any(history.heights_of((moments[0].gpus[1].uuid, "power"), 30, 700.0).heights)
