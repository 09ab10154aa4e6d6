"""Requests to a language model: what comes to a monitor, and what it makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from collectors.refigure import RecomputeFigures
from collectors.trainings.bounds import Bounds
from collectors.trainings.rank_stats import RankStats
from llmtop.protocol import wire
from tests.support.snapshots import rank, snapshot

MS = 1_000_000
ANSWERS = wire.Hello(kind="request", inference=True)


def answered(
    index: int,
    first_ms: float = 50.0,
    each_ms: float = 10.0,
    *,
    every_ms: float = 400.0,
    new: int = 21,
    sequences: int = 2,
    waited_ms: float = 0.0,
) -> wire.StepDone:
    """A request for so many new tokens of each sequence, one of which comes every `every_ms`."""
    phases = [wire.PhaseTime("prefill", int(first_ms * MS))]
    if new > 1:
        phases.append(wire.PhaseTime("decode", int(each_ms * (new - 1) * MS)))
    if waited_ms:
        phases.insert(0, wire.PhaseTime("dataload", int(waited_ms * MS)))
    return wire.StepDone(
        index=index,
        started_unix_ns=int(index * every_ms * MS) + 1,
        host_ns=sum(phase.host_ns for phase in phases) + 2 * MS,
        interval_ns=int(every_ms * MS) if index else None,
        tokens=new * sequences,
        samples=sequences,
        phases=phases,
        tokens_in=64 * sequences,
    )


def fed(steps: list[wire.StepDone], hello: wire.Hello = ANSWERS) -> RankStats:
    stats = RankStats()
    stats.hello = hello
    stats.add_steps(wire.Steps(steps=steps))
    return stats


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(1, 90)), min_size=1, max_size=30), st.integers(2, 40))
def test_percentiles_are_of_requests(times: list[tuple[int, int]], new: int) -> None:
    figures = fed([answered(i, *one, every_ms=400, new=new) for i, one in enumerate(times)]).figures()
    for pct in (50, 95, 99):
        firsts, each = zip(*times, strict=True)
        assert figures[f"ttft_seconds_p{pct}"] == pytest.approx(np.percentile(firsts, pct) / 1e3)
        assert figures[f"tpot_seconds_p{pct}"] == pytest.approx(np.percentile(each, pct) / 1e3)


def test_a_request_is_what_it_took_and_rates_are_over_all_time() -> None:
    figures = fed([answered(i, waited_ms=80) for i in range(20)]).figures()
    assert figures["step_seconds_p50"] == pytest.approx(0.25), "without the wait for what it asks"
    assert figures["steps_per_s"] == pytest.approx(2.5)
    assert figures["tokens_in_per_s"] == pytest.approx(2.5 * 128)
    assert figures["tokens_out_per_s"] == figures["tokens_per_s"] == pytest.approx(2.5 * 42)
    assert figures["batch"] == 2
    assert figures["outside_seconds"] is None


def test_a_single_request_is_told_of_and_one_for_one_token_has_no_time_of_the_others() -> None:
    alone = fed([answered(0)]).figures()
    assert (alone["ttft_seconds_p50"], alone["tpot_seconds_p50"]) == (0.05, 0.01)
    assert alone["tokens_out_per_s"] == pytest.approx(42 / 0.25)
    one = fed([answered(i, new=1) for i in range(3)]).figures()
    assert (one["ttft_seconds_p99"], one["tpot_seconds_p50"]) == (0.05, None)


@pytest.mark.parametrize("together", [True, False])
def test_forward_passes_before_a_loop_showed_that_it_decodes_are_no_requests(together: bool) -> None:
    tokens = [
        wire.StepDone(index, 14 * index * MS + 1, 14 * MS, 14 * MS, phases=[wire.PhaseTime("forward", 13 * MS)])
        for index in range(60)
    ]
    requests = [answered(60 + index) for index in range(5)]
    decodes = wire.Hello(kind="request", inference=True, kind_since=60)
    if together:  # what a monitor gets that comes later
        figures = fed([*tokens, *requests], decodes).figures()
    else:  # the last forward passes come after the change is known
        stats = fed(tokens[:50], wire.Hello(kind="step", inference=True))
        stats.hello = decodes
        stats.add_steps(wire.Steps(steps=[*tokens[50:], *requests], first_ordinal=50))
        figures = stats.figures()
    assert (figures["window_steps"], figures["step_seconds_p50"]) == (5, 0.25)


def test_a_rate_of_requests_has_no_part_of_a_forward_pass() -> None:
    """The first request begins one pass after the last pass that counted as a step: that is no interval of one."""
    tokens = [wire.StepDone(index, 14 * index * MS + 1, 14 * MS, 14 * MS) for index in range(60)]
    requests = [replace(answered(60 + index), interval_ns=(400 if index else 14) * MS) for index in range(4)]
    figures = fed([*tokens, *requests], wire.Hello(kind="request", inference=True, kind_since=60)).figures()
    assert figures["steps_per_s"] == pytest.approx(1 / 0.4)
    assert figures["tokens_out_per_s"] == pytest.approx(42 / 0.4)


def test_until_the_first_request_ends_there_is_no_figure_of_requests() -> None:
    """An answer may take seconds; what is known until then are the forward passes of its first tokens."""
    tokens = [wire.StepDone(index, 14 * index * MS + 1, 14 * MS, 14 * MS) for index in range(60)]
    stats = fed(tokens, wire.Hello(kind="step", inference=True))
    assert stats.figures()["step_seconds_p50"] == 0.014
    stats.hello = wire.Hello(kind="request", inference=True, kind_since=60)
    assert stats.figures() == {}
    assert stats.rank_fields(running=True) == {"step_seconds": None, "eta_seconds": None}
    stats.add_steps(wire.Steps(steps=[answered(60)], first_ordinal=60))
    assert (stats.figures()["window_steps"], stats.rank_fields(running=True)["step_seconds"]) == (1, 0.25)


def test_a_script_that_answered_requests_and_trains_now_has_the_steps_of_its_training() -> None:
    step = wire.StepDone(3, 5000 * MS, 40 * MS, 100 * MS, phases=[wire.PhaseTime("forward", 9 * MS)])
    steps = [replace(step, index=index, started_unix_ns=(5000 + 100 * index) * MS) for index in range(4)]
    figures = fed([answered(0), answered(1), *steps], wire.Hello(kind="step", kind_since=2)).figures()
    assert (figures["window_steps"], figures["step_seconds_p50"]) == (3, 0.1)
    assert figures.get("ttft_seconds_p50") is None


def test_requests_leave_the_window_and_take_their_first_tokens_with_them() -> None:
    old = [answered(i, first_ms=300) for i in range(100)]
    figures = fed([*old, *(answered(100 + i) for i in range(60))]).figures()
    assert figures["ttft_seconds_p99"] == pytest.approx(0.05)


def test_where_the_host_runs_ahead_the_gpu_says_when_the_first_token_was_there() -> None:
    stats = fed([answered(i) for i in range(8)])
    ahead = [("prefill", 90 * MS), ("decode", 160 * MS)]
    stats.add_gpu_times(wire.GpuTimes(times=[wire.GpuTime(i, 250 * MS, 0, ahead) for i in range(8)]))
    figures = stats.figures()
    assert figures["ttft_seconds_p50"] == pytest.approx(0.09)
    assert figures["tpot_seconds_p50"] == pytest.approx(0.16 / 20)
    behind = [("prefill", 40 * MS), ("decode", 200 * MS)]
    stats.add_gpu_times(wire.GpuTimes(times=[wire.GpuTime(7, 240 * MS, 0, behind)]))
    assert stats.figures()["ttft_seconds_p50"] == pytest.approx(0.09)


def test_what_a_script_tells_itself_is_no_request_that_hooks_see() -> None:
    figures = fed([answered(i) for i in range(8)], wire.Hello(kind="request")).figures()
    assert figures.get("ttft_seconds_p50") is None
    assert figures["step_seconds_p50"] == pytest.approx(0.252)


def test_a_process_that_begins_to_train_begins_anew() -> None:
    stats = fed([answered(i) for i in range(8)])
    stats.hello = wire.Hello(kind="step")
    trained = [
        wire.StepDone(
            index=i,
            started_unix_ns=(10 + i) * 1000 * MS,
            host_ns=20 * MS,
            interval_ns=30 * MS,
            phases=[wire.PhaseTime("forward", 15 * MS)],
        )
        for i in range(1, 9)
    ]
    stats.add_steps(wire.Steps(steps=trained, first_ordinal=8))
    figures = stats.figures()
    assert figures["step_seconds_p50"] == pytest.approx(0.03)
    assert figures.get("ttft_seconds_p50") is None
    assert {phase.name for phase in figures["phases"]} == {"forward"}
    assert len(stats.take_new()) == 16, "what came before is not lost"


def test_an_odd_number_of_tokens_is_absent_and_the_step_is_there() -> None:
    odd = answered(1)
    odd.tokens_in = float("nan")
    (message,) = Bounds().take([wire.Steps(steps=[answered(0), odd, answered(2)])])
    assert isinstance(message, wire.Steps)
    assert [step.tokens_in for step in message.steps] == [128, None, 128]


@pytest.mark.parametrize("before", [1, 8])
def test_a_recording_has_the_same_figures_made_anew(before: int) -> None:
    stats = fed([answered(i, first_ms=40 + i) for i in range(before)])
    told = stats.figures()
    stage = RecomputeFigures()
    shown = stage(snapshot(ranks=(rank(kind="request", inference=True, new_steps=stats.take_new()),))).ranks[0]
    for name in ("ttft_seconds_p95", "tpot_seconds_p50", "tokens_in_per_s", "tokens_out_per_s", "batch"):
        assert getattr(shown, name) == told[name] is not None
