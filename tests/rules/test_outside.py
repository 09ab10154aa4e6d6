"""The rule for time in no phase: when it is told, what it names, and when it is silent."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmtop.model.snapshot import Alert, Cause, Host, Phase, Rank, RareSteps, Snapshot, Step
from llmtop.rules.engine import Rules
from llmtop.rules.outside import OUTSIDE, advice_for, alike_causes
from llmtop.rules.state.rank import RankState
from tests.support.rule_states import rank_state, steps_of

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


# ---- each limit by itself: steps of ten seconds ----


def _state(
    outside: float = 2.5, phases: dict[str, float] | None = None, count: int = 40, **fields: Any
) -> RankState:
    """A rank with `outside` of ten seconds outside of phases; one cause takes half of them."""
    steps = steps_of(phases or {"forward": 100.0 - 10 * outside}, count=count)
    cause = Cause(what="train.py:9 work()", seconds=outside / 2)
    usual = {
        "outside_seconds": outside,
        "step_seconds_mean": 10.0,
        "step_seconds_p50": 10.0,
        "outside_causes": (cause,),
        "phases": steps[0].phases,
    }
    load = fields.pop("load", None)
    state = rank_state(*steps, **{**usual, **fields})
    state.load_per_cpu = load
    return state


def _holds(state: RankState) -> tuple[bool, bool]:
    return OUTSIDE.holds(state, False), OUTSIDE.holds(state, True)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (_state(1.0), (True, True)),
        (_state(0.99), (False, True)),
        (_state(0.7), (False, True)),
        (_state(0.69), (False, False)),
        (_state(count=20), (True, True)),
        (_state(count=19), (False, False)),
        (_state(step_seconds_mean=None), (False, False)),
        (_state(outside_seconds=None), (False, False)),
        (_state(kind="request", inference=True), (False, False)),
        (_state(state="stalled"), (False, False)),
        (_state(phases={"forward": 50.0, "dataload": 25.0}), (True, True)),
        (_state(phases={"forward": 49.0, "dataload": 26.0}), (False, False)),
        (_state(outside_work_pct=20.0), (True, True)),  # it waits for a CPU: twice the threshold
        (_state(outside_work_pct=19.9), (False, True)),
        (_state(outside_work_pct=14.0), (False, True)),
        (_state(outside_work_pct=13.9), (False, False)),
        (_state(1.9, outside_work_pct=30.0), (False, True)),
        (_state(gpu_busy_pct=95.1, on={"util_pct": 97.0}), (False, True)),
        (_state(gpu_busy_pct=94.9, on={"util_pct": 97.0}), (True, True)),
        (_state(gpu_busy_pct=96.1, on={"util_pct": 97.0}), (False, False)),
        (_state(1.9, outside_causes=()), (False, True)),
        (_state(2.0, outside_causes=()), (True, True)),
        (_state(2.0, outside_causes=(), load=4.1), (False, True)),
        (_state(2.0, outside_causes=(), load=4.0), (True, True)),
        (_state(2.0, load=4.1), (True, True)),
        (_state(1.9, outside_causes=(Cause(what="a.py:1 work()", seconds=0.5),)), (True, True)),  # 5 % of the step
        (_state(1.9, outside_causes=(Cause(what="a.py:1 work()", seconds=0.49),)), (False, True)),
        (_state(1.9, outside_causes=(Cause(what="a.py:1 work()", seconds=0.47),) * 2), (False, True)),
        (_state(1.9, outside_causes=(Cause(what="a.py:1 work()", seconds=0.48),) * 2), (True, True)),
    ],
    ids=range(29),
)
def test_time_in_no_phase_has_the_documented_limits(state: RankState, expected: tuple[bool, bool]) -> None:
    assert _holds(state) == expected


@pytest.mark.parametrize(
    ("lost", "usual", "expected"),
    [
        (360.0, 5.0, (True, True)),  # 10 % of an hour, of 20 %
        (370.0, 5.0, (False, True)),
        (9000.0, 9.0, (True, True)),  # no more than the steps are longer than usual
        (9000.0, 8.9, (False, True)),
        (9000.0, None, (True, True)),
        (9000.0, 11.0, (True, True)),
    ],
)
def test_what_rare_long_steps_cost_is_taken_off(
    lost: float, usual: float | None, expected: tuple[bool, bool]
) -> None:
    rare = RareSteps(seconds=50.0, usual_seconds=9.0, seconds_per_hour=lost)
    assert _holds(_state(2.0, rare=rare, step_seconds_p50=usual)) == expected


@pytest.mark.parametrize(("apart", "expected"), [(5.6, True), (6.8, False)])
def test_steps_that_differ_make_the_share_less_sure(apart: float, expected: bool) -> None:
    """The mean of eight blocks, by turns so many percent apart, has an error of half of that over sqrt(7)."""
    blocks = [
        steps_of({"forward": 88.0 + apart / 2 * (-1) ** (index // 5)}, count=index + 1)[index]
        for index in range(40)
    ]
    state = rank_state(
        *blocks,
        outside_seconds=1.23,
        step_seconds_mean=10.0,
        outside_causes=(Cause(what="a.py:1 work()", seconds=1.0),),
        phases=blocks[0].phases,
    )
    assert (12.3 - 2 * apart / 2 / 7**0.5 >= 10.0) is expected
    assert OUTSIDE.holds(state, False) is expected


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ((), []),
        ((None,), []),
        ((1,), []),
        ((2,), ["a"]),
        ((9, 9), ["a", "b"]),
        ((9, 1), ["a"]),
        ((9, 9, 9, 9), ["a", "b", "c"]),
        ((9, None, 9), ["a", "c"]),
        ((40, 25), ["a", "b"]),  # 40 of 65: the lower bound is 0.494
        ((40, 24), ["a"]),
    ],
    ids=str,
)
def test_causes_that_samples_do_not_separate_are_alike(
    samples: tuple[int | None, ...], expected: list[str]
) -> None:
    """Wilson's lower bound of the first one's share of both must be above a half."""
    causes = tuple(
        Cause(what=name, seconds=1.0, samples=count) for name, count in zip("abcd", samples, strict=False)
    )
    assert [one.what for one in alike_causes(_state(outside_causes=causes))] == expected


@pytest.mark.parametrize(
    ("seconds", "samples", "expected"), [(0.25, 3, True), (0.24, 3, False), (0.24, 4, True), (0.25, 1, False)]
)
def test_three_samples_name_no_cause_of_less_than_a_quarter(seconds: float, samples: int, expected: bool) -> None:
    cause = Cause(what="a", seconds=seconds, samples=samples)
    assert bool(alike_causes(_state(1.0, outside_causes=(cause,)))) is expected


@pytest.mark.parametrize(
    ("causes", "listed", "points"),
    [
        ((), "phases.", ()),
        ((("a()", 2.0, None),), "phases: 2.00 s in a().", ("2.00 s in a()",)),
        (
            (("a()", 2.0, None), ("b()", 1.0, None)),
            "2.00 s in a() and 1.00 s in b().",
            ("2.00 s in a()", "1.00 s in b()"),
        ),
        ((("a()", 2.0, None), ("b()", 0.9, None)), "phases: 2.00 s in a().", ("2.00 s in a()",)),
        (
            (("a()", 2.0, None), ("b()", 1.0, None), ("c()", 1.0, None)),
            "and 1.00 s in b().",
            ("2.00 s in a()", "1.00 s in b()"),
        ),
        (
            (("a()", 1.5, 9), ("b()", 1.2, 8)),
            "2.70 s in a() (9 samples) and b() (8 samples).",
            ("1.50 s in a()", "1.20 s in b()"),
        ),
        (
            (("a()", 2.0, 30), ("b()", 1.0, 9)),
            "2.00 s in a() and 1.00 s in b().",
            ("2.00 s in a()", "1.00 s in b()"),
        ),
        ((("a()", 2.0, 30), ("b()", 1.0, 1)), "phases: 2.00 s in a().", ("2.00 s in a()",)),
        (
            (("a()", 2.0, 30), ("b()", 1.0, 2)),
            "2.00 s in a() and 1.00 s in b().",
            ("2.00 s in a()", "1.00 s in b()"),
        ),
    ],
    ids=str,
)
def test_causes_of_a_quarter_are_named_with_their_time(
    causes: tuple[tuple[str, float, int | None], ...], listed: str, points: tuple[str, ...]
) -> None:
    made = tuple(Cause(what=what, seconds=seconds, samples=samples) for what, seconds, samples in causes)
    state = _state(4.0, outside_causes=made, rank=3, window_seconds=15.0)
    shown = OUTSIDE.describe(state)
    assert shown.summary.startswith("Rank 3 (pid 100): 40 % of each step (4.00 s) is spent outside all phases")
    assert shown.summary.endswith(listed)
    assert shown.points == ("40 % of each step is untimed", *points)
    named = [shown.evidence.get(f"cause_{place}") for place in (1, 2)]
    assert [one for one in named if one] == [point.partition(" in ")[2] for point in points]
    assert (shown.evidence["step_seconds"], shown.evidence["window_seconds"]) == (10.0, 15.0)
    if points:
        assert shown.evidence["cause_1_seconds"] == made[0].seconds


@pytest.mark.parametrize(
    ("causes", "advice"),
    [
        ((("a.py:1 print(x)", 9), ("a.py:2 logger.info(x)", 8)), "log every 50 steps"),
        (
            (("a.py:1 print(x)", 9), ("a.py:2 save(x)", 8)),
            "press s for the Python stacks of pid 100, or run: py-spy",
        ),
        ((("a.py:1 print(x)", 30), ("a.py:2 save(x)", 9)), "log every 50 steps"),
    ],
    ids=str,
)
def test_causes_that_may_each_be_the_largest_need_the_same_advice(
    causes: tuple[tuple[str, int], ...], advice: str
) -> None:
    made = tuple(Cause(what=what, seconds=1.5, samples=samples) for what, samples in causes)
    assert OUTSIDE.describe(_state(4.0, outside_causes=made)).next.startswith(advice)


@pytest.mark.parametrize(
    ("what", "is_timed", "advice"),
    [
        ("train.py:3 for batch in loader:", False, "wrap the data loader"),
        ("train.py:3 for batch in loader:", True, "if this code prepares the batch"),
        ("train.py:3-9 for batch in loader:", False, "press s for the Python stack"),
        ("log(.py:3 work()", False, "press s for the Python stack"),
        ("garbage collection", False, "call gc.freeze()"),
        ("train.py:3 print(loss)", True, "log every 50 steps"),
    ],
)
def test_advice_follows_the_line_and_not_its_place(what: str, is_timed: bool, advice: str) -> None:
    phases = {"dataload": 10.0} if is_timed else {"forward": 10.0}
    assert advice_for(_state(phases=phases), what).startswith(advice)
