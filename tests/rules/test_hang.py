"""A training that does not move, and who holds it up."""

from __future__ import annotations

import math
from typing import Any

import pytest

from llmtop.model.snapshot import Alert, Gpu, Host, Process, Rank, Snapshot
from llmtop.rules.engine import Rules
from llmtop.rules.hang import (
    STALLED,
    find_blocking_rank,
    is_doing_other_work,
    is_still_doing_other_work,
    seconds_without_step,
)
from llmtop.rules.state.rank import JobState, RankState
from tests.support import rule_states

NOW = 10_000.0


def rank(number: int, **fields: object) -> Rank:
    defaults: dict[str, object] = {
        "pid": 100 + number,
        "host": "node",
        "rank": number,
        "world_size": 4,
        "gpu_uuid": f"GPU-{number}",
        "command": "train.py",
        "attached_at": NOW - 1000,
        "step": 151,
        "step_seconds_p50": 0.04,
        "last_step_at": NOW - 200,
        "state": "stalled",
    }
    return Rank(**{**defaults, **fields})  # type: ignore[arg-type]


def gpu(number: int, util: float, sm: float) -> Gpu:
    return Gpu(
        index=number,
        uuid=f"GPU-{number}",
        name="NVIDIA H200",
        util_pct=util,
        power_watts=123.0 if util else 120.0,
        power_limit_watts=700.0,
        mem_util_pct=0.0,
        sm_active_pct=sm,
        dram_active_pct=0.0,
    )


def alerts_of(*ranks: Rank, gpus: tuple[Gpu, ...] = (), seconds: int = 8) -> tuple[Alert, ...]:
    rules, alerts = Rules(), ()
    for second in range(seconds):
        snapshot = Snapshot(time=NOW + second, host=Host(name="node"), gpus=gpus, ranks=ranks)
        alerts = rules.apply(snapshot).alerts
    return alerts


def test_one_alert_for_the_whole_job_names_the_idle_gpu_among_spinning_ones() -> None:
    gpus = tuple(gpu(number, 0.0 if number == 2 else 100.0, 0.0 if number == 2 else 18.0) for number in range(4))
    (alert,) = alerts_of(*(rank(number) for number in range(4)), gpus=gpus)
    assert (alert.id, alert.severity, alert.pid, alert.gpu) == ("stalled", "critical", 102, "GPU-2")
    assert alert.since == NOW - 200
    assert alert.summary == (
        "No step for 3m 27s: rank 2 (pid 102, GPU 2) has an idle GPU, other GPUs wait for it in a collective; "
        "3 other ranks waiting."
    )
    assert alert.evidence["culprit_rank"] == 2
    assert alert.evidence["waiting_ranks"] == 3
    assert alert.evidence["waiting_util_pct"] == 100.0
    assert "py-spy dump --pid 102" in alert.next


def test_the_rank_whose_step_is_behind_holds_the_others_up() -> None:
    (alert,) = alerts_of(rank(0, step=152), rank(1, step=150), rank(2, step=152), rank(3, step=152))
    assert alert.pid == 101
    assert "is still at step 150, the other ranks at 152 or later" in alert.summary


def test_a_rank_stopped_by_a_signal_is_named_and_is_not_stalled_by_itself() -> None:
    assert alerts_of(rank(0, state="stopped", world_size=1)) == ()
    (alert,) = alerts_of(rank(0), rank(1, state="stopped"), rank(2), rank(3))
    assert (alert.id, alert.pid) == ("stalled", 101)
    assert alert.next == "continue the process, run: kill -CONT 101"
    assert "is stopped by a signal; 3 other ranks waiting" in alert.summary


def test_a_rank_that_has_exited_is_named() -> None:
    (alert,) = alerts_of(rank(0), rank(1), rank(2, state="gone"), rank(3))
    assert alert.pid == 102
    assert "has exited" in alert.summary


