"""Times of a step by role; shares over several steps are in tests/rules/test_recent_steps.py as well."""

from __future__ import annotations

import math

import pytest

from llmtop.model.snapshot import Phase, Step
from llmtop.rules.state.step_costs import StepCosts, gpu_share_pct, host_share_pct, idle_share_pct


def _step(seconds: float = 1.0, idle: float | None = None, *phases: Phase) -> Step:
    return Step(index=7, started_at=0.0, seconds=seconds, gpu_idle_seconds=idle, phases=phases)


def test_a_step_costs_its_time_and_the_gap_before_it() -> None:
    costs = StepCosts(_step(1.0, 0.25, Phase(name="forward", host_seconds=0.5, gpu_seconds=0.4)), 0.5)
    assert (costs.index, costs.gap, costs.total, costs.idle) == (7, 0.5, 1.5, 0.25)
    assert costs.named
    assert (costs.host, costs.gpu) == ({"compute": 0.5}, {"compute": 0.4})


def test_a_step_without_phases_has_no_names_and_no_gpu_times() -> None:
    costs = StepCosts(_step(idle=math.nan), 0.0)
    assert (costs.named, costs.host, costs.gpu, costs.idle) == (False, {}, None, None)


def test_only_steps_with_the_same_phases_share_their_roles() -> None:
    mean = _step(1.0, None, Phase(name="forward", host_seconds=0.5))
    first = StepCosts(mean, 0.0)
    same = StepCosts(Step(index=8, started_at=1.0, seconds=1.0, phases=mean.phases), 0.0, first)
    assert same.roles is first.roles
    other = StepCosts(_step(1.0, None, Phase(name="backward", host_seconds=0.25)), 0.0, first)
    assert other.host == {"backward": 0.25}
    assert StepCosts(_step(), 0.0, first).host == {}


def test_the_idle_share_is_of_the_timed_steps_with_their_gaps() -> None:
    steps = [StepCosts(_step(1.0, 0.5), 1.0), StepCosts(_step(2.0, 0.25), 0.0), StepCosts(_step(50.0), 0.0)]
    assert idle_share_pct(steps) == pytest.approx(100 * 0.75 / 4.0)
    assert idle_share_pct(steps[2:]) is None
    assert idle_share_pct([]) is None


def test_short_steps_have_shares_too() -> None:
    costs = StepCosts(_step(0.1, 0.02, Phase(name="forward", host_seconds=0.05, gpu_seconds=0.04)), 0.0)
    assert host_share_pct([costs], ["compute"]) == pytest.approx(50.0)
    assert gpu_share_pct([costs], "compute") == pytest.approx(40.0)
    assert idle_share_pct([costs]) == pytest.approx(20.0)


def test_steps_that_take_no_time_have_no_share() -> None:
    costs = StepCosts(_step(0.0, 0.0, Phase(name="forward", host_seconds=0.0, gpu_seconds=0.0)), 0.0)
    assert host_share_pct([costs], ["compute"]) == 0.0
    assert gpu_share_pct([costs], "compute") is None
    assert idle_share_pct([costs]) is None


def test_a_role_that_was_not_timed_has_no_share_by_the_gpus_clock() -> None:
    costs = StepCosts(_step(1.0, None, Phase(name="forward", host_seconds=0.5, gpu_seconds=0.4)), 0.0)
    assert gpu_share_pct([costs], "input") is None
    assert host_share_pct([costs], ["input"]) == 0.0
