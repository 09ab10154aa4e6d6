"""Ranks that wait in a collective, and the one that has not called it."""

from __future__ import annotations

import pytest

from llmtop.model.snapshot import Alert, CollectiveCount, Host, Process, Rank, Snapshot
from llmtop.rules.engine import Rules

NOW = 10_000.0
DEFAULT = "0 default_pg"


def count(enqueued: int, completed: int | None, group: str = DEFAULT) -> CollectiveCount:
    return CollectiveCount(group=group, enqueued=enqueued, completed=completed, operation="nccl:all_reduce")


def rank(number: int, *counts: CollectiveCount, **fields: object) -> Rank:
    defaults: dict[str, object] = {
        "pid": 100 + number,
        "host": "node",
        "rank": number,
        "world_size": 3,
        "command": "train.py",
        "attached_at": NOW - 1000,
        "step": 151,
        "step_seconds_p50": 0.04,
        "last_step_at": NOW - 8,
        "collectives": counts,
    }
    return Rank(**{**defaults, **fields})  # type: ignore[arg-type]


def alerts_of(*ranks: Rank) -> list[Alert]:
    return list(Rules().apply(Snapshot(time=NOW, host=Host(name="node"), ranks=ranks)).alerts)


def test_the_rank_that_has_not_called_it_is_named() -> None:
    (alert,) = alerts_of(rank(0, count(40, 39)), rank(1, count(39, 39)), rank(2, count(40, 39)))
    assert (alert.id, alert.severity, alert.pid) == ("hung_collective", "critical", 101)
    assert alert.summary == (
        "No step for 8.00 s: rank 1 (pid 101) never entered all_reduce #40 of process group 0 default_pg "
        "(its last was #39); 2 ranks are waiting."
    )
    assert alert.evidence["rank"] == 1
    assert alert.evidence["behind_by"] == 1
    assert alert.evidence["process_group"] == DEFAULT
    assert "101" in alert.next


def test_one_that_is_behind_since_it_waits_itself_is_not_named() -> None:
    """Rank 1 waits for rank 2 in a group of theirs, and rank 0 for both."""
    pair = "3 pair"
    (alert,) = alerts_of(
        rank(0, count(40, 39)),
        rank(1, count(39, 39), count(11, 10, pair)),
        rank(2, count(39, 39), count(10, 10, pair)),
    )
    assert alert.pid == 102


def test_where_all_have_called_it_nobody_is_named() -> None:
    (alert,) = alerts_of(*(rank(number, count(40, 39)) for number in range(3)))
    assert alert.id == "hung_collective"
    assert "all 3 ranks wait" in alert.summary
    assert "behind_by" not in alert.evidence


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param([rank(number) for number in range(3)], id="nothing stands still"),
        pytest.param([rank(number, count(40, 40)) for number in range(3)], id="nobody waits"),
        pytest.param([rank(number, count(40, None)) for number in range(3)], id="nobody knows what has ended"),
        pytest.param([rank(0, count(40, 39)), rank(1, count(40, 39))], id="the third is on another node"),
        pytest.param(
            [rank(0, count(40, 39)), rank(1, count(40, 39)), rank(2)], id="the third has told nothing yet"
        ),
        pytest.param(
            [rank(0, count(39, 39), last_work_at=NOW - 2), rank(1, count(40, 39)), rank(2, count(40, 39))],
            id="the first validates alone",
        ),
        pytest.param([rank(0, count(40, 39)), rank(1, count(40, 39)), rank(2, state="gone")], id="one has exited"),
    ],
)
def test_it_is_silent(ranks: list[Rank]) -> None:
    assert "hung_collective" not in {alert.id for alert in alerts_of(*ranks)}


def busy(**fields: object) -> Process:
    return Process(pid=100, gpu_uuid=None, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("process", "silent"),
    [
        pytest.param(busy(cpu_pct=3.0, state="sleeping"), False, id="it sleeps after its forward pass"),
        pytest.param(None, False, id="nothing is known of its process"),
        pytest.param(busy(cpu_pct=99.0, state="running"), True, id="it computes"),
        pytest.param(busy(cpu_pct=4.0, io_write_bytes_per_s=2e8), True, id="it writes"),
        pytest.param(busy(cpu_pct=0.0, state="disk-sleep"), True, id="it waits for a disk"),
    ],
)
def test_one_that_hangs_after_its_forward_pass_is_not_at_other_work(process: Process | None, silent: bool) -> None:
    """Two H100s: the 40th all-reduce came after backward, and nobody was named for 60 s."""
    ranks = (rank(0, count(39, 39), last_work_at=NOW - 8.5, last_step_at=NOW - 8.6), rank(1, count(40, 39)))
    processes = () if process is None else (process,)
    snapshot = Snapshot(
        time=NOW, host=Host(name="node"), ranks=(*ranks, rank(2, count(40, 39))), processes=processes
    )
    told = [alert for alert in Rules().apply(snapshot).alerts if alert.id == "hung_collective"]
    assert [alert.pid for alert in told] == ([] if silent else [100])


def test_what_a_process_did_when_it_was_last_listed_is_not_what_it_does() -> None:
    ranks = (rank(0, count(39, 39), last_work_at=NOW - 8.5, last_step_at=NOW - 8.6), rank(1, count(40, 39)))
    ranks = (*ranks, rank(2, count(40, 39)))
    listed = Snapshot(
        time=NOW, host=Host(name="node"), ranks=ranks, processes=(busy(cpu_pct=99.0, state="running"),)
    )
    rules = Rules()
    assert not [alert for alert in rules.apply(listed).alerts if alert.id == "hung_collective"]
    unlisted = rules.apply(Snapshot(time=NOW + 1, host=Host(name="node"), ranks=ranks))
    assert [alert.pid for alert in unlisted.alerts if alert.id == "hung_collective"] == [100]


def test_it_is_told_instead_of_stalled() -> None:
    ranks = [rank(n, count(40 - (n == 1), 39), state="stalled", last_step_at=NOW - 100) for n in range(3)]
    assert [alert.id for alert in alerts_of(*ranks)] == ["hung_collective"]


def test_a_hung_job_has_no_alert_about_what_bounds_its_steps() -> None:
    """The ranks waited for communication before; for as long as they hang that is no advice."""
    rules, found = Rules(), []
    for hung in (False, True):
        for second in range(5):
            now = NOW + 5 * hung + second
            called = [count(40, 39 if hung else 40), count(39 if hung else 40, 39 if hung else 40)]
            ranks = tuple(
                rank(number, called[number], world_size=2, exposed_seconds=0.02, last_step_at=NOW)
                for number in range(2)
            )
            found.append({a.id for a in rules.apply(Snapshot(time=now, host=Host(name="n"), ranks=ranks)).alerts})
    assert "communication_bound" in found[4]
    assert found[-1] == {"hung_collective"}