def test_nobody_is_named_when_nothing_tells_them_apart() -> None:
    gpus = tuple(gpu(number, 100.0, 18.0) for number in range(4))
    (alert,) = alerts_of(*(rank(number) for number in range(4)), gpus=gpus)
    assert "All wait at the same place, so the cause is unknown" in alert.summary
    assert "culprit_rank" not in alert.evidence


def test_a_single_training_that_computes_without_steps_is_a_warning_only() -> None:
    busy = Gpu(index=0, uuid="GPU-0", name="H200", util_pct=100.0, power_watts=600.0, power_limit_watts=700.0)
    (alert,) = alerts_of(rank(0, world_size=1, rank=None), gpus=(busy,))
    assert alert.severity == "warning"
    assert "evaluation" in alert.summary
    (alert,) = alerts_of(rank(0, world_size=1, rank=None))
    assert alert.severity == "critical"


def test_until_the_steps_say_so_only_the_waiting_gpu_is_told_of() -> None:
    gpus = (gpu(0, 100.0, 18.0), gpu(1, 0.0, 0.0))
    running = [rank(number, state="running", last_step_at=NOW - 10, world_size=2) for number in range(2)]
    (alert,) = alerts_of(*running, gpus=gpus)
    assert (alert.id, alert.gpu, alert.pid) == ("low_power_full_util", "GPU-0", 100)


def test_a_gpu_outside_the_stalled_job_keeps_its_own_alert() -> None:
    gpus = (gpu(0, 100.0, 18.0), gpu(1, 0.0, 0.0), gpu(7, 100.0, 0.8))
    alerts = alerts_of(rank(0, world_size=2), rank(1, world_size=2), gpus=gpus)
    assert {(alert.id, alert.gpu) for alert in alerts} == {
        ("stalled", "GPU-1"),
        ("low_power_full_util", "GPU-7"),
    }


def test_two_runs_of_one_script_are_two_jobs() -> None:
    first = [rank(number, world_size=2, state="running", attached_at=NOW - 900) for number in range(2)]
    second = [rank(number, pid=200 + number, world_size=2, attached_at=NOW - 100 + number) for number in range(2)]
    (alert,) = alerts_of(*first, *second)
    assert alert.evidence["stalled_ranks"] == 2
    assert alert.pid in (200, 201)


def test_a_restarted_job_does_not_wait_for_its_former_ranks() -> None:
    former = [rank(number, world_size=2, state="gone", attached_at=NOW - 900) for number in range(2)]
    now = [rank(number, pid=200 + number, world_size=2, attached_at=NOW - 100) for number in range(2)]
    (alert,) = alerts_of(*former, *now)
    assert "exited" not in alert.summary
    assert alert.pid in (200, 201)


def test_an_inference_server_without_requests_is_not_stalled() -> None:
    assert alerts_of(rank(0, kind="request", world_size=1)) == ()


@pytest.mark.parametrize(
    "absent", ["last_step_at", "attached_at", "step", "gpu_uuid", "command", "step_seconds_p50"]
)
def test_what_a_rank_does_not_say_is_left_out(absent: str) -> None:
    alerts = alerts_of(*(rank(number, **{absent: None}) for number in range(4)))
    assert [alert.id for alert in alerts] == ["stalled"]


def test_the_alert_goes_as_soon_as_steps_come_again() -> None:
    rules = Rules()
    stalled = Snapshot(time=NOW, host=Host(name="node"), ranks=(rank(0, world_size=1),))
    going = Snapshot(time=NOW + 1, host=Host(name="node"), ranks=(rank(0, world_size=1, state="running"),))
    assert len(rules.apply(stalled).alerts) == 1
    assert rules.apply(going).alerts == ()


