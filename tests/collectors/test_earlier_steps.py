"""Alerts in the only snapshot of a monitor that has just started, from the steps that trainings kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collectors.earlier_steps import earlier_snapshots
from collectors.refigure import RecomputeFigures
from llmtop.cli.live.snapshot_text import render
from llmtop.model.snapshot import Host, Phase, Rank, Snapshot, Step
from llmtop.rules.engine import Rules

NOW = 1_800_000_000.0


def _steps(until: float, count: int, length: float, first: int = 0, load: float = 0.9) -> Iterator[Step]:
    """Steps without a pause, the last of which ends then."""
    for number in range(count):
        start = until - (count - number) * length
        yield Step(
            index=first + number, started_at=start, seconds=length, interval_seconds=length if number else None,
            phases=(
                Phase(name="dataload", host_seconds=load * length),
                Phase(name="forward", host_seconds=(1.0 - load) * length),
            ),
        )  # fmt: skip


def _first_snapshot(steps: list[Step]) -> Snapshot:
    """As the hub composes it: all steps that the training kept are new."""
    rank = Rank(
        pid=7, host="here", state="running", step=steps[-1].index, attached_at=NOW - 900.0, new_steps=tuple(steps),
        last_step_at=steps[-1].started_at + steps[-1].seconds,
    )  # fmt: skip
    return RecomputeFigures()(Snapshot(time=NOW, monotonic=5000.0, host=Host(name="here"), ranks=(rank,)))


def _judged(snapshot: Snapshot) -> Snapshot:
    rules = Rules()
    for earlier in earlier_snapshots(snapshot):
        rules.apply(earlier)
    return rules.apply(snapshot)


@pytest.mark.parametrize(
    ("count", "length", "first"),
    [(200, 0.1, 5000), (512, 0.026, 0), (100, 1.0, 5000), (240, 1.0, 5000), (500, 1.0, 0)],
)
def test_an_alert_is_as_old_as_the_steps_that_show_it(count: int, length: float, first: int) -> None:
    steps = list(_steps(NOW, count, length, first))
    (alert,) = _judged(_first_snapshot(steps)).alerts
    assert alert.id == "input_bound"
    known = min(count * length, 300.0)
    assert known - 13.0 <= NOW - alert.since <= known
    text = " ".join(render(_judged(_first_snapshot(steps))).split())
    assert ("for at least" in text) == (first > 0)


def test_what_began_later_is_not_older_than_that() -> None:
    fast = list(_steps(NOW - 10.0, 150, 0.1, 5000, load=0.01))
    slow = list(_steps(NOW, 100, 0.1, 5150))
    (alert,) = _judged(_first_snapshot([*fast, *slow])).alerts
    assert alert.id == "input_bound"
    assert 5.0 <= NOW - alert.since <= 10.0
    assert "at least" not in render(_judged(_first_snapshot([*fast, *slow])))


def test_a_healthy_training_has_no_alert_and_what_is_known_earlier_has_no_later_step() -> None:
    snapshot = _first_snapshot(list(_steps(NOW, 200, 0.1, 5000, load=0.01)))
    earlier = list(earlier_snapshots(snapshot))
    assert len(earlier) == 19, "the first step ended 19.9 s ago"
    for then in earlier:
        assert all(step.started_at + step.seconds <= then.time for step in then.ranks[0].new_steps)
        assert then.ranks[0].step_seconds_p50 == pytest.approx(0.1) or then is earlier[0]
        assert then.monotonic == pytest.approx(5000.0 + then.time - NOW)
    assert sum(len(then.ranks[0].new_steps) for then in earlier) == pytest.approx(190, abs=1)
    assert _judged(snapshot).alerts == ()
