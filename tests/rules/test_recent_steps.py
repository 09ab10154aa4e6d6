"""What the last steps say, at the very limits."""

from __future__ import annotations

from typing import Any

import pytest

from llmtop.format import DASH
from llmtop.model.snapshot import Phase, Step
from llmtop.rules.limits import threshold_pair
from llmtop.rules.recent_steps import (
    activity_text,
    estimate_idle,
    idle_or_activity_text,
    is_copying,
    is_in_most_steps,
    is_kept_busy,
    is_little_used,
    latest_steps,
    mean_sm_active_pct,
    outside_pct,
    pick_threshold,
    rank_name,
    role_evidence,
    short_activity_text,
    short_idle_text,
    steps_to_evaluate,
    timed_steps,
    total_seconds,
)
from llmtop.rules.state.gpu import GpuState
from llmtop.rules.state.rank import RankState
from llmtop.rules.state.step_costs import StepCosts, gpu_share_pct, host_share_pct
from tests.support.snapshots import gpu, rank


def _costs(waits: float, gap: float = 0.0, gpu: float | None = None) -> StepCosts:
    """A step of a second."""
    phases = (
        Phase(name="dataload", host_seconds=waits, gpu_seconds=gpu),
        Phase(name="forward", host_seconds=1.0 - waits, gpu_seconds=None if gpu is None else 1.0 - gpu),
    )
    timed = None if gpu is None else 1.0
    return StepCosts(Step(index=1, started_at=0.0, seconds=1.0, gpu_seconds=timed, phases=phases), gap)


@pytest.mark.parametrize(("heavy", "light", "most"), [(4, 2, True), (3, 2, False), (2, 1, True), (1, 1, False)])
def test_a_role_is_in_most_steps_from_two_of_three_on(heavy: int, light: int, most: bool) -> None:
    """A step has the share where it is just reached."""
    steps = [_costs(0.5)] * heavy + [_costs(0.25)] * light
    assert is_in_most_steps(steps, "input", 50.0) is most


def test_shares_are_of_the_steps_with_the_gaps_before_them() -> None:
    steps = [_costs(0.5, gap=1.0, gpu=0.25), _costs(0.25, gap=0.5)]
    assert host_share_pct(steps, ("input",)) == pytest.approx(100 * 0.75 / 3.5)
    assert host_share_pct(steps, ("input", "compute")) == pytest.approx(100 * 2.0 / 3.5)
    assert host_share_pct([], ("input",)) == 0.0
    assert gpu_share_pct(steps, "input") == pytest.approx(100 * 0.25 / 2.0), "the second step was not timed"
    assert gpu_share_pct(steps[1:], "input") is None


NOW = 1000.0


def _state(*steps: Step, on: dict[str, Any] | None = None, **fields: Any) -> RankState:
    """A rank after one snapshot; `on` has the values of its GPU."""
    seen = rank(**{"step": 99, "last_step_at": NOW, "new_steps": steps, **fields})
    found = RankState(seen, NOW)
    found.update(seen, NOW)
    if on is not None:
        board = gpu(2, **{"power_limit_watts": 700.0, **on})
        found.gpu = GpuState(board, NOW)
        found.gpu.update(board, NOW)
    return found


def _steps(count: int, seconds: float, name: str = "forward", gpu_seconds: float | None = None) -> list[Step]:
    return [
        Step(
            index=index,
            started_at=float(index),
            seconds=seconds,
            phases=(Phase(name=name, host_seconds=seconds / 2, gpu_seconds=gpu_seconds),),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1.0, 8), (0.5, 8), (0.25, 8), (0.24, 9), (0.125, 16), (0.126, 16), (0.05, 40), (0.01, 40)],
)
def test_the_latest_steps_are_eight_or_as_many_as_two_seconds_take(seconds: float, expected: int) -> None:
    found = latest_steps(_state(*_steps(60, seconds)))
    assert [one.index for one in found] == list(range(60 - expected, 60))


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (3, 0), (4, 4), (5, 5)])
def test_four_steps_are_enough_to_judge_by(count: int, expected: int) -> None:
    found = _state(*_steps(count, 1.0))
    assert len(steps_to_evaluate(found)) == expected


@pytest.mark.parametrize(
    ("fields", "is_judged"),
    [
        ({}, True),
        ({"state": "stalled"}, False),
        ({"last_step_at": NOW - 3.0}, True),
        ({"last_step_at": NOW - 3.1}, False),
        ({"last_step_at": NOW - 3.1, "step_seconds_p50": 2.0}, True),
    ],
    ids=str,
)
def test_only_steps_of_a_training_that_goes_on_are_judged(fields: dict[str, Any], is_judged: bool) -> None:
    assert bool(steps_to_evaluate(_state(*_steps(8, 1.0), **fields))) is is_judged


