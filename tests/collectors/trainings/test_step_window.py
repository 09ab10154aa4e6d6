"""The lengths of the recent steps, kept in order as steps come and go."""

from __future__ import annotations

import random

import pytest

from collectors.trainings.step_window import CountedStep, StepWindow
from llmtop.model.snapshot import Step


@pytest.mark.parametrize("usual", [0.001, 0.02, 0.25, 4.0])
def test_lengths_are_those_of_the_newest_steps_in_order(usual: float) -> None:
    dice = random.Random(3)
    window, lengths = StepWindow(), list[float]()
    for index in range(6000 if usual < 0.1 else 400):
        length = dice.choice([usual, usual * dice.uniform(0.5, 2.0)])
        step = Step(index=index, started_at=float(index), seconds=length, ttft_seconds=dice.choice([None, length]))
        lengths.append(length)
        window.add(CountedStep(step, length, length, None))
        if dice.random() < 0.1:
            assert list(window.lengths()) == sorted(lengths[-len(window) :])
        if dice.random() < 0.01:
            window.drop_before(index - 3)
    assert list(window.lengths()) == sorted(lengths[-len(window) :])
    assert window.has_first_tokens == bool(window.first_tokens())
    window.clear()
    assert list(window.lengths()) == []
    assert not window.has_first_tokens


def test_what_has_left_the_window_is_let_go_of() -> None:
    window = StepWindow()
    steps = [Step(index=index, started_at=float(index), seconds=0.5, tokens=7) for index in range(200)]
    for step in steps:
        window.add(CountedStep(step, 0.5, 0.5, None))
    before = window.sums.gpu.count
    window.update(Step(index=3, started_at=3.0, seconds=0.5, gpu_seconds=0.4))
    assert window.sums.gpu.count == before == 0, "a GPU time that comes too late is passed over"
    window.update(Step(index=199, started_at=199.0, seconds=0.5, gpu_seconds=0.4))
    assert window.sums.gpu.count == 1
    window.clear()
    assert window.sums.gpu.count == 0
