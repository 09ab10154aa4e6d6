"""The rules about what bounds the steps, on measured series and on made-up ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from llmtop.model.snapshot import Alert, Gpu, Host, LoadingCost, Phase, Rank, Snapshot, Step
from llmtop.rules import JOB_RULES, RANK_RULES
from llmtop.rules.engine import Rules, explain
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

    def __init__(self, ranks: int = 1, *, timed_every: int = 1, gpu: bool = True, **values: float | None) -> None:
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

    def made(self, place: int, phases: Phases) -> tuple[Step, ...]:
        """The step at that place of the next five."""
        return self._steps(phases, 0.0)[place : place + 1]

    def show(self, *made: tuple[Step, ...]) -> list[Alert]:
        """The alerts after these steps, those of one rank after the other."""
        self.step += 5
        self.time += sum(step.seconds for step in made[0])
        return list(self.rules.apply(self._snapshot(made)).alerts)

    def snapshot_without_steps(self, seconds: float) -> Snapshot:
        """A moment later, in which no step ended."""
        self.time += seconds
        moment = self._snapshot([self.made(0, more_computing(0.0)(rank)) for rank in range(self.ranks)])
        return replace(moment, ranks=tuple(replace(rank, new_steps=()) for rank in moment.ranks))

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
            Gpu(index=place, uuid=f"GPU-{place}", name="NVIDIA H200", power_limit_watts=700.0, **self.values)
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


def test_what_its_loader_s_time_goes_into_is_in_the_alert_where_somebody_looked() -> None:
    job = Job(timed_every=1)
    job.run(60, healthy, idle=0.0001)
    (before,) = job.run(10, starved, idle=0.055)
    assert "press s" in before.next
    assert "loading_cause" not in before.evidence
    cost = LoadingCost(
        cause="decode", summary="Loader: 97 % decoding by PIL (4 workers).", share_pct=97.0,
        advice="decode once; up to 60 % of the step could be saved", workers=4, workers_needed=9, wait_pct=60.0,
    )  # fmt: skip
    composed = job._snapshot

    def looked_at(found: LoadingCost) -> list[Alert]:
        def snapshot(made: Iterable[tuple[Step, ...]]) -> Snapshot:
            whole = composed(made)  # type: ignore[arg-type]
            return replace(whole, ranks=tuple(replace(rank, loading=found) for rank in whole.ranks))

        job._snapshot = snapshot  # type: ignore[method-assign]
        return job.run(5, starved, idle=0.055)

    (alert,) = looked_at(cost)
    assert alert.summary.endswith(cost.summary)
    assert alert.next == "decode once; up to 60 % of the step could be saved; press s for the Python stacks"
    assert (alert.evidence["loading_cause"], alert.evidence["workers_needed_at_least"]) == ("decode", 9)
    (unknown,) = looked_at(replace(cost, cause="unknown", summary="It is unknown.", advice=""))
    assert "unknown" in unknown.summary
    assert "press s" in unknown.next


@pytest.mark.parametrize(
    ("name", "alert"), [("fetch", "input_bound"), ("read_batch", "input_bound"), ("data_parallel", "launch_bound")]
)
def test_starvation_is_told_whatever_the_script_calls_its_loader(name: str, alert: str) -> None:
    def waiting(_rank: int) -> Phases:
        return {name: (0.060, 0.055), "forward": (0.010, 0.018), "backward": (0.020, 0.017)}

    values = {"util_pct": 30.0, "sm_active_pct": 20.0, "power_watts": 150.0}
    assert ids(Job(**values).run(100, waiting, idle=0.055)) == {alert}


def test_without_events_the_sms_decide_whether_a_wait_for_data_costs_anything() -> None:
    def no_events(_rank: int) -> Phases:
        return {"dataload": (0.060, None), "forward": (0.010, None), "backward": (0.020, None)}

    assert Job(sm_active_pct=94.0).run(100, no_events) == []
    assert ids(Job(sm_active_pct=30.0, power_watts=500.0).run(100, no_events)) == {"input_bound"}
    (alert,) = Job(gpu=False).run(100, no_events)
    assert (alert.id, alert.points[-1]) == ("input_bound", "no GPU"), "what waits on a CPU is lost"


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
        assert text.meaning
        assert text.condition
        assert text.source


def test_a_loader_that_delivers_in_bursts_is_told_with_its_mean_share() -> None:
    job, alerts = Job(), []
    for _ in range(40):
        alerts = job.run(5, healthy_but_for_a_burst(job), idle=0.0)
    (alert,) = alerts
    assert alert.id == "input_bound"
    assert alert.evidence["dataload_gpu_pct"] == pytest.approx(100 * 0.3 / 0.8, abs=5)


def healthy_but_for_a_burst(job: Job) -> Callable[[int], Phases]:
    """Of ten steps of 50 ms, five in a row wait another 60 ms each."""
    wait = 0.060 if job.step % 10 else 0.0
    return lambda rank: {"dataload": (wait, wait), "forward": (0.02, 0.02), "backward": (0.03, 0.03)}


@pytest.mark.parametrize("gpu_clock", [True, False])
def test_one_slow_batch_is_no_bottleneck(gpu_clock: bool) -> None:
    job = Job(sm_active_pct=45.0)
    seen: set[str] = set()
    for count in range(200):
        one = [(0.001, 0.001)] * 5
        if count == 100:
            one[2] = (0.300, 0.300)
        made = tuple(
            step
            for place, (host, dry) in enumerate(one)
            for step in job.made(place, {"dataload": (host, dry if gpu_clock else None), "forward": (0.05, 0.05)})
        )
        seen |= ids(job.show(made))
    assert seen == set()


def test_idle_time_outside_the_loader_is_not_blamed_on_the_data() -> None:
    def gaps(_rank: int) -> Phases:
        return {"dataload": (0.090, 0.0001), "forward": (0.005, 0.050), "backward": (0.006, 0.051)}

    assert Job().run(200, gaps, idle=0.03) == []


@pytest.mark.parametrize(
    "values", [{"sm_active_pct": None, "util_pct": 25.0}, {"sm_active_pct": 2.0, "util_pct": 22.0}]
)
def test_a_host_that_launches_all_the_time_while_the_gpu_idles_is_launch_bound(
    values: dict[str, float | None],
) -> None:
    def tiny(_rank: int) -> Phases:
        return {"dataload": (0.0001, None), "forward": (0.009, None), "backward": (0.015, None)}

    (alert,) = Job(**{"power_watts": 125.0, **values}).run(400, tiny)
    assert alert.id == "launch_bound"
    assert alert.evidence["launching_host_pct"] > 95
    assert Job(**{"power_watts": None, **values}).run(400, tiny) == []


def test_a_wait_for_results_that_leaves_the_gpu_idle_is_sync_bound() -> None:
    def item(_rank: int) -> Phases:
        return {"forward": (0.02, 0.02), "backward": (0.03, 0.03), "loss.item": (0.03, 0.03)}

    values = {"sm_active_pct": 25.0, "util_pct": 50.0, "power_watts": 200.0}
    assert ids(Job(**values).run(100, item, idle=0.03)) == {"sync_bound"}
    assert Job().run(100, item, idle=0.0) == [], "a host that waits for a busy GPU"


def test_exposed_communication_is_told_where_a_phase_names_it() -> None:
    def exposed(_rank: int) -> Phases:
        return {"forward": (0.02, 0.02), "backward": (0.03, 0.03), "communication": (0.03, 0.03)}

    assert ids(Job(2, sm_active_pct=40.0).run(200, exposed)) == {"communication_bound"}
    assert Job(2, sm_active_pct=85.0).run(200, exposed) == []


def more_computing(part: float) -> Callable[[int], Phases]:
    """Rank 1 computes so much more in forward and backward; the others' backward takes in the wait."""

    def phases(rank: int) -> Phases:
        forward, backward = 0.02, 0.04
        if rank == 1:
            forward, backward = forward * (1 + part), backward * (1 + part)
        else:
            backward += (forward + backward) * part
        return {"forward": (forward, forward), "backward": (backward, backward)}

    return phases


