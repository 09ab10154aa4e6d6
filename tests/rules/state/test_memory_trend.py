"""Floors of a training's memory, by hand-made samples; their alerts are in tests/rules/test_memory.py."""

from __future__ import annotations

import pytest

from llmtop.rules.state.memory_trend import MemoryRise, MemoryTrend
from tests.support.snapshots import rank


def _trend(count: int, steps: int, seconds: float, allocated: list[int] | None = None) -> MemoryTrend:
    """A trend after some samples, each so many steps and seconds after the one before."""
    trend = MemoryTrend()
    for place in range(count):
        held = place if allocated is None else allocated[place]
        trend.add(1000.0 + place * seconds, rank(step=10 + place * steps, memory_allocated_bytes=held))
    return trend


@pytest.mark.parametrize(
    ("rise", "is_brief", "rate"),
    [
        (MemoryRise(100, 400, 10, 30.0, 0.0), True, 10.0),
        (MemoryRise(100, 400, 10, 59.9, 0.0), True, 300 / 59.9),
        (MemoryRise(100, 400, 10, 60.0, 0.0), False, 5.0),
        (MemoryRise(100, 400, 10, 0.5, 0.0), True, 600.0),
        (MemoryRise(100, 400, 10, 0.0, 0.0), True, None),
    ],
)
def test_a_rise_is_brief_below_a_minute(rise: MemoryRise, is_brief: bool, rate: float | None) -> None:
    assert rise.is_brief is is_brief
    assert rise.bytes_per_second == (None if rate is None else pytest.approx(rate))


@pytest.mark.parametrize(
    ("steps", "seconds", "samples"),
    [
        (15, 1.0, 3),  # 30 steps and 2 s between the first and the third
        (14, 1.0, 4),  # 28 steps are too few
        (15, 0.9, 4),  # 1.8 s are too short
        (100, 50.0, 3),  # a stretch has three samples at least
        (1, 1.0, 31),
    ],
)
def test_eight_stretches_that_rise_are_a_growth(steps: int, seconds: float, samples: int) -> None:
    assert not list(_trend(8 * samples - 1, steps, seconds).growths())
    growth = next(_trend(8 * samples, steps, seconds).growths())
    stretches = 7 * samples
    assert (growth.first_bytes, growth.last_bytes) == (0, stretches)
    assert growth.steps == stretches * steps
    assert growth.seconds == pytest.approx(stretches * seconds)
    assert growth.since == 1000.0


@pytest.mark.parametrize(
    ("steps", "seconds", "growths"),
    [
        (15, 10.0, 2),  # 30 steps and 20 s: also a fast leak
        (15, 9.9, 1),
        (50, 150.0, 3),  # 100 steps and 300 s: also a slow one
        (49, 150.0, 2),
        (50, 149.0, 2),
    ],
)
def test_longer_stretches_are_judged_too(steps: int, seconds: float, growths: int) -> None:
    assert len(list(_trend(24, steps, seconds).growths())) == growths
    assert len(list(_trend(32, steps, seconds).growths())) == max(growths, 2 if seconds < 100 else 3)


@pytest.mark.parametrize(("flat_at", "expected"), [(None, 2), (0, 0), (3, 0), (7, 0)])
def test_a_floor_that_does_not_rise_ends_a_growth(flat_at: int | None, expected: int) -> None:
    """One of the stretches falls to the floor of the one before it, or begins above that of the next."""
    floors = list(range(10, 90, 10))
    if flat_at is not None:
        floors[flat_at] = floors[max(flat_at - 1, 0)] if flat_at else floors[1]
    allocated = [held for floor in floors for held in (floor, floor + 100 + floor, floor)]
    assert len(list(_trend(24, 15, 10.0, allocated).growths())) == expected


@pytest.mark.parametrize(
    ("seconds", "peaks_rise", "is_found"), [(1.0, True, True), (1.0, False, False), (10.0, False, True)]
)
def test_the_peaks_of_a_brief_rise_must_rise_as_well(seconds: float, peaks_rise: bool, is_found: bool) -> None:
    allocated = [held for place in range(8) for held in (place, 500 + (place if peaks_rise else 0), place + 1)]
    assert bool(list(_trend(24, 15, seconds, allocated).growths())) is is_found


def test_one_peak_that_does_not_rise_ends_a_brief_growth() -> None:
    allocated = [held for place in range(8) for held in (place, 500 + place - 2 * (place == 4), place + 1)]
    assert not list(_trend(24, 15, 1.0, allocated).growths())


