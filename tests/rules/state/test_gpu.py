"""State of one GPU: cleaned values, means of the last seconds, and who is on it."""

from __future__ import annotations

import math

import pytest

from llmtop.rules.state.gpu import GpuState, share_pct
from tests.support.snapshots import gpu

POWER = {"power_watts": 140.0, "power_limit_watts": 700.0}


def _state(**fields: object) -> GpuState:
    board = gpu(3, **fields)
    state = GpuState(board, 100.0)
    state.update(board, 100.0)
    return state


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [
        (30.0, 120.0, 25.0),
        (0.0, 120.0, 0.0),
        (3.0, 0.5, 600.0),
        (None, 120.0, None),
        (30.0, None, None),
        (30.0, 0.0, None),
        (30.0, -1.0, None),
        (math.nan, 120.0, None),
        (30.0, math.inf, None),
    ],
)
def test_a_share_is_in_percent_of_a_positive_whole(
    part: float | None, whole: float | None, expected: float | None
) -> None:
    assert share_pct(part, whole) == expected


def test_the_latest_values_are_taken_over() -> None:
    state = _state(
        util_pct=90.0, mem_util_pct=40.0, mem_used_bytes=7, sm_active_pct=80.0, temperature_c=61.0, **POWER
    )
    assert (state.util_pct, state.mem_util_pct, state.mem_used_bytes) == (90.0, 40.0, 7)
    assert (state.sm_active_pct, state.temperature_c, state.power_share_pct) == (80.0, 61.0, 20.0)
    assert state.is_updated
    assert (state.key, state.label) == (state.gpu.uuid, "GPU 3")


def test_values_that_are_no_number_are_absent() -> None:
    bad = dict.fromkeys(("util_pct", "mem_util_pct", "sm_active_pct", "temperature_c", "power_watts"), math.nan)
    state = _state(**bad, power_limit_watts=700.0)
    known = (state.util_pct, state.mem_util_pct, state.sm_active_pct, state.temperature_c, state.power_share_pct)
    assert known == (None,) * 5
    assert state.mean("util_pct") is None


@pytest.mark.parametrize(
    ("reasons", "expected"), [(None, None), ((), frozenset()), (("gpu_idle",), frozenset({"gpu_idle"}))]
)
def test_reasons_are_a_set_or_unknown(reasons: tuple[str, ...] | None, expected: frozenset[str] | None) -> None:
    assert _state(clock_event_reasons=reasons).reasons == expected


def test_means_are_over_three_seconds_and_end_where_a_value_is_absent() -> None:
    state = _state(util_pct=10.0)
    for second, util in ((1.0, 20.0), (2.0, 30.0), (3.0, 40.0), (4.0, 50.0)):
        state.update(gpu(3, util_pct=util), 100.0 + second)
    assert state.mean("util_pct") == pytest.approx((20 + 30 + 40 + 50) / 4)
    state.update(gpu(3), 105.0)
    assert state.mean("util_pct") is None
    state.update(gpu(3, util_pct=70.0), 106.0)
    assert state.mean("util_pct") == pytest.approx(70.0)


@pytest.mark.parametrize(("age", "is_stale"), [(1.0, False), (15.0, False), (15.1, True)])
def test_a_sample_older_than_fifteen_seconds_counts_as_no_values(age: float, is_stale: bool) -> None:
    state = _state(util_pct=90.0, sampled_at=99.5, **POWER)
    state.update(gpu(3, util_pct=90.0, sampled_at=99.5, **POWER), 100.0 + age)
    assert state.is_updated is is_stale
    assert state.util_pct == (None if is_stale else 90.0)
    assert state.power_share_pct == (None if is_stale else 20.0)
    assert state.mean("util_pct") == (None if is_stale else 90.0)


def test_a_new_sample_begins_the_age_anew() -> None:
    state = _state(util_pct=90.0, sampled_at=99.5)
    state.update(gpu(3, util_pct=80.0, sampled_at=109.5), 110.0)
    assert state.is_updated
    state.update(gpu(3, util_pct=80.0, sampled_at=109.5), 125.0)
    assert (state.is_updated, state.util_pct) == (False, 80.0)


def test_without_a_time_each_sample_is_new() -> None:
    state = _state(util_pct=90.0)
    state.update(gpu(3, util_pct=80.0), 200.0)
    assert (state.is_updated, state.util_pct) == (True, 80.0)


def test_an_error_is_news_and_is_kept() -> None:
    state = _state(sampled_at=99.5)
    state.update(gpu(3, sampled_at=99.5, error="GPU is lost"), 101.0)
    assert (state.is_updated, state.error_text) == (True, "GPU is lost")
    state.update(gpu(3, sampled_at=99.5), 102.0)
    assert (state.is_updated, state.error_text) == (False, "GPU is lost")


def test_each_snapshot_lists_the_processes_anew() -> None:
    state = _state()
    for pids in (state.pids, state.foreign_pids, state.rank_pids, state.step_pids):
        pids.append(7)
    state.computing = 2
    assert state.alert_target() == (state.gpu.uuid, 7)
    state.update(gpu(3), 101.0)
    assert (state.pids, state.foreign_pids, state.rank_pids, state.step_pids) == ([], [], [], [])
    assert state.computing == 0
    assert state.alert_target() == (state.gpu.uuid, None)


def test_an_alert_of_a_gpu_names_its_training_where_there_is_one_alone() -> None:
    state = _state()
    assert state.concerned_keys() == {state.gpu.uuid}
    state.rank_pids += [7, 8]
    assert state.alert_target() == (state.gpu.uuid, None)


def test_a_mig_instance_is_called_by_its_gpu_and_number() -> None:
    assert _state(mig_index=1).label == "GPU 3:1"


@pytest.mark.parametrize(
    ("generation", "width", "gigatransfers", "expected_lanes"),
    [(5, 16, 32.0, 16), (4, 8, 16.0, 8), (3, 16, 8.0, 16)],
)
def test_the_rate_of_the_link_is_that_of_its_lanes(
    generation: int, width: int, gigatransfers: float, expected_lanes: int
) -> None:
    """PCIe 3 to 5 send 128 of 130 bits as data."""
    rate = _state(pcie_gen=generation, pcie_width=width).link_bytes_per_s
    assert rate == pytest.approx(gigatransfers * 1e9 * 128 / 130 / 8 * expected_lanes, rel=1e-3)
    assert _state(pcie_gen=generation).link_bytes_per_s is None
