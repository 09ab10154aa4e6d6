"""The rule for time in no phase: when it is told, what it names, and when it is silent."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmtop.model.snapshot import Alert, Cause, Host, Phase, Rank, RareSteps, Snapshot, Step
from llmtop.rules.engine import Rules

PHASES = (Phase(name="forward", host_seconds=0.05), Phase(name="forward/attention", host_seconds=0.03))
SLEEP = Cause(what="train.py:57 print(loss.item())", seconds=0.04)
REST = Cause(what="train.py:60 schedule()", seconds=0.01)


class Training:
    """One rank that makes ten steps a snapshot, and what is told of it."""

    def __init__(self, **values: Any) -> None:
        self.rules, self.time, self.step = Rules(), 1000.0, 0
        self.values: dict[str, Any] = {
            "outside_seconds": 0.05,
            "step_seconds_mean": 0.1,
            "step_seconds_p50": 0.1,
            "window_seconds": 15.0,
            "outside_causes": (SLEEP, REST),
            "phases": PHASES,
            **values,
        }

    def run(self, seconds: float, **values: Any) -> list[Alert]:
        """What holds after so many seconds, a snapshot each."""
        alerts: tuple[Alert, ...] = ()
        self.values.update(values)
        for _ in range(int(seconds)):
            self.time += 1.0
            alerts = self.rules.apply(self._snapshot()).alerts
        return list(alerts)

    def _snapshot(self) -> Snapshot:
        steps = tuple(
            Step(
                index=self.step + number,
                started_at=self.time - 1.0 + number / 10,
                seconds=0.05,
                interval_seconds=0.1,
                phases=self.values["phases"],
                warmup=self.values.get("warmup_steps", 0) > self.step + number,
            )
            for number in range(10)
        )
        if self.values.get("state", "running") != "running":
            steps = ()
        self.step += len(steps)
        rank = Rank(
            pid=7, host="node", step=self.step - 1, last_step_at=self.time, attached_at=900.0, new_steps=steps
        )
        return Snapshot(time=self.time, host=Host(name="node"), ranks=(replace(rank, **self.values),))


def test_much_time_in_no_phase_is_told_with_what_the_host_does_then() -> None:
    (alert,) = Training().run(10)
    assert (alert.id, alert.severity, alert.pid) == ("outside", "warning", 7)
    assert "50" in alert.summary
    assert SLEEP.what in alert.summary
    assert REST.what not in alert.summary, "a fifth of it"
    assert alert.evidence["outside_pct"] == 50.0
    assert alert.evidence["cause_1"] == SLEEP.what
    assert "GPU" in alert.next


@pytest.mark.parametrize(
    ("samples", "named"),
    [
        ((11, 8), {"train.py:50", "train.py:34"}),
        ((30, 6), {"train.py:50"}),
        ((4, 3), {"train.py:50", "train.py:34"}),
        ((1, 1), set()),
    ],
)
def test_a_line_is_named_alone_only_where_samples_show_that_it_is_the_largest(
    samples: tuple[int, int], named: set[str]
) -> None:
    """Two equal halves give 11 or more of 19 samples in 32 % of cases, 30 or more of 36 in none."""
    first, second = samples
    causes = (
        Cause(what="train.py:50 loss", seconds=0.001 * first, samples=first),
        Cause(what="train.py:34 zlib.crc32(block)", seconds=0.001 * second, samples=second),
    )
    (alert,) = Training(outside_causes=causes, outside_seconds=0.05).run(10)
    assert {what for what in ("train.py:50", "train.py:34") if what in alert.summary} == named
    assert (f"({first} samples)" in alert.summary) == (len(named) == 2)


def test_a_line_is_named_though_most_samples_show_none() -> None:
    """The thread gave up Python's lock before it was requested: those samples have no line."""
    causes = (Cause(what="train.py:25 text.split()", seconds=0.008, samples=9),)
    (alert,) = Training(outside_causes=causes, outside_seconds=0.05).run(10)
    assert "8.00 ms in train.py:25 text.split()" in alert.summary


