"""Unequal work against slow ranks, in meshes of pipeline stages, tensor and data parallel ranks."""

from __future__ import annotations

import math
import random

import pytest
from msgspec.structs import replace

from llmtop.model.snapshot import Alert, Host, Phase, Rank, Snapshot, Step
from llmtop.rules.engine import Rules
from llmtop.rules.imbalance import IMBALANCE, find_imbalance, is_beyond_chance, peers, quick_step, work_of
from llmtop.rules.state.rank import JobState
from tests.support.rule_states import rank_state, steps_of


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


# ---- each limit by itself: steps of ten seconds ----


def _job(
    works: list[float], stages: list[int] | None = None, tokens: list[float] | None = None, count: int = 60
) -> JobState:
    """Ranks whose forward takes these percents of each step, in these pipeline stages."""
    return JobState(
        [
            rank_state(
                *steps_of({"forward": work, "all_reduce": 1.0}, count=count),
                pid=100 + place,
                rank=place,
                world_size=len(works),
                roles={} if stages is None else {"pp": stages[place]},
                steps_per_s=0.1,
                tokens_per_s=None if tokens is None else tokens[place],
            )
            for place, work in enumerate(works)
        ]
    )


def _found(job: JobState) -> tuple[bool, bool]:
    return find_imbalance(job) is not None, find_imbalance(job, True) is not None


STAGES = [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("works", "expected"),
    [
        ([50.0, 50.0, 55.1, 55.1], (True, True)),
        ([50.0, 50.0, 54.9, 54.9], (False, True)),
        ([50.0, 50.0, 53.6, 53.6], (False, True)),
        ([50.0, 50.0, 53.4, 53.4], (False, False)),
        ([55.1, 55.1, 50.0, 50.0], (True, True)),
        ([50.0, 50.0, 50.0, 65.0], (False, False)),  # one slow rank moves the middle of its stage
        ([50.0, 50.0, 56.5, 70.0], (False, False)),  # the border between 50 and 63.25 is 56.6
        ([50.0, 50.0, 57.0, 70.0], (True, True)),
        ([50.0, 50.0, 57.0, 63.0], (True, True)),
    ],
)
def test_a_stage_has_more_work_from_five_percent_of_the_step_on(
    works: list[float], expected: tuple[bool, bool]
) -> None:
    assert _found(_job(works, STAGES)) == expected


@pytest.mark.parametrize(
    ("stages", "expected"),
    [([0, 0, 1, 1], True), ([0, 1, 1, 1], False), ([0, 0, 0, 1], False), ([0, 0, 0, 0], False)],
)
def test_a_stage_has_two_ranks_at_least(stages: list[int], expected: bool) -> None:
    works = [50.0 if stage == 0 else 60.0 for stage in stages]
    if not any(stages):
        works[3] = 60.0
    assert (find_imbalance(_job(works, stages)) is not None) is expected


def test_one_slow_rank_of_a_light_stage_is_allowed_and_two_are_not() -> None:
    heavy = [80.0] * 3
    assert find_imbalance(_job([50.0, 50.0, 78.0, *heavy], [0, 0, 0, 1, 1, 1])) is not None
    assert find_imbalance(_job([50.0, 50.0, 50.0, 78.0, 78.0, *heavy], [0] * 5 + [1] * 3)) is None


def test_the_stages_above_the_largest_gap_are_the_heavy_ones() -> None:
    job = _job([50.0, 50.0, 80.0, 82.0, 90.0, 88.0, 54.0, 54.0], [0, 0, 1, 1, 2, 2, 3, 3])
    found = find_imbalance(job)
    assert found is not None
    assert (found.role, found.coordinates, found.ranks, found.choices) == ("pp", (1, 2), 8, 4)
    assert [state.rank.rank for state in found.heavy] == [2, 3, 4, 5]
    assert (found.seconds, found.other_seconds) == (pytest.approx(8.5), pytest.approx(5.2))
    assert found.share_pct == pytest.approx(33.0)