def test_ranks_that_wait_for_one_at_other_work_are_not_stalled() -> None:
    """The first validates alone; the others stand in a barrier."""
    others = [rank(number) for number in range(1, 4)]
    validates = rank(0, state="running", last_work_at=NOW - 3)
    assert alerts_of(validates, *others) == ()
    # Its last sign is too old, or older than its last step; or one has left, for which nobody need wait.
    for first in (
        rank(0, state="running", last_work_at=NOW - 90),
        rank(0, state="running", last_work_at=NOW - 201),
        rank(0, state="running"),
    ):
        assert [alert.id for alert in alerts_of(first, *others)] == ["stalled"]
    gone = rank(3, state="gone")
    (alert,) = alerts_of(validates, *others[:2], gone)
    assert "rank 3 (pid 103) has exited" in alert.summary


# ---- each limit by itself ----


def _state(
    number: int = 0, *, work: float | None = None, process: Process | None = None, **fields: Any
) -> RankState:
    """A rank that stepped 100 s ago, and was at other work so many seconds ago."""
    at = None if work is None else rule_states.NOW - work
    defaults = {"rank": number, "world_size": 2, "last_step_at": rule_states.NOW - 100.0, "last_work_at": at}
    state = rule_states.rank_state(pid=100 + number, **{**defaults, **fields})
    state.process = process
    return state


def _process(**fields: Any) -> Process:
    return Process(**{"pid": 100, "state": "sleeping", **fields})


@pytest.mark.parametrize(
    ("work", "fields", "expected"),
    [
        (60.0, {}, True),
        (60.1, {}, False),
        (None, {}, False),
        (50.0, {"last_step_at": rule_states.NOW - 50.0}, False),
        (50.0, {"last_step_at": rule_states.NOW - 50.1}, True),
        (50.0, {"last_step_at": None}, True),
    ],
    ids=str,
)
def test_other_work_is_current_for_a_minute_if_it_came_after_the_last_step(
    work: float | None, fields: dict[str, Any], expected: bool
) -> None:
    assert is_doing_other_work(_state(work=work, **fields)) is expected


@pytest.mark.parametrize(
    ("work", "process", "expected"),
    [
        (8.0, None, True),
        (8.1, None, False),
        (8.1, _process(cpu_pct=20.0), True),
        (8.1, _process(cpu_pct=19.9), False),
        (8.1, _process(io_read_bytes_per_s=1e6), True),
        (8.1, _process(io_read_bytes_per_s=0.9e6), False),
        (8.1, _process(io_write_bytes_per_s=1e6), True),
        (8.1, _process(io_read_bytes_per_s=0.5e6, io_write_bytes_per_s=0.5e6), True),
        (8.1, _process(io_read_bytes_per_s=0.5e6, io_write_bytes_per_s=0.4e6), False),
        (8.1, _process(state="disk-sleep"), True),
        (8.1, _process(), False),
        (60.1, _process(cpu_pct=90.0), False),
    ],
    ids=str,
)
def test_other_work_goes_on_by_its_reports_or_by_the_process(
    work: float, process: Process | None, expected: bool
) -> None:
    assert is_still_doing_other_work(_state(work=work, process=process)) is expected


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ({"util_pct": 50.0, "power_watts": 350.0}, True),
        ({"util_pct": 49.9, "power_watts": 350.0}, False),
        ({"util_pct": 50.0, "power_watts": 349.0}, False),
        ({"util_pct": None, "power_watts": 350.0}, False),
        ({"util_pct": 50.0}, False),
    ],
    ids=str,
)
def test_other_work_goes_on_while_its_gpu_works(on: dict[str, Any], expected: bool) -> None:
    assert is_still_doing_other_work(_state(work=20.0, on=on)) is expected
    sure = STALLED.describe(JobState([_state(state="stalled", world_size=1, on=on)]))
    assert sure.severity == ("warning" if expected else "critical")