def test_steps_without_phases_are_not_judged() -> None:
    bare = [Step(index=index, started_at=float(index), seconds=1.0) for index in range(8)]
    assert steps_to_evaluate(_state(*bare)) == []
    assert len(steps_to_evaluate(_state(*bare[:7], *_steps(8, 1.0)[7:]))) == 8


def test_one_request_is_enough_if_requests_fill_the_time() -> None:
    phases = (Phase(name="prefill", host_seconds=0.2), Phase(name="decode", host_seconds=0.6))
    request = Step(index=1, started_at=0.0, seconds=0.9, kind="request", phases=phases)
    serving = {"kind": "request", "inference": True, "phases": phases}
    assert len(steps_to_evaluate(_state(request, **serving, step_seconds_mean=1.0))) == 1
    assert steps_to_evaluate(_state(request, **serving, step_seconds_mean=1.01)) == []


def test_the_steps_to_judge_by_are_found_once_a_snapshot() -> None:
    state = _state(*_steps(8, 1.0))
    assert steps_to_evaluate(state) is steps_to_evaluate(state)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "last 0.1 s"),
        (0.04, "last 0.1 s"),
        (0.26, "last 0.3 s"),
        (0.94, "last 0.9 s"),
        (0.96, "last 1 s"),
        (1.4, "last 1 s"),
        (2.6, "last 3 s"),
    ],
)
def test_the_time_of_the_steps_is_rounded(seconds: float, text: str) -> None:
    parts = [Step(index=1, started_at=0.0, seconds=seconds / 2)] * 2
    assert total_seconds([StepCosts(part, 0.0) for part in parts]) == text


@pytest.mark.parametrize(
    ("timed", "count", "expected"),
    [
        ({49}, 2, [49]),
        ({9, 30, 48}, 2, [30, 48]),
        ({9, 30, 48}, 1, [48]),
        ({9, 30, 48}, 3, [9, 30, 48]),
        ({8}, 2, []),
        ({9}, 2, [9]),
        (set(), 2, []),
    ],
)
def test_steps_that_events_timed_are_the_newest_within_forty(
    timed: set[int], count: int, expected: list[int]
) -> None:
    steps = [_steps(50, 1.0, gpu_seconds=0.4 if index in timed else None)[index] for index in range(50)]
    assert [one.index for one in timed_steps(_state(*steps), count)] == expected


def test_two_timed_steps_are_the_usual_number() -> None:
    assert [one.index for one in timed_steps(_state(*_steps(9, 1.0, gpu_seconds=0.4)))] == [7, 8]
    assert timed_steps(_state()) == []


@pytest.mark.parametrize(
    ("on", "raised", "kept"),
    [
        (None, False, False),
        ({}, False, False),
        ({"sm_active_pct": 29.9, "util_pct": 99.0}, True, True),
        ({"sm_active_pct": 30.0}, False, True),
        ({"sm_active_pct": 39.9}, False, True),
        ({"sm_active_pct": 40.0}, False, False),
        ({"util_pct": 59.9}, True, True),
        ({"util_pct": 60.0}, False, True),
        ({"util_pct": 69.9}, False, True),
        ({"util_pct": 70.0}, False, False),
    ],
    ids=str,
)
def test_a_gpu_is_little_used_by_its_sms_or_else_by_its_utilization(
    on: dict[str, Any] | None, raised: bool, kept: bool
) -> None:
    state = _state(on=on)
    assert (is_little_used(state, False, (30.0, 40.0)), is_little_used(state, True, (30.0, 40.0))) == (
        raised,
        kept,
    )


@pytest.mark.parametrize("measure", ["sm_active_pct", "util_pct"])
@pytest.mark.parametrize(("before", "now"), [(100.0, 25.0), (0.0, 100.0)])
def test_both_the_mean_and_the_latest_value_must_be_low(measure: str, before: float, now: float) -> None:
    state = _state(on={measure: before})
    assert state.gpu is not None
    state.gpu.update(gpu(2, **{measure: now}), NOW + 1.0)
    assert not is_little_used(state, False, (30.0, 40.0))


@pytest.mark.parametrize(
    ("busy", "bound", "util", "is_busy"),
    [
        (96.0, False, 96.0, True),
        (95.0, False, 96.0, False),
        (96.0, False, 95.0, False),
        (96.0, True, 96.0, False),
        (None, False, 96.0, False),
        (96.0, False, None, False),
    ],
)
def test_a_gpu_is_kept_busy_in_the_window_and_now(
    busy: float | None, bound: bool, util: float | None, is_busy: bool
) -> None:
    state = _state(gpu_busy_pct=busy, gpu_busy_bound=bound, on={"util_pct": util})
    assert is_kept_busy(state, 5.0) is is_busy
    assert not is_kept_busy(_state(gpu_busy_pct=busy), 5.0), "no GPU"


