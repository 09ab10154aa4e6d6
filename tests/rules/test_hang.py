"""A training that does not move, and who holds it up."""

from __future__ import annotations

import pytest

from llmtop.model.snapshot import Alert, Gpu, Host, Rank, Snapshot
from llmtop.rules.engine import Rules

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
