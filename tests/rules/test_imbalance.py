"""Unequal work against slow ranks, in meshes of pipeline stages, tensor and data parallel ranks."""

from __future__ import annotations

import random

import pytest

from llmtop.model.snapshot import Alert, Host, Phase, Rank, Snapshot, Step
from llmtop.rules.engine import Rules


def told(
    work: dict[int, float],
    *,
    pp: int = 2,
    dp: int = 4,
    seed: int = 1,
    tokens: dict[int, float] | None = None,
    queued: dict[int, float] | None = None,
) -> dict[str, Alert]:
    """The alerts on ranks with 60 ms of forward and backward, and so many more in some of them.

    `queued` has the mean wait for a CPU in them, of ranks that lack CPUs.
    """
    rng, rules, found, time = random.Random(seed), Rules(off=()), {}, 1000.0
    count, queued = pp * dp, queued or {}

    def own_work(rank: int) -> float:
        wait = rng.expovariate(1 / queued[rank]) if rank in queued else 0.0
        return (0.06 + work.get(rank, 0.0)) * rng.gauss(1, 0.02) + wait

    for begin in range(0, 60, 10):
        made = [[own_work(rank) for rank in range(count)] for _ in range(10)]
        ranks = []
        for rank in range(count):
            steps = tuple(
                Step(
                    index=begin + place,
                    started_at=time,
                    seconds=max(own) + 0.01,
                    interval_seconds=max(own) + 0.01,
                    phases=(
                        Phase(name="forward", host_seconds=own[rank] / 3),
                        Phase(name="backward", host_seconds=2 * own[rank] / 3),
                        Phase(name="communication", host_seconds=max(own) - own[rank] + 0.01),
                    ),
                )
                for place, own in enumerate(made)
            )
            step = steps[-1].seconds
            ranks.append(
                Rank(
                    pid=100 + rank,
                    host="node",
                    job="run",
                    rank=rank,
                    world_size=count,
                    roles={"pp": rank // dp, "dp": rank % dp} if pp > 1 else {},
                    step=steps[-1].index,
                    step_seconds_p50=step,
                    steps_per_s=1 / step,
                    tokens_per_s=None if tokens is None else tokens.get(rank, 4096.0) / step,
                    last_step_at=time + 2,
                    attached_at=1.0,
                    new_steps=steps,
                )
            )
        time += 2.0
        alerts = rules.apply(Snapshot(time=time, host=Host(name="node"), ranks=tuple(ranks))).alerts
        found |= {alert.id: alert for alert in alerts if alert.id in ("imbalance", "straggler")}
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_stage_with_more_layers_is_an_imbalance(seed: int) -> None:
    found = told(dict.fromkeys(range(4, 8), 0.03), seed=seed)
    assert set(found) == {"imbalance"}
    assert found["imbalance"].evidence["role"] == "pp"
    assert found["imbalance"].evidence["coordinates"] == "1"


@pytest.mark.parametrize("seed", range(4))
def test_one_slow_rank_of_a_stage_is_the_straggler_and_has_its_roles(seed: int) -> None:
    found = told({5: 0.03}, seed=seed)
    assert set(found) == {"straggler"}
    assert found["straggler"].evidence["rank"] == 5
    assert "Rank 5 (pp 1, dp 1" in found["straggler"].summary


def test_a_slow_rank_of_a_light_stage_is_found_beside_the_imbalance() -> None:
    found = told({**dict.fromkeys(range(4, 8), 0.05), 2: 0.03})
    assert set(found) == {"imbalance", "straggler"}
    assert found["straggler"].evidence["rank"] == 2


@pytest.mark.parametrize("seed", range(6))
def test_a_stage_that_waits_longer_for_a_cpu_has_no_more_to_do(seed: int) -> None:
    """As the first of two equal stages does on a machine that lacks CPUs: its work wakes the other stage's."""
    assert told({}, queued={rank: 0.025 if rank < 4 else 0.008 for rank in range(8)}, seed=seed) == {}


@pytest.mark.parametrize("seed", range(4))
def test_unequal_stages_are_an_imbalance_beside_waits_for_a_cpu(seed: int) -> None:
    found = told(dict.fromkeys(range(4, 8), 0.06), queued=dict.fromkeys(range(8), 0.01), seed=seed)
    assert set(found) == {"imbalance"}
    assert found["imbalance"].evidence["coordinates"] == "1"


@pytest.mark.parametrize("seed", range(6))
def test_a_rank_of_a_light_stage_that_waits_a_little_longer_for_a_cpu_is_no_straggler(seed: int) -> None:
    queued = {0: 0.014, 1: 0.003, 2: 0.003, 3: 0.003}
    assert set(told({2: 0.12, 3: 0.12}, dp=2, queued=queued, seed=seed)) == {"imbalance"}


@pytest.mark.parametrize("seed", range(6))
def test_equal_ranks_and_stages_that_differ_by_a_little_accuse_nobody(seed: int) -> None:
    assert told(dict.fromkeys(range(4, 8), 0.0015), seed=seed) == {}


def test_the_rank_with_more_tokens_has_more_to_do_and_the_one_without_is_slow() -> None:
    assert set(told({3: 0.03}, pp=1, tokens={3: 6144.0})) == {"imbalance"}
    assert set(told({3: 0.03}, pp=1, tokens={})) == {"straggler"}
    assert set(told({3: 0.03}, pp=1)) == {"straggler"}


def test_two_stages_of_one_rank_each_cannot_be_told_from_a_slow_rank() -> None:
    assert told({1: 0.03}, pp=2, dp=1) == {}
