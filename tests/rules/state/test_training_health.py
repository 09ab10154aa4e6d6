"""What happened to the logged values of one process."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from llmtop.model.health import LoggedSeries
from llmtop.model.snapshot import Step
from llmtop.rules.state.training_health import HealthEvent, TrainingHealth
from tests.support.snapshots import rank

Values = Sequence[float | None]


def _feed(health: TrainingHealth, first: int = 0, now: float = 50.0, **series: Values) -> TrainingHealth:
    """Add one snapshot with these values of steps from `first` on."""
    made = tuple(
        LoggedSeries(name=name, steps=tuple(range(first, first + len(values))), values=tuple(values))
        for name, values in series.items()
    )
    health.add(now, rank(step=first, new_values=made))
    return health


def _noise(count: int, level: float = 2.0) -> list[float]:
    return [level * math.exp(0.01 * (-1) ** place) for place in range(count)]


def _spike(count: int, at: int, length: int = 3, times: float = 3.0) -> list[float]:
    return [value * (times if at <= place < at + length else 1.0) for place, value in enumerate(_noise(count))]


# ---- values that are not finite ----


def test_a_loss_that_is_no_number_is_an_event_until_it_is_finite() -> None:
    health = _feed(TrainingHealth(), loss=[2.0, None, math.nan])
    event = health.events["non_finite"]
    assert (event.metric, event.step, event.value, event.seen_at, event.usual) == ("loss", 1, None, 50.0, None)
    assert event.lasts
    _feed(health, 3, 60.0, loss=[math.inf])
    assert health.events["non_finite"] is event
    assert event.seen_at == 60.0
    _feed(health, 4, 70.0, loss=[2.0])
    assert not event.lasts
    _feed(health, 5, 80.0, loss=[None])
    assert (health.events["non_finite"].step, health.events["non_finite"].seen_at) == (5, 80.0)


def test_the_usual_range_before_it_is_kept() -> None:
    health = _feed(TrainingHealth(), loss=[*_noise(40), None])
    low, high = health.events["non_finite"].usual or (0.0, 0.0)
    assert low < 2.0 < high < 2.1


def test_a_norm_after_a_loss_continues_the_event_and_a_loss_after_a_norm_is_one() -> None:
    health = _feed(TrainingHealth(), loss=[None])
    _feed(health, 1, 60.0, grad_norm=[None])
    assert (health.events["non_finite"].metric, health.events["non_finite"].seen_at) == ("loss", 60.0)
    health = _feed(TrainingHealth(), grad_norm=[None])
    _feed(health, 1, 60.0, loss=[None])
    assert (health.events["non_finite"].metric, health.events["non_finite"].step) == ("loss", 1)


def test_another_value_that_is_finite_does_not_end_it() -> None:
    health = _feed(TrainingHealth(), loss=[None], grad_norm=[1.0])
    _feed(health, 1, grad_norm=[1.0])
    assert health.events["non_finite"].lasts


def test_a_learning_rate_that_is_no_number_is_no_event() -> None:
    assert _feed(TrainingHealth(), lr=[1e-3, None]).events == {}


@pytest.mark.parametrize(
    ("at", "found"), [((0,), None), ((0, 4), None), ((0, 4, 9), 9), ((0, 4, 10), None), ((2, 3, 4), 4)]
)
def test_below_a_loss_scale_three_of_the_last_ten_norms_are_an_event(
    at: tuple[int, ...], found: int | None
) -> None:
    norms = [None if step in at else 1.0 for step in range(12)]
    health = TrainingHealth()
    for step, norm in enumerate(norms):
        _feed(health, step, loss_scale=[1024.0], grad_norm=[norm])
        event = health.events.get("non_finite")
        if event is not None:
            assert event.step == found
            return
    assert found is None


def test_without_a_loss_scale_one_norm_is_an_event() -> None:
    assert _feed(TrainingHealth(), grad_norm=[1.0, None]).events["non_finite"].step == 1


# ---- what is shown and handed on ----


def test_the_last_value_of_each_kind_is_shown() -> None:
    health = _feed(TrainingHealth(), loss=[2.0, 1.5], lr=[1e-3], grad_norm=[None], note=[7.0])
    assert health.shown == {"loss": ("loss", 1.5), "lr": ("lr", 1e-3), "grad_norm": ("grad_norm", None)}


def test_the_losses_of_a_snapshot_are_handed_on_with_their_steps() -> None:
    health = _feed(TrainingHealth(), 4, loss=[2.0, None], grad_norm=[1.0])
    (first, second) = health.new_losses
    assert first == ("loss", 4, 2.0)
    assert second[:2] == ("loss", 5)
    assert math.isnan(second[2])
    assert _feed(health, 6, grad_norm=[1.0]).new_losses == []


def test_a_stream_without_series_has_the_last_value_of_each_step() -> None:
    health = TrainingHealth()
    for step in (None, 3, 3, 4):
        health.add(1.0, rank(step=step, metrics={"loss": 2.0, "accuracy": 0.5}))
        if step is None:
            assert health.shown == {}
    assert health.new_losses == [("loss", 4, 2.0)]
    health.add(2.0, rank(step=4, metrics={"loss": 2.0}))
    assert health.new_losses == []
    _feed(health, 5, loss=[1.0])
    health.add(3.0, rank(step=6, metrics={"loss": 9.0}))
    assert health.new_losses == [], "series have come: the metrics repeat them"


# ---- spikes, and when none is judged ----


@pytest.mark.parametrize(("at", "is_found"), [(97, False), (100, True), (300, True)])
def test_the_first_hundred_steps_are_not_judged(at: int, is_found: bool) -> None:
    event = _feed(TrainingHealth(), loss=_spike(at + 3, at)).events.get("loss_spike")
    assert (event is not None) is is_found
    if event is not None:
        assert (event.step, event.metric, event.seen_at) == (at, "loss", 50.0)
        assert event.lasts
        assert event.usual is not None
        assert event.usual[0] < 2.0 < event.usual[1] < 2.2


@pytest.mark.parametrize(
    ("rate", "at", "is_found"),
    [(1.0006, 397, False), (1.0006, 400, True), (1.0004, 350, True), (0.5, 350, True), (2.0, 350, False)],
)
def test_a_rise_of_the_learning_rate_begins_a_hundred_steps_anew(rate: float, at: int, is_found: bool) -> None:
    rates = [1e-3 if step < 300 else rate * 1e-3 for step in range(at + 3)]
    found = _feed(TrainingHealth(), loss=_spike(at + 3, at), lr=rates).events
    assert ("loss_spike" in found) is is_found


@pytest.mark.parametrize(("rises_at", "is_kept"), [(399, False), (400, False), (401, True)])
def test_a_spike_within_a_hundred_steps_before_a_rise_is_taken_back(rises_at: int, is_kept: bool) -> None:
    health = _feed(TrainingHealth(), loss=_spike(303, 300), lr=[1e-3])
    assert "loss_spike" in health.events
    _feed(health, rises_at, lr=[2e-3])
    assert ("loss_spike" in health.events) is is_kept


def test_a_curve_that_begins_after_a_rise_counts_from_the_rise() -> None:
    health = _feed(TrainingHealth(), lr=[1e-3 * (1 + step) for step in range(50)])
    _feed(health, 50, loss=_noise(200)[50:97])
    _feed(health, 97, loss=_spike(200, 150)[97:153])
    assert "loss_spike" in health.events, "judged from 49 + 100 on"


@pytest.mark.parametrize(("times", "is_found"), [(2.2, True), (1.9, False)])
def test_two_norms_must_be_twice_the_trend(times: float, is_found: bool) -> None:
    found = _feed(TrainingHealth(), grad_norm=_spike(303, 300, 3, times)).events
    assert ("grad_norm_jump" in found) is is_found


@pytest.mark.parametrize(("times", "is_found"), [(3.1, True), (2.9, False)])
def test_one_norm_must_be_three_times_the_trend(times: float, is_found: bool) -> None:
    found = _feed(TrainingHealth(), grad_norm=_spike(303, 300, 1, times)).events
    assert ("grad_norm_jump" in found) is is_found


@pytest.mark.parametrize(
    ("times", "length", "is_found"), [(1.11, 3, True), (1.04, 3, False), (1.12, 1, True), (1.09, 1, False)]
)
def test_a_loss_has_smaller_limits(times: float, length: int, is_found: bool) -> None:
    found = _feed(TrainingHealth(), loss=_spike(303, 300, length, times)).events
    assert ("loss_spike" in found) is is_found


# ---- other trainings and earlier steps ----


def test_steps_that_go_back_close_what_was_open() -> None:
    health = _feed(TrainingHealth(), loss=[*_noise(150), None])
    assert health.events["non_finite"].lasts
    _feed(health, 20, loss=[2.0])
    assert not health.events["non_finite"].lasts
    _feed(health, 21, loss=_noise(5, 40.0))
    assert "loss_spike" not in health.events


def _sizes(health: TrainingHealth, *tokens: float | None, first: int = 300) -> None:
    steps = tuple(
        Step(index=index, started_at=0.0, seconds=1.0, tokens=size) for index, size in enumerate(tokens, first)
    )
    health.add(60.0, rank(step=first, new_steps=steps))


@pytest.mark.parametrize(
    ("sizes", "is_other"),
    [
        ((100.0, 400.0, 400.0, 400.0), True),
        ((100.0, 399.0, 399.0, 399.0), False),
        ((100.0, 25.0, 25.0, 25.0), True),
        ((100.0, 26.0, 26.0, 26.0), False),
        ((100.0, 400.0, 400.0, 100.0, 400.0), False),
        ((100.0, 400.0, 400.0), False),
        ((100.0, 200.0, 400.0, 800.0), False),
        ((100.0, None, 400.0, None, 400.0, 400.0), True),
    ],
    ids=str,
)
def test_three_steps_of_four_times_the_tokens_are_another_training(
    sizes: tuple[float | None, ...], is_other: bool
) -> None:
    health = _feed(TrainingHealth(), loss=[*_noise(299), None])
    _sizes(health, *sizes)
    assert health.events["non_finite"].lasts is not is_other


@pytest.mark.parametrize(("first", "is_kept"), [(297, False), (302, False), (304, True)])
def test_a_spike_of_the_first_steps_of_another_training_is_taken_back(first: int, is_kept: bool) -> None:
    """The other training is known with its third step; what began up to three steps before was none."""
    health = _feed(TrainingHealth(), loss=_spike(303, 300))
    assert health.events["loss_spike"].step == 300
    _sizes(health, 100.0, 400.0, 400.0, 400.0, first=first - 3)
    assert ("loss_spike" in health.events) is is_kept


# ---- the loss scale ----


def _scales(*scales: float, first: int = 0) -> HealthEvent | None:
    return _feed(TrainingHealth(), first, loss_scale=scales).events.get("loss_scale_collapse")


@pytest.mark.parametrize(
    ("before", "fallen", "is_found"),
    [
        ([1024.0] * 101, 64.0, True),  # a sixteenth, after 100 steps at one value
        ([1024.0] * 100, 64.0, False),
        ([1024.0] * 101, 65.0, False),
        ([512.0, 1024.0], 64.0, True),  # it has grown
        ([2048.0, 1024.0], 64.0, False),
        ([1024.0] * 101 + [256.0] * 199, 64.0, True),
        ([1024.0] * 101 + [256.0] * 200, 64.0, False),
        ([4.0], 0.5, True),
        ([4.0], 1.0, False),
        ([], 0.5, False),
    ],
)
def test_a_loss_scale_collapses_to_a_sixteenth_or_below_one(
    before: list[float], fallen: float, is_found: bool
) -> None:
    event = _scales(*before, fallen)
    assert (event is not None) is is_found
    if event is not None:
        assert (event.step, event.value) == (len(before), fallen)
        assert event.lasts


def test_the_usual_scale_is_the_highest_of_the_last_steps() -> None:
    event = _scales(*[1024.0] * 101, 512.0, 64.0)
    assert event is not None
    assert event.usual == (512.0, 1024.0)


def test_a_scale_that_recovers_closes_the_event_and_keeps_the_lowest_value() -> None:
    health = _feed(TrainingHealth(), loss_scale=[1024.0] * 101 + [64.0])
    event = health.events["loss_scale_collapse"]
    _feed(health, 102, loss_scale=[32.0, 48.0])
    assert (event.value, event.lasts) == (32.0, True)
    _feed(health, 104, loss_scale=[512.0])
    assert (event.value, event.lasts) == (32.0, False)
    assert health.events["loss_scale_collapse"] is event


def test_a_scale_below_one_stays_low_while_it_is() -> None:
    health = _feed(TrainingHealth(), loss_scale=[4.0, 0.5, 0.5, 0.5])
    assert health.events["loss_scale_collapse"].lasts
    _feed(health, 4, loss_scale=[2.0])
    assert not health.events["loss_scale_collapse"].lasts


# ---- a flat loss ----


def test_a_flat_loss_is_an_event_until_it_moves() -> None:
    health = _feed(TrainingHealth(), loss=[*_noise(20), *[2.0] * 100])
    event = health.events["loss_flat"]
    assert (event.metric, event.step, event.value, event.lasts) == ("loss", 20, 2.0, True)
    _feed(health, 120, loss=[1.9])
    assert (event.value, event.lasts) == (1.9, False)


def test_an_event_lasts_as_its_excursion_does() -> None:
    health = _feed(TrainingHealth(), loss=_spike(303, 300))
    event = health.events["loss_spike"]
    assert event.excursion is not None
    assert not event.is_open
    assert event.lasts
    _feed(health, 303, loss=_noise(10))
    assert not event.lasts
