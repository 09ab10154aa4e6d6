"""The figures of one training, held against plain sums over the same steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from collectors.trainings.pending_steps import PENDING_STEPS
from collectors.trainings.rank_stats import HISTORY_STEPS, RankStats
from llmtop.order_statistics import percentile
from llmtop.protocol import wire

MS = 1_000_000


def done(
    index: int, ms: float = 10.0, gap_ms: float = 0.0, start_ms: float | None = None, **fields: object
) -> wire.StepDone:
    """A step of a training whose steps and gaps all take the same time."""
    start = index * (ms + gap_ms) if start_ms is None else start_ms
    interval = None if index == 0 else int((ms + gap_ms) * MS)
    return wire.StepDone(
        index=index, started_unix_ns=int(start * MS) + 1, host_ns=int(ms * MS), interval_ns=interval, **fields
    )


def fed(steps: list[wire.StepDone], hello: wire.Hello | None = None, **message: object) -> RankStats:
    stats = RankStats()
    stats.hello = hello or wire.Hello()
    stats.add_steps(wire.Steps(steps=steps, **message))
    return stats


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=300), st.sampled_from([50, 95, 99]))
def test_percentiles_are_numpys(values: list[float], pct: int) -> None:
    assert percentile(sorted(values), pct) == pytest.approx(np.percentile(values, pct))


def test_rates_are_over_the_whole_time_and_not_only_that_inside_steps() -> None:
    figures = fed([done(i, ms=10, gap_ms=30, tokens=4096, samples=2) for i in range(50)]).figures()
    assert figures["steps_per_s"] == pytest.approx(25)
    assert figures["tokens_per_s"] == pytest.approx(25 * 4096)
    assert figures["samples_per_s"] == pytest.approx(50)
    assert figures["step_seconds_p50"] == pytest.approx(0.040)
    assert figures["outside_seconds"] is None


def test_what_a_warm_up_step_cost_is_in_no_rate() -> None:
    compile_step = wire.StepDone(index=0, started_unix_ns=1, host_ns=60_000 * MS)
    first = wire.StepDone(index=1, started_unix_ns=60_000 * MS, host_ns=10 * MS, interval_ns=60_000 * MS)
    rest = [
        wire.StepDone(index=i, started_unix_ns=(60_000 + i * 10) * MS, host_ns=10 * MS, interval_ns=10 * MS)
        for i in range(2, 20)
    ]
    stats = fed([compile_step, first, *rest], wire.Hello(warmup_steps=1))
    assert stats.figures()["steps_per_s"] == pytest.approx(100)
    assert [step.warmup for step in stats.take_new()][:2] == [True, False]


def test_warm_up_is_the_first_steps_of_the_process_whatever_their_index() -> None:
    """A run that goes on from a checkpoint counts from where that was."""
    hello = wire.Hello(warmup_steps=2)
    resumed = [done(5000 + i) for i in range(4)]
    assert [step.warmup for step in fed(resumed, hello).take_new()] == [True, True, False, False]
    late = fed(resumed, hello, first_ordinal=300)
    assert [step.warmup for step in late.take_new()] == [False] * 4


def test_no_tokens_is_no_rate_and_never_zero() -> None:
    figures = fed([done(i) for i in range(5)]).figures()
    assert figures["tokens_per_s"] is None
    assert figures["samples_per_s"] is None


def test_a_token_count_that_is_no_number_spoils_no_rate() -> None:
    stats = fed([done(i, tokens=float("nan") if i == 3 else 100.0) for i in range(10)])
    assert stats.figures()["tokens_per_s"] == pytest.approx(8 / 9 * 100 / 0.010)


def test_before_the_first_step_there_are_no_figures() -> None:
    assert RankStats().figures() == {}
    assert RankStats().rank_fields(running=True)["step_seconds"] is None


def test_only_warm_up_so_far_is_no_figure_either() -> None:
    stats = fed([done(0), done(1)], wire.Hello(warmup_steps=5))
    assert stats.figures() == {}
    assert stats.last is not None
    assert stats.last.index == 1


def test_phases_are_means_over_all_recent_steps() -> None:
    steps = [
        done(0, phases=[wire.PhaseTime("load", 4 * MS), wire.PhaseTime("forward", 6 * MS)]),
        done(
            1,
            phases=[
                wire.PhaseTime("load", 2 * MS),
                wire.PhaseTime("forward", 6 * MS),
                wire.PhaseTime("eval", 8 * MS),
            ],
        ),
        done(2),
    ]
    phases = {phase.name: phase for phase in fed(steps).figures()["phases"]}
    assert list(phases) == ["load", "forward", "eval"]
    assert [phase.host_seconds for phase in phases.values()] == pytest.approx([0.003, 0.006, 0.004])
    assert {phase.gpu_seconds for phase in phases.values()} == {None}


def test_gpu_times_that_come_later_go_to_their_steps_and_into_the_figures() -> None:
    steps = [done(i, phases=[wire.PhaseTime("forward", 6 * MS)]) for i in range(5)]
    stats = fed(steps)
    assert len(stats.take_new()) == 5
    assert stats.figures()["gpu_idle_pct"] is None
    stats.add_gpu_times(
        wire.GpuTimes(
            times=[
                wire.GpuTime(1, 10 * MS, 2 * MS, [("forward", 5 * MS)]),
                wire.GpuTime(3, 10 * MS, 4 * MS, [("forward", 3 * MS)]),
                wire.GpuTime(999, 1, 1, []),
            ]
        )
    )
    updates = stats.take_updates()
    assert [(step.index, step.gpu_seconds, step.gpu_idle_seconds) for step in updates] == [
        (1, pytest.approx(0.010), pytest.approx(0.002)),
        (3, pytest.approx(0.010), pytest.approx(0.004)),
    ]
    assert updates[0].phases[0].gpu_seconds == pytest.approx(0.005)
    assert stats.figures()["gpu_idle_pct"] == pytest.approx(30)
    assert stats.figures()["phases"][0].gpu_seconds == pytest.approx(0.004)
    assert stats.take_updates() == ()


def test_an_idle_share_that_most_steps_cannot_tell_is_not_told() -> None:
    """A launch-bound training: the GPU keeps pace with the host, and its idle time hides between the kernels."""
    stats = fed([done(i) for i in range(10)])
    paced = [wire.GpuTime(i, 10 * MS, None, [], 8 * MS) for i in range(5)]
    ahead = [wire.GpuTime(i, 10 * MS, 1 * MS, []) for i in range(5, 9)]
    stats.add_gpu_times(wire.GpuTimes(times=[*paced, *ahead]))
    assert stats.figures()["gpu_idle_pct"] is None
    assert stats.figures()["gpu_host_paced_pct"] == pytest.approx(100 * 40 / 90)


def test_gpu_times_of_a_step_not_yet_handed_over_come_with_it() -> None:
    stats = fed([done(0), done(1)])
    stats.add_gpu_times(wire.GpuTimes(times=[wire.GpuTime(1, 7 * MS)]))
    assert [step.gpu_seconds for step in stats.take_new()] == [None, pytest.approx(0.007)]
    assert stats.take_updates() == ()


def test_each_step_is_handed_over_once_also_over_a_reconnect() -> None:
    stats = fed([done(i) for i in range(10)], history=True)
    assert [step.index for step in stats.take_new()] == list(range(10))
    assert stats.take_new() == ()
    stats.keep_losses()
    stats.add_steps(wire.Steps(steps=[done(i) for i in range(5, 12)], history=True))
    assert [step.index for step in stats.take_new()] == [10, 11]


def test_a_loop_that_counts_from_zero_again_is_not_taken_for_known_steps() -> None:
    stats = fed([done(i) for i in range(5)])
    stats.add_steps(wire.Steps(steps=[done(i, start_ms=1000 + i * 10) for i in range(5)]))
    assert [step.index for step in stats.take_new()] == [0, 1, 2, 3, 4] * 2


def test_steps_that_nobody_takes_are_bounded_and_counted_as_lost() -> None:
    stats = RankStats()
    for start in range(0, PENDING_STEPS + 1000, 500):
        stats.add_steps(wire.Steps(steps=[done(i) for i in range(start, start + 500)], lost=7))
    sent = start + 500
    new = stats.take_new()
    assert [step.index for step in new] == list(range(sent - PENDING_STEPS, sent))
    assert stats.lost == 7 + sent - PENDING_STEPS


def test_losses_of_an_earlier_connection_still_count() -> None:
    stats = fed([done(0)], lost=5)
    stats.keep_losses()
    stats.add_steps(wire.Steps(steps=[done(1)], lost=0))
    stats.add_steps(wire.Steps(steps=[done(2)], lost=3))
    assert stats.lost == 8


def test_memory_stays_bounded_over_many_steps() -> None:
    stats = RankStats()
    for i in range(3 * HISTORY_STEPS):
        stats.add_steps(wire.Steps(steps=[done(i)]))
        stats.take_new()
    everything = range(3 * HISTORY_STEPS)
    stats.add_gpu_times(wire.GpuTimes(times=[wire.GpuTime(index=index, gpu_ns=1) for index in everything]))
    assert [step.index for step in stats.take_updates()] == list(everything[-HISTORY_STEPS:])


def test_metrics_keep_the_latest_value_of_each_name() -> None:
    stats = fed([done(0)], metrics={"loss": 3.0, "lr": 0.1})
    stats.add_steps(wire.Steps(steps=[done(1)], metrics={"loss": 2.5}))
    assert stats.metrics == {"loss": 2.5, "lr": 0.1}


def test_history_that_comes_again_is_known_though_the_wall_clock_was_set() -> None:
    hour = 3600 * 1000 * MS
    stats = RankStats()
    stats.add_steps(wire.Steps(steps=[done(i) for i in range(10)], unix_offset_ns=5))
    moved = [structs.replace(done(i), started_unix_ns=done(i).started_unix_ns - hour) for i in range(12)]
    stats.keep_losses()
    stats.add_steps(wire.Steps(steps=moved[:10], history=True, unix_offset_ns=5 - hour))
    stats.add_steps(wire.Steps(steps=moved[10:], unix_offset_ns=5 - hour))
    assert [step.index for step in stats.take_new()] == list(range(12))