def test_a_growth_is_of_the_last_eight_stretches_and_since_the_first_that_rose() -> None:
    floors = [9, 9, *range(10, 20)]
    growth = next(_trend(36, 15, 9.0, [floor for floor in floors for _ in range(3)]).growths())
    assert (growth.first_bytes, growth.last_bytes) == (12, 19)
    assert growth.since == 1000.0 + 3 * 9.0, "the second of the two that are equal"


@pytest.mark.parametrize(("step", "counts"), [(None, False), (5, False), (6, True)])
def test_samples_of_the_warm_up_do_not_count(step: int | None, counts: bool) -> None:
    trend = MemoryTrend()
    trend.add(0.0, rank(step=step, warmup_steps=5, memory_allocated_bytes=-7))
    for place in range(24):
        trend.add(1.0 + place, rank(step=21 + 15 * place, warmup_steps=5, memory_allocated_bytes=place))
    # A sample more shifts the stretches by one: the first then has 3 samples, and two of them are old.
    firsts = {growth.first_bytes for growth in trend.growths()}
    assert firsts == ({-7} if counts else {0})


def test_without_allocated_bytes_nothing_is_known() -> None:
    trend = MemoryTrend()
    for place in range(24):
        trend.add(float(place), rank(step=15 * place + 1, memory_reserved_bytes=place, memory_peak_bytes=0))
    assert not [*trend.growths(), *trend.unused_growths()]


@pytest.mark.parametrize(
    ("seen", "failures", "failed_at"),
    [
        ([(7, 0)], 0, None),
        ([(7, 1)], 1, 0.0),
        ([(None, 2)], 2, 0.0),
        ([(None, None), (3, None)], 0, None),
        ([(7, 0), (7, 0)], 0, None),
        ([(7, 0), (9, 0)], 2, 1.0),
        ([(7, 0), (9, 0), (9, 0), (9, 1)], 3, 3.0),
        ([(7, 0), (2, 0), (3, 0)], 1, 2.0),
        ([(7, 0), (None, None), (8, 0)], 1, 2.0),
    ],
)
def test_retries_count_from_the_first_snapshot_on_and_out_of_memory_errors_always(
    seen: list[tuple[int | None, int | None]], failures: int, failed_at: float | None
) -> None:
    trend = MemoryTrend()
    for at, (retries, ooms) in enumerate(seen):
        trend.add(float(at), rank(alloc_retries=retries, ooms=ooms))
    assert (trend.failures, trend.allocator_failed_at) == (failures, failed_at)


@pytest.mark.parametrize(
    ("allocated", "peak", "first", "last"), [(5, 60, 140, 161), (70, 60, 130, 151), (60, 60, 140, 161)]
)
def test_unused_memory_is_what_is_reserved_beyond_the_most_in_tensors(
    allocated: int, peak: int, first: int, last: int
) -> None:
    trend = MemoryTrend()
    for place in range(24):
        now = rank(
            step=10 + 15 * place,
            memory_allocated_bytes=allocated,
            memory_reserved_bytes=200 + place,
            memory_peak_bytes=peak,
        )
        trend.add(10.0 * place, now)
    (growth,) = trend.unused_growths()
    assert (growth.first_bytes, growth.last_bytes) == (first, last)
    assert growth.steps == 7 * 45
    assert not list(trend.growths())


@pytest.mark.parametrize(
    ("seconds", "steps", "growths"), [(9.9, 15, 0), (10.0, 14, 0), (10.0, 15, 1), (150.0, 50, 2)]
)
def test_unused_memory_is_judged_by_the_longer_stretches(seconds: float, steps: int, growths: int) -> None:
    trend = MemoryTrend()
    for place in range(24):
        now = rank(
            step=10 + steps * place, memory_allocated_bytes=1, memory_reserved_bytes=place, memory_peak_bytes=1
        )
        trend.add(seconds * place, now)
    assert len(list(trend.unused_growths())) == growths


@pytest.mark.parametrize("missing", ["memory_reserved_bytes", "memory_peak_bytes"])
def test_unused_memory_is_unknown_without_both_of_its_figures(missing: str) -> None:
    trend = MemoryTrend()
    for place in range(24):
        values = {"memory_allocated_bytes": 1, "memory_reserved_bytes": place + 9, "memory_peak_bytes": 1}
        trend.add(10.0 * place, rank(step=10 + 15 * place, **{**values, missing: None}))
    assert not list(trend.unused_growths())
