"""Waiting for data, copying and communicating: each limit by itself."""

from __future__ import annotations

from typing import Any

import pytest

from llmtop.model.snapshot import LoadingCost, RareSteps, Step
from llmtop.rules.rule import Rule
from llmtop.rules.state.rank import RankState
from llmtop.rules.step_bound import COMMUNICATION_BOUND, H2D_BOUND, INPUT_BOUND
from tests.support.rule_states import rank_state, steps_of

IDLE = {"util_pct": 40.0, "sm_active_pct": 20.0, "power_watts": 200.0}


def both(rule: Rule[RankState], state: RankState) -> tuple[bool, bool]:
    """Whether a rule raises its alert, and whether it keeps it."""
    return rule.holds(state, False), rule.holds(state, True)


def mixed(*shares: float, gpu: tuple[float, ...] | None = None) -> list[Step]:
    """Steps of ten seconds that wait for data for these percent of them; the rest computes nothing."""
    found = []
    for index, share in enumerate(shares):
        timed = None if gpu is None else {"dataload": gpu[index]}
        found.append(steps_of({"dataload": share}, timed, index + 1)[index])
    return found


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((10.0,) * 8, (True, True)),
        ((9.9,) * 8, (False, True)),
        ((7.0,) * 8, (False, True)),
        ((6.9,) * 8, (False, False)),
        ((80.0, *[0.0] * 7), (False, False)),
        ((40.0, 40.0, *[0.0] * 6), (True, True)),
        ((10.0,) * 3, (False, False)),
    ],
    ids=str,
)
def test_without_a_gpu_the_host_clock_decides(shares: tuple[float, ...], expected: tuple[bool, bool]) -> None:
    """Steps of ten seconds: the last eight count, and one of them alone is the start of an epoch."""
    assert both(INPUT_BOUND, rank_state(*mixed(*shares))) == expected


@pytest.mark.parametrize(
    ("fields", "on", "expected"),
    [
        ({"gpu_busy_pct": 90.0}, IDLE, (True, True)),
        ({"gpu_busy_pct": 91.0}, IDLE, (False, True)),
        ({"gpu_busy_pct": 93.0}, IDLE, (False, True)),
        ({"gpu_busy_pct": 93.5}, IDLE, (False, False)),
        ({}, {"sm_active_pct": 49.0}, (True, True)),
        ({}, {"sm_active_pct": 50.0}, (False, True)),
        ({}, {"sm_active_pct": 60.0}, (False, False)),
        ({}, {"util_pct": 59.0}, (True, True)),
        ({}, {"util_pct": 60.0}, (False, True)),
        ({}, {"util_pct": 70.0}, (False, False)),
        ({}, {}, (False, False)),
        ({"window_seconds": 3.9}, {"util_pct": 59.0}, (False, False)),
        ({"window_seconds": 4.0}, {"util_pct": 59.0}, (True, True)),
        ({"window_seconds": 3.9}, {"sm_active_pct": 9.0}, (True, True)),
        ({"window_seconds": 3.9, "gpu_busy_pct": 80.0}, {"util_pct": 59.0}, (True, True)),
        ({"gpu_uuid": "GPU-far"}, None, (False, False)),
        ({"gpu_uuid": "GPU-far", "gpu_busy_pct": 80.0}, None, (True, True)),
        ({}, {"sm_active_pct": 9.0, "pcie_rx_bytes_per_s": 9e9}, (False, False)),
    ],
    ids=str,
)
def test_without_events_the_gpu_must_have_little_to_do(
    fields: dict[str, Any], on: dict[str, Any] | None, expected: tuple[bool, bool]
) -> None:
    assert both(INPUT_BOUND, rank_state(*mixed(*[15.0] * 8), on=on, **fields)) == expected


