"""Who comes last: made of measured jitter, so that chance is what it is on real machines."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from collectors.trainings.arrivals import MIN_STEPS, StepStamps, compare_arrivals
from collectors.trainings.bounds import Bounds
from llmtop.model.snapshot import Rank
from llmtop.protocol import wire
from tests.support.arrival_streams import PLANTS, Job, Plant

QUIET = 0.1
"""Of the jitter of two cores with a load of eight: what is left where a rank has a core of its own."""
BEFORE = 40
"""Steps before anything is planted."""


@pytest.mark.slow("one combination; each runs ranks for seconds", kept=("2-host-ddp",))
@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp"])
@pytest.mark.parametrize("gpu", [False, True], ids=["host", "gpu"])
@pytest.mark.parametrize("ranks", [2, 8])
def test_equal_ranks_are_never_accused(ranks: int, gpu: bool, sharded: bool) -> None:
    for seed in range(20):
        job = Job(ranks, seed=seed, gpu=gpu, sharded=sharded, communication_ms=5.0 if seed % 2 else 80.0)
        assert job.first_named(200) is None, seed


@pytest.mark.slow(
    "three cells of the matrix; each runs ranks for seconds",
    kept=(
        "slow clock-2-gpu-fsdp",
        "extra compute-8-gpu-ddp",
        "memory-bound neighbour-2-host-ddp",
    ),
)
@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp"])
@pytest.mark.parametrize("gpu", [False, True], ids=["host", "gpu"])
@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("plant", PLANTS)
def test_the_planted_rank_is_named_within_thirty_steps(plant: str, ranks: int, gpu: bool, sharded: bool) -> None:
    found = []
    for seed in range(10):
        job = Job(ranks, PLANTS[plant](BEFORE), seed=seed, jitter=QUIET, gpu=gpu, sharded=sharded)
        assert job.first_named(BEFORE) is None
        found.append(job.first_named(30))
    assert sum(one is not None and one[0] == 1 for one in found) >= 9, found
    assert all(one is None or one[0] == 1 for one in found), "nobody else is ever accused"


@pytest.mark.parametrize("plant", PLANTS)
def test_it_is_named_on_a_busy_machine_too_if_later(plant: str) -> None:
    job = Job(2, PLANTS[plant](BEFORE), jitter=0.6)
    assert job.first_named(BEFORE + 300)[0] == 1


@pytest.mark.parametrize("on_host_clock", [False, True])
@pytest.mark.parametrize("gpu", [False, True], ids=["host", "gpu"])
def test_ranks_whose_clocks_differ_are_compared_by_the_end_that_they_share(gpu: bool, on_host_clock: bool) -> None:
    offsets = (0.0, -3.7e8, 12_345.0)
    equal = Job(3, jitter=QUIET, gpu=gpu, offsets_ms=offsets, on_host_clock=on_host_clock)
    assert equal.first_named(200) is None
    slow = Job(3, PLANTS["slow clock"](0), jitter=QUIET, gpu=gpu, offsets_ms=offsets, on_host_clock=on_host_clock)
    assert slow.first_named(60)[0] == 1


def test_ranks_that_number_their_steps_differently_accuse_nobody() -> None:
    job = Job(2, jitter=QUIET, indices=(0, 1))
    assert job.first_named(200) is None
    assert job.figures[0].arrivals, "they are compared all the same"


def test_communication_that_dominates_is_told_and_nobody_is_accused() -> None:
    job = Job(4, jitter=QUIET, communication_ms=90.0)
    assert job.first_named(60) is None
    assert {alert.id for alert in job.alerts} == {"communication_bound"}
    (evidence, *_) = [alert.evidence for alert in job.alerts]
    assert evidence["exposed_pct"] == pytest.approx(100 * 90 / 160, abs=8)


def test_waiting_for_a_slow_rank_is_no_communication() -> None:
    job = Job(4, Plant(2, extra=150.0), jitter=QUIET)
    assert job.first_named(60)[0] == 2
    assert {alert.id for alert in job.alerts} == {"straggler"}
    assert job.figures[0].exposed_seconds == pytest.approx(0.005)
    waits = [rank.waits_seconds for rank in job.figures]
    assert waits[2] == 0, "it is waited for"
    assert [waits[place] for place in (0, 1, 3)] == pytest.approx([0.15] * 3, rel=0.1)


def test_waits_are_absent_where_nothing_is_compared() -> None:
    alone = Job(1, jitter=QUIET)
    list(alone.run(30))
    assert alone.figures[0].waits_seconds is None


def test_the_alert_goes_once_the_rank_keeps_up_again() -> None:
    job = Job(2, Plant(1, extra=40.0), jitter=QUIET)
    assert job.first_named(60)[0] == 1
    job.plant = None
    assert [alert.id for alert in [*job.run(120)][-1]] == []


def test_ranks_of_other_groups_and_jobs_are_not_compared() -> None:
    job = Job(2, Plant(1, extra=60.0), jitter=QUIET)
    list(job.run(60))
    ranks = [job.rank(place) for place in range(2)]
    stages = [StepStamps(), StepStamps()]
    for place, stamped in enumerate(stages):
        arrivals = list(job.stamped[place].steps.values())
        stamped.add(wire.Arrivals(arrivals=arrivals, group=f"stage {place}", clock="boot"))
    for told in (
        zip(ranks, stages, strict=True),
        zip([ranks[0], replace(ranks[1], job="other")], job.stamped, strict=True),
        zip([ranks[0], replace(ranks[1], state="gone")], job.stamped, strict=True),
    ):
        assert [rank.arrivals for rank in compare_arrivals(told)] == [(), ()]


def test_too_few_steps_say_nothing() -> None:
    job = Job(2, Plant(1, extra=60.0), jitter=0.0)
    list(job.run(MIN_STEPS - 1, every=1))
    assert job.figures[0].arrivals == ()
    list(job.run(1, every=1))
    assert job.figures[1].arrivals[-1].last_pct == 100.0


def test_stamps_that_no_clock_has_made_are_left_out_and_the_others_taken() -> None:
    good = wire.ArrivalStamp("forward", 1_000, 2_000)
    odd = [
        wire.ArrivalStamp("forward", -1),
        wire.ArrivalStamp("end", 1 << 70),
        wire.ArrivalStamp("backward", 5, 1 << 80),
    ]
    message = wire.Arrivals(
        arrivals=[
            wire.Arrival(7, [*odd, good], waited_host_ns=-5, waited_gpu_ns=3),
            wire.Arrival(8, [good] * 1000),
        ],
        group="g" * 10_000,
    )
    (taken,) = Bounds().take([message])
    assert isinstance(taken, wire.Arrivals)
    assert taken.arrivals[0].stamps == [good]
    assert (taken.arrivals[0].waited_host_ns, taken.arrivals[0].waited_gpu_ns) == (None, 3)
    assert len(taken.arrivals[1].stamps) == 16
    assert len(taken.group) < 200


def test_a_rank_that_stamps_points_without_end_harms_nobody() -> None:
    job = Job(2, Plant(1, extra=60.0), jitter=QUIET)
    list(job.run(60))
    liar, stamped = Rank(pid=7, host="node", job="run", rank=2, arrivals=()), StepStamps()
    stamped.add(
        wire.Arrivals(arrivals=[wire.Arrival(index) for index in range(100_000)], group="all", clock="boot0")
    )
    told = [*((job.rank(place), job.stamped[place]) for place in range(2)), (liar, stamped)]
    assert len(stamped.steps) <= 128
    # It has stamped other steps than they.
    assert [rank.arrivals for rank in compare_arrivals(told)] == [(), (), ()]
