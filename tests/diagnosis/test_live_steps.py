"""The rules about what bounds the steps, on measured series and on made-up ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from llmtop.diagnosis.live import Rules, explain
from llmtop.diagnosis.rules import JOB_RULES, RANK_RULES
from llmtop.snapshot import Alert, Gpu, Host, Phase, Rank, Snapshot, Step
from tests.support import import_data

ONE, TWO = import_data.DATA / "h200" / "live", import_data.DATA / "h200x2" / "live"
STEP_IDS = {"input_bound", "h2d_bound", "launch_bound", "sync_bound", "communication_bound", "straggler"}
MEASURED = {
    (ONE, "h2d_bound"): {"h2d_bound"},
    (ONE, "launch_bound"): {"launch_bound"},
    (TWO, "straggler"): {"straggler"},
}
SERIES = [(folder, name) for folder in (ONE, TWO) for name in import_data.names(folder)]

Phases = dict[str, tuple[float, float | None]]
"""Name -> seconds by the host's and by the GPU's clock."""


@pytest.mark.parametrize(("folder", "name"), SERIES, ids=lambda value: getattr(value, "parent", value))
@pytest.mark.parametrize("interval", [0.25, 1.0])
def test_measured_series_raise_what_was_planted_and_nothing_else(folder, name: str, interval: float) -> None:
    rules, raised = Rules(), set()
    for snapshot in import_data.load(folder, name, interval=interval, ranks=True):
        raised |= {alert.id for alert in rules.apply(snapshot).alerts}
    assert raised & STEP_IDS == MEASURED.get((folder, name), set())


def test_the_slow_one_of_two_measured_ranks_is_named() -> None:
    rules, named = Rules(), set()
    for snapshot in import_data.load(TWO, "straggler", interval=0.5, ranks=True):
        for alert in rules.apply(snapshot).alerts:
            if alert.id == "straggler":
                named.add(alert.evidence["rank"])
    assert named == {1}


class Job:
    """Ranks that make steps of made-up phases, a snapshot every five steps."""

    def __init__(self, ranks: int = 1, *, timed_every: int = 1, gpu: bool = True, **values: float) -> None:
        self.rules, self.step, self.time = Rules(), 0, 1000.0
        self.ranks, self.timed_every, self.gpu = ranks, timed_every, gpu
        self.values = {"util_pct": 98.0, "sm_active_pct": 90.0, "power_watts": 650.0, **values}

    def run(self, steps: int, phases: Callable[[int], Phases], idle: float = 0.0) -> list[Alert]:
        """The alerts after so many steps, of which `idle` seconds each left the GPU without work."""
        alerts: tuple[Alert, ...] = ()
        for _ in range(steps // 5):
            made = [self._steps(phases(rank), idle) for rank in range(self.ranks)]
            self.step += 5
            self.time += sum(step.interval_seconds or 0.0 for step in made[0])
            alerts = self.rules.apply(self._snapshot(made)).alerts
        return list(alerts)

    def _steps(self, phases: Phases, idle: float) -> tuple[Step, ...]:
        seconds = sum(host for host, _ in phases.values())
        steps = []
        for index in range(self.step, self.step + 5):
            timed = index % self.timed_every == 0 and all(gpu is not None for _, gpu in phases.values())
            steps.append(
                Step(
                    index=index,
                    started_at=self.time + (index - self.step) * seconds,
                    seconds=seconds,
                    interval_seconds=seconds,
                    gpu_seconds=seconds if timed else None,
                    gpu_idle_seconds=idle if timed else None,
                    phases=tuple(
                        Phase(name=name, host_seconds=host, gpu_seconds=gpu if timed else None)
                        for name, (host, gpu) in phases.items()
                    ),
                )
            )
        return tuple(steps)

    def _snapshot(self, made: Iterable[tuple[Step, ...]]) -> Snapshot:
        ranks = tuple(
            Rank(
                pid=100 + place,
                host="node",
                rank=place,
                world_size=self.ranks,
                command="train.py",
                gpu_uuid=f"GPU-{place}" if self.gpu else None,
                step=steps[-1].index,
                step_seconds=steps[-1].seconds,
                step_seconds_p50=steps[-1].seconds,
                last_step_at=self.time,
                attached_at=1000.0,
                new_steps=steps,
            )
            for place, steps in enumerate(made)
        )
        gpus = tuple(
            Gpu(index=place, uuid=f"GPU-{place}", name="NVIDIA H200", power_limit_watts=700.0, **self.values)  # type: ignore[arg-type]
            for place in range(self.ranks if self.gpu else 0)
        )
        return Snapshot(time=self.time, host=Host(name="node"), gpus=gpus, ranks=ranks)


def healthy(_rank: int) -> Phases:
    """The host sits out the previous step's kernels in its loader; the GPU is busy."""
    return {"dataload": (0.100, 0.0001), "forward": (0.005, 0.037), "backward": (0.006, 0.073)}