@pytest.mark.parametrize(("count", "expected"), [(23, False), (24, True)])
def test_a_difference_lasts_for_24_steps(count: int, expected: bool) -> None:
    assert (find_imbalance(_job([50.0, 50.0, 60.0, 60.0], STAGES, count=count)) is not None) is expected


@pytest.mark.parametrize(
    ("works", "tokens", "expected"),
    [
        ([50.0, 50.0, 60.0], [10.0, 10.0, 12.0], (True, True)),
        ([50.0, 50.0, 55.1], [10.0, 10.0, 11.1], (True, True)),
        ([50.0, 50.0, 54.9], [10.0, 10.0, 11.1], (False, True)),
        ([50.0, 50.0, 53.4], [10.0, 10.0, 11.1], (False, False)),
        ([50.0, 50.0, 55.1], [10.0, 10.0, 10.55], (True, True)),
        ([50.0, 50.0, 55.1], [10.0, 10.0, 10.45], (False, False)),
        ([50.0, 50.0, 62.9], [10.0, 10.0, 12.0], (True, True)),  # 1.2 times the tokens, and 5 % more
        ([50.0, 50.0, 63.1], [10.0, 10.0, 12.0], (False, False)),
        ([50.0, 50.0, 60.0], [10.0, 0.0, 12.0], (True, True)),
        ([50.0, 50.0, 60.0], [0.0, 0.0, 12.0], (False, False)),
    ],
)
def test_a_rank_with_more_tokens_has_more_work_in_proportion(
    works: list[float], tokens: list[float], expected: tuple[bool, bool]
) -> None:
    assert _found(_job(works, tokens=tokens)) == expected


def test_tokens_of_all_ranks_must_be_known() -> None:
    job = _job([50.0, 50.0, 60.0], tokens=[10.0, 10.0, 12.0])
    job.ranks[0].rank = replace(job.ranks[0].rank, tokens_per_s=None)
    assert find_imbalance(job) is None
    found = find_imbalance(_job([50.0, 50.0, 60.0], tokens=[10.0, 10.0, 12.0]))
    assert found is not None
    assert (found.role, found.coordinates, found.choices, found.ranks) == (None, (), 3, 3)
    assert (found.seconds, found.other_seconds, found.step_seconds) == (
        pytest.approx(6.0),
        pytest.approx(5.0),
        10.0,
    )


@pytest.mark.parametrize(
    ("mean", "is_raised", "expected"),
    [(4.01, False, True), (3.99, False, False), (2.51, True, True), (2.49, True, False)],
)
def test_one_group_is_beyond_chance_at_four_standard_errors(mean: float, is_raised: bool, expected: bool) -> None:
    """Five values of each of mean ± 3 have a standard error of 3 / sqrt(10 - 1) = 1."""
    assert is_beyond_chance([mean + 3.0, mean - 3.0] * 5, 1, is_raised) is expected


@pytest.mark.parametrize("choices", [2, 4, 64])
@pytest.mark.parametrize(("is_raised", "errors"), [(False, 4.0), (True, 2.5)])
def test_the_largest_of_many_groups_needs_more(choices: int, is_raised: bool, errors: float) -> None:
    """Bonferroni: the probability of one group, divided by their number, by the complementary error function."""

    def tail(errors: float) -> float:
        return math.erfc(errors / math.sqrt(2)) / 2

    low, high = errors, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > tail(errors) / choices else (low, middle)
    for off, expected in ((1e-3, True), (-1e-3, False)):
        mean = low + off
        assert is_beyond_chance([mean + 3.0, mean - 3.0] * 5, choices, is_raised) is expected


@pytest.mark.parametrize(("count", "place"), [(1, 0), (15, 0), (16, 1), (31, 1), (32, 2), (48, 3)])
def test_a_quick_step_is_at_the_end_of_the_first_sixteenth(count: int, place: int) -> None:
    assert quick_step([float(count - one) for one in range(count)]) == place + 1.0


