"""The alert `slower`: what it says of a change, of whom in a job, and when it is silent."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from llmtop.model.run_reference import RunReference
from llmtop.model.snapshot import Alert, Change, Rank, Snapshot, Window
from llmtop.naming.own_phases import OUTSIDE
from llmtop.recording.reader_writer import Reader
from llmtop.rules.engine import Rules
from llmtop.rules.slower import SLOWER
from llmtop.rules.slower_than_run import slower_than_run
from llmtop.rules.state.rank import JobState, RankState
from llmtop.step_history.step_changes import StepChanges
from llmtop.step_history.whole_steps import WholeStepBuilder
from tests.support import snapshots
from tests.support.processes import REPOSITORY

NOW = 1.8e9
CHANGE = Change(
    since_step=512,
    since=NOW - 34,
    before_seconds=0.055,
    after_seconds=0.160,
    part="dataload",
    part_before_seconds=0.0001,
    part_after_seconds=0.106,
)


def training(pid: int = 100, **fields: Any) -> Rank:
    usual = {"kind": "step", "state": "running", "step": 700, "change": CHANGE, "last_step_at": NOW}
    return snapshots.rank(pid, **{**usual, **fields})


def alerts(*ranks: Rank, rules: Rules | None = None, time: float = NOW, **fields: Any) -> list[Alert]:
    found = (rules or Rules()).apply(snapshots.snapshot(time, ranks=ranks, **fields)).alerts
    return [alert for alert in found if alert.id == "slower"]


def test_it_says_since_when_by_how_much_and_which_part() -> None:
    (alert,) = alerts(training(gpu_uuid="GPU-00000000"), gpus=(snapshots.gpu(),))
    assert alert.summary == (
        "Steps of pid 100 (GPU 0) take 2.9x as long as before since step 512, 34.0 s ago: dataload 100 µs → 106 "
        "ms."
    )
    assert alert.severity == "warning"
    assert (alert.since, alert.pid, alert.gpu) == (NOW - 34, 100, "GPU-00000000")
    assert alert.evidence == {
        "times_as_long": pytest.approx(2.91, abs=0.01),
        "since_step": 512,
        "before_step_seconds": 0.055,
        "step_seconds": 0.16,
        "part": "dataload",
        "part_before_seconds": 0.0001,
        "part_seconds": 0.106,
    }
    assert "Python stacks of the data loader" in alert.next


@pytest.mark.parametrize(
    ("part", "word"),
    [
        ("h2d", "pin_memory"),
        ("communication", "straggler"),
        ("forward", "profile"),
        ("outside", "between steps"),
        ("my own thing", "profile"),
        (None, "CPUs"),
    ],
)
def test_what_to_do_next_depends_on_the_part(part: str | None, word: str) -> None:
    (alert,) = alerts(training(change=replace(CHANGE, part=part)))
    assert word in alert.next
    assert ("several phases" if part is None else "untimed" if part == "outside" else part) in alert.summary


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"change": None}, id="no change"),
        pytest.param({"change": replace(CHANGE, after_seconds=0.02)}, id="faster"),
        pytest.param({"change": replace(CHANGE, after_seconds=0.058)}, id="by little"),
        pytest.param({"change": replace(CHANGE, since=NOW - 1801)}, id="normal by now"),
        pytest.param({"change": replace(CHANGE, before_seconds=0.0)}, id="no length before"),
        pytest.param({"change": replace(CHANGE, before_seconds=float("nan"))}, id="no number"),
        pytest.param({"kind": "request"}, id="requests"),
        *(pytest.param({"state": state}, id=state) for state in ("paused", "stopped", "stalled", "gone")),
    ],
)
def test_it_is_silent_and_a_neighbour_is_still_told(fields: dict[str, Any]) -> None:
    assert [alert.pid for alert in alerts(training(1, **fields), training(2))] == [2]


def test_it_goes_when_steps_are_as_before() -> None:
    rules = Rules()
    assert alerts(training(), rules=rules)
    back = replace(CHANGE, since_step=800, since=NOW + 9, before_seconds=0.16, after_seconds=0.055)
    assert not alerts(training(change=back), rules=rules, time=NOW + 10)


def test_a_wall_clock_that_is_set_makes_it_no_older() -> None:
    rules = Rules()
    first = snapshots.snapshot(NOW, monotonic=50.0, ranks=(training(),))
    set_back = replace(CHANGE, since=CHANGE.since - 7200)
    moved = snapshots.snapshot(NOW - 7199, monotonic=51.0, ranks=(training(change=set_back),))
    assert [alert.id for alert in rules.apply(first).alerts] == ["slower"]
    (alert,) = rules.apply(moved).alerts
    assert "35.0 s ago" in alert.summary


def test_a_job_is_told_once_and_of_the_rank_whose_data_is_late() -> None:
    waits = replace(CHANGE, part="backward", since=NOW - 35, part_before_seconds=0.02, part_after_seconds=0.126)
    ranks = [
        training(100 + rank, rank=rank, world_size=4, command="train.py", change=CHANGE if rank == 2 else waits)
        for rank in range(4)
    ]
    (alert,) = alerts(*ranks)
    assert alert.pid == 102
    assert alert.summary.startswith("Steps of rank 2 (pid 102) take")


def test_lowered_clocks_explain_it_and_the_power_limit_does_not() -> None:
    rank = training(gpu_uuid="GPU-00000000")
    watts = {"util_pct": 99.0, "power_watts": 690.0, "power_limit_watts": 700.0, "sm_clock_mhz": 1400.0}
    for reason, told in (("hw_thermal_slowdown", False), ("sw_power_cap", True)):
        gpu = snapshots.gpu(**watts, sm_clock_max_mhz=1980.0, clock_event_reasons=(reason,))
        rules, found = Rules(), Snapshot(time=NOW, host=snapshots.snapshot().host)
        for second in range(12):
            stepping = replace(rank, last_step_at=NOW + second)
            found = rules.apply(snapshots.snapshot(NOW + second, ranks=(stepping,), gpus=(gpu,)))
        ids = {alert.id for alert in found.alerts}
        assert ids == ({"power_capped", "slower"} if told else {"throttled"})


def test_the_demo_is_slower_within_twenty_seconds_and_not_before() -> None:
    """From the steps that the recording holds, whatever its own headlines say."""
    reader, rules = Reader(REPOSITORY / "llmtop" / "data" / "demo.llmtop.gz"), Rules()
    following, changes, told = WholeStepBuilder(), StepChanges(), {}
    for at, snapshot in reader.snapshots():
        (rank,) = snapshot.ranks or (None,)
        for step in rank.new_steps if rank else ():
            whole = following.add(step)
            if whole is not None and not whole.step.warmup:
                changes.add(whole)
        if rank is not None:
            snapshot = replace(snapshot, ranks=(replace(rank, change=changes.change),))
        for alert in rules.apply(snapshot).alerts:
            if alert.id == "slower":
                told.setdefault(at, alert)
    reader.close()
    first = min(told)
    assert 29 < first < 29 + 20
    assert "since step 628" in told[first].summary
    assert "dataload" in told[first].summary
    assert not [at for at in told if 75 < at < 100], "it starves no more"


@pytest.mark.parametrize(
    ("work", "times", "kind"),
    [
        ({"samples_before": 16, "samples_after": 64}, 4.0, "accumulation"),
        (
            {"samples_before": 16, "samples_after": 16, "tokens_before": 1024, "tokens_after": 1536},
            2.2,
            "sequences",
        ),
        ({"tokens_before": 1024, "tokens_after": 2048}, 4.0, "tokens"),
    ],
)
def test_more_work_is_named_and_accuses_nobody(work: dict[str, float], times: float, kind: str) -> None:
    change = replace(CHANGE, before_seconds=0.1, after_seconds=0.1 * times, **work)
    (alert,) = alerts(training(change=change))
    assert (alert.severity, alert.evidence["work"]) == ("info", kind)
    worse = replace(change, after_seconds=0.1 * times * 1.5)
    (alert,) = alerts(training(change=worse))
    assert (alert.severity, alert.evidence["work"]) == ("warning", kind)


def test_less_work_excuses_nothing() -> None:
    change = replace(CHANGE, samples_before=64, samples_after=16, tokens_before=4096, tokens_after=1024)
    (alert,) = alerts(training(change=change))
    assert alert.severity == "warning"
    assert "work" not in alert.evidence


REFERENCE = RunReference(run="95ba2a88", started=NOW - 30 * 86400, step_seconds_p50=0.1, tokens_per_step=4096.0)


def _beside_an_earlier_run(pid: int = 100, *, seconds: float = 0.112, lasted: float = 90.0, **fields: Any) -> Rank:
    window = Window(
        name="5 min", seconds=lasted, steps=int(lasted / seconds),
        step_seconds=seconds, step_seconds_p50=seconds, step_seconds_p95=seconds,
    )  # fmt: skip
    usual = {
        "change": None, "reference": REFERENCE, "windows": (window,), "step_seconds_p50": seconds,
        "steps_per_s": 1 / seconds, "tokens_per_s": 4096 / seconds, "attached_at": NOW - 120,
    }  # fmt: skip
    return training(pid, **{**usual, **fields})


def test_an_earlier_run_is_named_where_its_steps_were_shorter() -> None:
    (alert,) = alerts(_beside_an_earlier_run())
    day = datetime.fromtimestamp(REFERENCE.started).strftime("%-d %b")
    assert f"12 % slower than in the run of {day} (run:95ba2a88): 100 ms → 112 ms." in alert.summary
    assert alert.evidence["reference_run"] == "95ba2a88"
    assert "llmtop compare run:95ba2a88" in alert.next


@pytest.mark.parametrize(
    "fields",
    [
        {"seconds": 0.108},
        {"lasted": 50.0},
        {"step_seconds_p50": 0.1},
        {"tokens_per_s": 8192 / 0.112},
        {"tokens_per_s": None},
        {"samples_per_s": 10.0},
        {"attached_at": NOW - 3700},
        {"reference": None},
        {"state": "stalled"},
    ],
)
def test_an_earlier_run_is_not_named_without_proof(fields: dict[str, Any]) -> None:
    assert not alerts(_beside_an_earlier_run(**fields))


def test_a_change_within_the_run_comes_before_an_earlier_run() -> None:
    (alert,) = alerts(_beside_an_earlier_run(change=CHANGE))
    assert "since step 512" in alert.summary


# ---- each limit by itself ----


def _job(*ranks: Rank) -> JobState:
    states = []
    for one in ranks:
        state = RankState(one, NOW)
        state.update(one, NOW)
        states.append(state)
    return JobState(states)


def _changed(**fields: Any) -> Change:
    return Change(**{"since_step": 512, "since": NOW - 34, "before_seconds": 1.0, "after_seconds": 2.0, **fields})


@pytest.mark.parametrize(
    ("change", "fields", "expected"),
    [
        (_changed(after_seconds=1.1), {}, True),
        (_changed(after_seconds=1.09), {}, False),
        (_changed(before_seconds=0.0), {}, False),
        (_changed(before_seconds=math.nan), {}, False),
        (_changed(after_seconds=math.nan), {}, False),
        (_changed(since=NOW - 1800), {}, True),
        (_changed(since=NOW - 1801), {}, False),
        (_changed(), {"kind": "request"}, False),
        (_changed(), {"inference": True}, False),
        (_changed(), {"state": "stalled"}, False),
        (None, {}, False),
    ],
)
def test_steps_are_slower_from_a_tenth_on_and_for_half_an_hour(
    change: Change | None, fields: dict[str, Any], expected: bool
) -> None:
    assert SLOWER.holds(_job(training(change=change, **fields)), False) is expected


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ((("forward", 1), ("dataload", 2)), 1),
        ((("backward", 1), ("forward", 2)), 1),
        ((("all_reduce", 1), ("backward", 2)), 1),
        ((("item", 1), ("backward", 2)), 1),
        (((None, 1), ("all_reduce", 2)), 1),
        ((("dataload", 2), ("h2d", 1)), 1),  # the earlier one
        ((("optimizer", 2), ("forward", 1)), 1),
        (((OUTSIDE, 2), ("optimizer", 1)), 0),
        ((("optimizer", 1), ("step", 2)), 0),
    ],
    ids=str,
)
def test_the_rank_whose_part_others_wait_for_is_the_cause(
    parts: tuple[tuple[str | None, int], ...], named: int
) -> None:
    ranks = [
        training(100 + place, change=_changed(part=part, since=NOW - 100 + since), world_size=2, rank=place)
        for place, (part, since) in enumerate(parts)
    ]
    job = _job(*ranks)
    assert SLOWER.describe(job).subject_rank is job.ranks[named]


def test_a_rank_with_more_work_is_named_last() -> None:
    explained = _changed(part="dataload", samples_before=1.0, samples_after=2.0)
    job = _job(training(100, change=explained), training(101, change=_changed(part=None)))
    assert SLOWER.describe(job).subject_rank is job.ranks[1]


@pytest.mark.parametrize(
    ("work", "after", "expected"),
    [
        (
            {"samples_before": 8.0, "samples_after": 16.0},
            2.19,
            ("accumulation", "info", "8 → 16 samples per step"),
        ),
        ({"samples_before": 8.0, "samples_after": 16.0}, 2.21, ("accumulation", "warning", "")),
        ({"tokens_before": 100.0, "tokens_after": 150.0}, 2.47, ("tokens", "info", "100 → 150 tokens per step")),
        ({"tokens_before": 100.0, "tokens_after": 150.0}, 2.48, ("tokens", "warning", "")),
        (
            # Twice the samples of half as much again: 2 x 1.5 x 1.5 at most.
            {"samples_before": 1.0, "samples_after": 2.0, "tokens_before": 100.0, "tokens_after": 300.0},
            4.94,
            ("accumulation", "info", "1 → 2 samples per step"),
        ),
        (
            {"samples_before": 1.0, "samples_after": 2.0, "tokens_before": 100.0, "tokens_after": 300.0},
            4.96,
            ("accumulation", "warning", ""),
        ),
        (
            # Of samples twice as long there are as many as before.
            {"samples_before": 2.0, "samples_after": 2.0, "tokens_before": 100.0, "tokens_after": 200.0},
            4.39,
            ("sequences", "info", "50 → 100 tokens per sample"),
        ),
        (
            # Half as many tokens in each of three times the samples: at least 1.5, at most 3 x 0.5.
            {"samples_before": 1.0, "samples_after": 3.0, "tokens_before": 100.0, "tokens_after": 150.0},
            1.64,
            ("accumulation", "info", "1 → 3 samples per step"),
        ),
        (
            {"samples_before": 1.0, "samples_after": 3.0, "tokens_before": 100.0, "tokens_after": 150.0},
            1.66,
            ("accumulation", "warning", ""),
        ),
        ({"samples_before": 0.0, "samples_after": 16.0}, 2.0, (None, "warning", "")),
        ({"samples_before": 8.0, "samples_after": 8.0}, 2.0, (None, "warning", "")),
        ({"samples_before": 8.0, "samples_after": math.nan}, 2.0, (None, "warning", "")),
    ],
    ids=str,
)
def test_more_work_explains_what_it_costs_and_a_tenth(
    work: dict[str, float], after: float, expected: tuple[str | None, str, str]
) -> None:
    """Samples cost in proportion; length costs up to its square."""
    job = _job(training(change=_changed(after_seconds=after, part="forward", **work)))
    shown = SLOWER.describe(job)
    assert (shown.evidence.get("work"), shown.severity) == expected[:2]
    assert (expected[2] in shown.points) is (shown.severity == "info")
    assert shown.next.startswith("no action if" if shown.severity == "info" else "press c")


@pytest.mark.parametrize(
    ("change", "summary", "points"),
    [
        (
            _changed(after_seconds=1.5),
            "take 1.50x as long as before since step 512, 34.0 s ago: step 1.00 s → 1.50 s, "
            "several phases are longer.",
            ("step 1.00 s → 1.50 s", "several phases are longer", "1.50x as long since step 512"),
        ),
        (
            _changed(part="forward", part_before_seconds=0.5, part_after_seconds=1.5),
            "take 2.0x as long as before since step 512, 34.0 s ago: forward 500 ms → 1.50 s.",
            ("forward 500 ms → 1.50 s", "2.0x as long since step 512"),
        ),
        (
            _changed(after_seconds=1.99, since_step=12_345),
            "take 1.99x as long as before since step 12,345, 34.0 s ago",
            ("step 1.00 s → 1.99 s", "several phases are longer", "1.99x as long since step 12,345"),
        ),
    ],
    ids=["everywhere", "one phase", "just below twice"],
)
def test_clauses_and_sentence_have_the_factor(change: Change, summary: str, points: tuple[str, ...]) -> None:
    shown = SLOWER.describe(_job(training(change=change)))
    assert summary in shown.summary
    assert shown.points == points
    assert shown.since == NOW - 34


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"seconds": 0.1101}, True),
        ({"seconds": 0.1099}, False),
        ({"lasted": 60.0}, True),
        ({"lasted": 59.0}, False),
        ({"seconds": 1.2, "lasted": 61.0, "reference": replace(REFERENCE, step_seconds_p50=1.0)}, True),
        ({"seconds": 1.2, "lasted": 59.0, "reference": replace(REFERENCE, step_seconds_p50=1.0)}, False),
        (
            {"seconds": 1.25, "lasted": 61.0, "reference": replace(REFERENCE, step_seconds_p50=1.0)},
            False,
        ),  # 48 steps
        ({"step_seconds_p50": 0.1101}, True),
        ({"step_seconds_p50": 0.1099}, False),
        ({"step_seconds_p50": None}, False),
        ({"windows": ()}, False),
        ({"attached_at": NOW - 3600}, True),
        ({"attached_at": NOW - 3601}, False),
        ({"attached_at": None}, False),
        ({"tokens_per_s": 4096 * 1.019 / 0.112}, True),
        ({"tokens_per_s": 4096 * 1.021 / 0.112}, False),
        ({"tokens_per_s": 4096 * 0.981 / 0.112}, True),
        ({"tokens_per_s": 4096 * 0.979 / 0.112}, False),
        ({"steps_per_s": None}, False),
        ({"reference": replace(REFERENCE, tokens_per_step=None)}, False),
        ({"reference": replace(REFERENCE, tokens_per_step=None), "tokens_per_s": None}, True),
        ({"reference": replace(REFERENCE, samples_per_step=8.0), "samples_per_s": 8.0 / 0.112}, True),
        ({"reference": replace(REFERENCE, samples_per_step=8.0), "samples_per_s": 9.0 / 0.112}, False),
        ({"reference": replace(REFERENCE, step_seconds_p50=0.0)}, False),
        ({"inference": True}, False),
    ],
    ids=str,
)
def test_an_earlier_run_is_compared_with_as_much_work_over_a_minute(
    fields: dict[str, Any], expected: bool
) -> None:
    job = _job(_beside_an_earlier_run(**fields))
    assert (slower_than_run(job, 1.1) is not None) is expected


def test_the_least_of_the_medians_is_compared() -> None:
    one = _beside_an_earlier_run(seconds=0.14)
    lower = replace(one.windows[0], step_seconds_p50=0.12)
    found = slower_than_run(_job(replace(one, windows=(one.windows[0], lower))), 1.1)
    assert found is not None
    assert found[2] == pytest.approx(1.2)
    short = replace(lower, seconds=30.0, step_seconds_p50=0.05)
    found = slower_than_run(_job(replace(one, windows=(one.windows[0], short))), 1.1)
    assert found is not None
    assert found[2] == pytest.approx(1.4)


def test_the_first_rank_with_a_slower_run_is_named_and_others_are_passed_over() -> None:
    ranks = training(100, change=None), _beside_an_earlier_run(101, seconds=0.15, rank=1)
    job = _job(*ranks)
    assert SLOWER.holds(job, False)
    shown = SLOWER.describe(job)
    assert shown.subject_rank is job.ranks[1]
    assert shown.points == ("50 % slower than run:95ba2a88", "step 100 ms → 150 ms")
    assert shown.evidence["times_as_long"] == pytest.approx(1.5)
    assert (shown.evidence["reference_step_seconds"], shown.evidence["step_seconds"]) == (0.1, pytest.approx(0.15))
    assert shown.since == NOW - 120