@pytest.mark.parametrize(
    ("milliseconds", "samples", "is_named"), [(8.0, 2, False), (8.0, 3, False), (8.0, 4, True), (20.0, 2, True)]
)
def test_few_samples_name_no_line_for_a_small_part(milliseconds: float, samples: int, is_named: bool) -> None:
    """2 of 12 samples, the others without a line, named a line beside the one that took 8 of 9.5 ms."""
    causes = (Cause(what="train.py:18-19 with open(path)", seconds=milliseconds / 1e3, samples=samples),)
    (alert,) = Training(outside_causes=causes, outside_seconds=0.05).run(10)
    assert ("train.py:18-19" in alert.summary) is is_named


def test_rare_long_steps_take_no_more_from_the_share_than_they_cost() -> None:
    rare = RareSteps(every=None, seconds=0.2, usual_seconds=0.08, seconds_per_hour=29.0, part=None)
    training = Training(step_seconds_p50=0.08, rare=rare, outside_seconds=0.03, outside_work_pct=28.0)
    (alert,) = training.run(10)
    assert alert.id == "outside", "28 % less 0.8 %"


@pytest.mark.parametrize(
    ("what", "advice"),
    [
        ("garbage collection", "gc.freeze()"),
        ("garbage collection, started in train.py:9 torch.save(rows)", "gc.freeze()"),
        ("train.py:9 gc.collect()", "gc.freeze()"),
        ("torch.compile", "TORCH_LOGS=recompiles"),
        ("train.py:9 loss.item()", "waits for the GPU"),
        ("train.py:9 logger.info(step)", "every 50 steps"),
        ("save.py:9 torch.save(net, path)", "async_save"),
        ("train.py:9 time.sleep(0.1)", "sleep"),
        ("loader.py:9 for batch in batches:", "llmtop.loader"),
        ("train.py:9 next(batches)", "llmtop.loader"),
        ("train.py:9 [encode(text) for text in texts]", 'llmtop.phase("NAME")'),
        ("train.py:7-9 total = 0 … for text in texts:", 'llmtop.phase("NAME")'),
        ("print.py:9 do()", "press s"),
        ("code after the phase checkpoint", "press s"),
        ("", "py-spy record --pid 7 "),
    ],
)
def test_what_to_do_depends_on_the_cause(what: str, advice: str) -> None:
    causes = (Cause(what=what, seconds=0.05),) if what else ()
    (alert,) = Training(outside_causes=causes).run(10)
    assert advice in alert.next


def test_code_beside_a_loader_that_is_timed_needs_no_loader() -> None:
    values = {"phases": (Phase(name="dataload", host_seconds=0.001), *PHASES)}
    cause = Cause(what="train.py:81 for text in texts:", seconds=0.05)
    (alert,) = [one for one in Training(outside_causes=(cause,), **values).run(10) if one.id == "outside"]
    assert "llmtop.loader" not in alert.next
    assert "num_workers" in alert.next


def test_it_is_raised_from_ten_percent_on_and_goes_below_seven() -> None:
    training = Training(outside_seconds=0.0095)
    assert training.run(10) == []
    assert training.run(10, outside_seconds=0.0105)
    assert training.run(10, outside_seconds=0.008), "it stays raised"
    assert training.run(10, outside_seconds=0.006) == []


@pytest.mark.parametrize(
    "values",
    [
        {"outside_seconds": None},
        {"step_seconds_mean": None},
        {"phases": ()},
        {"state": "paused"},
        {"state": "stalled"},
        {"state": "stopped"},
        {"kind": "request"},
        {"warmup_steps": 1000},
        {"outside_seconds": float("nan")},
    ],
    ids=str,
)
def test_it_is_silent_where_it_cannot_be_told_or_no_step_is_under_way(values: dict[str, Any]) -> None:
    assert "outside" not in {alert.id for alert in Training(**values).run(20)}


def test_the_first_twenty_steps_prove_nothing() -> None:
    assert Training().run(1) == []
    training = Training(warmup_steps=10)
    assert training.run(2) == []
    assert training.run(8)


def test_what_long_steps_now_and_then_spend_in_no_phase_is_told_as_theirs() -> None:
    usual = {"step_seconds_p50": 0.04, "outside_seconds": 0.05}
    assert [one.id for one in Training(**usual).run(10)] == ["outside"]
    rare = RareSteps(every=60.0, seconds=3.6, usual_seconds=0.04, seconds_per_hour=2160.0, part="checkpoint")
    assert [one.id for one in Training(**usual, rare=rare).run(10)] == ["rare_steps"]


