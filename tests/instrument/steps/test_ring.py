"""What is read from the rows of finished steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmtop.instrument.steps.ring import in_phases, share_in_no_phase

# Slots 0, 2 and 4 are of "forward", "forward/attention" and "backward".
ROOT: Any = SimpleNamespace(children={"forward": SimpleNamespace(slot=0), "backward": SimpleNamespace(slot=4)})


def _row(took: int, interval: int, forward: int, attention: int, backward: int) -> tuple[Any, ...]:
    return (0, 0, took, interval, None, None, forward, 1, attention, 2, backward, 3)


def test_nested_phases_are_part_of_others() -> None:
    assert in_phases(_row(100, -1, 40, 30, 50), ROOT) == (90, 4)


def test_a_phase_that_came_later_is_not_in_an_older_step() -> None:
    assert in_phases(_row(100, -1, 40, 30, 50)[:10], ROOT) == (40, 1)


@pytest.mark.parametrize(
    ("rows", "share"),
    [
        ([_row(100, -1, 40, 30, 50)], 0.1),
        ([_row(100, 200, 40, 30, 50)], 0.55),  # as long again lies between two steps
        ([_row(100, 100, 40, 30, 60), _row(100, 100, 40, 30, 59), _row(100, 9000, 40, 30, 60)], 0.01),
        ([], 1.0),
    ],
)
def test_share_that_no_phase_has_is_of_the_usual_step(rows: list[tuple[Any, ...]], share: float) -> None:
    assert share_in_no_phase(rows, ROOT) == pytest.approx(share)
