"""Launching and synchronising: what idle time is blamed on which, and what on neither."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmtop.model.snapshot import Alert, Cause, Gpu, Rank, Snapshot
from llmtop.rules.engine import Rules
from llmtop.rules.launch_sync import LAUNCH_BOUND, SYNC_BOUND, is_launching_dominant
from llmtop.rules.rule import Rule
from llmtop.rules.state.rank import RankState
from tests.support.measured_programs import PROGRAMS, stream
from tests.support.rule_states import rank_state, steps_of

BASE = PROGRAMS["ResNet-50, batch 32"]
BOUND_IDS = {"launch_bound", "sync_bound", "input_bound", "h2d_bound"}
ITEM = (Cause(what="train.py:7 loss.item()", seconds=0.01),)
FIGURES = {"step_seconds_p50": 0.0269, "step_seconds_mean": 0.0269, "window_seconds": 15.0}


def alerts(rank: dict[str, Any], gpu: dict[str, Any] | None = None) -> list[Alert]:
    """What is up after some seconds of a training whose host launches all the time, with these figures."""
    rules, last = Rules(), ()
    for snapshot in stream(BASE, 12.0):
        last = rules.apply(_with(snapshot, rank, gpu or {})).alerts
    return [alert for alert in last if alert.id in BOUND_IDS]


def _with(snapshot: Snapshot, rank: dict[str, Any], gpu: dict[str, Any]) -> Snapshot:
    one: Rank = replace(snapshot.ranks[0], **{**FIGURES, "gpu_wait_pct": 0.0, "gpu_waits": (), **rank})
    card: Gpu = replace(snapshot.gpus[0], **gpu)
    return replace(snapshot, ranks=(one,), gpus=(card,))


def busy(pct: float | None, source: str = "util", *, bound: bool = False) -> dict[str, Any]:
    return {"gpu_busy_pct": pct, "gpu_busy_source": source, "gpu_busy_bound": bound}


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (busy(60.0), {"launch_bound"}),
        (busy(95.0), set()),
        (busy(88.0, "events", bound=True), {"launch_bound"}),
        ({**busy(60.0), "gpu_wait_pct": 25.0, "gpu_waits": ITEM}, {"sync_bound"}),
        ({**busy(60.0), "gpu_wait_pct": 12.0, "gpu_waits": ITEM}, {"launch_bound"}),
        ({**busy(15.0), "gpu_wait_pct": 12.0, "gpu_waits": ITEM}, {"sync_bound"}),
        ({**busy(5.0), "gpu_wait_pct": 4.0, "gpu_waits": ITEM}, {"launch_bound"}),
        ({**busy(97.0), "gpu_wait_pct": 60.0, "gpu_waits": ITEM}, set()),
        ({**busy(75.0), "outside_seconds": 0.0054}, set()),
        ({**busy(65.0), "outside_seconds": 0.0054}, {"launch_bound"}),
        ({**busy(75.0), "step_seconds_mean": 0.0345}, set()),
        ({**busy(60.0), "step_seconds_mean": 0.0300}, {"launch_bound"}),
    ],
    ids=[
        "idle",
        "kept busy",
        "idle by a bound",
        "waits much",
        "waits little",
        "waits for all that the GPU does",
        "waits for hardly anything",
        "waits for a busy GPU",
        "idle between the phases",
        "idle beyond that",
        "idle in rare long steps",
        "idle beyond these",
    ],
)
def test_idle_time_is_blamed_on_what_the_host_does(rank: dict[str, Any], expected: set[str]) -> None:
    assert {alert.id for alert in alerts(rank)} == expected


def test_the_alerts_say_by_which_witness_and_where_it_waits() -> None:
    (launch,) = alerts(busy(88.0, "events", bound=True))
    assert "the GPU is idle at least 12 % of the time (CUDA events)" in launch.summary
    assert (launch.evidence["gpu_idle_pct"], launch.evidence["gpu_idle_is"]) == (12.0, "at least")
    (sync,) = alerts({**busy(60.0), "gpu_wait_pct": 25.0, "gpu_waits": ITEM})
    assert "waits for the GPU in 25 % of each step, most in train.py:7 loss.item()" in sync.summary
    assert "the GPU is idle 40 % of the time (GPU-Util)" in sync.summary
    assert sync.evidence["waiting_calls_pct"] == 25.0
    assert sync.evidence["call"] == "train.py:7 loss.item()"


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ({"util_pct": 20.0, "sm_active_pct": 2.0, "power_watts": 120.0}, {"launch_bound"}),
        ({"util_pct": 97.0, "sm_active_pct": 60.0, "power_watts": 500.0}, set()),
        ({"util_pct": None, "sm_active_pct": None}, set()),
    ],
)
def test_where_nobody_can_tell_how_idle_it_is_the_whole_gpus_activity_decides(
    gpu: dict[str, Any], expected: set[str]
) -> None:
    assert {alert.id for alert in alerts(busy(None), gpu)} == expected


def test_before_it_is_known_whether_they_take_turns_launching_is_not_blamed() -> None:
    gpu = {"util_pct": 20.0, "sm_active_pct": 2.0, "power_watts": 120.0}
    assert alerts({**busy(None), "gpu_wait_pct": 14.0, "gpu_waits": ITEM}, gpu) == []


@pytest.mark.parametrize(
    ("waits", "rx", "generation", "expected"),
    [
        (30.0, 3e9, 5, {"h2d_bound"}),
        (2.0, 3e9, 5, {"launch_bound"}),
        (2.0, 8e9, 5, {"h2d_bound"}),
        (2.0, 3e9, None, {"h2d_bound"}),
        (None, 3e9, 5, {"h2d_bound"}),
    ],
    ids=["copies that block", "pinned memory", "a tenth of the link", "a link that nobody knows", "no looks"],
)
def test_batches_on_their_way_beside_the_work_are_no_bottleneck(
    waits: float | None, rx: float, generation: int | None, expected: set[str]
) -> None:
    gpu = {"pcie_rx_bytes_per_s": rx, "pcie_gen": generation, "pcie_width": 16, "sm_active_pct": 20.0}
    rank = {**busy(45.0), "gpu_wait_pct": waits, "gpu_waits": ITEM if waits else ()}
    assert {alert.id for alert in alerts(rank, gpu)} == expected


# ---- each limit by itself ----

IDLE_GPU = {"util_pct": 50.0, "sm_active_pct": 10.0, "power_watts": 140.0}


def both(rule: Rule[RankState], state: RankState) -> tuple[bool, bool]:
    """Whether a rule raises its alert, and whether it keeps it."""
    return rule.holds(state, False), rule.holds(state, True)


@pytest.mark.parametrize(
    ("host", "gpu", "idle", "expected"),
    [
        ({"forward": 50.0}, None, 10.0, True),
        ({"forward": 49.9}, None, 10.0, False),
        ({"forward": 20.0, "backward": 20.0, "optimizer": 10.0}, None, 10.0, True),
        ({"forward": 50.0}, None, 9.9, False),
        ({"forward": 50.0}, None, None, False),
        ({"forward": 60.0, "dataload": 10.0}, None, 30.0, True),  # 20 left, twice the wait for data
        ({"forward": 60.0, "dataload": 10.0}, None, 29.9, False),
        ({"forward": 60.0, "all_reduce": 10.0}, None, 20.0, True),
        ({"forward": 60.0, "all_reduce": 10.0}, None, 19.9, False),
        ({"forward": 60.0, "item": 10.0}, None, 20.0, True),
        ({"forward": 60.0, "item": 10.0}, None, 19.9, False),
        ({"forward": 60.0, "h2d": 10.0}, None, 20.0, True),
        ({"forward": 60.0, "h2d": 10.0}, None, 19.9, False),
        ({"forward": 60.0, "h2d": 10.0}, {"h2d": 5.0}, 15.0, True),
        ({"forward": 60.0, "h2d": 10.0}, {"h2d": 5.0}, 14.9, False),
    ],
    ids=str,
)
def test_launching_is_dominant_where_waits_leave_most_of_the_idle_time(
    host: dict[str, float], gpu: dict[str, float] | None, idle: float | None, expected: bool
) -> None:
    steps = rank_state(*steps_of(host, gpu)).recent(8)
    assert is_launching_dominant(rank_state(), steps, idle) is expected


def test_launching_is_judged_over_the_window_of_the_rank_where_there_is_one() -> None:
    (step,) = steps_of({"forward": 50.0}, count=1)
    state = rank_state(phases=step.phases, step_seconds_mean=10.0)
    odd = rank_state(*steps_of({"dataload": 90.0})).recent(8)
    assert is_launching_dominant(state, odd, 10.0)
    assert not is_launching_dominant(rank_state(), odd, 10.0)


@pytest.mark.parametrize(
    ("host", "fields", "on", "expected"),
    [
        ({}, {}, {}, (True, True)),
        ({}, {"gpu_busy_pct": 90.0}, {}, (True, True)),
        ({}, {"gpu_busy_pct": 90.5}, {}, (False, True)),
        ({}, {"gpu_busy_pct": 91.5}, {}, (False, True)),
        ({}, {"gpu_busy_pct": 92.0}, {}, (False, False)),
        ({}, {}, {"util_pct": 0.0}, (False, False)),
        ({}, {}, {"util_pct": None}, (False, False)),
        ({}, {"gpu_busy_bound": True}, {"util_pct": 95.0}, (True, True)),
        ({}, {"gpu_busy_pct": 95.0, "gpu_busy_bound": True}, {}, (True, True)),
        ({}, {"gpu_busy_pct": 95.0, "gpu_busy_bound": True}, {"sm_active_pct": 50.0}, (False, False)),
        ({}, {"gpu_busy_pct": None}, {}, (True, True)),
        ({}, {"gpu_busy_pct": None}, {"power_watts": 279.0}, (True, True)),
        ({}, {"gpu_busy_pct": None}, {"power_watts": 280.0}, (False, True)),
        ({}, {"gpu_busy_pct": None}, {"power_watts": 315.0}, (False, False)),
        ({}, {"gpu_busy_pct": None}, {"power_watts": None}, (False, False)),
        ({}, {"gpu_busy_pct": None}, {"util_pct": 89.9}, (True, True)),
        ({}, {"gpu_busy_pct": None}, {"util_pct": 90.0}, (False, False)),
        ({}, {"gpu_busy_pct": None}, {"sm_active_pct": 30.0}, (False, True)),
        ({}, {"gpu_busy_pct": None}, {"sm_active_pct": 40.0}, (False, False)),
        ({}, {"gpu_busy_pct": None, "gpu_wait_pct": 9.9}, {}, (True, True)),
        ({}, {"gpu_busy_pct": None, "gpu_wait_pct": 10.0}, {}, (False, False)),
        ({}, {"gpu_wait_pct": 19.9}, {}, (True, False)),
        ({}, {"gpu_wait_pct": 20.0}, {}, (False, False)),
        ({"forward": 60.0, "dataload": 9.0}, {"gpu_busy_pct": 55.0}, {}, (True, True)),
        ({"forward": 59.0, "dataload": 9.0}, {"gpu_busy_pct": 54.0}, {}, (False, False)),
        ({"forward": 60.0, "dataload": 10.0}, {"gpu_busy_pct": 56.0}, {}, (False, False)),
        ({"forward": 60.0, "all_reduce": 5.0, "item": 5.0}, {"gpu_busy_pct": 50.0}, {}, (True, True)),
        ({"forward": 60.0, "all_reduce": 5.0, "item": 5.0}, {"gpu_busy_pct": 58.0}, {}, (False, False)),
        ({}, {"gpu_busy_pct": 65.0, "step_seconds_mean": 10.0, "step_seconds_p50": 7.5}, {}, (True, True)),
        ({}, {"gpu_busy_pct": 65.0, "step_seconds_mean": 10.0, "step_seconds_p50": 7.2}, {}, (False, False)),
        ({}, {"step_seconds_mean": 10.0, "outside_seconds": 3.0}, {}, (True, True)),
        ({}, {"step_seconds_mean": 10.0, "outside_seconds": 3.2}, {}, (False, False)),
        ({"forward": 70.0}, {}, {}, (True, True)),
        ({"forward": 68.0}, {}, {}, (False, False)),
    ],
    ids=str,
)
def test_launching_is_the_bottleneck_from_its_limits_on(
    host: dict[str, float], fields: dict[str, Any], on: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    steps = steps_of(host or {"forward": 100.0})
    state = rank_state(*steps, on={**IDLE_GPU, **on}, **{"gpu_busy_pct": 60.0, **fields})
    assert both(LAUNCH_BOUND, state) == expected


@pytest.mark.parametrize(
    ("outside", "found", "wait", "expected"),
    [
        (3.5, 5.0, 0.5, True),  # 35 % outside; the GPU works in 5 points of it
        (3.7, 5.0, 0.5, False),
        (3.5, 5.0, 0.3, False),
        (3.5, 5.0, 9.0, True),
        (3.7, 5.0, 9.0, False),
        (3.5, None, 0.5, False),
    ],
)
def test_waits_for_the_gpu_outside_of_phases_are_no_idle_time(
    outside: float, found: float | None, wait: float, expected: bool
) -> None:
    cause = Cause(what="train.py:7 loss.item()", seconds=wait)
    other = Cause(what="train.py:9 x.cpu()", seconds=9.0)
    state = rank_state(
        *steps_of({"forward": 100.0}),
        on=IDLE_GPU,
        gpu_busy_pct=60.0,
        step_seconds_mean=10.0,
        outside_seconds=outside,
        gpu_wait_pct=found,
        gpu_waits=(cause, other),
        outside_causes=(Cause(what=cause.what, seconds=1.0),),
    )
    assert LAUNCH_BOUND.holds(state, False) is expected


@pytest.mark.parametrize(("rate", "expected"), [(0.07, True), (0.065, False), (None, False)])
def test_between_requests_a_gpu_has_nothing_to_do(rate: float | None, expected: bool) -> None:
    """Requests of 10 s that come 0.07 times a second fill 70 % of the time; 10 of the 40 % idle are left."""
    phases = steps_of({"prefill": 10.0, "decode": 90.0}, count=1)[0].phases
    state = rank_state(
        *steps_of({"prefill": 10.0, "decode": 90.0}, kind="request"),
        on=IDLE_GPU,
        kind="request",
        inference=True,
        gpu_busy_pct=60.0,
        steps_per_s=rate,
        step_seconds_p50=10.0,
        step_seconds_mean=11.0,
        phases=phases,
    )
    assert LAUNCH_BOUND.holds(state, False) is expected


def test_without_a_gpu_or_steps_nothing_is_launch_bound_or_sync_bound() -> None:
    waits = {"gpu_busy_pct": 60.0, "gpu_wait_pct": 50.0}
    assert both(LAUNCH_BOUND, rank_state(*steps_of({"forward": 100.0}), gpu_busy_pct=60.0)) == (False, False)
    assert both(LAUNCH_BOUND, rank_state(on=IDLE_GPU, gpu_busy_pct=60.0)) == (False, False)
    assert both(SYNC_BOUND, rank_state(on=IDLE_GPU, **waits)) == (False, False)


@pytest.mark.parametrize(
    ("host", "fields", "expected"),
    [
        ({}, {"gpu_wait_pct": 20.0}, (True, True)),
        ({}, {"gpu_wait_pct": 19.9}, (False, True)),
        ({}, {"gpu_wait_pct": 15.0}, (False, True)),
        ({}, {"gpu_wait_pct": 14.9}, (False, False)),
        ({}, {"gpu_wait_pct": 10.0, "gpu_busy_pct": 20.0}, (True, True)),
        ({}, {"gpu_wait_pct": 10.0, "gpu_busy_pct": 20.2}, (False, False)),
        ({}, {"gpu_wait_pct": 9.9, "gpu_busy_pct": 19.0}, (False, True)),
        ({}, {"gpu_wait_pct": 7.0, "gpu_busy_pct": 13.0}, (False, True)),
        ({}, {"gpu_wait_pct": 6.9, "gpu_busy_pct": 13.0}, (False, False)),
        ({}, {"gpu_wait_pct": 60.0, "gpu_busy_pct": 90.0}, (True, True)),
        ({}, {"gpu_wait_pct": 60.0, "gpu_busy_pct": 90.5}, (False, True)),
        ({}, {"gpu_wait_pct": 60.0, "gpu_busy_pct": 92.0}, (False, False)),
        ({}, {"gpu_wait_pct": 60.0, "gpu_busy_pct": None}, (False, False)),
        ({}, {}, (False, False)),
        ({"forward": 70.0, "item": 20.0}, {}, (True, True)),
        ({"forward": 70.0, "item": 19.0}, {}, (False, True)),
        ({"forward": 70.0, "item": 15.0}, {}, (False, True)),
        ({"forward": 70.0, "item": 14.0}, {}, (False, False)),
    ],
    ids=str,
)
def test_waits_for_the_gpu_are_the_bottleneck_from_their_limits_on(
    host: dict[str, float], fields: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    state = rank_state(*steps_of(host or {"forward": 100.0}), on=IDLE_GPU, **{"gpu_busy_pct": 60.0, **fields})
    assert both(SYNC_BOUND, state) == expected


@pytest.mark.parametrize(("idle", "expected"), [(1.0, (True, True)), (0.9, (False, True)), (0.8, (False, False))])
def test_where_the_idle_share_is_unknown_the_last_timed_step_shows_it(
    idle: float, expected: tuple[bool, bool]
) -> None:
    steps = steps_of({"forward": 70.0, "item": 30.0}, {"forward": 50.0}, gpu_idle_seconds=9.0)
    last = steps_of({"forward": 70.0, "item": 30.0}, {"forward": 50.0}, 9, gpu_idle_seconds=idle)[-1:]
    assert both(SYNC_BOUND, rank_state(*steps, *last, on=IDLE_GPU)) == expected


def test_an_alert_about_launches_has_their_share_and_the_idle_time() -> None:
    steps = steps_of({"forward": 60.0, "backward": 20.0, "dataload": 5.0})
    shown = LAUNCH_BOUND.describe(rank_state(*steps, on=IDLE_GPU, gpu_busy_pct=60.0, gpu_busy_source="util"))
    assert "launching takes 80 % of the step (last 80 s), and the GPU is idle 40 % of the time" in shown.summary
    assert shown.points == ("kernel launches take 80 % of the step", "GPU idle 40 %", "140 W")
    assert shown.evidence["launching_host_pct"] == pytest.approx(80.0)
    assert not {"compute_host_pct", "compute_gpu_pct"} & set(shown.evidence)
    bare = LAUNCH_BOUND.describe(rank_state(*steps, on=IDLE_GPU))
    assert bare.summary.endswith("10.0 % of its SMs are active at 140 W.")
    assert bare.points == ("kernel launches take 80 % of the step", "SM active 10.0 %", "140 W")


@pytest.mark.parametrize(
    ("found", "waits", "words", "points"),
    [
        (None, (), "30 % of each step (over the last 80 s) instead", 1),
        (25.0, ITEM, "30 % of each step (over the last 80 s) instead", 1),
        (30.0, ITEM, "30 % of each step, most in train.py:7 loss.item() instead", 2),
        (35.0, (), "35 % of each step instead", 1),
    ],
)
def test_an_alert_about_waits_has_the_larger_of_both_shares(
    found: float | None, waits: tuple[Cause, ...], words: str, points: int
) -> None:
    steps = steps_of({"forward": 70.0, "item": 30.0})
    state = rank_state(*steps, on=IDLE_GPU, gpu_busy_pct=60.0, gpu_wait_pct=found, gpu_waits=waits)
    shown = SYNC_BOUND.describe(state)
    assert words in shown.summary
    assert shown.points[0] == f"host waits for GPU {max(30, round(found or 0))} % of step"
    assert shown.points[-1] == "GPU idle 40 %"
    assert len(shown.points) == points + 1
    assert ("call" in shown.evidence) is (points == 2)
    assert shown.evidence["waiting_calls_pct"] == found
