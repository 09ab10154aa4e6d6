"""The rules about checkpoints, on made-up ones."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from llmtop.model.health import Checkpoint
from llmtop.model.snapshot import Alert, Host, Rank, Snapshot
from llmtop.rules.engine import Rules

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
