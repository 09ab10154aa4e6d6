"""The rules over a stream whose wall clock is set, and over pids that are given to another process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from llmtop.model.snapshot import Alert, Gpu, Host, Phase, Rank, Snapshot, Step
from llmtop.recording.reader_writer import Reader, Writer
from llmtop.recording.steady import MonotonicTime
from llmtop.rules.engine import Rules

BEGAN = 1_000_000.0
HOT = Gpu(
    index=0,
    uuid="GPU-0",
    name="NVIDIA H200",
    util_pct=90.0,
    power_watts=300.0,
    power_limit_watts=700.0,
    sm_clock_mhz=1000.0,
    sm_clock_max_mhz=1980.0,
    clock_event_reasons=("hw_thermal_slowdown",),
)


def moments(seconds: Iterable[float], *, set_by: float = 0.0, **fields: object) -> list[Snapshot]:
    """Snapshots at these seconds of the monotonic clock, with the wall clock set by so much."""
    return [
        Snapshot(time=BEGAN + second + set_by, monotonic=500.0 + second, host=Host(name="node"), **fields)  # type: ignore[arg-type]
        for second in seconds
    ]


def judged(rules: Rules, snapshots: list[Snapshot]) -> list[tuple[Alert, ...]]:
    return [rules.apply(snapshot).alerts for snapshot in snapshots]


@pytest.mark.parametrize("set_by", [3600.0, -3600.0, 70.0, -5.0])
def test_an_alert_stays_up_and_is_as_old_as_it_is(set_by: float) -> None:
    rules = Rules()
    (before,) = judged(rules, moments(range(10), gpus=(HOT,)))[-1]
    assert before.id == "throttled"
    age = BEGAN + 9 - before.since
    for second, alerts in enumerate(judged(rules, moments(range(10, 20), set_by=set_by, gpus=(HOT,))), 10):
        (alert,) = alerts
        assert BEGAN + second + set_by - alert.since == pytest.approx(age + second - 9)


def test_a_hole_in_the_monotonic_clock_still_proves_nothing() -> None:
    rules = Rules()
    assert judged(rules, moments(range(10), gpus=(HOT,)))[-1]
    assert judged(rules, moments([400.0], gpus=(HOT,))) == [()]


def test_another_machines_recording_joined_on_begins_anew() -> None:
    rules = Rules()
    assert judged(rules, moments(range(10), gpus=(HOT,)))[-1]
    other = [
        Snapshot(time=BEGAN + 7200 + second, monotonic=3.0 + second, host=Host(name="other"), gpus=(HOT,))
        for second in range(5)
    ]
    assert rules.apply(other[0]).alerts == ()
    (alert,) = judged(rules, other[1:])[-1]
    assert alert.since == pytest.approx(BEGAN + 7200)


def rank(attached_at: float, cost: float, indices: Iterable[int], *, waits: float = 0.0) -> Rank:
    """A rank with new steps of `cost` seconds each, of which it waits `waits` seconds for data."""
    loading = (Phase(name="dataload", host_seconds=waits),)
    steps = tuple(
        Step(
            index=index,
            started_at=attached_at + index * cost,
            seconds=cost,
            interval_seconds=cost,
            phases=loading,
        )
        for index in indices
    )
    return Rank(
        pid=77,
        host="node",
        attached_at=attached_at,
        new_steps=steps,
        step=steps[-1].index,
        step_seconds_p50=cost,
        last_step_at=steps[-1].started_at + cost,
    )


@pytest.mark.parametrize(("attached_after", "left"), [(0.0, ["input_bound"]), (20.0, [])], ids=["same", "another"])
def test_a_pid_that_another_training_got_has_nothing_of_the_first(attached_after: float, left: list[str]) -> None:
    """Steps of 0.1 s that wait for data, then, under the same pid, of 0.4 s that do not."""
    rules = Rules()
    first = [
        Snapshot(
            time=BEGAN + second,
            monotonic=500.0 + second,
            host=Host(name="node"),
            ranks=(rank(BEGAN, 0.1, range(second * 10, second * 10 + 10), waits=0.06),),
        )
        for second in range(20)
    ]
    assert [alert.id for alert in judged(rules, first)[-1]] == ["input_bound"]
    later = Snapshot(
        time=BEGAN + 20,
        monotonic=520.0,
        host=Host(name="node"),
        ranks=(rank(BEGAN + attached_after, 0.4, range(300, 302)),),
    )
    assert [alert.id for alert in rules.apply(later).alerts] == left


def written(path: Path, snapshots: list[Snapshot]) -> Reader:
    writer = Writer(path, host="node")
    for snapshot in snapshots:
        writer.write(snapshot)
    writer.close()
    return Reader(path)


@pytest.mark.parametrize("set_by", [3600.0, -3600.0])
def test_a_recording_plays_as_long_as_it_took(set_by: float, tmp_path: Path) -> None:
    snapshots = moments(range(13)) + moments(range(13, 40), set_by=set_by)
    reader = written(tmp_path / "a.llmtop.gz", snapshots)
    played = list(reader.snapshots())
    assert [snapshot for _, snapshot in played] == snapshots
    assert [position for position, _ in played] == pytest.approx(list(range(40)))
    assert reader.length == pytest.approx(39)
    assert [position for position, _ in reader.snapshots(20.0)] == pytest.approx(list(range(20, 40)))
    reader.close()


def test_a_recording_without_a_monotonic_clock_plays_on_where_its_wall_clock_was_set_back(tmp_path: Path) -> None:
    times = [*range(13), *range(-3587, -3560)]
    snapshots = [Snapshot(time=BEGAN + time, host=Host(name="node")) for time in times]
    reader = written(tmp_path / "wall.llmtop.gz", snapshots)
    played = list(reader.snapshots())
    assert [snapshot for _, snapshot in played] == snapshots
    positions = [position for position, _ in played]
    assert positions == sorted(positions)
    reader.close()


def test_without_a_monotonic_clock_there_is_only_the_wall_clock() -> None:
    clock = MonotonicTime()
    assert [clock.time_of(Snapshot(time=time, host=Host(name="node"))) for time in (5.0, 3.0)] == [5.0, 3.0]


def _alerts_at(*seconds: float) -> tuple[Alert, ...]:
    """The alerts of a throttled GPU at the last of these seconds."""
    rules, alerts = Rules(off=()), ()
    for second in seconds:
        alerts = rules.apply(Snapshot(time=BEGAN + second, host=Host(name="node"), gpus=(HOT,))).alerts
    return alerts


@pytest.mark.parametrize(
    ("seconds", "is_up"),
    [
        ((*range(10), 8.0), True),  # a second back is the same instant
        ((*range(10), 7.9), False),
        ((*range(10), 69.0), True),  # a minute without snapshots
        ((*range(10), 69.1), False),
        ((0.0, 20.0, 40.0, 120.0), True),  # four times the interval, where that is longer
        ((0.0, 20.0, 40.0, 120.1), False),
    ],
)
def test_a_jump_of_the_stream_begins_anew(seconds: tuple[float, ...], is_up: bool) -> None:
    assert bool(_alerts_at(*seconds)) is is_up


def test_an_instant_before_the_last_one_counts_as_the_last_one() -> None:
    """Throttling raises its alert after 2 s: by then 1.9 s have passed, and 2 s after another 0.1 s."""
    assert _alerts_at(0.0, 1.9, 1.5, 1.9) == ()
    assert _alerts_at(0.0, 1.9, 1.5, 2.0)


def test_alerts_are_sorted_by_severity_begin_id_and_gpu() -> None:
    rules = Rules(off=())
    lost = Gpu(index=9, uuid="GPU-9", name="NVIDIA H200", error="GPU is lost")
    hot = [
        Gpu(**{**{name: getattr(HOT, name) for name in HOT.__struct_fields__}, "uuid": f"GPU-{at}"})
        for at in (3, 1, 2)
    ]
    for second in range(6):
        late = hot if second >= 2 else hot[:1]
        gpus = (*late, lost) if second == 5 else tuple(late)
        alerts = rules.apply(Snapshot(time=BEGAN + second, host=Host(name="node"), gpus=gpus)).alerts
    assert [(alert.id, alert.gpu) for alert in alerts] == [
        ("gpu_error", "GPU-9"),
        ("throttled", "GPU-3"),
        ("throttled", "GPU-1"),
        ("throttled", "GPU-2"),
    ]


def test_a_gpu_or_rank_that_is_listed_twice_counts_once() -> None:
    cold = Gpu(index=0, uuid="GPU-0", name="NVIDIA H200", util_pct=90.0)
    rules, alerts = Rules(off=()), ()
    for second in range(5):
        alerts = rules.apply(Snapshot(time=BEGAN + second, host=Host(name="node"), gpus=(HOT, cold))).alerts
    assert [alert.id for alert in alerts] == ["throttled"]
    stalled = Rank(pid=1, host="node", step=5, state="stalled", attached_at=BEGAN, last_step_at=BEGAN)
    running = Rank(pid=1, host="node", step=5, attached_at=BEGAN, last_step_at=BEGAN + 100.0)
    seen = Snapshot(time=BEGAN + 100.0, host=Host(name="node"), ranks=(stalled, running))
    assert [alert.id for alert in Rules(off=()).apply(seen).alerts] == ["stalled"]


def test_alerts_that_are_off_are_not_shown() -> None:
    rules, alerts = Rules(off=("throttled",)), ()
    for second in range(5):
        alerts = rules.apply(Snapshot(time=BEGAN + second, host=Host(name="node"), gpus=(HOT,))).alerts
    assert alerts == ()
