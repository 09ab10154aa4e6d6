"""What is read from the rows of finished steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmtop.instrument.steps.phase_tree import Paths
from llmtop.instrument.steps.ring import Ring, in_phases, share_in_no_phase

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


def _filled(steps: int) -> Ring:
    """Return a ring after so many steps: step n began at 10 n and took 7."""
    ring = Ring(Paths())
    for number in range(steps):
        ring.rows[number % 2048] = (number, 10 * number, 7, -1, None, None)
        ring.count = number + 1
    return ring


@pytest.mark.parametrize(
    ("steps", "oldest"), [(0, 0), (1, 0), (2046, 0), (2047, 0), (2048, 1), (2049, 2), (5000, 2953)]
)
def test_the_ring_keeps_2047_steps_that_no_writer_replaces(steps: int, oldest: int) -> None:
    ring = _filled(steps)
    assert ring.oldest() == oldest
    first, rows = ring.read(0, 1 << 20)
    assert (first, [row[0] for row in rows]) == (oldest, list(range(oldest, steps)))


@pytest.mark.parametrize(("steps", "ended"), [(0, 0), (1, 7), (2, 17), (2048, 20477), (2049, 20487)])
def test_the_last_end_is_that_of_the_last_row(steps: int, ended: int) -> None:
    assert _filled(steps).last_end() == ended


@pytest.mark.parametrize(
    ("first", "limit", "numbers"),
    [(0, 3, [0, 1, 2]), (4, 3, [4, 5, 6]), (8, 3, [8, 9]), (10, 3, []), (0, 0, [])],
)
def test_a_reader_takes_as_many_steps_as_it_wants(first: int, limit: int, numbers: list[int]) -> None:
    begin, rows = _filled(10).read(first, limit)
    assert (begin, [row[0] for row in rows]) == (first, numbers)


@pytest.mark.parametrize(
    ("finished_meanwhile", "first", "numbers"),
    [(0, 1, [1, 2, 3, 4]), (1, 2, [2, 3, 4]), (3, 4, [4]), (4, 5, []), (100, 5, [])],
)
def test_what_the_writer_may_have_replaced_meanwhile_is_discarded(
    finished_meanwhile: int, first: int, numbers: list[int]
) -> None:
    ring = _filled(2048)

    class Replaced(list[Any]):
        """Rows during whose first reading some steps finish."""

        def __getitem__(self, place: Any) -> Any:
            ring.count = 2048 + finished_meanwhile
            return super().__getitem__(place)

    ring.rows = Replaced(ring.rows)
    begin, rows = ring.read(0, 4)
    assert (begin, [row[0] for row in rows]) == (first, numbers)


@pytest.mark.parametrize(
    ("took", "share"),
    [([0], 1.0), ([0, 100], 0.1), ([1], -89.0)],
)
def test_steps_without_a_duration_are_in_no_share(took: list[int], share: float) -> None:
    assert share_in_no_phase([_row(one, -1, 40, 30, 50) for one in took], ROOT) == pytest.approx(share)
