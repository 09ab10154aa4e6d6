"""Who is accused of holding the others up, by how the ranks come to the collectives of their steps."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmtop.model.snapshot import Alert, Arrival, Cause, Host, Phase, Rank, Snapshot, Step
from llmtop.rules.engine import Rules
from llmtop.rules.state.rank import JobState
from llmtop.rules.straggler import STRAGGLER, LastRank, find_last_rank, find_straggler
from tests.support.rule_states import rank_state, steps_of

STEP_S = 0.2
SLEEP = Cause(what="train.py:57 time.sleep(0.05)", seconds=0.045)


def arrival(
    late: float, error: float, last_pct: float = 100.0, point: str = "forward", **fields: object
) -> Arrival:
    """Of a rank, late by so many seconds."""
    told = {"clock": "host", "steps": 24, "ranks": 2, **fields}
    return Arrival(point=point, last_pct=last_pct, late_seconds=late, error_seconds=error, **told)


class Monitor:
    """Two ranks that train together, seen twice a second."""

    def __init__(self, *, is_paced: bool = False) -> None:
        rules = Rules()
        self.judge = rules.apply_paced if is_paced else rules.apply
        self.time = 1000.0

    def straggler_alerts(
        self,
        *arrivals: tuple[Arrival, ...] | None,
        steps: tuple[Step, ...] = (),
        outside: tuple[float | None, ...] = (None, None),
    ) -> list[Alert]:
        """The accusations when the ranks come like that, and spend so many seconds a step in no phase."""
        self.time += 0.5
        ranks = tuple(
            Rank(
                pid=100 + place, host="node", job="run", rank=place, world_size=2, step=7, step_seconds=STEP_S,
                step_seconds_p50=STEP_S, last_step_at=self.time, arrivals=one, new_steps=steps[place : place + 1],
                outside_seconds=outside[place], outside_causes=() if outside[place] is None else (SLEEP,),
            )
            for place, one in enumerate(arrivals)
        )  # fmt: skip
        snapshot = Snapshot(time=self.time, host=Host(name="node"), ranks=ranks)
        return [alert for alert in self.judge(snapshot).alerts if alert.id == "straggler"]


LATE, EARLY = (arrival(0.05, 0.002),), (arrival(-0.05, 0.002, 0.0),)


@pytest.mark.parametrize("before", [1, 2, 3, 4])
def test_a_straggler_is_named_in_the_first_of_quick_snapshots_that_shows_it(before: int) -> None:
    monitor = Monitor(is_paced=True)
    for _ in range(before):
        assert monitor.straggler_alerts(EARLY, EARLY) == []
    for _ in range(3):
        (alert,) = monitor.straggler_alerts(EARLY, LATE)
        assert alert.pid == 101


def test_the_alert_is_about_the_rank_that_comes_last() -> None:
    (alert,) = Monitor().straggler_alerts(EARLY, LATE)
    assert (alert.pid, alert.evidence["rank"], alert.severity) == (101, 1, "critical")
    assert alert.summary.startswith("Rank 1 ")
    assert alert.evidence["share_of_step_pct"] == 25.0
    assert alert.evidence["last_in_steps_pct"] == 100.0


def test_the_summary_says_what_measured_the_times() -> None:
    """Not "GPU clock", which is a frequency."""
    for clock, words in (("host", "(host clock)"), ("GPU", "(CUDA events)")):
        (alert,) = Monitor().straggler_alerts(
            (arrival(-0.05, 0.002, 0.0, clock=clock),), (arrival(0.05, 0.002, clock=clock),)
        )
        assert words in alert.summary
        assert "GPU clock" not in alert.summary


def test_what_the_late_rank_alone_does_in_no_phase_is_what_to_look_at_first() -> None:
    (alert,) = Monitor().straggler_alerts(EARLY, LATE, outside=(0.002, 0.05))
    assert alert.next.startswith("check train.py:57 time.sleep(0.05); press c")
    assert alert.evidence["cause_seconds"] == 0.045
    for others in (0.045, None):  # all do it, or nobody knows whether they do
        (alert,) = Monitor().straggler_alerts(EARLY, LATE, outside=(others, 0.05))
        assert alert.next.startswith("press c")
        assert "cause" not in alert.evidence


def test_while_one_rank_is_named_no_other_is_by_the_easier_thresholds() -> None:
    monitor = Monitor()
    monitor.straggler_alerts(EARLY, LATE)
    chance = (arrival(0.08, 0.02, 83.0, "waits"), *EARLY)
    (alert,) = monitor.straggler_alerts(chance, LATE)
    assert alert.pid == 101
    (alert,) = monitor.straggler_alerts((chance[0],), (arrival(0.03, 0.008, 80.0),))
    assert alert.pid == 101, "it stays named, by the easier thresholds"


def test_neither_a_share_of_steps_nor_a_distance_is_enough_alone() -> None:
    for one in (
        arrival(0.05, 0.002, last_pct=86.0),  # by enough, but not nearly always
        arrival(0.007, 0.0005),  # nearly always, but by under 4 % of the step
        arrival(0.05, 0.01),  # both, but no more than chance
    ):
        assert Monitor().straggler_alerts(EARLY, (one,)) == []
    (alert,) = Monitor().straggler_alerts(EARLY, (arrival(0.007, 0.0005, point="first_gradient", clock="GPU"),))
    assert alert.pid == 101, "events show less chance"
    assert Monitor().straggler_alerts(EARLY, (arrival(0.007, 0.0005, point="forward", clock="GPU"),)) == [], (
        "FSDP's equal ranks"
    )


def test_phases_accuse_nobody_where_ranks_stamp_when_they_come() -> None:
    def step(index: int, forward: float) -> Step:
        phases = (Phase(name="forward", host_seconds=forward), Phase(name="backward", host_seconds=0.1))
        return Step(index=index, started_at=0.0, seconds=STEP_S, interval_seconds=STEP_S, phases=phases)

    def accused(arrivals: tuple[Arrival, ...] | None) -> set[int | None]:
        monitor, found = Monitor(), set()
        for index in range(40):
            steps = step(index, 0.09), step(index, 0.02)
            found |= {alert.pid for alert in monitor.straggler_alerts(arrivals, arrivals, steps=steps)}
        return found

    assert accused(None) == {100}, "of a training without stamps nothing else is known"
    assert accused(()) == set(), "the one whose host is busy longest may well be the one that waits"


def test_a_host_that_launches_as_slowly_as_the_others_is_behind_at_no_cost() -> None:
    def said(paced: float, forward: float) -> list[Alert]:
        late = arrival(0.05, 0.002, clock="GPU")
        ranks = tuple(
            Rank(
                pid=100 + place, host="node", job="run", rank=place, world_size=2, step=7, step_seconds=STEP_S,
                step_seconds_p50=STEP_S, last_step_at=1000.0, arrivals=one, gpu_host_paced_pct=paced,
                phases=(Phase(name="forward", host_seconds=seconds),),
            )
            for place, (one, seconds) in enumerate(((EARLY, 0.1), ((late,), forward)))
        )  # fmt: skip
        alerts = Rules().apply(Snapshot(time=1000.0, host=Host(name="node"), ranks=ranks)).alerts
        return [alert for alert in alerts if alert.id == "straggler"]

    assert said(paced=70.0, forward=0.104) == [], "both launch as fast as they can: one is ahead, and waits"
    assert said(paced=70.0, forward=0.14), "this one's host takes longer over its forward"
    assert said(paced=5.0, forward=0.104), "its GPU is late, and not because of its host"


# ---- each limit by itself: steps of ten seconds ----


def _late(
    late: float, error: float = 0.01, last_pct: float = 95.0, point: str = "first_gradient", clock: str = "host"
) -> Arrival:
    return arrival(late, error, last_pct, point, clock=clock)


def _job(*arrivals: tuple[Arrival, ...] | None, **fields: Any) -> JobState:
    """Ranks with these arrivals; the fields are those of the last of them."""
    last = len(arrivals) - 1
    return JobState(
        [
            rank_state(
                pid=100 + place,
                **{
                    "rank": place,
                    "world_size": len(arrivals),
                    "step_seconds_p50": 10.0,
                    "arrivals": one,
                    **(fields if place == last else {}),
                },
            )
            for place, one in enumerate(arrivals)
        ]
    )


def _named(job: JobState) -> tuple[bool, bool]:
    """Whether the last rank is found, and whether it stays so once it is named."""
    before = find_last_rank(job, False)
    job.memo = LastRank(job.ranks[-1], _late(9.0), 9.0, 10.0)
    after = find_last_rank(job, True)
    return before is not None, after is not None


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (_late(0.4), (True, True)),
        (_late(0.39), (False, True)),
        (_late(0.3), (False, True)),
        (_late(0.29), (False, False)),
        (_late(0.2, clock="GPU"), (True, True)),
        (_late(0.19, clock="GPU"), (False, True)),
        (_late(0.15, clock="GPU", point="last_gradient"), (False, True)),
        (_late(0.14, clock="GPU"), (False, False)),
        (_late(1.0, point="forward"), (True, True)),
        (_late(0.99, point="forward"), (False, True)),
        (_late(0.69, point="forward", clock="GPU"), (False, False)),
        (_late(0.71, point="forward", clock="GPU"), (False, True)),
        (_late(2.0, last_pct=90.0), (True, True)),
        (_late(2.0, last_pct=89.9), (False, True)),
        (_late(2.0, last_pct=75.0), (False, True)),
        (_late(2.0, last_pct=74.9), (False, False)),
        (_late(0.75, error=0.125), (True, True)),  # six standard errors
        (_late(0.74, error=0.125), (False, True)),
        (_late(0.375, error=0.125), (False, True)),
        (_late(0.37, error=0.125), (False, False)),
    ],
    ids=str,
)
def test_a_rank_comes_last_from_the_documented_limits_on(one: Arrival, expected: tuple[bool, bool]) -> None:
    assert _named(_job((_late(-2.0, last_pct=0.0),), (one,))) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (True, True)),
        ({"step_seconds_p50": None}, (False, False)),
        ({"step_seconds_p50": None, "step_seconds": 10.0}, (True, True)),
        ({"step_seconds_p50": None, "step_seconds": 11.0}, (False, True)),
        ({"step_seconds_p50": 11.0}, (False, True)),
        ({"step_seconds_p50": -1.0}, (False, False)),
        ({"state": "stalled"}, (False, False)),
    ],
    ids=str,
)
def test_the_delay_is_a_part_of_the_usual_step(fields: dict[str, Any], expected: tuple[bool, bool]) -> None:
    assert _named(_job(None, (_late(0.4),), **fields)) == expected


def test_the_delay_that_is_surest_names_the_rank() -> None:
    job = _job((_late(4.0, error=0.5),), (_late(1.0, error=0.01), _late(2.0, error=0.05)))
    found = find_last_rank(job, False)
    assert found is not None
    assert (found.state.rank.pid, found.late_seconds, found.step_seconds, found.share_pct) == (
        101,
        1.0,
        10.0,
        10.0,
    )


def test_another_rank_is_not_accused_by_the_easier_limits() -> None:
    job = _job((_late(0.35),), (_late(-1.0, last_pct=0.0),))
    job.memo = LastRank(job.ranks[1], _late(9.0), 9.0, 10.0)
    assert find_last_rank(job, True) is None
    job.memo = LastRank(job.ranks[0], _late(9.0), 9.0, 10.0)
    assert find_last_rank(job, True) is not None


@pytest.mark.parametrize(
    ("paced", "own", "clock", "expected"),
    [
        (24.9, 3.0, "GPU", (True, True)),
        (25.0, 3.0, "GPU", (False, False)),
        (25.0, 3.49, "GPU", (False, True)),
        (25.0, 3.5, "GPU", (True, True)),
        (25.0, 3.34, "GPU", (False, False)),
        (25.0, 3.0, "host", (True, True)),
        (None, 3.0, "GPU", (True, True)),
    ],
)
def test_a_rank_whose_host_launches_slowly_must_be_longer_at_one_phase(
    paced: float | None, own: float, clock: str, expected: tuple[bool, bool]
) -> None:
    """5 % of the step to be named, 3.5 % to stay so; the other rank's forward takes 3 s."""
    job = _job(None, (_late(0.9, clock=clock),), phases=(Phase(name="forward", host_seconds=own),))
    other = rank_state(
        pid=100, rank=0, world_size=2, gpu_host_paced_pct=paced, phases=(Phase(name="forward", host_seconds=3.0),)
    )
    assert _named(JobState([other, job.ranks[1]])) == expected


