"""Long steps now and then are rare; a run of them is not."""

from __future__ import annotations

import pytest

from llmtop.step_history.rare_steps import IN_A_ROW, RareStepFinder
from tests.support import whole_steps as ws


def _finder(long_at: set[int]) -> RareStepFinder:
    finder = RareStepFinder()
    finder.set_usual(0.1, 0.11, dict)
    for ordinal in range(1, 401):
        finder.add(ws.made(0.5 if ordinal in long_at else 0.1, {}), ordinal)
    return finder


@pytest.mark.parametrize("length", [IN_A_ROW + 1, 10, 80])
@pytest.mark.parametrize("apart", [1, 2, 3])
def test_a_run_of_long_steps_is_not_rare(length: int, apart: int) -> None:
    assert _finder(set(range(100, 100 + apart * length, apart))).costliest() is None


def test_long_steps_beside_a_run_are_still_counted_alone() -> None:
    rare = _finder({*range(50, 401, 50), *range(110, 140)}).costliest()
    assert rare is not None
    assert rare.every == 50
    assert rare.seconds_per_hour == pytest.approx(3600 * 8 * 0.4 / (362 * 0.1 + 38 * 0.5), rel=0.01)


def test_an_evaluation_and_the_checkpoint_after_it_are_rare() -> None:
    assert _finder({at + next_one for at in range(50, 400, 50) for next_one in (0, 1)}).costliest() is not None
