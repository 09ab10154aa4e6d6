"""Which steps count in turns: those that no pause touched."""

from __future__ import annotations

import pytest

from llmtop.bench.run.kept_steps import KeptSteps
from llmtop.bench.run.turns import Turn, settling_seconds, turn_seconds

TURNS = [Turn(0, 10.0, 10.5), Turn(1, 11.0, 11.5), Turn(2, 12.0, 12.5)]


def _kept(starts: list[float], seconds: list[float], *, settling: float = 0.0, first: int = 0) -> KeptSteps:
    found = KeptSteps(settling)
    found.add_turns(TURNS)
    found.judge(starts, seconds, first)
    found.count_rounds(found.kept_rounds)
    return found


def test_steps_within_a_turn_count_without_the_first() -> None:
    starts = [10.1, 10.2, 10.3, 10.4, 11.05, 11.15, 11.25]
    found = _kept(starts, [0.1, 0.1, 0.1, 0.65, 0.1, 0.1, 0.1])
    assert found.places == [1, 2, 5, 6]
    assert found.rounds == [0, 0, 1, 1]


def test_an_interrupted_step_has_its_running_time() -> None:
    found = _kept([10.2, 10.3, 10.4], [0.1, 0.1, 1.7])
    assert found.places == [1]
    assert found.interrupted == [pytest.approx(0.1 + 0.5 + 0.1)]


def test_steps_before_the_turns_and_of_the_warm_up_do_not_count() -> None:
    starts = [9.0, 9.9, 10.0, 10.1, 10.2]
    assert _kept(starts, [0.1] * 5).places == [3, 4]
    assert _kept(starts, [0.1] * 5, first=4).places == []


def test_steps_of_a_paused_program_are_counted_apart() -> None:
    found = _kept([10.6, 10.7, 11.2], [0.1, 0.1, 0.1])
    assert (found.while_paused, found.places) == (2, [])


def test_steps_are_judged_once_their_turn_is_known() -> None:
    found = KeptSteps(0.0)
    starts, seconds = [10.1, 10.2, 11.1, 11.2, 11.3], [0.1] * 5
    for count in (1, 2, 3):
        found.add_turns(TURNS[:count])
        found.judge(starts, seconds, 0)
        found.judge(starts, seconds, 0)
    found.count_rounds({1})
    assert found.kept_rounds == {0, 1}
    assert (found.places, found.rounds) == ([3, 4], [1, 1])


def test_with_a_gpu_the_first_quarter_of_a_turn_does_not_count() -> None:
    assert settling_seconds(0.4, has_gpu=False) == 0.0
    starts = [12.0, 12.05, 12.1, 12.2]
    assert _kept(starts, [0.05] * 4, settling=settling_seconds(0.4, has_gpu=True)).places == [2, 3]


@pytest.mark.parametrize(
    ("step", "has_gpu", "turn"), [(0.003, False, 0.06), (0.1, False, 0.8), (0.003, True, 1.0), (2.0, True, 40.0)]
)
def test_a_turn_holds_several_steps(step: float, has_gpu: bool, turn: float) -> None:
    assert turn_seconds(step, has_gpu=has_gpu) == pytest.approx(turn)