def _job(*fields: dict[str, Any]) -> JobState:
    job = JobState([_state(number, **{"state": "stalled", **one}) for number, one in enumerate(fields)])
    job.now = rule_states.NOW
    return job


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (({},), True),
        (({"state": "running"}, {"state": "running"}), False),
        (({"kind": "request"}, {"kind": "request"}), False),
        (({}, {"state": "running"}), True),
        (({}, {"state": "running", "work": 5.0}), False),
        (({}, {"state": "stalled", "work": 5.0}), True),
        (({}, {"state": "running", "work": 5.0}, {"state": "gone"}), True),
        (({}, {"state": "running", "work": 5.0}, {"state": "stopped"}), True),
        (({"state": "running"}, {"state": "stopped"}), True),
        (({"state": "stopped", "world_size": 1},), False),
        (({"state": "stopped", "world_size": 2},), True),
        (({"state": "running"}, {"state": "stopped", "kind": "request"}), False),
    ],
    ids=str,
)
def test_a_job_is_stalled_unless_a_rank_works_at_something_else(
    ranks: tuple[dict[str, Any], ...], expected: bool
) -> None:
    assert STALLED.holds(_job(*ranks), False) is expected


SPINS = {"util_pct": 100.0, "power_watts": 120.0, "sm_active_pct": 1.0}


@pytest.mark.parametrize(
    ("ranks", "blocking", "why"),
    [
        (({}, {"state": "stopped"}), 1, "is stopped by a signal"),
        (({"state": "gone"}, {"state": "stopped"}), 1, "is stopped by a signal"),
        (({}, {"state": "gone"}), 1, "has exited"),
        (({"state": "stopped", "world_size": 1},), None, ""),
        (({"state": "gone"},), None, ""),
        (({"step": 7}, {"step": 5}, {"step": 9}), 1, "is still at step 5, the other ranks at 7 or later"),
        (({"step": 5}, {"step": 5}, {"step": 9}), None, ""),
        (({"step": 7}, {"step": None}), None, ""),
        (
            ({"on": SPINS}, {"on": {"util_pct": 19.9}}),
            1,
            "has an idle GPU, other GPUs wait for it in a collective",
        ),
        (({"on": SPINS}, {"on": {"util_pct": 20.0}}), None, ""),
        (({"on": SPINS}, {"on": {"util_pct": None}}), None, ""),
        (({"on": SPINS}, {"on": {"util_pct": 0.0}}, {"on": {"util_pct": 0.0}}), None, ""),
        (({"on": SPINS}, {"on": {"util_pct": 0.0}}, {}), None, ""),
        (({"on": {"util_pct": 50.0}}, {"on": {"util_pct": 0.0}}), None, ""),
        (({"on": SPINS}, {"on": SPINS}), None, ""),
    ],
    ids=str,
)
def test_the_rank_that_holds_the_job_up_is_found_in_order(
    ranks: tuple[dict[str, Any], ...], blocking: int | None, why: str
) -> None:
    found = find_blocking_rank(_job(*ranks))
    if found is None:
        assert blocking is None
    else:
        assert (found.state.rank.rank, found.why) == (blocking, why)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 100.0),
        ({"last_step_at": None, "attached_at": rule_states.NOW - 40.0}, 40.0),
        ({"last_step_at": None}, None),
        ({"last_step_at": None, "attached_at": math.nan}, None),
        ({"last_step_at": rule_states.NOW + 5.0}, 0.0),
    ],
    ids=str,
)
def test_the_time_without_a_step_is_since_the_last_or_since_it_attached(
    fields: dict[str, Any], expected: float | None
) -> None:
    assert seconds_without_step(_state(**fields), rule_states.NOW) == expected


