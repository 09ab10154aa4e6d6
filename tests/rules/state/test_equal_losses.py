"""Losses of ranks that were equal, and that are not any more."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from llmtop.rules.state.equal_losses import Divergence, EqualLosses


def _add(losses: EqualLosses, steps: Iterable[int], *values: float, name: str = "loss") -> Divergence | None:
    """Add a value for each rank in each of these steps, and compare after each step."""
    for step in steps:
        for rank, value in enumerate(values):
            losses.add(rank, [(name, step, value)])
        losses.compare()
    return losses.divergence


@pytest.mark.parametrize(("equal", "is_found"), [(0, False), (99, False), (100, True), (150, True)])
def test_losses_diverge_only_after_a_hundred_equal_steps(equal: int, is_found: bool) -> None:
    losses = EqualLosses()
    assert _add(losses, range(equal), 2.0, 2.0) is None
    found = _add(losses, range(equal, equal + 3), 2.0, 2.5)
    assert (found is not None) is is_found
    if found is not None:
        assert found == Divergence("loss", equal, {0: 2.0, 1: 2.5}, (0, 1), equal)


def test_the_third_different_step_counts_and_the_first_is_named() -> None:
    losses = EqualLosses()
    _add(losses, range(100), 2.0, 2.0, 2.0)
    assert _add(losses, [100, 101], 2.0, 2.0, 3.0) is None
    found = _add(losses, [102], 2.0, 4.0, 2.0)
    assert found == Divergence("loss", 100, {0: 2.0, 1: 4.0, 2: 2.0}, (1,), 100)


def test_an_equal_step_between_begins_the_count_anew() -> None:
    losses = EqualLosses()
    _add(losses, range(100), 2.0, 2.0)
    _add(losses, [100, 101], 2.0, 3.0)
    _add(losses, [102], 2.0, 2.0)
    assert _add(losses, [103, 104], 2.0, 3.0) is None
    found = _add(losses, [105], 2.0, 3.0)
    assert found is not None
    assert (found.step, found.equal_steps) == (103, 101)


def test_a_divergence_ends_with_an_equal_step_of_the_same_loss() -> None:
    losses = EqualLosses()
    _add(losses, range(100), 2.0, 2.0)
    assert _add(losses, range(100, 103), 2.0, 3.0) is not None
    assert _add(losses, [103], 1.0, 1.0, name="lm_loss") is not None
    assert _add(losses, [103], 1.0, 1.0) is None


@pytest.mark.parametrize(
    ("apart", "is_equal"),
    [(0.5e-6, True), (0.9e-6, True), (1.5e-6, False), (0.5e-5, False)],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_losses_are_equal_up_to_a_millionth(apart: float, is_equal: bool, sign: int) -> None:
    """After 99 equal steps a hundredth one decides whether there were enough."""
    losses = EqualLosses()
    _add(losses, range(99), 1.0, 1.0)
    _add(losses, [99], sign * 1.0, sign * (1.0 - apart))
    assert (_add(losses, range(100, 103), 1.0, 2.0) is not None) is is_equal


@pytest.mark.parametrize(("values", "is_equal"), [((1e6, 1e6 - 1), True), ((1e6, 1e6 - 2), False)])
def test_a_difference_of_exactly_a_millionth_is_equal(values: tuple[float, float], is_equal: bool) -> None:
    losses = EqualLosses()
    _add(losses, range(99), 1.0, 1.0)
    _add(losses, [99], *values)
    assert (_add(losses, range(100, 103), 1.0, 2.0) is not None) is is_equal


@pytest.mark.parametrize(
    ("values", "is_different"),
    [((1e5, 1e5 - 1), True), ((1.0, 1.0 - 1.5e-5), True), ((1e5, 1e5 - 0.9), False), ((-1e5, 1 - 1e5), True)],
)
def test_losses_differ_from_a_hundred_thousandth_on(values: tuple[float, float], is_different: bool) -> None:
    losses = EqualLosses()
    _add(losses, range(100), 1.0, 1.0)
    assert (_add(losses, range(100, 103), *values) is not None) is is_different


def test_a_difference_too_small_to_count_neither_adds_nor_resets() -> None:
    losses = EqualLosses()
    _add(losses, range(100), 1.0, 1.0)
    _add(losses, [100, 101], 1.0, 2.0)
    _add(losses, [102], 1.0, 1.0 - 0.5e-5)
    found = _add(losses, [103], 1.0, 2.0)
    assert found is not None
    assert (found.step, found.equal_steps) == (100, 100)


def test_losses_that_are_all_no_number_are_equal_and_one_alone_differs() -> None:
    losses = EqualLosses()
    _add(losses, range(100), math.nan, math.nan, math.nan)
    found = _add(losses, range(100, 103), 2.0, 2.0, math.nan)
    assert found is not None
    assert (found.odd, found.equal_steps) == ((2,), 100)


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ((1.0, 1.0, 2.0), (2,)),
        ((2.0, 1.0, 1.0), (0,)),
        ((1.0, 1.0, 2.0, 2.0), (0, 1, 2, 3)),
        ((1.0, 1.0, 2.0, 3.0), (0, 1, 2, 3)),
        ((1.0, 1.0, 1.0, 2.0, 3.0), (3, 4)),
        ((1.0, 2.0, 3.0), (0, 1, 2)),
        ((1.0, 1.0 + 0.9e-6, 2.0), (2,)),
        ((1.0, 1.0 + 2.5e-6, 2.0), (0, 1, 2)),
        ((-1.0, -1.0 - 0.9e-6, 2.0), (2,)),
        ((2.0, 2.0, math.nan), (2,)),
        ((math.nan, math.nan, 2.0), (0, 1, 2)),
        ((1e6, 1e6 - 1, 2.0), (2,)),
        ((1.0, 1.0 + 1.8e-6, 1.0 + 0.9e-6, 1.0 + 2.7e-6, 2.0), (0, 1, 2, 3, 4)),
    ],
)
def test_the_ranks_outside_the_majority_are_named(values: tuple[float, ...], odd: tuple[int, ...]) -> None:
    losses = EqualLosses()
    _add(losses, range(100), *[1.0] * len(values))
    found = _add(losses, range(100, 103), *values)
    assert found is not None
    assert found.odd == odd


def test_a_small_difference_begins_the_count_of_equal_steps_anew() -> None:
    losses = EqualLosses()
    _add(losses, range(50), 1.0, 1.0)
    _add(losses, [50], 1.0, 1.0 - 1.5e-6)
    _add(losses, range(51, 150), 1.0, 1.0)
    assert _add(losses, range(150, 153), 1.0, 2.0) is None, "99 steps"


def test_a_loss_that_one_rank_alone_logs_does_not_keep_others_from_being_compared() -> None:
    losses = EqualLosses()
    for step in range(103):
        losses.add(0, [("aux/loss", step, 5.0), ("loss", step, 1.0)])
        losses.add(1, [("loss", step, 1.0 if step < 100 else 2.0)])
        losses.compare()
    assert losses.divergence is not None
    assert losses.divergence.metric == "loss"


def test_values_that_come_a_snapshot_later_are_compared() -> None:
    losses = EqualLosses()
    losses.add(0, [("loss", 0, 1.0)])
    for step in range(103):
        losses.add(0, [("loss", step + 1, 1.0)])
        losses.compare()
        losses.add(1, [("loss", step, 1.0 if step < 100 else 2.0)])
        losses.compare()
    assert losses.divergence is not None
    assert losses.divergence.equal_steps == 100


def test_one_rank_alone_is_not_compared() -> None:
    assert _add(EqualLosses(), range(200), 1.0) is None


def test_values_of_a_rank_that_comes_late_are_compared_for_512_steps() -> None:
    losses = EqualLosses()
    losses.add("first", [("loss", step, 1.0) for step in range(600)])
    losses.compare()
    losses.add("second", [("loss", step, 1.0) for step in range(600)])
    losses.compare()
    found = _add(losses, range(600, 603), 0.0)
    assert found is None, "a third rank, whose values the others lack"
    for step in range(700, 703):
        for rank, value in (("first", 1.0), ("second", 2.0), (0, 1.0)):
            losses.add(rank, [("loss", step, value)])
    losses.compare()
    assert losses.divergence is not None
    assert losses.divergence.equal_steps == 512
    assert losses.divergence.odd == ("second",)


def test_of_two_ranks_one_of_which_is_behind_512_steps_wait() -> None:
    losses = EqualLosses()
    _add(losses, [0], 1.0, 1.0)
    losses.add(0, [("loss", step, 1.0) for step in range(1, 600)])
    losses.compare()
    losses.add(1, [("loss", step, 1.0) for step in range(1, 600)])
    losses.compare()
    found = _add(losses, range(600, 603), 1.0, 2.0)
    assert found is not None
    assert found.equal_steps == 1 + 512


def test_steps_that_arrive_together_are_compared_in_their_order() -> None:
    losses = EqualLosses()
    for rank, last in ((0, 1.0), (1, 2.0)):
        steps = [("loss", step, 1.0 if step < 100 else last) for step in reversed(range(103))]
        losses.add(rank, steps)
    losses.compare()
    assert losses.divergence is not None
    assert losses.divergence.step == 100
