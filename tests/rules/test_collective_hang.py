"""Ranks that wait in a collective, and the one that has not called it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmtop.model.snapshot import (
    Alert,
    CollectiveCount,
    CommunicatorRank,
    Host,
    Process,
    Rank,
    Snapshot,
    StuckCommunicator,
)
from llmtop.rules.collective_hang import (
    HUNG_COLLECTIVE,
    HUNG_COMMUNICATOR,
    Hang,
    find_hang,
    has_known_culprit,
    is_waiting,
)
from llmtop.rules.engine import Rules
from llmtop.rules.state.communicator import CommunicatorState
from llmtop.rules.state.rank import JobState, RankState
from tests.support.snapshots import gpu

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


# ---- who is found, and in which words ----


def _job(*ranks: Rank) -> JobState:
    states = []
    for one in ranks:
        state = RankState(one, NOW)
        state.update(one, NOW)
        states.append(state)
    job = JobState(states)
    job.now = NOW
    return job


def _names(hang: Hang | None) -> tuple[str, list[int | None], int, int | None, int | None] | None:
    if hang is None:
        return None
    behind = None if hang.behind is None else hang.behind.rank.rank
    return hang.group, [state.rank.rank for state in hang.waiting], hang.number, behind, hang.reached


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([rank(0, count(40, 40)), rank(1, count(40, 40))], None),
        ([rank(0, count(40, None)), rank(1, count(39, None))], None),
        ([rank(0, count(40, 39)), rank(1, count(39, 39))], (DEFAULT, [0], 40, 1, 39)),
        ([rank(0, count(40, 39)), rank(1, count(38, 38)), rank(2, count(39, 39))], (DEFAULT, [0], 40, 1, 38)),
        ([rank(0, count(40, 39)), rank(1, count(39, 38)), rank(2, count(40, 39))], (DEFAULT, [0, 2], 40, 1, 39)),
        ([rank(0, count(40, 39)), rank(1)], (DEFAULT, [0], 40, None, None)),
        ([rank(0, count(40, 39)), rank(1, count(7, 7, "other"))], (DEFAULT, [0], 40, None, None)),
        ([rank(0, count(40, 39)), rank(1, count(39, 39), state="gone")], (DEFAULT, [0], 40, None, None)),
        ([rank(0, count(40, 39), state="stopped"), rank(1, count(39, 39))], None),
        (
            [rank(0, count(4, 3, "a")), rank(1, count(9, 8, "b")), rank(2, count(8, 8, "b"))],
            ("b", [1], 9, 2, 8),
        ),
        (
            # Rank 1 is behind in "a" and waits itself in "b", where rank 2 is behind and waits nowhere.
            [rank(0, count(4, 3, "a")), rank(1, count(3, 3, "a"), count(9, 8, "b")), rank(2, count(8, 8, "b"))],
            ("b", [1], 9, 2, 8),
        ),
        (
            # Each of both is behind in one group and waits in the other: the first group is named.
            [rank(0, count(4, 3, "a"), count(8, 8, "b")), rank(1, count(3, 3, "a"), count(9, 8, "b"))],
            ("a", [0], 4, 1, 3),
        ),
    ],
)
def test_the_rank_that_is_behind_and_waits_nowhere_is_found(
    ranks: list[Rank], expected: tuple[str, list[int], int, int | None, int | None] | None
) -> None:
    job = _job(*ranks)
    assert _names(find_hang(job)) == expected
    assert has_known_culprit(job) is (expected is not None and expected[3] is not None)


@pytest.mark.parametrize(
    ("enqueued", "completed", "waits"),
    [(40, 39, True), (40, 40, False), (40, 41, False), (40, None, False), (40, 0, True)],
)
def test_a_collective_that_has_not_ended_is_waited_in(enqueued: int, completed: int | None, waits: bool) -> None:
    assert is_waiting(count(enqueued, completed)) is waits


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([rank(0, count(40, 39)), rank(1, count(39, 39))], True),
        ([rank(0, count(40, 39)), rank(1, count(39, 39)), rank(2, state="gone")], False),
        ([rank(0, count(40, 39)), rank(1, count(39, 39)), rank(2, state="stopped")], False),
        ([rank(0, count(40, 39)), rank(1, count(40, 39))], False),  # the third rank is not seen
        ([rank(number, count(40, 39)) for number in range(3)], True),
        ([rank(0, count(40, 39)), rank(1, count(40, 39)), rank(2)], False),
        ([rank(0, count(40, 39)), rank(1, count(39, 39), last_work_at=NOW - 2)], False),
    ],
)
def test_a_job_hangs_if_all_wait_or_one_is_behind(ranks: list[Rank], expected: bool) -> None:
    assert HUNG_COLLECTIVE.holds(_job(*ranks), False) is expected


@pytest.mark.parametrize(
    ("ranks", "summary", "points", "evidence"),
    [
        (
            [rank(0, count(40, 37)), rank(1, count(37, 37))],
            "No step for 8.00 s: rank 1 (pid 101) never entered all_reduce #40 of process group 0 default_pg "
            "(its last was #37); 1 rank is waiting.",
            (
                "never entered all_reduce #40",
                "1 rank is waiting",
                "its last was #37",
                "process group 0 default_pg",
            ),
            {"rank": 1, "last_called": 37, "behind_by": 3, "waiting_ranks": 1},
        ),
        (
            [rank(number, count(40, 39), last_step_at=None, attached_at=None) for number in range(3)],
            "No step yet: all 3 ranks wait in all_reduce #40 of process group 0 default_pg, "
            "which does not complete.",
            ("all_reduce #40 does not complete", "all 3 ranks are waiting", "process group 0 default_pg"),
            {"rank": 0, "last_called": None, "behind_by": None, "waiting_ranks": 3},
        ),
    ],
    ids=["behind", "all wait"],
)
def test_clauses_and_sentence_name_the_collective(
    ranks: list[Rank], summary: str, points: tuple[str, ...], evidence: dict[str, Any]
) -> None:
    shown = HUNG_COLLECTIVE.describe(_job(*ranks))
    assert shown.summary == summary
    assert shown.points == points
    assert {name: shown.evidence[name] for name in evidence} == evidence
    assert (shown.evidence["collective"], shown.evidence["operation"]) == (40, "nccl:all_reduce")
    is_timed = ranks[0].last_step_at is not None
    assert (shown.since, shown.evidence["seconds_without_step"]) == ((NOW - 8, 8.0) if is_timed else (None, None))
    assert shown.next.startswith("press s" if evidence["behind_by"] else "check the network")


def test_the_longest_time_without_a_step_is_told_and_an_unknown_operation_is_a_collective() -> None:
    counts = CollectiveCount(group=DEFAULT, enqueued=4, completed=3), CollectiveCount(group=DEFAULT, enqueued=3)
    job = _job(rank(0, counts[0]), rank(1, counts[1], last_step_at=NOW - 12))
    shown = HUNG_COLLECTIVE.describe(job)
    assert shown.summary.startswith("No step for 12.0 s: ")
    assert "never entered collective #4 " in shown.summary
    assert shown.since == NOW - 12


# ---- by NCCL RAS ----


def _late(number: int, called: int | None = None) -> CommunicatorRank:
    return CommunicatorRank(rank=number, host=f"node{number}", pid=500 + number, called=called)


def _stuck(known: bool = False, ranks: tuple[Rank, ...] = (), **fields: Any) -> CommunicatorState:
    usual = {"id": "0xabc", "size": 16, "operation": "AllReduce", "number": 40, "waiting_count": 14}
    return CommunicatorState(
        StuckCommunicator(**{**usual, **fields}), _job(*ranks).ranks if ranks else (), (), known, NOW
    )


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (_stuck(), False),
        (_stuck(behind_count=1), True),
        (_stuck(missing_count=1), True),
        (_stuck(known=True, behind_count=1), False),
    ],
)
def test_a_communicator_is_stuck_if_ranks_are_behind_or_missing(state: CommunicatorState, expected: bool) -> None:
    assert HUNG_COMMUNICATOR.holds(state, False) is expected


@pytest.mark.parametrize(
    ("fields", "who", "points", "numbers"),
    [
        (
            {"behind": (_late(3, 38),), "behind_count": 1},
            "rank 3 (node3, pid 503) is at AllReduce #38, the other ranks at #40.",
            ("rank 3 never entered AllReduce #40", "on node3", "a communicator of 16 ranks"),
            (3, 38, 2, 1, 0),
        ),
        (
            {"behind": (_late(3, 38), _late(4, 38)), "behind_count": 2},
            "ranks 3 (node3, pid 503), 4 (node4, pid 504) are at AllReduce #38, the other ranks at #40.",
            ("rank 3 never entered AllReduce #40", "and 1 other rank", "on node3", "a communicator of 16 ranks"),
            (3, 38, 2, 2, 0),
        ),
        (
            {
                "missing": (_late(7), _late(8), _late(9)),
                "missing_count": 4,
                "behind": (_late(3, 38),),
                "behind_count": 1,
            },
            "ranks 7 (node7, pid 507), 8 (node8, pid 508) and 2 more are not replying to NCCL; "
            "rank 3 (node3, pid 503) is at AllReduce #38, the other ranks at #40.",
            ("rank 7 does not reply", "and 4 other ranks", "on node7", "a communicator of 16 ranks"),
            (7, None, None, 1, 4),
        ),
    ],
    ids=["one behind", "two behind", "missing"],
)
def test_a_stuck_communicator_names_its_late_ranks(
    fields: dict[str, Any], who: str, points: tuple[str, ...], numbers: tuple[int | None, ...]
) -> None:
    shown = HUNG_COMMUNICATOR.describe(_stuck(**fields))
    assert shown.summary == f"The job makes no progress: in an NCCL communicator of 16 ranks, {who}"
    assert shown.points == points
    names = ("rank", "last_called", "behind_by", "behind_ranks", "missing_ranks")
    assert tuple(shown.evidence[name] for name in names) == numbers
    assert (shown.since, shown.evidence["waiting_ranks"]) == (None, 14)
    assert f"py-spy dump --pid {500 + (numbers[0] or 0)}" in shown.next


def test_attached_ranks_of_a_communicator_know_since_when() -> None:
    attached = rank(0, last_step_at=NOW - 30), rank(1, last_step_at=NOW - 20)
    shown = HUNG_COMMUNICATOR.describe(_stuck(ranks=attached, behind=(_late(3, 38),), behind_count=1))
    assert shown.summary.startswith("No step for 30.0 s: in an NCCL communicator")
    assert (shown.since, shown.evidence["seconds_without_step"]) == (NOW - 30, 30.0)


@pytest.mark.parametrize(
    ("pids", "expected"), [((100, 101), {101}), ((100,), {101}), ((900, 901), {101, 900}), ((), {101, None})]
)
def test_a_communicator_of_a_job_whose_late_rank_is_known_is_not_told_twice(
    pids: tuple[int, ...], expected: set[int | None]
) -> None:
    stuck = StuckCommunicator(
        id="0xabc", size=3, waiting_count=2, behind_count=1, behind=(_late(3, 38),), number=40, pids=pids
    )
    ranks = rank(0, count(40, 39)), rank(1, count(39, 39)), rank(2, count(40, 39))
    seen = Snapshot(time=NOW, host=Host(name="node"), ranks=ranks, stuck_communicators=(stuck,))
    alerts = Rules(off=()).apply(seen).alerts
    assert {alert.pid for alert in alerts} == expected
    assert {alert.id for alert in alerts} == {"hung_collective"}


def test_processes_of_a_communicator_have_their_gpus() -> None:
    late = StuckCommunicator(
        id="0xabc", size=3, waiting_count=2, behind_count=1, behind=(_late(3, 38),), number=40, pids=(7,)
    )
    boards = gpu(0), gpu(1)
    processes = (
        Process(pid=9, gpu_uuid=boards[0].uuid, state="running"),
        Process(pid=7, gpu_uuid=boards[1].uuid, state="running"),
    )
    seen = Snapshot(
        time=NOW, host=Host(name="node"), gpus=boards, processes=processes, stuck_communicators=(late,)
    )
    (alert,) = Rules(off=()).apply(seen).alerts
    assert (alert.gpu, alert.pid) == (boards[1].uuid, 7)


def test_a_stuck_communicator_explains_a_stalled_job_in_the_first_of_quick_snapshots() -> None:
    stuck = StuckCommunicator(
        id="0xabc", size=2, waiting_count=1, behind_count=1, behind=(_late(1, 38),), number=40, pids=(100, 101)
    )
    ranks = tuple(rank(n, state="stalled", last_step_at=NOW - 100) for n in range(2))
    rules = Rules(off=())
    assert rules.apply_paced(Snapshot(time=NOW - 0.5, host=Host(name="node"))).alerts == ()
    seen = Snapshot(time=NOW, host=Host(name="node"), ranks=ranks, stuck_communicators=(stuck,))
    assert {alert.id for alert in Rules(off=()).apply(replace(seen, stuck_communicators=())).alerts} == {"stalled"}
    assert {alert.id for alert in rules.apply_paced(seen).alerts} == {"hung_collective"}