@pytest.mark.parametrize("timed_every", [1, 5])
def test_a_rank_that_computes_30_per_cent_more_is_named_though_backward_hides_most_of_it(timed_every: int) -> None:
    job = Job(4, timed_every=timed_every)
    assert job.run(60, more_computing(0.0)) == []
    (alert,) = job.run(20, more_computing(0.3))
    assert (alert.id, alert.evidence["rank"], alert.evidence["phase"]) == ("straggler", 1, "forward")
    assert alert.evidence["share_of_step_pct"] == pytest.approx(100 * 0.006 / 0.078, abs=0.5)


@pytest.mark.parametrize("world", [2, 4])
def test_a_rank_that_is_slow_in_backward_alone_is_named_by_the_wait_of_the_others(world: int) -> None:
    def slow_backward(rank: int) -> Phases:
        own, wait = (0.05, 0.0) if rank == 1 else (0.0, 0.05)
        return {"forward": (0.02, None), "backward": (0.05 + own, None), "all_reduce": (0.002 + wait, None)}

    (alert,) = Job(world).run(100, slow_backward)
    assert (alert.id, alert.evidence["rank"], alert.evidence["phase"]) == ("straggler", 1, "backward")


@pytest.mark.parametrize("world", [2, 4])
def test_a_backward_that_holds_the_wait_accuses_nobody_beside_a_short_all_reduce(world: int) -> None:
    def late(rank: int) -> Phases:
        own, wait = (0.05, 0.0) if rank == 1 else (0.0, 0.05)
        return {"forward": (0.02 + own, None), "backward": (0.05 + wait, None), "all_reduce": (0.002, None)}

    (alert,) = Job(world).run(100, late)
    assert (alert.id, alert.evidence["rank"], alert.evidence["phase"]) == ("straggler", 1, "forward")