@pytest.mark.parametrize(("busy", "idle"), [(None, None), (60.0, 40.0), (99.5, 0.5), (110.0, 0.0)])
def test_the_idle_share_is_the_rest_of_the_busy_one(busy: float | None, idle: float | None) -> None:
    assert estimate_idle(_state(gpu_busy_pct=busy)) == idle


def test_what_no_phase_covers_is_outside() -> None:
    assert outside_pct([_costs(0.5, gap=1.0)]) == pytest.approx(50.0)
    assert outside_pct([_costs(0.5)]) == 0.0
    longer = Step(index=1, started_at=0.0, seconds=1.0, phases=(Phase(name="forward", host_seconds=1.5),))
    assert outside_pct([StepCosts(longer, 0.0)]) == 0.0


COPYING = {"pcie_rx_bytes_per_s": 30e9, "sm_active_pct": 5.0, "pcie_gen": 5, "pcie_width": 16}
"""PCIe 5 with 16 lanes carries 63.0 GB/s, a tenth is 6.3, and half is 31.5."""


@pytest.mark.parametrize(
    ("on", "fields", "raised", "kept"),
    [
        ({}, {}, True, True),
        ({"pcie_rx_bytes_per_s": 6.4e9}, {"gpu_wait_pct": 0.0}, True, True),
        ({"pcie_rx_bytes_per_s": 6.2e9}, {"gpu_wait_pct": 0.0}, False, False),
        ({"pcie_rx_bytes_per_s": 6.2e9}, {"gpu_wait_pct": 9.9}, False, True),
        ({"pcie_rx_bytes_per_s": 6.2e9}, {"gpu_wait_pct": 10.0}, True, True),
        ({"pcie_rx_bytes_per_s": 6.2e9}, {"gpu_wait_pct": 6.9}, False, False),
        ({"pcie_rx_bytes_per_s": 6.2e9}, {}, True, True),
        ({"pcie_rx_bytes_per_s": 2.0e9, "pcie_gen": None}, {"gpu_wait_pct": 0.0}, True, True),
        ({"pcie_rx_bytes_per_s": 1.99e9, "pcie_gen": None}, {}, False, True),
        ({"pcie_rx_bytes_per_s": 1.5e9, "pcie_gen": None}, {}, False, True),
        ({"pcie_rx_bytes_per_s": 1.49e9, "pcie_gen": None}, {}, False, False),
        ({}, {"world_size": 2}, False, False),
        ({}, {"world_size": 1, "gpu_wait_pct": 0.0}, True, True),
        ({"pcie_rx_bytes_per_s": 32e9}, {"world_size": 2}, True, True),
        ({}, {"world_size": 2, "gpu_wait_pct": 10.0}, True, True),
        ({"sm_active_pct": 30.0}, {}, False, True),
        ({"sm_active_pct": 40.0}, {}, False, False),
        ({"pcie_rx_bytes_per_s": None}, {}, False, False),
    ],
    ids=str,
)
def test_copies_count_where_they_are_much_of_the_link_or_block(
    on: dict[str, Any], fields: dict[str, Any], raised: bool, kept: bool
) -> None:
    state = _state(on={**COPYING, **on}, **fields)
    assert (is_copying(state, False), is_copying(state, True)) == (raised, kept)


def test_without_a_gpu_nothing_is_copied() -> None:
    assert not is_copying(_state(), False)


def _idle_step(idle: float) -> StepCosts:
    step = Step(index=1, started_at=0.0, seconds=1.0, gpu_idle_seconds=idle, phases=())
    return StepCosts(step, 0.0)


@pytest.mark.parametrize(
    ("busy", "bound", "events", "expected"),
    [
        (70.0, False, None, (30.0, "util", None)),
        (70.0, True, None, (30.0, "util", "at least")),
        (None, True, None, (None, "util", None)),
        (70.0, True, 0.33, (33.0, "events", None)),
        (70.0, True, 0.32, (30.0, "util", "at least")),
        (None, False, 0.25, (25.0, "events", None)),
    ],
)
def test_how_idle_is_by_events_where_they_saw_two_points_more(
    busy: float | None, bound: bool, events: float | None, expected: tuple[float | None, str, str | None]
) -> None:
    state = _state(gpu_busy_pct=busy, gpu_busy_bound=bound, gpu_busy_source="util")
    known = [] if events is None else [_idle_step(events)]
    found = role_evidence(state, "input", ([], known))
    assert found["gpu_idle_pct"] == (None if expected[0] is None else pytest.approx(expected[0]))
    assert (found["gpu_idle_source"], found["gpu_idle_is"]) == expected[1:]