def test_time_outside_of_phases_is_a_part_of_the_host_too_and_nested_phases_are_none() -> None:
    nested = (Phase(name="forward", host_seconds=3.0), Phase(name="forward/attention", host_seconds=2.0))
    for outside, expected in ((0.6, True), (0.4, False)):
        job = _job(None, (_late(0.9, clock="GPU"),), phases=nested, outside_seconds=outside)
        other = rank_state(pid=100, rank=0, world_size=2, gpu_host_paced_pct=50.0, phases=nested[:1])
        assert (find_last_rank(JobState([other, job.ranks[1]]), False) is not None) is expected


@pytest.mark.parametrize(("late", "severity"), [(2.0, "critical"), (1.99, "warning")])
def test_a_fifth_of_the_step_is_critical(late: float, severity: str) -> None:
    job = _job((_late(-2.0, last_pct=0.0),), (_late(late),))
    assert STRAGGLER.holds(job, False)
    assert STRAGGLER.describe(job).severity == severity


@pytest.mark.parametrize(
    ("one", "words", "points"),
    [
        (
            _late(1.5),
            "reaches its first gradient 1.50 s later than all other ranks, in a step of 10.0 s (host clock).",
            (
                "1.50 s later than other ranks",
                "step 10.0 s",
                "reaches its first gradient last (host clock)",
                "the other ranks wait",
            ),
        ),
        (
            _late(1.5, point="waits"),
            "the other ranks wait 1.50 s for it in a step of 10.0 s (host clock).",
            ("adds 1.50 s per step", "step 10.0 s (host clock)", "the other ranks wait for it"),
        ),
        (
            _late(1.5, point="layer.7", clock="GPU"),
            "reaches layer.7 1.50 s later than all other ranks, in a step of 10.0 s (CUDA events).",
            (
                "1.50 s later than other ranks",
                "step 10.0 s",
                "reaches layer.7 last (CUDA events)",
                "the other ranks wait",
            ),
        ),
    ],
    ids=["gradient", "waits", "another point"],
)
def test_clauses_and_sentence_say_where_the_rank_is_late(
    one: Arrival, words: str, points: tuple[str, ...]
) -> None:
    job = _job((_late(-2.0, last_pct=0.0),), (one,))
    assert STRAGGLER.holds(job, False)
    shown = STRAGGLER.describe(job)
    assert shown.summary.startswith("Rank 1 (pid 101) is the straggler: ")
    assert shown.summary.endswith(words)
    assert shown.points == points
    assert (shown.evidence["late_seconds"], shown.evidence["late_error_seconds"]) == (1.5, 0.01)