@pytest.mark.parametrize(
    ("ranks", "summary", "points"),
    [
        (
            ({"step": 7}, {"step": 5}),
            "No step for 1m 40s: rank 1 (pid 101) is still at step 5, the other ranks at 7 or later; "
            "1 other rank waiting.",
            ("is still at step 5", "the other ranks at 7 or later", "no step for 1m 40s", "1 other rank waiting"),
        ),
        (
            ({}, {}, {}),
            "No step for 1m 40s in 3 ranks, rank 0 (pid 100) among them. All wait at the same place, "
            "so the cause is unknown.",
            ("no step for 1m 40s", "in 3 ranks", "all wait at the same place: the cause is unknown"),
        ),
        (
            ({"on": {"util_pct": 99.0, "power_watts": 600.0}},),
            "No step for 1m 40s in rank 0 (pid 100, GPU 2), but its GPU is working: probably an evaluation, "
            "checkpoint or compilation.",
            ("no step for 1m 40s", "its GPU is working", "probably an evaluation, checkpoint or compilation"),
        ),
        (
            ({"on": {"util_pct": 3.0, "power_watts": 90.0}},),
            "No step for 1m 40s in rank 0 (pid 100, GPU 2); its GPU is at 3 % utilization and 90 W.",
            ("no step for 1m 40s", "GPU at 3 % util", "90 W"),
        ),
        (({"on": {}},), "No step for 1m 40s in rank 0 (pid 100, GPU 2).", ("no step for 1m 40s",)),
        (({},), "No step for 1m 40s in rank 0 (pid 100).", ("no step for 1m 40s",)),
        (({"last_step_at": None},), "No step yet in rank 0 (pid 100).", ("no step yet",)),
        (
            ({"last_step_at": None}, {"state": "gone", "last_step_at": None}),
            "No step yet: rank 1 (pid 101) has exited; 1 other rank waiting.",
            ("has exited", "no step yet", "1 other rank waiting"),
        ),
    ],
    ids=["behind", "unknown", "works", "idle", "GPU unknown", "no GPU", "never", "exited"],
)
def test_clauses_and_sentence_say_who_waits(
    ranks: tuple[dict[str, Any], ...], summary: str, points: tuple[str, ...]
) -> None:
    shown = STALLED.describe(_job(*ranks))
    assert shown.summary == summary
    assert shown.points == points


def test_the_numbers_of_a_stalled_job_are_of_those_that_wait() -> None:
    waiting = {"on": SPINS}, {"on": {**SPINS, "util_pct": 98.0, "power_watts": 100.0}}
    job = _job(*waiting, {"on": {"util_pct": 2.0}, "last_step_at": rule_states.NOW - 120.0, "step": 3})
    shown = STALLED.describe(job)
    assert shown.subject_rank is job.ranks[2]
    assert shown.since == rule_states.NOW - 120.0
    numbers = {
        name: shown.evidence[name] for name in ("seconds_without_step", "step", "stalled_ranks", "waiting_ranks")
    }
    assert numbers == {"seconds_without_step": 120.0, "step": 3, "stalled_ranks": 3, "waiting_ranks": 2}
    assert (shown.evidence["culprit_rank"], shown.evidence["util_pct"]) == (2, 2.0)
    assert (shown.evidence["waiting_util_pct"], shown.evidence["waiting_power_watts"]) == (99.0, 110.0)
    assert shown.evidence["waiting_sm_active_pct"] == 1.0
    alone = STALLED.describe(_job({}))
    assert (alone.evidence["waiting_ranks"], alone.evidence["culprit_rank"]) == (None, None)
    assert alone.evidence["waiting_util_pct"] is None


@pytest.mark.parametrize(
    ("state", "advice"),
    [("stopped", "kill -CONT 101"), ("gone", "read the log of rank 1"), ("stalled", "py-spy dump")],
)
def test_what_to_do_depends_on_the_state_of_the_rank(state: str, advice: str) -> None:
    assert advice in STALLED.describe(_job({"step": 9}, {"step": 3, "state": state})).next


def test_all_stalled_ranks_must_work_for_a_warning() -> None:
    works, idle = {"on": {"util_pct": 99.0, "power_watts": 600.0}}, {"on": {"util_pct": 30.0, "power_watts": 90.0}}
    assert STALLED.describe(_job(works, works)).severity == "warning"
    assert STALLED.describe(_job(works, idle)).severity == "critical"