@pytest.mark.parametrize(
    ("busy", "util", "expected"),
    [
        (94.9, 97.0, (True, True)),
        (95.1, 97.0, (False, True)),
        (95.1, 95.0, (True, True)),
        (96.4, 97.0, (False, True)),
        (96.6, 97.0, (False, False)),
        (96.6, 96.5, (False, True)),
    ],
)
def test_a_gpu_that_is_kept_busy_waits_for_no_data(busy: float, util: float, expected: tuple[bool, bool]) -> None:
    """By events the training's own stream waits: the GPU is busy with what another stream runs."""
    steps = mixed(*[50.0] * 8, gpu=(50.0,) * 8)
    state = rank_state(*steps, on={**IDLE, "util_pct": util}, gpu_busy_pct=busy)
    assert both(INPUT_BOUND, state) == expected


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ((10.0,) * 8, (True, True)),
        ((9.9,) * 8, (False, True)),
        ((7.0,) * 8, (False, True)),
        ((6.9,) * 8, (False, False)),
        ((80.0, *[0.0] * 7), (False, False)),  # one step alone
        ((40.0, 40.0, *[0.0] * 6), (True, True)),
        ((11.0, 11.0, *[0.0] * 6), (False, False)),  # 2.75 % of all
    ],
    ids=str,
)
def test_by_events_the_gpu_runs_dry_in_two_steps_and_in_the_mean(
    gpu: tuple[float, ...], expected: tuple[bool, bool]
) -> None:
    assert both(INPUT_BOUND, rank_state(*mixed(*[50.0] * 8, gpu=gpu), on=IDLE)) == expected


@pytest.mark.parametrize(("last", "expected"), [((0.0, 20.0), True), ((20.0, 0.0), False), ((30.0, 9.0), False)])
def test_of_two_timed_steps_the_last_decides(last: tuple[float, float], expected: bool) -> None:
    steps = [*mixed(*[50.0] * 6), *mixed(*[50.0] * 8, gpu=(0.0,) * 6 + last)[6:]]
    assert INPUT_BOUND.holds(rank_state(*steps, on=IDLE), False) is expected


@pytest.mark.parametrize(
    ("busy", "expected"), [(60.0, (True, True)), (61.0, (False, False)), (85.0, (False, False))]
)
def test_a_gpu_that_is_idle_for_as_long_as_the_host_waits_needs_no_events(
    busy: float, expected: tuple[bool, bool]
) -> None:
    """The host waits for 40 %, and the steps with events are not those that wait."""
    steps = mixed(*[40.0] * 8, gpu=(0.0,) * 8)
    assert both(INPUT_BOUND, rank_state(*steps, on=IDLE, gpu_busy_pct=busy)) == expected


def test_idle_time_of_launches_is_not_blamed_on_the_data() -> None:
    steps = steps_of({"forward": 70.0, "dataload": 10.0})
    assert INPUT_BOUND.holds(rank_state(*steps, on=IDLE, gpu_busy_pct=71.0), False)
    assert not INPUT_BOUND.holds(rank_state(*steps, on=IDLE, gpu_busy_pct=70.0), False)


@pytest.mark.parametrize(
    ("lost", "part", "busy", "expected"),
    [
        (360.0, "dataload", 90.0, (True, True)),  # 10 % of an hour
        (350.0, "dataload", 90.0, (False, True)),
        (252.0, "dataload", 93.0, (False, True)),
        (251.0, "dataload", 90.0, (False, False)),
        (900.0, "dataload", 91.0, (False, True)),
        (900.0, "checkpoint", 50.0, (False, False)),
        (900.0, None, 50.0, (False, False)),
        (900.0, "dataload", None, (False, False)),
    ],
)
def test_rare_waits_for_data_count_by_their_share_of_the_time(
    lost: float, part: str | None, busy: float | None, expected: tuple[bool, bool]
) -> None:
    rare = RareSteps(every=50.0, seconds=9.0, usual_seconds=1.0, seconds_per_hour=lost, part=part)
    state = rank_state(*mixed(*[0.0] * 8), on=IDLE, gpu_busy_pct=busy, rare=rare)
    assert both(INPUT_BOUND, state) == expected