def test_a_monitor_that_starts_after_the_last_step_names_no_time_of_the_steps() -> None:
    for seconds_ago, expected in ((1.0, ["outside"]), (6.0, [])):
        rules, late = Rules(), Training()
        first = late._snapshot()
        (rank,) = first.ranks
        many = tuple(
            replace(rank.new_steps[0], index=number, started_at=990.0 + number / 10) for number in range(64)
        )
        alerts: tuple[Alert, ...] = ()
        for second in range(3):
            read = replace(rank, step=63, new_steps=() if second else many, last_step_at=1000.0 - seconds_ago)
            alerts = rules.apply(replace(first, time=1000.0 + second, ranks=(read,))).alerts
        assert [alert.id for alert in alerts] == expected


def test_steps_that_stop_coming_end_an_alert_about_them_before_the_training_is_stalled() -> None:
    training = Training()
    assert [alert.id for alert in training.run(10)] == ["outside"]
    (rank,) = training._snapshot().ranks
    seen = []
    for second in range(1, 25):
        quiet = replace(rank, new_steps=(), last_step_at=training.time)
        snapshot = Snapshot(time=training.time + second, host=Host(name="node"), ranks=(quiet,))
        seen.append([alert.id for alert in training.rules.apply(snapshot).alerts])
    assert seen[8] == ["outside"], "a rank that evaluates for some seconds"
    assert seen[-1] == []


@pytest.mark.parametrize(("load", "expected"), [(8.0, ["outside"]), (26.0, [])])
def test_a_share_without_a_cause_is_nothing_where_the_machine_lacks_cpus(load: float, expected: list[str]) -> None:
    training = Training(outside_seconds=0.05, outside_causes=())
    host = Host(name="node", load_1m=load, cpu_per_core_pct=(100.0, 100.0))
    alerts: tuple[Alert, ...] = ()
    for _ in range(10):
        training.time += 1.0
        alerts = training.rules.apply(replace(training._snapshot(), host=host)).alerts
    assert [alert.id for alert in alerts] == expected


@pytest.mark.parametrize(
    ("what", "expected"), [("train.py:57 log(loss)", ["outside"]), ("code after the phase backward", [])]
)
def test_code_whose_line_is_not_known_is_no_known_cause(what: str, expected: list[str]) -> None:
    """The rest of a loop is 10 to 11 % of the steps of healthy trainings: a line has to show that this is more."""
    training = Training(outside_seconds=0.015, outside_causes=(Cause(what=what, seconds=0.012),))
    training.values["phases"] = (Phase(name="forward", host_seconds=0.085),)
    assert [alert.id for alert in training.run(10)] == expected


def test_waits_for_a_cpu_are_no_share_of_the_step() -> None:
    training = Training(outside_seconds=0.03, outside_work_pct=16.0)
    assert training.run(10) == [], "30 % by the clock, 16 % without the waits"
    (alert,) = training.run(10, outside_work_pct=22.0)
    assert alert.id == "outside"
    assert "30 %" in alert.summary
    assert alert.evidence["outside_work_pct"] == 22.0
    assert training.run(10, outside_work_pct=15.0), "it stays raised"
    assert training.run(10, outside_work_pct=13.0) == []


def test_a_training_that_waits_for_a_cpu_is_judged_by_its_work_at_any_load() -> None:
    training = Training(outside_seconds=0.06, outside_causes=(), outside_work_pct=50.0)
    host = Host(name="node", load_1m=60.0, cpu_per_core_pct=(100.0, 100.0))
    alerts: tuple[Alert, ...] = ()
    for _ in range(10):
        training.time += 1.0
        alerts = training.rules.apply(replace(training._snapshot(), host=host)).alerts
    assert [alert.id for alert in alerts] == ["outside"]


@pytest.mark.parametrize(("dataload", "expected"), [(0.02, {"input_bound", "outside"}), (0.04, {"input_bound"})])
def test_waiting_for_data_hides_no_larger_part_of_the_step(dataload: float, expected: set[str]) -> None:
    phases = (Phase(name="dataload", host_seconds=dataload), Phase(name="forward", host_seconds=0.05 - dataload))
    training = Training(phases=phases, outside_seconds=0.03, outside_causes=(SLEEP,))
    assert {alert.id for alert in training.run(10)} == expected
