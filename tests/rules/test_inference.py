"""What the rules say of processes that compute without training: the same faults, in words that fit."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from llmtop.model.snapshot import Alert, Change, Phase, Rank, Step
from llmtop.rules.engine import Rules
from llmtop.step_history.whole_steps import covered_seconds
from tests.support.snapshots import gpu, rank, snapshot

IDLE_GPU = {"util_pct": 22.0, "power_watts": 125.0, "power_limit_watts": 700.0, "sm_active_pct": 1.6}
BUSY_GPU = {"util_pct": 99.0, "power_watts": 650.0, "power_limit_watts": 700.0, "sm_active_pct": 90.0}
Make = Callable[[int, float], Step]


def request(index: int, at: float, *, waits: float = 0.0, late: float = 0.0) -> Step:
    phases = [Phase(name="prefill", host_seconds=0.05), Phase(name="decode", host_seconds=0.45)]
    if waits:
        phases.insert(0, Phase(name="dataload", host_seconds=waits))
    seconds = 0.5 + waits + late
    return Step(
        index=index,
        started_at=at,
        seconds=seconds,
        interval_seconds=2.0,
        phases=tuple(phases),
        kind="request",
        ttft_seconds=0.05,
        tpot_seconds=0.01,
    )


def forward(index: int, at: float, *, waits: float = 0.0, **_: float) -> Step:
    phases = [Phase(name="forward", host_seconds=1.9 - waits), Phase(name="dataload", host_seconds=waits)]
    return Step(
        index=index,
        started_at=at,
        seconds=1.9,
        interval_seconds=2.0,
        phases=tuple(p for p in phases if p.host_seconds),
    )


def alerts(make: Callable[..., Step], counters: dict[str, float], ranks: int = 1, **fields: object) -> list[Alert]:
    """The alerts after twelve steps, two seconds apart; `waits` and `late` are the steps'."""
    rules, found = Rules(), ()
    of_steps = {name: fields.pop(name) for name in ("waits", "late") if name in fields}
    for index in range(12):
        now = 1000.0 + 2.0 * index
        here = gpu(**counters)
        step = make(index, now - 0.6, **of_steps)
        told: dict[str, object] = {
            "gpu_uuid": here.uuid,
            "inference": True,
            "kind": step.kind,
            "step": index,
            "step_seconds_p50": 0.5,
            "step_seconds_mean": covered_seconds(step.phases) + 0.02,
            "phases": step.phases,
            "last_step_at": now,
            "new_steps": (step,),
        }
        all_ranks = [
            rank(100 + one, **{**told, "rank": one, "world_size": ranks, **fields})
            if ranks > 1
            else rank(100, **{**told, **fields})
            for one in range(ranks)
        ]
        found = rules.apply(snapshot(now, gpus=(here,), ranks=tuple(all_ranks))).alerts
    return list(found)


@pytest.mark.parametrize(("make", "unit"), [(request, "request"), (forward, "forward pass")])
def test_one_that_launches_too_slowly_is_told_what_helps_where_nothing_is_trained(make: Make, unit: str) -> None:
    (alert,) = [one for one in alerts(make, IDLE_GPU) if one.id == "launch_bound"]
    assert re.search(f"launching takes [0-9]+ % of the {unit} ", alert.summary)
    assert "static" in alert.next
    assert "optimizer" not in alert.next
    assert not [one for one in alerts(make, BUSY_GPU) if one.id == "launch_bound"]


@pytest.mark.parametrize(("make", "unit"), [(request, "request"), (forward, "forward pass")])
def test_one_that_waits_for_what_it_shall_answer_hears_nothing_of_loaders(make: Make, unit: str) -> None:
    (alert,) = [one for one in alerts(make, IDLE_GPU, waits=0.4) if one.id == "input_bound"]
    assert f"of each {unit}" in alert.summary
    assert "tokenize" in alert.next
    assert "DataLoader" not in alert.next


def test_time_between_requests_is_nobodys_fault() -> None:
    # A loop by hand tells of the last token when the next prompt comes, long after.
    (alert,) = [one for one in alerts(request, IDLE_GPU, late=1.4) if one.id == "launch_bound"]
    assert alert.evidence["launching_host_pct"] == pytest.approx(100)
    assert not [one for one in alerts(request, IDLE_GPU) if one.id in ("outside", "stalled", "slower")]


def test_a_gpu_that_idles_since_nobody_asks_is_bound_by_nothing() -> None:
    assert not alerts(request, IDLE_GPU, step_seconds_mean=2.0)
    assert not alerts(request, IDLE_GPU, step_seconds_mean=None), "of a single request nobody can tell"


def test_a_training_is_spoken_to_as_before() -> None:
    (alert,) = [one for one in alerts(forward, IDLE_GPU, waits=0.4, inference=False) if one.id == "input_bound"]
    assert "of each step" in alert.summary
    assert "data loader" in alert.next


def test_requests_that_take_longer_than_before_are_no_slower_steps() -> None:
    change = Change(since_step=5, since=1010.0, before_seconds=0.5, after_seconds=2.0)
    assert not [one for one in alerts(forward, BUSY_GPU, change=change) if one.id == "slower"]
    assert [one for one in alerts(forward, BUSY_GPU, change=change, inference=False) if one.id == "slower"]


def test_what_a_process_did_before_it_trained_is_not_counted_with_its_steps() -> None:
    rules, here = Rules(), gpu(**IDLE_GPU)

    def told(index: int, step: Step, inference: bool) -> Rank:
        return rank(
            100,
            gpu_uuid=here.uuid,
            inference=inference,
            kind=step.kind,
            step=step.index,
            step_seconds_p50=0.5,
            last_step_at=1000.0 + 2 * index,
            new_steps=(step,),
        )

    for index in range(12):
        now = 1000.0 + 2 * index
        rules.apply(snapshot(now, gpus=(here,), ranks=(told(index, request(index, now, waits=0.4), True),)))
    found: tuple[Alert, ...] = ()
    for index in range(12, 20):
        now = 1000.0 + 2 * index
        one = told(index, forward(index - 11, now), inference=False)
        found = rules.apply(snapshot(now, gpus=(here,), ranks=(one,))).alerts
    assert "launch_bound" in {alert.id for alert in found}
    launch = next(alert for alert in found if alert.id == "launch_bound")
    assert launch.evidence["step_seconds"] == pytest.approx(1.9, abs=0.15), "of the training's steps alone"
