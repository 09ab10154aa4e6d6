"""The rules about checkpoints, on made-up ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from llmtop.model.health import Checkpoint
from llmtop.model.snapshot import Alert, Host, Rank, Snapshot
from llmtop.rules.engine import Rules
from llmtop.rules.risk import CHECKPOINT_DISK_FULL, CHECKPOINT_INTERVAL, WORK_AT_RISK, last_checkpoint
from llmtop.rules.state.rank import JobState
from tests.support import rule_states

IDS = {"work_at_risk", "checkpoint_interval", "checkpoint_disk_full"}
NOW = 1_000_000.0
SAVED = Checkpoint(step=1000, at=NOW - 600, seconds=50.0, blocked_seconds=50.0, path="/data/run/step-1000")


def told(checkpoint: Checkpoint | None, *, seconds: float = 20.0, **fields: object) -> dict[str, Alert]:
    """The alerts after so many seconds."""
    rules, found = Rules(off=()), {}
    for number in range(int(seconds / 5) + 1):
        rank = Rank(
            pid=7,
            host="node",
            step=1312,
            step_seconds_p50=1.0,
            attached_at=NOW - 9000,
            last_step_at=NOW + 5 * number,
            checkpoint=checkpoint,
            **{"sees_checkpoints": True, **fields},
        )
        moment = Snapshot(time=NOW + 5 * number, host=Host(name="node"), ranks=(rank,))
        found = {alert.id: alert for alert in rules.apply(moment).alerts if alert.id in IDS}
    return found


def test_a_young_checkpoint_raises_nothing() -> None:
    assert told(SAVED) == {}
    assert told(None, sees_checkpoints=False) == {}, "where none would be seen, its absence says nothing"


def test_an_old_checkpoint_and_none_at_all_are_work_at_risk() -> None:
    old = told(replace(SAVED, at=NOW - 7300))["work_at_risk"]
    assert old.evidence["steps_at_risk"] == 312
    assert old.evidence["age_seconds"] == pytest.approx(7320, rel=1e-3)
    assert "312 steps" in old.summary
    none = told(None)["work_at_risk"]
    assert "steps_at_risk" not in none.evidence
    assert told(None, state="paused") == {}


@pytest.mark.parametrize(("interval", "raised"), [(100.0, True), (7200.0, False), (40_000.0, False)])
def test_the_interval_is_compared_with_young_and_daly(interval: float, *, raised: bool) -> None:
    found = told(replace(SAVED, interval_seconds=interval), world_size=64)
    assert ("checkpoint_interval" in found) is raised
    if raised:
        failure = 50_000 * 3600 / 64
        evidence = found["checkpoint_interval"].evidence
        assert evidence["optimum_seconds"] == pytest.approx(math.sqrt(2 * 50 * failure) - 50, rel=1e-3)
        assert evidence["lost_pct"] == pytest.approx(100 * (50 / interval + interval / 2 / failure), rel=1e-3)


def test_a_checkpoint_that_costs_nothing_may_be_taken_at_any_time() -> None:
    assert told(replace(SAVED, interval_seconds=60.0, blocked_seconds=0.01), world_size=64) == {}


def test_a_disk_without_room_for_the_next_and_one_that_fills_are_told() -> None:
    large = replace(SAVED, size_bytes=100 << 30, disk_total_bytes=1000 << 30)
    full = told(replace(large, disk_free_bytes=90 << 30))["checkpoint_disk_full"]
    assert full.severity == "critical"
    filling = replace(large, disk_free_bytes=300 << 30, disk_bytes_per_s=(300 << 30) / 7200)
    alert = told(filling)["checkpoint_disk_full"]
    assert alert.severity == "warning"
    assert alert.evidence["full_in_seconds"] == pytest.approx(7200, rel=1e-3)
    assert told(filling, eta_seconds=600.0) == {}, "the training ends before"
    assert told(replace(large, disk_free_bytes=300 << 30)) == {}


# ---- each limit by itself ----

HOUR = 3600.0


def _job(*ranks: dict[str, Any], now: float = rule_states.NOW) -> JobState:
    usual = {"world_size": len(ranks), "sees_checkpoints": True}
    made = [
        rule_states.rank_state(pid=100 + place, **{**usual, "rank": place, **one})
        for place, one in enumerate(ranks)
    ]
    job = JobState(made)
    job.now = now
    return job


def _saved(age: float = 0.0, **fields: Any) -> Checkpoint:
    usual = {"step": 50, "at": rule_states.NOW - age, "seconds": 2.0, "blocked_seconds": 2.0}
    return Checkpoint(**{**usual, **fields})


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (({"checkpoint": _saved(2 * HOUR)},), True),
        (({"checkpoint": _saved(2 * HOUR - 1)},), False),
        (({"checkpoint": _saved(9 * HOUR)}, {"checkpoint": _saved(HOUR, step=60)}), False),
        (({"checkpoint": _saved(HOUR)}, {"checkpoint": _saved(9 * HOUR, step=60)}), True),
        (({"checkpoint": _saved(9 * HOUR), "state": "stalled"},), False),
        (({"checkpoint": _saved(9 * HOUR), "inference": True},), False),
        (({"checkpoint": _saved(9 * HOUR), "step": None},), False),
        (({"checkpoint": _saved(9 * HOUR), "state": "gone"}, {}), True),
        (({"attached_at": rule_states.NOW - 2 * HOUR},), True),
        (({"attached_at": rule_states.NOW - 2 * HOUR + 1},), False),
        (({"attached_at": rule_states.NOW - 2 * HOUR, "sees_checkpoints": False},), False),
        (({"attached_at": rule_states.NOW - 2 * HOUR}, {"sees_checkpoints": False}), False),
        (({"attached_at": rule_states.NOW - 2 * HOUR}, {"attached_at": rule_states.NOW - HOUR}), True),
        (({},), False),
    ],
    ids=str,
)
def test_work_is_at_risk_two_hours_after_the_last_checkpoint(
    ranks: tuple[dict[str, Any], ...], expected: bool
) -> None:
    assert WORK_AT_RISK.holds(_job(*ranks), False) is expected


def test_the_work_at_risk_is_what_the_slowest_rank_did_since_the_last_checkpoint() -> None:
    job = _job({"step": 71}, {"step": 75, "checkpoint": _saved(2.5 * HOUR, path="/data/x")})
    shown = WORK_AT_RISK.describe(job)
    assert shown.summary == (
        "The last complete checkpoint of rank 1 is 2h 30m old (step 50): if the training ends now, "
        "21 steps are lost."
    )
    assert shown.points == ("21 steps at risk, 2h 30m", "last after step 50")
    assert (shown.evidence["age_seconds"], shown.evidence["steps_at_risk"]) == (9000.0, 21)
    assert (shown.evidence["checkpoint_step"], shown.evidence["path"], shown.evidence["limit_hours"]) == (
        50,
        "/data/x",
        2.0,
    )
    assert shown.subject_rank is job.ranks[1]
    older = WORK_AT_RISK.describe(_job({"step": 40, "checkpoint": _saved(-5.0)}))
    assert (older.evidence["age_seconds"], older.evidence["steps_at_risk"], older.evidence["path"]) == (
        0.0,
        0,
        None,
    )


def test_without_a_checkpoint_all_the_work_is_at_risk() -> None:
    shown = WORK_AT_RISK.describe(_job({"attached_at": rule_states.NOW - 3 * HOUR}))
    assert shown.summary.startswith("No checkpoint since llmtop attached to the training 3h")
    assert len(shown.points) == 1
    assert shown.points[0].startswith("no checkpoint for 3h")
    assert (shown.evidence["steps_at_risk"], shown.evidence["checkpoint_step"]) == (None, None)
    assert shown.subject_rank is None


def _optimum(cost: float, failure_hours: float) -> float:
    """Young's and Daly's: sqrt(2 x cost x mean time between failures) - cost, in seconds."""
    return math.sqrt(2 * cost * failure_hours * HOUR) - cost


@pytest.mark.parametrize(
    ("world", "times", "expected"),
    [
        (16_384, 4.01, (True, True)),
        (16_384, 3.99, (False, True)),
        (16_384, 3.01, (False, True)),
        (16_384, 2.99, (False, False)),
        (16_384, 1 / 4.01, (True, True)),
        (16_384, 1 / 3.99, (False, True)),
        (16_384, 1 / 3.01, (False, True)),
        (16_384, 1 / 2.99, (False, False)),
        (16_384, 1.0, (False, False)),
    ],
)
def test_the_interval_is_far_from_its_optimum_by_a_factor_of_four(
    world: int, times: float, expected: tuple[bool, bool]
) -> None:
    """50,000 hours of one GPU for each failure."""
    saved = _saved(blocked_seconds=20.0, interval_seconds=times * _optimum(20.0, 50_000 / world))
    job = _job({"checkpoint": saved, "world_size": world})
    assert (CHECKPOINT_INTERVAL.holds(job, False), CHECKPOINT_INTERVAL.holds(job, True)) == expected


@pytest.mark.parametrize(("part", "expected"), [(1.01, True), (0.99, False)])
def test_less_than_a_percent_of_the_time_is_not_worth_a_change(part: float, expected: bool) -> None:
    """A short interval of 100 s with checkpoints of 1 s loses 1 % of the time."""
    saved = _saved(blocked_seconds=part - 100.0 / (2 * 50_000 * HOUR), interval_seconds=100.0)
    assert CHECKPOINT_INTERVAL.holds(_job({"checkpoint": saved}), False) is expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"interval_seconds": 100.0, "blocked_seconds": 50.0}, True),
        ({"interval_seconds": None, "blocked_seconds": 50.0}, False),
        ({"interval_seconds": 100.0, "blocked_seconds": 0.0}, False),
        ({"interval_seconds": 0.0, "blocked_seconds": 50.0}, False),
    ],
    ids=str,
)
def test_an_interval_needs_two_checkpoints_that_cost_time(fields: dict[str, Any], expected: bool) -> None:
    assert CHECKPOINT_INTERVAL.holds(_job({"checkpoint": _saved(**fields)}), False) is expected


def test_the_numbers_of_the_interval_follow_young_and_daly() -> None:
    saved = _saved(blocked_seconds=20.0, interval_seconds=600.0)
    job = _job({"checkpoint": saved, "world_size": 1000})
    shown = CHECKPOINT_INTERVAL.describe(job)
    failure, optimum = 50.0 * HOUR, _optimum(20.0, 50.0)
    assert shown.evidence["failure_seconds"] == pytest.approx(failure)
    assert shown.evidence["optimum_seconds"] == pytest.approx(optimum)
    assert shown.evidence["lost_pct"] == pytest.approx(100 * (20 / 600 + 600 / (2 * failure)))
    assert shown.evidence["least_lost_pct"] == pytest.approx(100 * (20 / optimum + optimum / (2 * failure)))
    assert (shown.evidence["interval_seconds"], shown.evidence["checkpoint_seconds"]) == (600.0, 20.0)
    assert shown.next.startswith("save less often")
    assert "(for one failure every 2 days)" in shown.summary
    assert shown.points[0] == "a checkpoint every 10m 00s"
    rare = CHECKPOINT_INTERVAL.describe(_job({"checkpoint": _saved(interval_seconds=9e5), "world_size": 1100}))
    assert rare.next.startswith("save checkpoints more often")
    assert "for one failure every 45h" in rare.summary


@pytest.mark.parametrize(
    ("fields", "left", "expected"),
    [
        ({"disk_free_bytes": 100, "size_bytes": 101}, None, (True, True)),
        ({"disk_free_bytes": 100, "size_bytes": 100}, None, (False, False)),
        ({"disk_free_bytes": 100}, None, (False, False)),
        ({"size_bytes": 101}, None, (False, False)),
        ({"disk_free_bytes": 43_200, "disk_bytes_per_s": 1.0}, None, (True, True)),  # 12 hours
        ({"disk_free_bytes": 43_201, "disk_bytes_per_s": 1.0}, None, (False, True)),
        ({"disk_free_bytes": 64_800, "disk_bytes_per_s": 1.0}, None, (False, True)),
        ({"disk_free_bytes": 64_801, "disk_bytes_per_s": 1.0}, None, (False, False)),
        ({"disk_free_bytes": 100, "disk_bytes_per_s": 0.0}, None, (False, False)),
        ({"disk_free_bytes": 3600, "disk_bytes_per_s": 1.0}, 3601.0, (True, True)),
        ({"disk_free_bytes": 3600, "disk_bytes_per_s": 1.0}, 3600.0, (False, False)),
        ({"disk_free_bytes": 3600, "disk_bytes_per_s": 1.0, "size_bytes": 4000}, 60.0, (True, True)),
    ],
    ids=str,
)
def test_a_disk_is_told_if_it_is_full_before_the_night_and_the_training_end(
    fields: dict[str, Any], left: float | None, expected: tuple[bool, bool]
) -> None:
    job = _job({"checkpoint": _saved(**fields), "eta_seconds": left})
    assert (CHECKPOINT_DISK_FULL.holds(job, False), CHECKPOINT_DISK_FULL.holds(job, True)) == expected


def test_the_rank_that_trains_longest_counts() -> None:
    saved = _saved(disk_free_bytes=3600, disk_bytes_per_s=1.0)
    assert CHECKPOINT_DISK_FULL.holds(
        _job({"checkpoint": saved, "eta_seconds": 60.0}, {"eta_seconds": 9000.0}), False
    )


def test_a_disk_that_fills_and_one_that_is_too_small_are_described() -> None:
    filling = _saved(
        disk_free_bytes=7200 << 20, disk_bytes_per_s=float(1 << 20), size_bytes=1 << 30, disk_total_bytes=1 << 40
    )
    shown = CHECKPOINT_DISK_FULL.describe(_job({"checkpoint": filling}))
    assert shown.severity == "warning"
    assert "is full in about 2h" in shown.summary
    assert shown.points[0].startswith("checkpoint disk full in 2h")
    assert shown.points[1:] == ("7.03 GiB free", "last one 1.00 GiB")
    assert (shown.evidence["full_in_seconds"], shown.evidence["disk_total_bytes"]) == (7200.0, 1 << 40)
    small = CHECKPOINT_DISK_FULL.describe(_job({"checkpoint": replace(filling, size_bytes=8 << 30)}))
    assert small.severity == "critical"
    assert small.points == ("the next checkpoint does not fit", "7.03 GiB free", "last one 8.00 GiB")


@pytest.mark.parametrize(
    ("checkpoints", "place"),
    [
        ((None, None), None),
        ((_saved(5.0), _saved(1.0)), 1),
        ((_saved(1.0), _saved(5.0)), 0),
        ((_saved(step=60), _saved()), 0),
    ],
)
def test_the_last_checkpoint_has_the_highest_step_and_then_time(
    checkpoints: tuple[Checkpoint | None, ...], place: int | None
) -> None:
    job = _job(*({"checkpoint": one} for one in checkpoints))
    found = last_checkpoint(job)
    assert (None if found is None else found.state.rank.rank) == place


@pytest.mark.parametrize(("times", "advice"), [(0.9, "save less often"), (1.1, "save checkpoints more often")])
def test_the_advice_leads_towards_the_optimum(times: float, advice: str) -> None:
    saved = _saved(blocked_seconds=20.0, interval_seconds=times * _optimum(20.0, 50_000 / 1024))
    job = _job({"checkpoint": saved, "world_size": 1024})
    assert CHECKPOINT_INTERVAL.describe(job).next.startswith(advice)