def test_a_checkpoint_of_one_rank_makes_no_straggler() -> None:
    job = Job(2)

    def checkpoint(rank: int) -> Phases:
        own, wait = (0.5, 0.0) if rank == 0 else (0.0, 0.5)
        return {"forward": (0.02, 0.02), "backward": (0.04 + wait, 0.04 + wait), "checkpoint": (own, own)}

    seen: set[str] = set()
    for count in range(60):
        rare = checkpoint if count == 30 else more_computing(0.0)
        made = [
            tuple(
                step
                for place in range(5)
                for step in job.made(place, (rare if place == 2 else more_computing(0.0))(rank))
            )
            for rank in range(2)
        ]
        seen |= ids(job.show(*made))
    assert "straggler" not in seen


def test_launching_more_slowly_on_busy_gpus_is_no_straggler_by_the_hosts_clock() -> None:
    def launching(rank: int) -> Phases:
        return {"forward": (0.004 if rank else 0.0025, None), "backward": (0.005, None), "wait": (0.030, None)}

    assert "straggler" not in ids(Job(2).run(200, launching))


def test_a_straggler_that_waits_for_data_is_the_one_alert_of_its_job() -> None:
    def one_starved(rank: int) -> Phases:
        own, wait = (0.03, 0.0) if rank == 1 else (0.0, 0.03)
        return {
            "dataload": (0.001 + own, 0.001 + own),
            "forward": (0.02, 0.02),
            "backward": (0.04 + wait, 0.04 + wait),
        }

    (alert,) = Job(2).run(100, one_starved)
    assert (alert.id, alert.evidence["rank"], alert.evidence["phase"]) == ("straggler", 1, "dataload")


def test_a_stopped_rank_is_named_at_once_and_the_straggler_again_after_it() -> None:
    job = Job(3)
    job.run(60, more_computing(0.3))
    moment = job.snapshot_without_steps(seconds=0.5)
    first, *others = moment.ranks
    stopped = replace(moment, ranks=(*others, replace(first, state="stopped")))
    (alert,) = job.rules.apply(stopped).alerts
    assert (alert.id, alert.pid) == ("stalled", 100), "the rank that a signal holds, at once"
    (alert,) = job.rules.apply(replace(moment, time=stopped.time + 0.5)).alerts
    assert (alert.id, alert.pid) == ("straggler", 101)
