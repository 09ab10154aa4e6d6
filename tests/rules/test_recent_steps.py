"""What the last steps say, at the very limits."""

from __future__ import annotations

import pytest

from llmtop.model.snapshot import Phase, Step
from llmtop.rules.recent_steps import is_in_most_steps
from llmtop.rules.state.step_costs import StepCosts, gpu_share_pct, host_share_pct


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