def test_rare_waits_are_described_with_how_often_they_come() -> None:
    rare = RareSteps(every=50.0, seconds=9.0, usual_seconds=1.0, seconds_per_hour=720.0, part="dataload")
    state = rank_state(*mixed(*[0.0] * 8), on=IDLE, gpu_busy_pct=70.0, gpu_busy_source="util", rare=rare)
    shown = INPUT_BOUND.describe(state)
    assert "waits for data once in 50 steps (such a step takes 9.00 s). These waits take 20 %" in shown.summary
    assert shown.points == ("waits for data 20 % of the time", "once in 50 steps", "GPU idle 30 %")
    assert shown.evidence["rare_wait_pct"] == pytest.approx(20.0)
    assert (shown.evidence["rare_step_seconds"], shown.evidence["rare_every_steps"]) == (9.0, 50.0)


@pytest.mark.parametrize(("share", "is_rare"), [(20.0, True), (21.0, False)])
def test_the_larger_share_is_described(share: float, is_rare: bool) -> None:
    rare = RareSteps(seconds=9.0, usual_seconds=1.0, seconds_per_hour=720.0, part="dataload")
    state = rank_state(*mixed(*[share] * 8), on=IDLE, gpu_busy_pct=70.0, rare=rare)
    assert ("in a rare step" in INPUT_BOUND.describe(state).summary) is is_rare


def test_rare_waits_below_the_limit_are_not_described() -> None:
    rare = RareSteps(seconds=9.0, usual_seconds=1.0, seconds_per_hour=250.0, part="dataload")
    assert "rare" not in INPUT_BOUND.describe(rank_state(*mixed(*[0.0] * 8), on=IDLE, rare=rare)).summary


def test_whole_periods_of_a_loader_in_bursts_give_the_share() -> None:
    """Waits of 80 % in each fourth step: from after the first wait to the last they are 20 % of the time."""
    shares = [0.0, 80.0, 0.0, 0.0, 0.0, 80.0, 0.0, 0.0]
    shown = INPUT_BOUND.describe(rank_state(*mixed(*shares)))
    assert shown.evidence["dataload_host_pct"] == pytest.approx(20.0)
    assert "waits for data 20 % of each step (host clock, last 40 s), and uses no GPU." in shown.summary
    assert shown.points == ("waits for data 20 % of the step", "no GPU")


def test_the_share_by_events_is_of_the_same_steps() -> None:
    waits = (50.0, 50.0, 0.0, 50.0, 0.0, 50.0, 0.0, 0.0)
    state = rank_state(*mixed(*[60.0] * 8, gpu=waits), on={})
    shown = INPUT_BOUND.describe(state)
    assert shown.evidence["dataload_gpu_pct"] == pytest.approx(30.0), "three of the five after the first wait"
    assert shown.evidence["dataload_host_pct"] == pytest.approx(60.0)
    assert shown.points[-1] == "GPU idle 30 %"


@pytest.mark.parametrize(
    ("cause", "advice", "clause", "begin"),
    [
        ("decode", "set num_workers=4", True, "set num_workers=4; press s"),
        ("unknown", "", False, "press s"),
        ("unknown", "read the stacks", False, "read the stacks; press s"),
    ],
)
def test_the_cost_of_loading_is_in_the_alert(cause: str, advice: str, clause: bool, begin: str) -> None:
    cost = LoadingCost(
        cause=cause, summary="It decodes.", advice=advice, share_pct=60.0, place="a.py:3", workers=2,
        workers_needed=4, workers_needed_most=6, wait_pct=12.0,
    )  # fmt: skip
    shown = INPUT_BOUND.describe(rank_state(*mixed(*[20.0] * 8), loading=cost))
    assert shown.summary.endswith("and uses no GPU. It decodes.")
    assert shown.next.startswith(begin)
    assert (len(shown.points) == 3) is clause
    found = {
        name: shown.evidence[name] for name in ("loading_cause", "loading_cause_pct", "loading_place", "workers")
    }
    assert found == {"loading_cause": cause, "loading_cause_pct": 60.0, "loading_place": "a.py:3", "workers": 2}
    assert (shown.evidence["workers_needed_at_least"], shown.evidence["workers_needed_at_most"]) == (4, 6)
    assert shown.evidence["saves_at_most_pct"] == 12.0


