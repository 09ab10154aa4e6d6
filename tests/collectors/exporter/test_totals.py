"""Counters of one training: from snapshots' new steps, each once, from the exporter's beginning on."""

from __future__ import annotations

import pytest

from collectors.exporter.names import MAX_PHASES, OTHER
from collectors.exporter.totals import RankTotals
from llmtop.model.snapshot import Phase, StampedWait, Step
from tests.support.snapshots import rank

LENGTH = 0.5


def steps(first: int, count: int, *, at: float = 1000.0, **fields: object) -> tuple[Step, ...]:
    """Steps of half a second from start to start, of which 0.4 s lie in phases."""
    phases = (
        Phase(name="forward", host_seconds=0.1),
        Phase(name="all_reduce", host_seconds=0.3),
        Phase(name="forward/attention", host_seconds=0.05),
    )
    usual = {"seconds": 0.45, "interval_seconds": LENGTH, "tokens": 10.0, "phases": phases, **fields}
    return tuple(Step(index=i, started_at=at + LENGTH * i, **usual) for i in range(first, first + count))  # type: ignore[arg-type]


def totals(*batches: tuple[Step, ...], since: float = 0.0) -> RankTotals:
    counted = RankTotals(since)
    for batch in batches:
        counted.add(rank(new_steps=batch))
    return counted


def test_steps_are_counted_once_they_are_whole() -> None:
    counted = totals(steps(0, 3), steps(3, 2))
    assert counted.steps == 4, "the fifth has not ended: the sixth has not begun"
    assert counted.step_seconds == pytest.approx(4 * LENGTH)
    assert counted.outside_seconds == pytest.approx(4 * 0.1)
    assert counted.tokens == 40
    assert counted.comm_wait_seconds == pytest.approx(4 * 0.3)
    assert counted.host_phases == pytest.approx({"forward": 0.4, "all_reduce": 1.2, "forward/attention": 0.2})
    assert counted.gpu_phases == {}
    assert counted.gpu_timed_steps is None


def test_what_nobody_tells_stays_absent() -> None:
    counted = totals(steps(0, 3, phases=(), tokens=None))
    assert counted.steps == 2
    assert (counted.outside_seconds, counted.tokens, counted.comm_wait_seconds) == (None, None, None)


def test_a_history_from_before_the_exporter_is_not_counted_twice() -> None:
    """To Prometheus a counter that fell began anew: what a restarted exporter shows would all be new."""
    first = totals(steps(0, 100), since=1000.0)
    again = totals(steps(0, 104), since=1000.0 + 100 * LENGTH)
    assert first.steps == 99
    assert again.steps == 3, "what began since, and is whole"


def test_after_a_step_that_counts_all_count_whatever_the_wall_clock_says() -> None:
    counted = totals(steps(0, 4, at=1000.0), steps(4, 4, at=1000.0 - 7200.0), since=999.0)
    assert counted.steps == 7


def test_a_request_of_a_server_counts_by_its_own_length() -> None:
    counted = totals(steps(0, 3, kind="request", phases=()))
    assert counted.steps == 3
    assert counted.step_seconds == pytest.approx(3 * 0.45)
    assert counted.outside_seconds is None


def timed(step: Step, seconds: float) -> Step:
    """The step with GPU times."""
    phases = tuple(Phase(name=one.name, host_seconds=one.host_seconds, gpu_seconds=seconds) for one in step.phases)
    return Step(
        **{name: getattr(step, name) for name in ("index", "started_at", "seconds", "interval_seconds")},
        phases=phases,
        gpu_seconds=2 * seconds,
    )


def test_gpu_times_are_of_the_steps_that_have_them_and_count_once() -> None:
    batch = steps(0, 4)
    counted = totals(batch)
    late = (timed(batch[1], 0.2),)
    counted.add(rank(gpu_updates=late))
    counted.add(rank(gpu_updates=late))
    counted.add(rank(new_steps=(timed(steps(4, 1)[0], 0.2),)))
    assert counted.gpu_timed_steps == 2
    assert counted.gpu_phases["forward"] == pytest.approx(0.4)
    assert counted.comm_wait_gpu_seconds == pytest.approx(0.4)
    counted.add(rank(gpu_updates=(timed(steps(900, 1)[0], 0.2),)))
    assert counted.gpu_timed_steps == 2, "of a step that was not counted"


def test_of_many_names_the_first_are_told_and_the_rest_are_one() -> None:
    many = tuple(Phase(name=f"phase {i}", host_seconds=0.01) for i in range(MAX_PHASES + 8))
    nested = (Phase(name="phase 39/inner", host_seconds=0.01),)
    counted = totals(steps(0, 2, phases=many + nested))
    assert len(counted.host_phases) == MAX_PHASES + 1
    assert counted.host_phases[OTHER] == pytest.approx(0.08), "and not what lies within one of them once more"


def test_a_name_is_a_harmless_line_of_bounded_length() -> None:
    counted = totals(steps(0, 2, phases=(Phase(name="a\n\x1b[31m" + "x" * 5000, host_seconds=0.1),)))
    (name,) = counted.host_phases
    assert name.isprintable()
    assert len(name) <= 200


def _waits(*told: tuple[int, float]) -> tuple[StampedWait, ...]:
    return tuple(StampedWait(index=index, seconds=seconds) for index, seconds in told)


def test_where_stamps_tell_who_waits_they_stand_for_the_steps_between_and_phases_are_not_asked() -> None:
    counted = totals(steps(10, 3))
    counted.add(rank(new_steps=steps(13, 1), new_waits=_waits((4, 9.0), (12, 0.2))))
    assert counted.comm_wait_seconds == pytest.approx(3 * 0.3 + 0.2), "phases until then; step 4 was before"
    counted.add(rank(new_steps=steps(14, 6), new_waits=_waits((16, 0.1), (18, 0.4))))
    assert counted.comm_wait_seconds == pytest.approx(0.9 + 0.2 + 4 * 0.1 + 2 * 0.4)
    assert counted.comm_wait_gpu_seconds is None
    counted.add(rank(new_waits=_waits((40_000, 0.5))))
    assert counted.comm_wait_seconds == pytest.approx(2.3 + 0.5), "of what lies between nothing is known"
    counted.add(rank(new_waits=_waits((1, 0.5))))
    assert counted.comm_wait_seconds == pytest.approx(2.8), "a late message, of before"


def test_stamps_before_any_step_that_counts_are_of_the_past() -> None:
    counted = RankTotals(1000.0)
    counted.add(rank(new_waits=_waits((4, 9.0), (5, 9.0))))
    assert counted.comm_wait_seconds is None
