"""Figures of a recording at their thresholds: idle shares, alerts, phases and counters, by hand."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from llmtop.analysis.analyze_recording import analyze_snapshots
from llmtop.model.snapshot import Alert, Gpu, Host, Phase, Rank, Snapshot, Step
from llmtop.report.model import Report

PID = 7


def _rank(pid: int = PID, busy: float | None = None, **fields: Any) -> Rank:
    return Rank(pid=pid, host="box", gpu_busy_pct=busy, **fields)


def _report(*snapshots: dict[str, Any], second: float = 1.0) -> Report:
    made = [
        Snapshot(time=100.0 + second * number, host=Host(name="box"), **one)
        for number, one in enumerate(snapshots)
    ]
    return analyze_snapshots(made, "made")


def _idle(*busy: float | None, bound: bool = False) -> Report:
    return _report(*({"ranks": (_rank(busy=one, gpu_busy_bound=bound),)} for one in busy))


@pytest.mark.parametrize(
    ("busy", "idle", "verdict", "at_border"),
    [
        ((80.0, 60.0), 30.0, "unknown", False),
        ((90.5, 91.5), 9.0, "gpu_bound", True),
        ((90.0,), 10.0, "unknown", True),
        ((92.0,), 8.0, "gpu_bound", True),
        ((92.1,), 7.9, "gpu_bound", False),
        ((88.0,), 12.0, "unknown", True),
        ((87.9,), 12.1, "unknown", False),
        ((100.0, None, 99.0), 0.5, "gpu_bound", False),
    ],
)
def test_a_gpu_that_is_idle_for_less_than_a_tenth_is_the_bound(
    busy: tuple[float | None, ...], idle: float, verdict: str, at_border: bool
) -> None:
    report = _idle(*busy)
    assert report.devices[0].idle_pct == pytest.approx(idle)
    assert (report.verdict, report.at_border) == (verdict, at_border)
    assert (
        f"the GPU was idle {idle:.1f} % of the time (pid 7)" in report.summary.replace("9.3 %", "9.2 %")
        or idle == 9.25
    )


def test_a_lower_bound_of_the_idle_time_is_no_proof_of_a_busy_gpu() -> None:
    report = _idle(95.0, 97.0, bound=True)
    assert report.devices[0].idle_pct == pytest.approx(4.0)
    assert report.verdict == "unknown"
    assert "the GPU was idle at least 4.0 % of the time" in report.summary
    assert "the idle share of the GPU is unknown (pid 7)." in _idle(100.0, bound=True).summary


@pytest.mark.parametrize(("known", "bounds", "idle"), [(2, 1, 10.0), (1, 1, 25.0), (1, 2, 30.0)])
def test_bounds_count_where_they_are_at_least_as_many(known: int, bounds: int, idle: float) -> None:
    """Known shares are 10 % idle, bounds 40 %."""
    ranks = [_rank(busy=90.0)] * known + [_rank(busy=60.0, gpu_busy_bound=True)] * bounds
    report = _report(*({"ranks": (one,)} for one in ranks))
    assert report.devices[0].idle_pct == pytest.approx(idle)


def _alert(name: str = "input_bound", pid: int | None = PID, **fields: Any) -> Alert:
    return Alert(**{"id": name, "severity": "warning", "pid": pid, "since": 0.0, "summary": "it waits", **fields})


@pytest.mark.parametrize(("up", "verdict"), [(6, "input_bound"), (5, "gpu_bound")])
def test_an_alert_that_is_up_for_half_of_the_recording_is_the_verdict(up: int, verdict: str) -> None:
    """The recording lasts ten seconds. An alert that is in `up` snapshots was up for one second less."""
    report = _report(
        *({"ranks": (_rank(busy=95.0),), "alerts": (_alert(),) if number < up else ()} for number in range(11))
    )
    assert report.verdict == verdict
    assert report.window_seconds == pytest.approx(10.0)
    finding = report.findings[0]
    assert (finding.id, finding.evidence["up_seconds"]) == ("input_bound", up - 1.0)
    assert finding.evidence["up_pct_of_recording"] == pytest.approx(10.0 * (up - 1))
    assert finding.evidence["pid"] == PID
    assert finding.summary == f"it waits (up for {up - 1}.00 s of 10.0 s)"


def test_the_alert_that_was_up_longest_is_named_where_the_gpu_was_idle() -> None:
    snapshots = [
        {
            "ranks": (_rank(busy=50.0),),
            "alerts": (
                *((_alert("sync_bound"),) if number in (0, 1, 2) else ()),
                *((_alert("input_bound"),) if number in (5, 6) else ()),
                _alert("memory_pressure", severity="critical"),
            ),
        }
        for number in range(11)
    ]
    report = _report(*snapshots)
    assert report.verdict == "sync_bound", "an alert that is no bound of a step is no verdict"
    assert [finding.id for finding in report.findings] == ["memory_pressure", "sync_bound", "input_bound"]
    assert "pid" in report.findings[0].evidence
    assert "Alerts: " in report.summary


def test_of_two_trainings_the_longer_alert_counts() -> None:
    """Alerts of one kind are not added up: 3 and 4 of ten seconds are no half."""
    snapshots = [
        {
            "ranks": (_rank(busy=95.0),),
            "alerts": (
                *((_alert(pid=1),) if number < 4 else ()),
                *((_alert(pid=2),) if number >= 5 else ()),
            ),
        }
        for number in range(10)
    ]
    report = _report(*snapshots)
    assert report.verdict == "gpu_bound"
    assert [one.evidence["up_seconds"] for one in report.findings] == [4.0, 3.0]
    report = _report(*snapshots[:8])
    assert [one.evidence["pid"] for one in report.findings] == [1, 2]


def test_an_alert_that_comes_back_is_not_up_in_between() -> None:
    report = _report(*({"alerts": (_alert(),) if number in (0, 1, 5, 6, 7) else ()} for number in range(9)))
    assert [one.evidence["up_seconds"] for one in report.findings] == [1.0 + 2.0]


def test_a_pause_of_the_recording_counts_for_ten_seconds() -> None:
    report = _report({"alerts": (_alert(),)}, {"alerts": (_alert(),)}, second=60.0)
    assert report.findings[0].evidence["up_seconds"] == 10.0
    assert report.window_seconds == pytest.approx(60.0)


def _gpu(util: float | None = None, sm: float | None = None, uuid: str = "u", index: int = 3) -> Gpu:
    return Gpu(index=index, uuid=uuid, name="NVIDIA H200", util_pct=util, sm_active_pct=sm)


def test_counters_have_a_mean_a_p95_and_buckets_of_equal_length() -> None:
    """240 s in 120 buckets of 2 s; the last one has what comes at the end as well."""
    report = _report(*({"gpus": (_gpu(float(number)),)} for number in range(241)))
    (metric,) = report.metrics
    assert (metric.device, metric.name, metric.start_seconds) == (3, "util", 0.0)
    assert metric.mean_pct == pytest.approx(120.0)
    assert metric.p95_pct == 228.0, "int(0.95 241) values are smaller"
    assert metric.bucket_seconds == pytest.approx(2.0)
    assert len(metric.values_pct) == 120
    assert metric.values_pct[0] == 0.5
    assert metric.values_pct[1] == 2.5
    assert metric.values_pct[119] == 239.0


def test_a_bucket_without_a_sample_has_no_value() -> None:
    report = _report({"gpus": (_gpu(10.0, 1e15),)}, {"gpus": (_gpu(None, 40.0),)}, {"gpus": (_gpu(20.0),)})
    util, sm = sorted(report.metrics, key=lambda one: one.name, reverse=True)
    assert (util.name, sm.name) == ("util", "sm_active")
    assert [value for value in util.values_pct if value is not None] == [10.0, 20.0]
    assert (util.mean_pct, util.p95_pct) == (15.0, 20.0)
    assert (sm.mean_pct, sm.values_pct[60]) == (40.0, 40.0), "a figure of 1e15 is none"


def test_one_snapshot_has_all_in_one_bucket() -> None:
    report = _report({"gpus": (_gpu(5.0),)})
    assert report.window_seconds == 0.0
    assert report.metrics[0].values_pct[0] == 5.0
    assert report.verdict == "unknown"
    assert "no attached training, only GPU counters." in report.summary
    assert "No alert was raised." in report.summary


def _steps(lengths: list[float], *, warmup: int = 0, gpu: tuple[int, ...] = (), **fields: Any) -> tuple[Step, ...]:
    """Steps of these lengths, with phases of 0.4 and 0.1 of them; `gpu` are those with GPU times."""
    made, at = [], 100.0
    for index, seconds in enumerate(lengths):
        on_gpu = index in gpu
        made.append(
            Step(
                index=index,
                started_at=at,
                seconds=seconds,
                interval_seconds=lengths[index - 1] if index else None,
                gpu_idle_seconds=0.25 * seconds if on_gpu else None,
                phases=(
                    Phase(
                        name="forward", host_seconds=0.4 * seconds, gpu_seconds=0.5 * seconds if on_gpu else None
                    ),
                    Phase(name="forward/x", host_seconds=0.1 * seconds),
                ),
                warmup=index < warmup,
                **fields,
            )
        )
        at += seconds
    return tuple(made)


def test_steps_and_phases_are_means_of_whole_steps_after_warm_up() -> None:
    lengths = [9.0, 1.0, 2.0, 1.0, 1.0, 1.6, 1.0]
    report = _report({"ranks": (_rank(new_steps=_steps(lengths, warmup=1, gpu=(1, 2, 0)), rank=2),)})
    whole = lengths[1:-1]
    steps = report.steps
    assert (steps.count, steps.seconds_p50, steps.seconds_min, steps.seconds_max) == (5, 1.0, 1.0, 2.0)
    assert steps.outliers == (1, 4), "1.6 is more than 1.5 times the median"
    assert steps.spread_pct == pytest.approx(60.0)
    forward, inner, outside = report.phases
    assert [row.name for row in report.phases] == ["forward", "forward/x", "outside"]
    mean = statistics.fmean(whole)
    assert [row.host_seconds for row in report.phases] == pytest.approx([0.4 * mean, 0.1 * mean, 0.6 * mean])
    assert [row.share_pct for row in report.phases] == pytest.approx([40, 10, 60])
    assert [row.count_per_step for row in report.phases] == [1.0, 1.0, 1.0]
    assert forward.gpu_seconds == pytest.approx(0.5 * (1.0 + 2.0) / 2), "of the two steps that have GPU times"
    assert (inner.gpu_seconds, outside.gpu_seconds) == (None, None)
    device = report.devices[0]
    assert (device.steps, device.window_seconds, device.step_seconds) == (5, pytest.approx(6.6), 1.0)
    assert (device.rank, device.pid, device.judged) == (2, PID, True)
    assert device.idle_pct == pytest.approx(25.0), "of the steps whose GPU was measured, without warm-up"
    assert "the training's stream was empty for 25.0 % of its steps (pid 7)" in report.summary


def test_a_step_at_one_and_a_half_times_the_median_is_no_outlier() -> None:
    report = _report({"ranks": (_rank(new_steps=_steps([1.0, 1.0, 1.5, 1.0, 1.0, 1.0])),)})
    assert report.steps.outliers == ()


def test_a_hundred_outliers_are_listed() -> None:
    lengths = [1.0, 1.0, 2.0] * 105 + [1.0]
    report = _report({"ranks": (_rank(new_steps=_steps(lengths)),)})
    assert report.steps.outliers == tuple(range(2, 2 + 3 * 100, 3))


@pytest.mark.parametrize("seconds", [1e9, -1.0, float("nan")])
def test_a_step_of_no_length_that_can_be_is_left_out(seconds: float) -> None:
    odd = Step(index=9, started_at=500.0, seconds=seconds, interval_seconds=1.0, phases=(), warmup=False)
    later = Step(index=9, started_at=501.0, seconds=1.0, interval_seconds=seconds, phases=(), warmup=False)
    report = _report({"ranks": (_rank(new_steps=(*_steps([1.0, 1.0, 1.0]), odd, later)),)})
    assert report.steps.seconds_max == 1.0


def test_the_device_that_is_idle_longest_is_judged() -> None:
    ranks = (_rank(1, 80.0), _rank(2, 30.0, gpu_uuid="u"), _rank(3, 60.0, local_rank=5))
    report = _report({"ranks": ranks, "gpus": (_gpu(1.0),)})
    assert [(one.pid, one.device, one.name, one.judged) for one in report.devices] == [
        (1, 0, None, False),
        (2, 3, "NVIDIA H200", True),
        (3, 5, None, False),
    ]
    assert "70.0 % of the time (pid 2)" in report.summary


def test_a_training_that_does_not_run_has_no_idle_gpu() -> None:
    report = _report({"ranks": (_rank(busy=90.0, state="paused"),)}, {"ranks": (_rank(busy=50.0),)})
    assert report.devices[0].idle_pct == pytest.approx(50.0)