def test_copies_need_steps_that_are_judged() -> None:
    on = {"pcie_rx_bytes_per_s": 8.3e9, "sm_active_pct": 0.4, "pcie_gen": 5, "pcie_width": 16}
    assert both(H2D_BOUND, rank_state(*steps_of({"forward": 90.0}), on=on)) == (True, True)
    assert both(H2D_BOUND, rank_state(on=on)) == (False, False)
    shown = H2D_BOUND.describe(rank_state(*steps_of({"forward": 90.0}), on=on))
    assert "copies 8.30 GB/s of 63.0 GB/s to the GPU while 0.4 % of its SMs are active" in shown.summary
    assert shown.points == ("copies 8.30 GB/s to the GPU", "SM active 0.4 %")
    assert shown.evidence["pcie_link_bytes_per_s"] == pytest.approx(63.0e9, rel=1e-3)
    bare = H2D_BOUND.describe(rank_state(*steps_of({"forward": 90.0}), on={**on, "pcie_gen": None}))
    assert "copies 8.30 GB/s to the GPU" in bare.summary


@pytest.mark.parametrize(
    ("exposed", "fields", "expected"),
    [
        (2.0, {}, (True, True)),
        (1.9, {}, (False, True)),
        (1.5, {}, (False, True)),
        (1.4, {}, (False, False)),
        (2.0, {"state": "stalled"}, (False, False)),
        (2.0, {"inference": True}, (False, False)),
        (2.0, {"step_seconds_p50": None}, (False, False)),
        (2.0, {"step_seconds_p50": 0.0}, (False, False)),
        (None, {}, (False, False)),
    ],
    ids=str,
)
def test_exposed_communication_counts_from_a_fifth_of_the_step_on(
    exposed: float | None, fields: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    state = rank_state(exposed_seconds=exposed, **{"step_seconds_p50": 10.0, **fields})
    assert both(COMMUNICATION_BOUND, state) == expected


@pytest.mark.parametrize(
    ("host", "gpu", "sm", "expected"),
    [
        (20.0, None, 20.0, (True, True)),
        (19.0, None, 20.0, (False, True)),
        (15.0, None, 20.0, (False, True)),
        (14.0, None, 20.0, (False, False)),
        (20.0, None, 49.9, (True, True)),
        (20.0, None, 50.0, (False, True)),
        (20.0, None, 60.0, (False, False)),
        (20.0, None, None, (False, False)),
        (0.0, 20.0, 20.0, (True, True)),
        (90.0, 19.0, 20.0, (False, True)),
        (90.0, 14.0, 20.0, (False, False)),
    ],
)
def test_phases_of_communication_count_where_the_sms_are_idle(
    host: float, gpu: float | None, sm: float | None, expected: tuple[bool, bool]
) -> None:
    steps = steps_of({"forward": 5.0, "all_reduce": host}, None if gpu is None else {"all_reduce": gpu})
    assert both(COMMUNICATION_BOUND, rank_state(*steps, on={"sm_active_pct": sm})) == expected
    assert both(COMMUNICATION_BOUND, rank_state(on={"sm_active_pct": sm})) == (False, False)


@pytest.mark.parametrize(
    ("exposed", "words", "points"),
    [
        (
            1.5,
            "waits for communication 15 % of each step",
            ("exposed communication 15 % of step", "no rank is a straggler"),
        ),
        (
            1.4,
            "communicates 30 % of each step (last 80 s) while 20 % of",
            ("communicates 30 % of the step", "SM active 20.0 %"),
        ),
        (None, "communicates 30 % of each step", ("communicates 30 % of the step", "SM active 20.0 %")),
    ],
)
def test_communication_is_described_by_what_was_measured(
    exposed: float | None, words: str, points: tuple[str, ...]
) -> None:
    steps = steps_of({"forward": 5.0, "all_reduce": 30.0})
    state = rank_state(*steps, on={"sm_active_pct": 20.0}, exposed_seconds=exposed, step_seconds_p50=10.0)
    shown = COMMUNICATION_BOUND.describe(state)
    assert words in shown.summary
    assert shown.points == points
    assert shown.evidence.get("exposed_seconds") == (exposed if exposed == 1.5 else None)