def test_peers_are_of_one_stage_and_of_one_side_of_an_imbalance() -> None:
    def pids(job: JobState) -> list[list[int]]:
        return [[state.rank.pid for state in group] for group in peers(job)]

    assert pids(_job([50.0] * 4, STAGES)) == [[100, 101], [102, 103]]
    assert pids(_job([50.0] * 3)) == [[100, 101, 102]]
    assert pids(_job([50.0, 60.0, 50.0], tokens=[10.0, 12.0, 10.0])) == [[100, 102], [101]]


def test_ranks_that_do_not_step_or_have_few_steps_are_not_compared() -> None:
    assert work_of(_job([50.0])) == []
    assert work_of(_job([50.0, 60.0], count=2)) == []
    works = work_of(_job([50.0, 60.0], count=3))
    assert [(one.seconds, one.step_seconds, one.by_gpu) for one in works] == [
        (5.0, 10.0, False),
        (6.0, 10.0, False),
    ]
    job = _job([50.0, 60.0])
    assert work_of(job) is work_of(job)


def test_backward_is_work_where_the_waits_have_a_phase() -> None:
    def work(phases: dict[str, float]) -> float:
        return work_of(JobState([rank_state(*steps_of(phases), pid=pid) for pid in (100, 101)]))[0].seconds

    assert work({"forward": 20.0, "backward": 40.0, "all_reduce": 5.0}) == pytest.approx(6.0)
    assert work({"forward": 20.0, "backward": 40.0}) == pytest.approx(2.0)


@pytest.mark.parametrize(("more", "severity"), [(10.1, "warning"), (9.9, "info")])
def test_an_alert_says_who_has_more_and_what_the_others_wait(more: float, severity: str) -> None:
    job = _job([50.0, 50.0, 50.0 + more, 50.0 + more], STAGES)
    assert IMBALANCE.holds(job, False)
    shown = IMBALANCE.describe(job)
    assert shown.severity == severity
    own = f"{(50 + more) / 10:.2f} s"
    assert shown.summary == (
        f"The 2 ranks of pp 1 (of 4 ranks) have more work: {own} per step, 5.00 s on the other ranks, which wait "
        "10 % of the step."
    )
    assert shown.points == (f"pp 1: {own}, others 5.00 s", "the others wait 10 % of the step")
    assert (shown.evidence["coordinates"], shown.evidence["ranks"]) == ("1", "2, 3")
    assert shown.next.startswith("move layers")
    assert shown.subject_rank is job.ranks[2]


def test_an_alert_about_tokens_has_both_numbers_of_tokens() -> None:
    job = _job([50.0, 50.0, 60.0], tokens=[10.0, 10.0, 12.0])
    assert IMBALANCE.holds(job, False)
    shown = IMBALANCE.describe(job)
    assert shown.summary.startswith("Rank 2 has more work: 6.00 s per step, 5.00 s on the other ranks")
    assert (shown.evidence["tokens_per_step"], shown.evidence["others_tokens_per_step"]) == (
        pytest.approx(120.0),
        pytest.approx(100.0),
    )
    assert shown.evidence["coordinates"] is None
    assert shown.next.startswith("give each rank")


def test_at_most_sixteen_ranks_are_listed() -> None:
    job = _job([50.0] * 17 + [60.0] * 17, [0] * 17 + [1] * 17)
    assert IMBALANCE.holds(job, False)
    assert IMBALANCE.describe(job).evidence["ranks"] == ", ".join(str(number) for number in range(17, 33))


@pytest.mark.parametrize(("old", "is_found"), [(12, True), (13, True), (40, False)])
def test_what_was_more_than_48_steps_ago_does_not_count(old: int, is_found: bool) -> None:
    """Stage 1 had less work before: of the last 48 steps 48, 47 or 20 have more."""
    states = []
    for place in range(4):
        late = steps_of({"forward": 50.0 + 10.0 * (place // 2), "all_reduce": 1.0}, count=60)
        early = steps_of({"forward": 50.0 - 30.0 * (place // 2), "all_reduce": 1.0}, count=60)
        steps = early[:old] + late[old:]
        states.append(
            rank_state(
                *steps, pid=100 + place, rank=place, world_size=4, roles={"pp": place // 2}, steps_per_s=0.1
            )
        )
    assert (find_imbalance(JobState(states)) is not None) is is_found
