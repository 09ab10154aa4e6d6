"""Windows of whole steps, held against sums over the same steps made anew."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collectors.trainings.step_figures import StepFigures
from collectors.trainings.step_window import LEAST_STEPS, RECENT_SECONDS
from llmtop.model.snapshot import Phase, Step, Window
from tests.support.examples import EXAMPLES


def steps_of(lengths: list[float], **fields: object) -> list[Step]:
    """Steps that take so many seconds from start to start, half of it in "forward", and one that has begun."""
    starts = [0.0, *accumulate(lengths)]
    found = []
    for index, start in enumerate(starts):
        length = lengths[index] if index < len(lengths) else lengths[-1]
        told = {"phases": (Phase(name="forward", host_seconds=length / 2),), "seconds": length / 2, **fields}
        before = lengths[index - 1] if index else None
        found.append(Step(index=index, started_at=1e9 + start, interval_seconds=before, **told))
    return found


def fed(steps: list[Step]) -> StepFigures:
    figures = StepFigures()
    for step in steps:
        figures.add(step)
    return figures


def window(figures: StepFigures, name: str) -> Window:
    return next(one for one in figures.figures()["windows"] if one.name == name)


def test_a_step_is_from_start_to_start_and_what_no_phase_covers_is_outside() -> None:
    told = fed(steps_of([0.04] * 100, tokens=1024)).figures()
    assert told["step_seconds_p50"] == pytest.approx(0.04)
    assert told["step_seconds_mean"] == pytest.approx(0.04)
    assert told["steps_per_s"] == pytest.approx(25)
    assert told["tokens_per_s"] == pytest.approx(25 * 1024)
    assert told["outside_seconds"] == pytest.approx(0.02)
    assert sum(phase.host_seconds for phase in told["phases"]) + told["outside_seconds"] == pytest.approx(0.04)


@pytest.mark.parametrize(("stall", "left_out"), [(20.0, True), (6.0, True), (4.0, False)])
def test_five_steps_after_a_stall_figures_are_of_the_steps_after_it(stall: float, left_out: bool) -> None:
    """A stall is from 5 s on, as the screen reports it while it lasts."""
    lengths = [0.1] * 300 + [stall] + [0.12] * 5
    before, after = fed(steps_of(lengths[:-1])).figures(), fed(steps_of(lengths, tokens=1024)).figures()
    assert before["step_seconds_mean"] > 0.12, "four steps are too few"
    assert (after["step_seconds_mean"] == pytest.approx(0.12)) is left_out
    assert (after["phases"][0].host_seconds == pytest.approx(0.06)) is left_out
    assert (after["tokens_per_s"] == pytest.approx(1024 / 0.12)) is left_out
    minutes = next(one for one in after["windows"] if one.name == "5 min")
    assert minutes.seconds == pytest.approx(sum(lengths)), "the longer windows have all of it"


def test_long_steps_that_come_again_and_again_stay_in_the_figures() -> None:
    lengths = ([0.1] * 199 + [8.0]) * 4
    told = fed(steps_of(lengths)).figures()
    assert told["rare"].seconds == pytest.approx(8.0)
    more = [*lengths, *[0.1] * 20]
    assert fed(steps_of(more)).figures()["step_seconds_mean"] > 0.2, "the last 8 s step is within 15 s"


def test_steps_that_are_long_from_now_on_are_no_stall() -> None:
    told = fed(steps_of([0.1] * 300 + [30.0] * 6)).figures()
    assert told["step_seconds_mean"] == pytest.approx(30.0)
    assert told["window_steps"] >= LEAST_STEPS


def test_the_newest_step_counts_when_the_next_has_begun() -> None:
    assert fed(steps_of([0.1])[:1]).figures() == {}
    assert fed(steps_of([0.1])).figures()["window_steps"] == 1


@pytest.mark.parametrize(("length", "steps"), [(0.01, 1500), (0.1, 150), (2.9, 6), (60.0, LEAST_STEPS)])
def test_recent_is_fifteen_seconds_and_five_steps_at_least(length: float, steps: int) -> None:
    told = fed(steps_of([length] * (steps + 4000 // max(1, int(length * 100))))).figures()
    assert told["window_steps"] == pytest.approx(
        steps, abs=5 if length < 0.05 else 1 if steps > LEAST_STEPS else 0
    )
    assert told["window_seconds"] == pytest.approx(told["window_steps"] * length)


def test_a_change_shows_within_the_window() -> None:
    told = fed(steps_of([0.05] * 2000 + [0.25] * 61)).figures()
    assert told["step_seconds_mean"] == pytest.approx(0.25, rel=0.01)
    assert told["step_seconds_p50"] == pytest.approx(0.25)


def test_a_change_cuts_the_window_long_before_the_window_is_over() -> None:
    steps = steps_of(
        [0.05] * 2000 + [0.25] * 12, seconds=0.03, phases=(Phase(name="forward", host_seconds=0.025),)
    )
    told = fed(steps).figures()
    assert told["change"].part == "outside"
    assert told["change"].since_step == 2000
    assert told["change"].after_seconds == pytest.approx(0.25, rel=0.05)
    assert told["window_steps"] == 12
    assert told["step_seconds_mean"] == pytest.approx(0.25)
    assert told["windows"][1].step_seconds == pytest.approx(0.0512, rel=0.01)


def test_steps_that_come_now_and_then_and_take_long_are_told_apart() -> None:
    told = fed(steps_of(([0.05] * 19 + [0.5]) * 30)).figures()
    assert told["change"] is None
    assert told["rare"].every == 20
    assert told["rare"].seconds == pytest.approx(0.5)


def test_longer_windows_stand_beside_it() -> None:
    figures = fed(steps_of([0.5] * 1000 + [1.0] * 30))
    assert [one.name for one in figures.figures()["windows"]] == ["recent", "5 min", "run"]
    assert window(figures, "recent").step_seconds == pytest.approx(1.0)
    assert window(figures, "5 min").seconds == pytest.approx(300, abs=6)
    assert window(figures, "5 min").step_seconds == pytest.approx(300 / 570, rel=0.01)
    assert window(figures, "run").steps == 1030
    assert window(figures, "run").seconds == pytest.approx(530)
    assert window(figures, "run").step_seconds_p50 == pytest.approx(0.5, rel=0.01)


@settings(max_examples=EXAMPLES)
@given(
    st.lists(
        st.tuples(
            st.floats(1e-3, 3.0),
            st.one_of(st.none(), st.floats(0, 1e6)),
            st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 0.2)), max_size=4),
            st.one_of(st.none(), st.floats(1e-3, 1.0)),
        ),
        min_size=2,
        max_size=300,
    )
)
def test_sums_kept_as_steps_come_and_go_equal_sums_made_anew(
    made: list[tuple[float, float | None, list[tuple[str, float]], float | None]],
) -> None:
    figures, start, before = StepFigures(), 1e9, None
    for index, (length, tokens, phases, _) in enumerate(made):
        named = tuple(Phase(name=name, host_seconds=share * length) for name, share in dict(phases).items())
        step = Step(
            index=index,
            started_at=start,
            seconds=0.9 * length,
            interval_seconds=before,
            tokens=tokens,
            phases=named,
        )
        figures.add(step)
        start, before = start + length, length
        gpu = made[index][3]
        if gpu is not None:
            timed = tuple(replace(phase, gpu_seconds=phase.host_seconds / 2) for phase in named)
            figures.update(replace(step, gpu_seconds=gpu, gpu_idle_seconds=gpu / 3, phases=timed))
    told = figures.figures()
    recent = made[:-1][-told["window_steps"] :]
    lengths = [length for length, *_ in recent]
    assert len(recent) >= min(LEAST_STEPS, len(made) - 1)
    assert sum(lengths) >= RECENT_SECONDS - 1e-6 or len(recent) == len(made) - 1
    assert told["step_seconds_mean"] == pytest.approx(np.mean(lengths))
    for pct in (50, 95, 99):
        assert told[f"step_seconds_p{pct}"] == pytest.approx(np.percentile(lengths, pct))
    amounts = [tokens for _, tokens, _, _ in recent if tokens is not None]
    assert (told["tokens_per_s"] is None) == (not amounts)
    if amounts:
        assert told["tokens_per_s"] == pytest.approx(sum(amounts) / sum(lengths), rel=1e-6, abs=1e-6)
    sums: dict[str, float] = {}
    for length, _, phases, _ in recent:
        for name, share in dict(phases).items():
            sums[name] = sums.get(name, 0.0) + share * length
    means = {phase.name: phase.host_seconds for phase in told["phases"]}
    assert means == pytest.approx({name: total / len(recent) for name, total in sums.items()}, abs=1e-9)
    if sums:
        whole = sum(means.values()) + told["outside_seconds"]
        assert whole == pytest.approx(told["step_seconds_mean"], rel=1e-6)
    measured = [gpu for *_, gpu in recent if gpu is not None]
    assert told["gpu_idle_pct"] == (pytest.approx(100 / 3) if measured else None)


def test_phases_are_told_in_the_order_of_a_step() -> None:
    def phases(*names: str) -> tuple[Phase, ...]:
        return tuple(Phase(name=name, host_seconds=0.001) for name in names)

    first, *others = steps_of([0.1] * 6)
    orders = [("backward", "optimizer", "forward")] * 2
    orders += [("dataload", "forward", "backward", "optimizer")] * 2
    orders += [
        ("evaluation", "dataload", "forward", "backward", "optimizer"),
        ("forward", "backward", "optimizer"),
    ]
    steps = [replace(step, phases=phases(*names)) for step, names in zip([first, *others], orders, strict=False)]
    told = fed([*steps, others[-1]]).figures()["phases"]
    assert [one.name for one in told] == ["evaluation", "dataload", "forward", "backward", "optimizer"]


def test_a_step_whose_successor_was_lost_is_not_taken_for_a_long_one() -> None:
    steps = steps_of([0.1] * 40)
    told = fed([*steps[:20], *steps[25:]]).figures()
    assert told["step_seconds_p99"] == pytest.approx(0.1)
    assert told["window_steps"] == 34


def test_a_second_training_in_the_process_begins_anew_and_a_second_epoch_does_not() -> None:
    steps = steps_of([0.1] * 50)
    epoch = [replace(step, started_at=step.started_at + 5.1) for step in steps]
    epoch[0] = replace(epoch[0], interval_seconds=0.1)
    assert fed(steps + epoch).figures()["window_steps"] == 101
    epoch[0] = replace(epoch[0], interval_seconds=30.0)
    assert fed(steps + epoch).figures()["window_steps"] == 50


def test_a_pause_is_no_step() -> None:
    steps = steps_of([0.1] * 50)
    steps[25] = replace(steps[25], interval_seconds=None)
    told = fed(steps).figures()
    assert told["window_steps"] == 49
    assert told["step_seconds_p99"] == pytest.approx(0.1)


def test_a_rate_is_of_now_and_the_rest_stays() -> None:
    figures = fed(steps_of([0.1] * 50, tokens=100))
    running, stopped = figures.rank_fields(running=True, left=30), figures.rank_fields(running=False, left=30)
    assert running["eta_seconds"] == pytest.approx(3.0)
    assert running["tokens_per_s"] == pytest.approx(1000)
    assert stopped["eta_seconds"] is stopped["tokens_per_s"] is stopped["steps_per_s"] is None
    assert stopped["step_seconds_p50"] == running["step_seconds_p50"]


def test_requests_overlap_and_are_as_long_as_they_are() -> None:
    steps = [
        Step(
            index=i, started_at=i / 10, seconds=0.5, interval_seconds=0.1 if i else None, kind="request", tokens=7
        )
        for i in range(100)
    ]
    told = fed(steps).figures()
    assert told["step_seconds_p50"] == pytest.approx(0.5)
    assert told["steps_per_s"] == pytest.approx(10)
    assert told["outside_seconds"] is None
    assert told["windows"] == ()