@pytest.mark.parametrize(
    ("own", "theirs", "seconds", "is_named"),
    [
        (1.0, 0.25, 0.75, True),
        (1.0, 0.25, 0.74, False),
        (1.0, 0.26, 0.75, False),
        (None, 0.25, 0.75, False),
        (1.0, None, 0.75, False),
    ],
)
def test_work_outside_of_phases_explains_a_delay_by_half_of_it(
    own: float | None, theirs: float | None, seconds: float, is_named: bool
) -> None:
    cause = Cause(what="train.py:57 save()", seconds=seconds)
    job = _job(None, (_late(1.5),), outside_seconds=own, outside_causes=(cause,))
    other = rank_state(pid=100, rank=0, world_size=2, outside_seconds=theirs)
    both = JobState([other, job.ranks[1]])
    assert STRAGGLER.holds(both, False)
    shown = STRAGGLER.describe(both)
    assert (shown.evidence["cause"], shown.evidence["cause_seconds"]) == (
        (cause.what, seconds) if is_named else (None, None)
    )


# ---- by phases, where no rank stamps when it comes ----


def _ranks(
    *hosts: dict[str, float], on: tuple[dict[str, Any], ...] = (), count: int = 40, lengths: tuple[float, ...] = ()
) -> JobState:
    """Ranks with these percents of their steps in each phase, by the host's clock."""
    states = []
    for place, host in enumerate(hosts):
        steps = steps_of(host, count=count)
        if lengths:
            steps = [replace(step, seconds=lengths[place]) for step in steps]
        card = on[place] if on else None
        states.append(rank_state(*steps, pid=100 + place, rank=place, world_size=len(hosts), on=card))
    return JobState(states)


