"""Samples of the cost of llmtop's calls: when one is taken, and that the recorder stays as it is."""

from __future__ import annotations

import threading

import pytest

import llmtop
from llmtop.instrument.record import costs as costs_module
from llmtop.instrument.record.costs import Costs
from llmtop.instrument.steps.phase_tree import HIDDEN, PhaseNode
from tests.support.manual_clock import ManualClock
from tests.support.phases import begin_phase, end_phase
from tests.support.recorded import Recorded

SECOND = 1_000_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    clock.replace_in(monkeypatch, costs_module)
    return clock


def _sample(costs: Costs, recorded: Recorded, clock: ManualClock, cost: int, now: int) -> None:
    clock.per_call = cost
    costs.sample(recorded.recorder, now)


def test_the_cold_cost_is_the_median_and_the_warm_one_the_least(recorded: Recorded, clock: ManualClock) -> None:
    costs = Costs()
    assert not costs.has_samples
    assert costs.periodic_ns == 0
    for number, cost in enumerate((70, 30, 50)):
        _sample(costs, recorded, clock, cost, number * SECOND)
        assert costs.has_samples
    assert (costs.cold_ns(), costs.warm_ns()) == (50, 30)


def test_the_warm_cost_of_a_sample_is_the_least_of_five_tries(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = iter([0, 90, 100, 108, 200, 207, 300, 306, 400, 405, 500, 504, 600, 603])
    monkeypatch.setattr(costs_module, "perf_counter_ns", lambda: next(stamps))
    costs = Costs()
    costs.sample(recorded.recorder, 0)
    assert (costs.cold_ns(), costs.warm_ns()) == (90, 4)


def test_15_samples_are_a_second_apart_and_all_others_ten(recorded: Recorded, clock: ManualClock) -> None:
    costs = Costs()
    for number in range(15):
        _sample(costs, recorded, clock, 100, number * SECOND)
        _sample(costs, recorded, clock, 1, (number + 1) * SECOND - 1)  # too early
    assert costs.warm_ns() == 100
    _sample(costs, recorded, clock, 90, 15 * SECOND)
    assert costs.warm_ns() == 90
    _sample(costs, recorded, clock, 1, 25 * SECOND - 1)
    assert costs.warm_ns() == 90
    _sample(costs, recorded, clock, 80, 25 * SECOND)
    assert costs.warm_ns() == 80


def test_the_last_15_samples_count(recorded: Recorded, clock: ManualClock) -> None:
    costs = Costs()
    for number, cost in enumerate([1, 2, *[9] * 14]):
        _sample(costs, recorded, clock, cost, 10 * number * SECOND)
    assert (costs.warm_ns(), costs.cold_ns()) == (2, 9)
    _sample(costs, recorded, clock, 9, 200 * SECOND)
    assert costs.warm_ns() == 9


def test_no_sample_is_taken_within_a_step_or_a_phase(recorded: Recorded, clock: ManualClock) -> None:
    costs = Costs()
    with llmtop.step():
        _sample(costs, recorded, clock, 5, 0)
    assert not costs.has_samples
    begin_phase("dataload")
    _sample(costs, recorded, clock, 5, 0)
    end_phase("dataload")
    assert not costs.has_samples
    _sample(costs, recorded, clock, 5, 0)
    assert costs.has_samples


def test_a_sample_leaves_the_recorder_as_it_was_and_is_seen_by_no_observer(
    recorded: Recorded, clock: ManualClock
) -> None:
    recorder = recorded.recorder
    with llmtop.step(), llmtop.phase("forward"):
        pass
    with llmtop.phase("dataload"):
        pass

    class Observer:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was called")

    observer = Observer()
    recorder.watch = observer  # type: ignore[assignment]

    def held() -> tuple[object, ...]:
        return (
            recorder.node, recorder.watch, recorder.pending, recorder.begun, recorder.next_index,
            list(recorder.cells), dict(recorder.root.children), recorder.ring.count, list(recorder.left_out),
        )  # fmt: skip

    before = held()
    costs = Costs()
    _sample(costs, recorded, clock, 5, 0)
    assert costs.has_samples
    assert held() == before
    recorder.watch = None
    hidden = recorder.root.children[""] = PhaseNode("", recorder.root, "", HIDDEN)  # of names over the limit
    _sample(costs, recorded, clock, 5, SECOND)
    assert recorder.root.children[""] is hidden


def test_the_thread_that_trains_is_that_of_the_last_sample(recorded: Recorded, clock: ManualClock) -> None:
    costs = Costs()
    own = threading.get_native_id()
    assert costs.native_id == own
    costs.native_id = 0
    _sample(costs, recorded, clock, 5, 0)
    assert costs.native_id == own