def starved(_rank: int) -> Phases:
    return {"dataload": (0.060, 0.055), "forward": (0.010, 0.018), "backward": (0.020, 0.017)}


def ids(alerts: Iterable[Alert]) -> set[str]:
    return {alert.id for alert in alerts}


@pytest.mark.parametrize("timed_every", [1, 10, 15])
def test_a_host_that_waits_in_its_loader_for_a_busy_gpu_is_not_starved(timed_every: int) -> None:
    assert Job(timed_every=timed_every).run(200, healthy, idle=0.0001) == []


@pytest.mark.parametrize("timed_every", [1, 5])
def test_starvation_is_told_within_ten_steps_with_the_shares_of_both_clocks(timed_every: int) -> None:
    job = Job(timed_every=timed_every)
    job.run(60, healthy, idle=0.0001)
    (alert,) = job.run(10, starved, idle=0.055)
    assert alert.id == "input_bound"
    assert alert.evidence["dataload_host_pct"] == pytest.approx(66.7, abs=5)
    assert alert.evidence["gpu_idle_pct"] == pytest.approx(61, abs=5)
    assert alert.evidence["dataload_gpu_pct"] == pytest.approx(61, abs=5)


def test_without_events_the_sms_decide_whether_a_wait_for_data_costs_anything() -> None:
    def no_events(_rank: int) -> Phases:
        return {"dataload": (0.060, None), "forward": (0.010, None), "backward": (0.020, None)}

    assert Job(sm_active_pct=94.0).run(100, no_events) == []
    assert ids(Job(sm_active_pct=30.0, power_watts=500.0).run(100, no_events)) == {"input_bound"}
    assert Job(gpu=False).run(100, no_events) == [], "nobody can tell"


def test_it_goes_when_the_data_comes_again() -> None:
    job = Job()
    assert job.run(50, starved, idle=0.055)
    assert job.run(100, healthy, idle=0.0001) == []


def one_slow(extra: float, slow: int = 1) -> Callable[[int], Phases]:
    """All ranks take as long as the slow one; the others wait in backward."""

    def phases(rank: int) -> Phases:
        own, wait = (extra, 0.0) if rank == slow else (0.0, extra)
        return {
            "dataload": (0.0002, 0.0002),
            "forward": (0.02 + own, 0.02 + own),
            "backward": (0.04 + wait, 0.04 + wait),
        }

    return phases


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("by_gpu", [True, False])
def test_the_rank_that_waits_least_is_named_within_twenty_steps(ranks: int, by_gpu: bool) -> None:
    def slowed(extra: float) -> Callable[[int], Phases]:
        both = one_slow(extra)
        if by_gpu:
            return both
        return lambda rank: {name: (host, None) for name, (host, _) in both(rank).items()}

    job = Job(ranks, gpu=by_gpu)
    assert job.run(60, slowed(0.0)) == []
    (alert,) = [alert for alert in job.run(20, slowed(0.3 * 0.06)) if alert.id == "straggler"]
    assert alert.evidence["rank"] == 1
    assert alert.pid == 101
    assert alert.severity == "critical"


def test_equal_ranks_have_no_straggler() -> None:
    assert Job(4).run(300, one_slow(0.0)) == []


def test_ranks_out_of_step_with_each_other_are_not_compared() -> None:
    def two_trainings(rank: int) -> Phases:
        return {"forward": (0.02 * (1 + rank), None), "backward": (0.04, None)}

    assert "straggler" not in ids(Job(2, gpu=False).run(200, two_trainings))


def test_every_rule_explains_itself() -> None:
    for rule in (*RANK_RULES, *JOB_RULES):
        text = explain(rule.id)
        assert text.title
        assert text.condition
        assert text.source
