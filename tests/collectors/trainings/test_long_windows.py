"""Figures of the last minutes and of the whole run beside the exact ones of the same steps."""

from __future__ import annotations

import random
import statistics

import pytest

from collectors.trainings.long_windows import LongWindow, length_class
from collectors.trainings.step_window import CountedStep
from llmtop.model.snapshot import Step


def _fill(windows: tuple[LongWindow, ...], count: int) -> list[CountedStep]:
    """Steps of some 50 ms which become some 80 ms, each with a known part outside of phases and tokens."""
    chance, made = random.Random(7), []
    for index in range(count):
        seconds = (0.05 if index < count / 2 else 0.08) * chance.lognormvariate(0.0, 0.2)
        step = Step(index=index, started_at=0.0, seconds=seconds, tokens=float(index % 7))
        made.append(CountedStep(step, seconds, None, 0.25 * seconds))
        for window in windows:
            window.add(made[-1], length_class(seconds))
    return made


def test_figures_of_a_window_and_of_the_run_are_those_of_their_steps() -> None:
    last, run = LongWindow("5 min", 300.0), LongWindow("run")
    made = _fill((last, run), 20_000)
    for window, longest in ((last, 300.0), (run, sum(one.length for one in made))):
        found = window.summary()
        assert found is not None
        assert longest - 0.2 <= found.seconds <= longest * 61 / 60 + 0.2
        own = made[-found.steps :]
        lengths = sorted(one.length for one in own)
        assert found.seconds == pytest.approx(sum(lengths))
        assert found.step_seconds == pytest.approx(statistics.fmean(lengths))
        assert found.step_seconds_p50 == pytest.approx(lengths[len(own) // 2], rel=0.006)
        assert found.step_seconds_p95 == pytest.approx(lengths[int(0.95 * (len(own) - 1))], rel=0.006)
        assert found.outside_seconds == pytest.approx(0.25 * found.step_seconds)
        assert found.tokens_per_s == pytest.approx(sum(one.step.tokens or 0.0 for one in own) / sum(lengths))
    assert run.summary().steps == len(made)  # type: ignore[union-attr]  # asserted above
