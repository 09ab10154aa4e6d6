"""Only a training that waits for its data is looked at, and what is found stands in its rank and its alert."""

from __future__ import annotations

import threading
import time

import pytest
from msgspec.structs import replace

from collectors.trainings import loading
from collectors.trainings.loading import LoaderCosts, is_waiting_for_data
from llmtop.capture.py_spy import loading as looking
from llmtop.errors import NotPossibleHere
from llmtop.model.snapshot import Host, LoadingCost, Phase, Rank, Snapshot
from tests.support.processes import wait_for

COST = LoadingCost(cause="decode", summary="Preparing batches is 90% decoding by PIL.", advice="decode once")


def rank(pid: int, load: float, **more: object) -> Rank:
    phases = (Phase(name="dataload", host_seconds=load), Phase(name="forward", host_seconds=1.0 - load))
    return Rank(pid=pid, host="h", phases=phases, step_seconds_mean=1.0, step_seconds_p50=1.0, **more)  # type: ignore[arg-type]


def snapshot(*ranks: Rank) -> Snapshot:
    return Snapshot(time=time.time(), host=Host(name="h"), ranks=ranks)


@pytest.mark.parametrize(
    ("one", "yes"),
    [
        (rank(1, 0.5), True),
        (rank(1, 0.05), False),
        (rank(1, 0.5, gpu_busy_pct=98.0), False),
        (rank(1, 0.5, gpu_busy_pct=98.0, gpu_busy_bound=True), True),
        (rank(1, 0.5, gpu_busy_pct=40.0), True),
        (rank(1, 0.5, state="stalled"), False),
        (replace(rank(1, 0.5), step_seconds_mean=None, step_seconds_p50=None), False),
    ],
)
def test_who_waits(one: Rank, yes: bool) -> None:
    assert is_waiting_for_data(one) is yes


def test_one_that_waits_is_looked_at_once_and_forgotten_when_it_waits_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[tuple[int, float | None]] = []

    def burst(pid: int, step_seconds: float | None) -> LoadingCost:
        looked.append((pid, step_seconds))
        return COST

    monkeypatch.setattr(looking, "sample_burst", burst)
    stage = LoaderCosts()
    both = snapshot(replace(rank(1, 0.5), step_seconds_p50=0.2), rank(2, 0.0))
    wait_for(lambda: stage(both).ranks[0].loading, what="the cost")
    for _ in range(5):
        assert stage(both).ranks[0].loading == COST
    assert stage(both).ranks[1].loading is None
    assert looked == [(1, 1.0)], "of uneven steps the mean is what waiting takes"
    assert stage(snapshot(rank(1, 0.0))).ranks[0].loading is None
    assert stage(snapshot(rank(1, 0.5))).ranks[0].loading is None, "it is as old as its wait"


def test_two_are_looked_at_in_turns_and_a_refusal_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    at_once = threading.Semaphore(1)

    def burst(pid: int, step_seconds: float | None) -> LoadingCost:
        assert at_once.acquire(blocking=False), "one at a time"
        looked.append(pid)
        at_once.release()
        raise NotPossibleHere("it may not be read")

    monkeypatch.setattr(looking, "sample_burst", burst)
    monkeypatch.setattr(loading, "SAMPLING_SECONDS", 0.01)
    stage = LoaderCosts()
    both = snapshot(rank(1, 0.5), rank(2, 0.5))

    def seen() -> bool | None:
        assert stage(both).ranks[0].loading is None
        return {1, 2} <= set(looked) or None

    wait_for(seen, what="both")
