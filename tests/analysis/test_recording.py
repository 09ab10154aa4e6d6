"""A recording of snapshots gives a report too, and says what it cannot know."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

from llmtop.analysis.analyze_recording import analyze_snapshots
from llmtop.analysis.load_report import load_report
from llmtop.errors import UnusableInput
from llmtop.model.snapshot import Alert, Gpu, Host, Phase, Rank, Snapshot, Step
from llmtop.recording.reader_writer import Writer
from tests.support.data import DATA

GPU = "GPU-1"
DEMO = DATA.parents[1] / "llmtop" / "data" / "demo.llmtop.gz"


def _step(index: int, seconds: float, idle: float | None) -> Step:
    return Step(
        index=index,
        started_at=100.0 + index * seconds,
        seconds=seconds,
        interval_seconds=seconds,
        gpu_idle_seconds=idle,
        phases=(
            Phase(name="dataload", host_seconds=seconds * 0.6, gpu_seconds=idle),
            Phase(name="forward", host_seconds=seconds * 0.4, gpu_seconds=seconds - (idle or 0)),
        ),
        warmup=index < 2,
    )


def _snapshots(
    count: int = 20, idle_share: float | None = 0.5, alert: str | None = "input_bound"
) -> list[Snapshot]:
    made = []
    for second in range(count):
        steps = tuple(
            _step(second * 10 + i, 0.1, None if idle_share is None else 0.1 * idle_share) for i in range(10)
        )
        alerts = ()
        if alert and second >= 2:
            alerts = (
                Alert(
                    id=alert, severity="warning", pid=7, since=102.0, summary="it waits", evidence={"share": 0.5}
                ),
            )
        made.append(
            Snapshot(
                time=100.0 + second,
                host=Host(name="box"),
                gpus=(
                    Gpu(
                        index=0, uuid=GPU, name="NVIDIA H200", util_pct=50.0, sm_active_pct=40.0, power_watts=300.0
                    ),
                ),
                ranks=(Rank(pid=7, host="box", rank=0, gpu_uuid=GPU, new_steps=steps),),
                alerts=alerts,
            )
        )
    return made


def _written(folder: Path, snapshots: list[Snapshot]) -> Path:
    path = folder / "run.llmtop"
    writer = Writer(path, host="box")
    for snapshot in snapshots:
        writer.write(snapshot)
    writer.close()
    return path


def test_a_recording_gives_steps_phases_and_alerts(tmp_path: Path) -> None:
    report = load_report(_written(tmp_path, _snapshots()))
    assert report.engine == "recording"
    assert report.verdict == "input_bound"
    assert report.steps.count == 197, "two steps of warm-up and the last, which is not whole, are left out"
    assert report.steps.seconds_p50 == pytest.approx(0.1)
    assert [(row.name, round(row.share_pct or 0)) for row in report.phases] == [
        ("dataload", 60),
        ("forward", 40),
        ("outside", 0),
    ]
    assert report.devices[0].idle_pct == pytest.approx(50)
    finding = report.findings[0]
    assert (finding.id, finding.evidence["up_seconds"]) == ("input_bound", 17.0)
    assert {metric.name: metric.mean_pct for metric in report.metrics} == {"util": 50.0, "sm_active": 40.0}


def test_an_alert_is_one_finding_though_its_training_ends_before_it(tmp_path: Path) -> None:
    def spinning(one: Snapshot, pid: int | None) -> Snapshot:
        return replace(one, alerts=tuple(replace(alert, gpu=GPU, pid=pid) for alert in one.alerts))

    snapshots = _snapshots(alert="low_power_full_util")
    made = [spinning(one, 7 if place < 18 else None) for place, one in enumerate(snapshots)]
    findings = load_report(_written(tmp_path, made)).findings
    assert [finding.id for finding in findings] == ["low_power_full_util"]
    assert findings[0].evidence["up_seconds"] == 17.0
    assert findings[0].evidence["pid"] == 7


def test_an_alert_without_its_training_is_the_last_one_s(tmp_path: Path) -> None:
    snapshots = _snapshots(alert="low_power_full_util")
    pids = {**dict.fromkeys(range(2, 8), 7), **dict.fromkeys(range(8, 16), 8), **dict.fromkeys(range(16, 20))}
    made = [
        replace(one, alerts=tuple(replace(alert, gpu=GPU, pid=pids[place]) for alert in one.alerts))
        for place, one in enumerate(snapshots)
    ]
    findings = load_report(_written(tmp_path, made)).findings
    assert {finding.evidence["pid"]: finding.evidence["up_seconds"] for finding in findings} == {7: 5.0, 8: 11.0}


def test_it_says_what_it_cannot_know(tmp_path: Path) -> None:
    report = load_report(_written(tmp_path, _snapshots()))
    assert any("need a capture" in note for note in report.notes)
    assert report.devices[0].kernels is None
    assert report.devices[0].busy_pct is None
    assert report.kernels == ()


def test_a_busy_gpu_without_alerts_is_gpu_bound() -> None:
    report = analyze_snapshots(_snapshots(idle_share=0.02, alert=None), "run")
    assert report.verdict == "gpu_bound"
    assert report.findings == ()


def test_without_gpu_time_and_alerts_the_verdict_is_unknown() -> None:
    report = analyze_snapshots(_snapshots(idle_share=None, alert=None), "run")
    assert report.verdict == "unknown"
    assert "not measured" in report.summary


def test_idle_without_a_named_cause_is_unknown() -> None:
    assert analyze_snapshots(_snapshots(idle_share=0.4, alert=None), "run").verdict == "unknown"


def test_gpu_times_that_came_later_are_taken() -> None:
    snapshots = _snapshots(count=3, idle_share=None, alert=None)
    late = tuple(_step(index, 0.1, 0.03) for index in range(30))
    rank = Rank(pid=7, host="box", rank=0, gpu_uuid=GPU, gpu_updates=late)
    snapshots.append(Snapshot(time=103.0, host=Host(name="box"), ranks=(rank,)))
    assert analyze_snapshots(snapshots, "run").devices[0].idle_pct == pytest.approx(30)


def test_a_recording_without_a_training_still_has_the_gpu(tmp_path: Path) -> None:
    bare = [Snapshot(time=snapshot.time, host=snapshot.host, gpus=snapshot.gpus) for snapshot in _snapshots()]
    report = load_report(_written(tmp_path, bare))
    assert report.verdict == "unknown"
    assert len(report.metrics) == 2
    assert "no attached training" in report.summary


def test_a_cut_recording_says_so(tmp_path: Path) -> None:
    path = _written(tmp_path, _snapshots(40))
    path.write_bytes(path.read_bytes()[:-20])
    report = load_report(path)
    assert any("left out" in note for note in report.notes)


def test_no_snapshot_at_all(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="no readable snapshot"):
        load_report(_written(tmp_path, []))


def _epochs(phases: tuple[str, ...] = ("forward",)) -> list[Snapshot]:
    """Three epochs of ten steps of 0.1 s, each counted from 0; GPU times follow a snapshot later."""
    made, begin, earlier = [], 100.0, ()
    for epoch in range(3):
        steps = tuple(
            Step(
                index=index,
                started_at=begin + index * 0.1,
                seconds=0.1,
                interval_seconds=0.1,
                phases=tuple(Phase(name=name, host_seconds=0.01) for name in phases)
                + ((Phase(name="checkpoint", host_seconds=0.05),) if epoch == 1 and index == 5 else ()),
            )
            for index in range(10)
        )
        begin += 1.0
        late = tuple(replace(step, gpu_idle_seconds=0.02) for step in earlier)
        made.append(Snapshot(time=begin, host=Host(name="box"), ranks=(_rank(steps, late),)))
        earlier = steps
    return made


def _rank(steps: tuple[Step, ...], late: tuple[Step, ...]) -> Rank:
    return Rank(pid=7, host="box", new_steps=steps, gpu_updates=late)


def test_steps_that_a_script_counts_anew_in_every_epoch_are_all_steps(tmp_path: Path) -> None:
    report = load_report(_written(tmp_path, _epochs()))
    assert report.steps.count == 29, "of thirty the last is not whole"
    assert report.steps.seconds_p50 == pytest.approx(0.1)
    assert report.devices[0].idle_pct == pytest.approx(20), "GPU times came for the steps of two epochs"


def test_a_phase_of_few_steps_is_said_to_be_of_few(tmp_path: Path) -> None:
    report = load_report(_written(tmp_path, _epochs()))
    counts = {row.name: row.count_per_step for row in report.phases}
    assert counts["forward"] == 1.0
    assert counts["checkpoint"] == pytest.approx(1 / 29)
    assert counts["outside"] == 1.0


def test_the_figures_of_a_real_recording_are_those_of_its_lines() -> None:
    """By plain arithmetic on the lines: a step is whole when the next one tells how long it took."""
    told: dict[int, dict[tuple[int, float], dict[str, Any]]] = {}
    for line in gzip.decompress(DEMO.read_bytes()).splitlines()[1:]:
        for rank in json.loads(line)["ranks"]:
            steps = told.setdefault(rank["pid"], {})
            steps |= {(step["index"], step["started_at"]): step for step in rank["new_steps"]}
            late = {(step["index"], step["started_at"]): step for step in rank.get("gpu_updates", ())}
            steps |= {key: step for key, step in late.items() if key in steps}
    report = load_report(DEMO)
    assert {device.pid for device in report.devices} == set(told)
    for device in report.devices:
        steps = [told[device.pid][key] for key in sorted(told[device.pid], key=lambda key: key[1])]
        pairs = list(pairwise(steps))
        whole = [
            (step, max(after["interval_seconds"], step["seconds"]))
            for step, after in pairs
            if after["interval_seconds"] and after["index"] == step["index"] + 1 and not step["warmup"]
        ]
        assert device.steps == len(whole)
        if not whole:
            continue
        length = sum(seconds for _, seconds in whole)
        assert device.step_seconds == pytest.approx(median(seconds for _, seconds in whole))
        assert device.window_seconds == pytest.approx(length)
        rows = {row.name: row for row in report.phases if row.pid == device.pid}
        for name in set(rows) - {"outside"}:
            took = [
                phase["host_seconds"] for step, _ in whole for phase in step["phases"] if phase["name"] == name
            ]
            assert rows[name].host_seconds == pytest.approx(sum(took) / len(whole)), name
            assert rows[name].share_pct == pytest.approx(100 * sum(took) / length), name
            assert rows[name].count_per_step == pytest.approx(len(took) / len(whole)), name
        outermost = [row for row in rows.values() if "/" not in row.name]
        assert sum(row.host_seconds for row in outermost) == pytest.approx(length / len(whole), rel=1e-4)
