"""Who is accused of holding the others up, by how the ranks come to the collectives of their steps."""

from __future__ import annotations

from llmtop.model.snapshot import Alert, Arrival, Cause, Host, Phase, Rank, Snapshot, Step
from llmtop.rules.engine import Rules

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

    def __init__(self) -> None:
        self.rules, self.time = Rules(), 1000.0

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
        return [alert for alert in self.rules.apply(snapshot).alerts if alert.id == "straggler"]


LATE, EARLY = (arrival(0.05, 0.002),), (arrival(-0.05, 0.002, 0.0),)


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