def test_the_numbers_of_a_role_have_its_name() -> None:
    on = {"util_pct": 40.0, "sm_active_pct": 30.0, "power_watts": 200.0, "pcie_rx_bytes_per_s": 1e9}
    steps = [_costs(0.5, gap=1.0), _costs(0.5)]
    found = role_evidence(_state(on=on), "input", (steps, [_costs(0.5, gpu=0.25)]))
    assert found["dataload_host_pct"] == pytest.approx(100 / 3)
    assert found["dataload_gpu_pct"] == pytest.approx(25.0)
    assert found["step_seconds"] == pytest.approx(1.5)
    assert {name: found[name] for name in on} == on
    assert "communication_host_pct" in role_evidence(_state(), "comm")
    bare = role_evidence(_state(), "sync", ([], []))
    assert (bare["sync_host_pct"], bare["sync_gpu_pct"], bare["step_seconds"], bare["util_pct"]) == (
        0.0,
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("evidence", "dry", "long", "short"),
    [
        ({"gpu_idle_pct": 30.0}, None, "the GPU is idle 30 % of the time (GPU-Util)", "GPU idle 30 %"),
        (
            {"gpu_idle_pct": 30.0, "gpu_idle_is": "at least"},
            9.0,
            "the GPU is idle at least 30 % of the time (GPU-Util)",
            "GPU idle ≥ 30 %",
        ),
        ({"gpu_idle_pct": 0.6, "gpu_idle_is": "at least"}, None, "at least 1 % of", "GPU idle ≥ 1 %"),
        ({"gpu_idle_pct": 0.5, "gpu_idle_is": "at least"}, None, "20 % of the SMs are active", "SM active 20 %"),
        ({"gpu_idle_pct": 0.5}, None, "the GPU is idle 0 % of", "GPU idle 0 %"),
        ({}, 9.0, "the GPU is idle 9 % of the time (CUDA events)", "GPU idle 9 %"),
        ({}, None, "20 % of the SMs are active", "SM active 20 %"),
        ({"sm_active_pct": None}, None, "the GPU is at 44 % utilization", "util 44 %"),
    ],
    ids=str,
)
def test_how_idle_the_gpu_is_in_words(evidence: dict[str, Any], dry: float | None, long: str, short: str) -> None:
    whole: dict[str, Any] = {
        "gpu_idle_pct": None,
        "gpu_idle_source": "util",
        "gpu_idle_is": None,
        "sm_active_pct": 20.0,
        "util_pct": 44.0,
        **evidence,
    }
    assert long in idle_or_activity_text(whole, dry)
    assert short_idle_text(whole, dry).replace("0.5", "0").replace("0.6", "1") == short


@pytest.mark.parametrize(
    ("on", "long", "short"),
    [
        ({"sm_active_pct": 20.34, "util_pct": 44.0}, "20.3 % of its SMs are active", "SM active 20.3 %"),
        ({"util_pct": 44.0}, "a kernel runs 44 % of the time", ""),
        (None, f"a kernel runs {DASH} of the time", ""),
    ],
)
def test_activity_in_words(on: dict[str, Any] | None, long: str, short: str) -> None:
    assert activity_text(_state(on=on)) == long
    assert short_activity_text(_state(on=on)) == short
    assert mean_sm_active_pct(_state(on=on)) == ((on or {}).get("sm_active_pct"))


def test_a_sentence_begins_with_a_capital_letter() -> None:
    assert rank_name(_state(rank=1)) == "Rank 1 (pid 100)"
    assert rank_name(_state(on={})) == "Pid 100 (GPU 2)"
    assert rank_name(_state()) == "Pid 100"


@pytest.mark.parametrize(("is_raised", "expected"), [(False, 10.0), (True, 7.0)])
def test_an_alert_that_is_up_has_the_easier_threshold(is_raised: bool, expected: float) -> None:
    assert pick_threshold((10.0, 7.0), is_raised) == expected


def test_shares_of_most_steps_are_by_role() -> None:
    assert is_in_most_steps([_costs(0.25)] * 3, "input", 25.0)
    assert not is_in_most_steps([_costs(0.25)] * 3, "input", 25.1)
    assert is_in_most_steps([_costs(0.25)] * 3, "compute", 75.0)


@pytest.mark.parametrize(
    ("chosen", "expected"), [(None, (10.0, 7.0)), (20.0, (20.0, 14.0)), (5.0, (5.0, 3.5)), (0.0, (0.0, 0.0))]
)
def test_a_configured_threshold_is_kept_by_as_much_easier_a_one(
    chosen: float | None, expected: tuple[float, float]
) -> None:
    assert threshold_pair(chosen, (10.0, 7.0)) == pytest.approx(expected)