def _straggles(job: JobState) -> tuple[bool, bool]:
    return STRAGGLER.holds(job, False), STRAGGLER.holds(job, True)


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (91.0, 80.0, (True, True)),  # 11 % of the step
        (89.5, 80.0, (False, True)),
        (87.5, 80.0, (False, True)),
        (86.5, 80.0, (False, False)),
        (13.1, 10.0, (True, True)),  # 3.1 % of the step, others need 76 % of its time
        (12.9, 10.0, (False, True)),
        (12.1, 10.0, (False, True)),
        (11.9, 10.0, (False, False)),
        (30.0, 24.8, (True, True)),  # 83 % of its time
        (30.0, 25.0, (False, True)),
        (30.0, 26.3, (False, True)),
        (30.0, 26.5, (False, False)),
        (30.0, 30.0, (False, False)),
    ],
)
def test_by_phases_a_rank_is_slow_from_the_documented_limits_on(
    own: float, others: float, expected: tuple[bool, bool]
) -> None:
    job = _ranks({"forward": others}, {"forward": own}, {"forward": others})
    assert _straggles(job) == expected


def test_the_straggler_has_the_numbers_of_its_phase() -> None:
    job = _ranks({"forward": 30.0, "loss": 5.0}, {"forward": 50.0, "loss": 6.0}, {"forward": 40.0, "loss": 5.0})
    found = find_straggler(job)
    assert found is not None
    assert found.state is job.ranks[1]
    assert (found.own_seconds, found.others_seconds) == (pytest.approx(5.6), pytest.approx(4.0))
    assert found.share_pct == pytest.approx(16.0)
    assert (found.role, found.clock, found.step_seconds, found.is_distinct) == ("compute", "host", 10.0, True)
    phase = found.longest_phase()
    assert (phase.name, phase.own_seconds, phase.others_seconds) == (
        "forward",
        pytest.approx(5.0),
        pytest.approx(3.5),
    )
    assert STRAGGLER.holds(job, False)
    shown = STRAGGLER.describe(job)
    assert "forward takes 5.00 s per step, 3.50 s on the other ranks (host clock)." in shown.summary
    assert shown.points == (
        "forward 5.00 s, other ranks 3.50 s",
        "adds 1.60 s per step",
        "the other ranks wait for it",
    )
    assert shown.severity == "warning"
    assert (shown.evidence["ranks_compared"], shown.evidence["share_of_step_pct"]) == (3, pytest.approx(16.0))


@pytest.mark.parametrize(
    ("lengths", "is_found"), [((10.0, 11.4), True), ((11.4, 10.0), True), ((10.0, 11.6), False)]
)
def test_ranks_whose_steps_differ_by_fifteen_percent_are_not_compared(
    lengths: tuple[float, float], is_found: bool
) -> None:
    job = _ranks({"forward": 30.0}, {"forward": 50.0}, lengths=lengths)
    assert (find_straggler(job) is not None) is is_found


@pytest.mark.parametrize(("count", "is_found"), [(5, False), (6, True)])
def test_six_steps_are_enough_to_compare(count: int, is_found: bool) -> None:
    assert (find_straggler(_ranks({"forward": 30.0}, {"forward": 50.0}, count=count)) is not None) is is_found


def test_one_rank_alone_and_ranks_without_phases_are_not_compared() -> None:
    assert find_straggler(_ranks({"forward": 30.0})) is None
    assert find_straggler(_ranks({"forward": 30.0}, {})) is None


@pytest.mark.parametrize(
    ("own", "others", "is_slow"), [(51.5, 50.0, True), (50.9, 50.0, False), (51.5, None, True), (None, 50.0, True)]
)
def test_a_small_difference_by_the_host_needs_more_active_sms(
    own: float | None, others: float | None, is_slow: bool
) -> None:
    cards = ({"sm_active_pct": others}, {"sm_active_pct": own})
    assert STRAGGLER.holds(_ranks({"forward": 20.0}, {"forward": 26.0}, on=cards), False) is is_slow


def test_on_gpus_a_longer_wait_for_data_by_the_host_is_no_work() -> None:
    hosts = {"forward": 20.0, "dataload": 10.0}, {"forward": 20.0, "dataload": 40.0}
    assert STRAGGLER.holds(_ranks(*hosts), False)
    assert not STRAGGLER.holds(_ranks(*hosts, on=({}, {})), False)


@pytest.mark.parametrize(
    ("waits", "expected"), [((11.0, 1.0), True), ((10.0, 1.0), True), ((9.0, 1.0), False), ((10.0, 0.0), True)]
)
def test_a_longer_backward_is_work_where_the_others_wait_for_half_of_it(
    waits: tuple[float, float], expected: bool
) -> None:
    """Backward takes 18 % of the step longer."""
    job = _ranks(
        {"forward": 20.0, "backward": 40.0, "all_reduce": waits[0]},
        {"forward": 20.0, "backward": 58.0, "all_reduce": waits[1]},
    )
    assert STRAGGLER.holds(job, False) is expected
