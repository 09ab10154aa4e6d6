"""How busy a training's GPU is said to be, by which witness, and what that makes of six measured programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from collectors.gpu_busy import GpuBusy
from collectors.replay import ReplayFeed
from llmtop.analysis.analyze_recording import analyze_snapshots
from llmtop.model.snapshot import Gpu, Phase, Process, Rank, Snapshot
from llmtop.recording.reader_writer import Reader, Writer
from llmtop.rules.engine import Rules
from tests.support import import_data, nvml_stub
from tests.support.launched import STEPPING, Started
from tests.support.measured_programs import PROGRAMS, Program, stream
from tests.support.processes import environment, wait_for
from tests.support.snapshots import gpu, rank, snapshot

BOUND_IDS = {"launch_bound", "sync_bound", "input_bound", "h2d_bound", "communication_bound"}


def played(recorded: Iterable[Snapshot], path: Path) -> list[Snapshot]:
    """What a screen is shown of a recording of these snapshots."""
    writer = Writer(path, host="made")
    for one in recorded:
        writer.write(one)
    writer.close()
    shown: list[Snapshot] = []
    feed = ReplayFeed(Reader(path), lambda: Rules().apply, speed=float("inf"))
    feed.start(shown.append)
    wait_for(lambda: feed.ended, 60)
    feed.close()
    return shown


@pytest.mark.parametrize("name", PROGRAMS)
def test_idle_time_and_verdict_of_a_measured_program_are_right(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    shown = played(stream(program), tmp_path / "made")
    last = shown[-1]
    (one,) = last.ranks
    assert one.gpu_busy_pct == pytest.approx(program.busy_pct, abs=8.0)
    assert not one.gpu_busy_bound
    assert {alert.id for alert in last.alerts} & BOUND_IDS == ({program.verdict} if program.verdict else set())
    seen = {alert.id for each in shown for alert in each.alerts} & BOUND_IDS
    assert seen <= {program.verdict}, "nor was anything else said on the way"


def test_of_several_processes_on_one_gpu_util_is_nobodys(tmp_path: Path) -> None:
    program = PROGRAMS["HF Trainer GPT-2"]
    (one,) = played(stream(program, pids=(4711, 4712)), tmp_path / "made")[-1].ranks
    assert (one.gpu_busy_source, one.gpu_busy_bound) == ("events", True)
    assert one.gpu_busy_pct == pytest.approx(99.2, abs=0.1), "idle for at least 0.8 % by its own events"
    busy = replace_all(stream(PROGRAMS["tiny model, unfused optimizer"], pids=(4711, 4712)), util_pct=97.0)
    shown = played(busy, tmp_path / "busy")
    assert shown[-1].ranks[0].gpu_busy_pct is None
    assert not {alert.id for one in shown for alert in one.alerts} & BOUND_IDS, "another keeps the GPU at work"


def replace_all(recorded: Iterable[Snapshot], **values: float | None) -> list[Snapshot]:
    return [replace(one, gpus=tuple(replace(gpu, **values) for gpu in one.gpus)) for one in recorded]


def test_without_util_only_a_bound_is_left_and_is_said_to_be_one(tmp_path: Path) -> None:
    program = PROGRAMS["HF Trainer GPT-2"]
    (one,) = played(replace_all(stream(program), util_pct=None), tmp_path / "made")[-1].ranks
    assert (one.gpu_busy_source, one.gpu_busy_bound) == ("events", True)
    starved = replace_all(stream(program._replace(idle_pct=30.0)), util_pct=None, sm_active_pct=60.0)
    (one,) = played(starved, tmp_path / "starved")[-1].ranks
    assert one.gpu_busy_pct == pytest.approx(70.0, abs=0.5)
    assert one.gpu_busy_bound


COPYING = (Phase(name="h2d", host_seconds=0.025), Phase(name="forward", host_seconds=0.075))


def told(
    values: dict[str, Any] | None = None,
    who: dict[str, Any] | None = None,
    processes: tuple[Process, ...] = (Process(pid=100, gpu_uuid=gpu(0).uuid),),
    seconds: int = 20,
) -> Rank:
    """The rank after so many seconds of these values, one snapshot each."""
    stage, one = GpuBusy(), rank()
    for second in range(seconds):
        seen = gpu(0, **{"util_pct": 40.0, "sampled_at": float(second), **(values or {})})
        one = rank(**{"gpu_uuid": seen.uuid, "step": 5, "window_seconds": 15.0, **(who or {})})
        (one,) = stage(snapshot(1000.0 + second, gpus=(seen,), ranks=(one,), processes=processes)).ranks
    return one


def test_util_sm_activity_and_events_hold_each_other_in_bounds() -> None:
    events = {"gpu_idle_pct": 75.0, "step_seconds_mean": 0.1}
    for values, who, expected in (
        ({}, {}, (40.0, "util", False)),
        ({"sm_active_pct": 55.0}, {}, (55.0, "sm", False)),
        # DCGM's activity may be half a minute old, and so not of the same seconds as the steps.
        ({"sm_active_pct": 55.0, "activity_source": "dcgm"}, {}, (40.0, "util", False)),
        ({"sm_active_pct": 55.0, "activity_source": "gpm"}, {}, (55.0, "sm", False)),
        ({"sm_active_pct": 30.0}, {}, (40.0, "util", False)),
        ({}, events, (25.0, "events", False)),
        ({"sm_active_pct": 33.0}, events, (33.0, "sm", False)),
        ({}, {**events, "outside_seconds": 0.08}, (40.0, "util", False)),
        ({"util_pct": None}, {**events, "outside_seconds": 0.08}, (85.0, "events", True)),
        ({"util_pct": None, "sm_active_pct": 80.0}, {**events, "outside_seconds": 0.08}, (80.0, "sm", False)),
        ({"util_pct": None, "sm_active_pct": 30.0}, {}, (None, None, False)),
        ({"util_pct": None}, {}, (None, None, False)),
        ({"sm_active_pct": 3.0}, {"gpu_host_paced_pct": 95.0}, (40.0, "util", True)),
        ({}, {"gpu_host_paced_pct": 95.0}, (40.0, "util", True)),
        ({"sm_active_pct": 3.0}, {"gpu_host_paced_pct": 10.0}, (40.0, "util", False)),
        ({"sm_active_pct": 25.0}, {"gpu_host_paced_pct": 95.0}, (40.0, "util", False)),
        ({"util_pct": 16.0, "sm_active_pct": 1.0}, {"gpu_host_paced_pct": 95.0}, (16.0, "util", False)),
        ({"util_sampled_pct": 31.0}, {}, (31.0, "util", False)),
        ({"util_sampled_pct": 0.0}, {}, (40.0, "util", False)),
        ({"pcie_rx_bytes_per_s": 8e9}, {}, (None, None, False)),
        ({"pcie_rx_bytes_per_s": 5e9, "pcie_gen": 5, "pcie_width": 16}, {}, (40.0, "util", False)),
        ({"pcie_rx_bytes_per_s": 5e9, "pcie_gen": 4, "pcie_width": 16}, {}, (None, None, False)),
        ({"pcie_rx_bytes_per_s": 2e9}, {}, (40.0, "util", False)),
        ({"pcie_rx_bytes_per_s": 2e9}, {"phases": COPYING, "step_seconds_mean": 0.1}, (None, None, False)),
        ({"pcie_rx_bytes_per_s": 2e7}, {"phases": COPYING, "step_seconds_mean": 0.1}, (40.0, "util", False)),
        ({"pcie_rx_bytes_per_s": 8e9, "util_pct": 99.0}, {}, (99.0, "util", False)),
        ({"pcie_rx_bytes_per_s": 8e9}, {"world_size": 8}, (40.0, "util", False)),
    ):
        one = told(values, who)
        found = (one.gpu_busy_pct, one.gpu_busy_source, one.gpu_busy_bound)
        assert found == (expected[0] if expected[0] is None else pytest.approx(expected[0]), *expected[1:]), values


@pytest.mark.parametrize(
    ("processes", "is_its_own"),
    [
        ((Process(pid=100, gpu_uuid="GPU-00000000"),), True),
        ((Process(pid=100, gpu_uuid="GPU-00000000"), Process(pid=7, gpu_uuid="GPU-00000000")), False),
        ((Process(pid=100, gpu_uuid="GPU-00000000"), Process(pid=7, gpu_uuid="GPU-00000001")), True),
        (
            (
                Process(pid=100, gpu_uuid="GPU-00000000"),
                Process(pid=7, gpu_uuid="GPU-00000000", gpu_computes=False),
            ),
            True,
        ),
        ((Process(pid=98765, gpu_uuid="GPU-00000000"),), True),
        ((Process(pid=98765, gpu_uuid="GPU-00000000", command="other.py"),), False),
        ((), False),
        ((Process(pid=100, gpu_uuid="GPU-00000000", gpu_mem_bytes=2 << 30),), False),
        ((Process(pid=100, gpu_uuid="GPU-00000000", gpu_mem_bytes=39 << 30),), True),
    ],
    ids=[
        "alone",
        "two",
        "on another",
        "a desktop",
        "another namespace",
        "a stranger",
        "no list",
        "unseen",
        "seen",
    ],
)
def test_util_counts_only_where_the_training_alone_computes(
    processes: tuple[Process, ...], is_its_own: bool
) -> None:
    one = told({"mem_used_bytes": (39 << 30) + (400 << 20)}, processes=processes)
    assert (one.gpu_busy_pct is not None) == is_its_own


def test_memory_of_the_system_shows_no_unlisted_process() -> None:
    held = (Process(pid=100, gpu_uuid=gpu(0).uuid, gpu_mem_bytes=2 << 30),)
    used = {"mem_used_bytes": 39 << 30}
    assert told({**used, "memory_is_system": True}, processes=held).gpu_busy_pct == 40.0
    assert told(used, processes=held).gpu_busy_pct is None


def test_memory_that_a_process_has_just_taken_makes_it_no_two() -> None:
    stage, figures = GpuBusy(), []
    for second in range(30):
        taken = second >= 20
        seen = gpu(0, util_pct=40.0, sampled_at=float(second), mem_used_bytes=(20 if taken else 5) << 30)
        held = Process(pid=100, gpu_uuid=seen.uuid, gpu_mem_bytes=(20 if second >= 23 else 5) << 30)
        one = rank(gpu_uuid=seen.uuid, step=5, window_seconds=15.0)
        (one,) = stage(snapshot(1000.0 + second, gpus=(seen,), ranks=(one,), processes=(held,))).ranks
        figures.append(one.gpu_busy_pct)
    assert set(figures[15:]) == {40.0}


def test_two_trainings_on_one_gpu_have_no_figure_and_their_neighbour_has() -> None:
    stage, ranks = GpuBusy(), ()
    uuids = (gpu(0).uuid, gpu(0).uuid, gpu(1).uuid)
    processes = tuple(Process(pid=100 + place, gpu_uuid=uuid) for place, uuid in enumerate(uuids))
    for second in range(20):
        made = tuple(
            rank(100 + place, gpu_uuid=uuid, step=1, window_seconds=15.0) for place, uuid in enumerate(uuids)
        )
        gpus = tuple(gpu(index, util_pct=70.0, sampled_at=float(second)) for index in range(2))
        ranks = stage(snapshot(1000.0 + second, gpus=gpus, ranks=made, processes=processes)).ranks
    assert [one.gpu_busy_pct for one in ranks] == [None, None, 70.0]


def test_what_the_gpu_did_before_the_steps_in_question_does_not_count() -> None:
    stage, seen = GpuBusy(), []
    processes = (Process(pid=100, gpu_uuid=gpu(0).uuid),)
    for second in range(40):
        loading = second < 20
        gpus = (gpu(0, util_pct=0.0 if loading else 90.0, sampled_at=float(second)),)
        window = None if loading else min(15.0, second - 19.0)
        one = rank(gpu_uuid=gpu(0).uuid, step=None if loading else second, window_seconds=window)
        seen.append(stage(snapshot(1000.0 + second, gpus=gpus, ranks=(one,), processes=processes)).ranks[0])
    assert {one.gpu_busy_pct for one in seen} == {None, 90.0}
    assert seen[-1].gpu_busy_seconds == pytest.approx(14.0, abs=1.0)


def test_one_sample_that_a_sick_driver_repeats_is_one() -> None:
    assert told({"sampled_at": 7.0}).gpu_busy_pct is None


def test_a_training_that_has_ended_keeps_its_last_figure() -> None:
    stage = GpuBusy()
    for second in range(25):
        gone = second > 20
        gpus: tuple[Gpu, ...] = (gpu(0, util_pct=0.0 if gone else 60.0, sampled_at=float(second)),)
        one = rank(gpu_uuid=gpu(0).uuid, step=1, window_seconds=15.0, state="gone" if gone else "running")
        there = () if gone else (Process(pid=100, gpu_uuid=gpu(0).uuid),)
        (one,) = stage(snapshot(1000.0 + second, gpus=gpus, ranks=(one,), processes=there)).ranks
    assert (one.gpu_busy_pct, one.gpu_busy_source) == (60.0, "util")


@pytest.mark.slow("a training and a monitor; test_util_counts_only_where_the_training_alone_computes has the rule")
def test_a_live_monitor_tells_it_of_a_real_training_by_the_drivers_samples(
    runtime_dir: Path, tmp_path: Path
) -> None:
    scenario = nvml_stub.Scenario.eight_gpus().set(1, util=50, util_sampled=45, sm_active=20, gpm_pcie_rx_mib=5)
    script = tmp_path / "train_gpt.py"
    script.write_text(STEPPING)
    with Started(sys.executable, str(script)) as training:
        scenario.set(1, mem_used_bytes=2 << 30).process(1, training.pid, 2 << 30)
        env = nvml_stub.environment(
            nvml_stub.build(), scenario.write(tmp_path / "scenario"), **environment(LLMTOP_DIR=str(runtime_dir))
        )
        command = [sys.executable, "-m", "llmtop", "--json", "--interval", "0.5"]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as monitor:
            assert monitor.stdout is not None
            lines = (json.loads(line) for line in monitor.stdout)
            ranks = (one for line in lines for one in line["ranks"])
            one = next(one for one in ranks if one["gpu_busy_pct"] is not None)
            monitor.terminate()
    assert (one["gpu_busy_pct"], one["gpu_busy_source"], one["gpu_busy_bound"]) == (45.0, "util", False)


def test_the_report_on_a_recording_believes_the_same_witness(tmp_path: Path) -> None:
    for name, pids, verdict, words in (
        ("HF Trainer GPT-2", (4711,), "sync_bound", "the GPU was idle 1"),
        ("GPT fed a little late", (4711,), "gpu_bound", "the GPU was idle 8"),
        ("GPT fed a little late", (4711, 4712), "unknown", "the idle share of the GPU is unknown"),
    ):
        shown = played(stream(PROGRAMS[name], pids=pids), tmp_path / f"{name} {len(pids)}")
        report = analyze_snapshots(shown, name)
        assert (report.verdict, words in (report.summary or "")) == (verdict, True), report.summary
        (device,) = report.devices
        assert device.idle_pct is not None
        if verdict != "unknown":
            assert 100 - device.idle_pct == pytest.approx(PROGRAMS[name].busy_pct, abs=8)


SHIPPED = files("llmtop") / "data" / "demo.llmtop.gz"
"""Of one H200: healthy, starved, launch-bound, spinning, one after the other."""


def test_a_recording_of_a_real_gpu_keeps_its_verdicts_and_has_its_idle_time() -> None:
    shown: list[Snapshot] = []
    with as_file(SHIPPED) as path:
        feed = ReplayFeed(Reader(path), lambda: Rules().apply, speed=float("inf"))
        feed.start(shown.append)
        wait_for(lambda: feed.ended, 60)
        feed.close()
    for seconds, verdict, least, most in (
        (25, set(), 0.0, 1.0),
        (60, {"input_bound"}, 65.0, 75.0),
        (100, {"launch_bound"}, 65.0, 75.0),
        (135, set(), 0.0, 1.0),
    ):
        at = next(one for one in shown if one.time - shown[0].time >= seconds)
        (one,) = at.ranks
        assert one.gpu_busy_pct is not None
        assert least <= 100 - one.gpu_busy_pct <= most, seconds
        assert {alert.id for alert in at.alerts} & BOUND_IDS == verdict
    assert "low_power_full_util" in {alert.id for alert in shown[-1].alerts}, "busy with a kernel that spins"
    seen = {alert.id for one in shown for alert in one.alerts} & BOUND_IDS
    assert seen == {"input_bound", "launch_bound"}


MEASURED: dict[str, set[str]] = {
    "h200/h2d_bound": {"h2d_bound"},
    "h200/launch_bound": {"launch_bound"},
    "h200x2/straggler": {"straggler"},
}
SERIES = [
    (folder, name)
    for folder in ("h200", "h200x2")
    for name in import_data.names(import_data.DATA / folder / "live")
]


@pytest.mark.parametrize(("folder", "name"), SERIES)
def test_measured_series_of_real_gpus_keep_their_verdicts(folder: str, name: str, tmp_path: Path) -> None:
    recorded = import_data.load(import_data.DATA / folder / "live", name, interval=0.5)
    shown = played(recorded, tmp_path / "series")
    said = {alert.id for one in shown for alert in one.alerts}
    assert said & (BOUND_IDS | {"straggler", "outside", "low_activity"}) == MEASURED.get(f"{folder}/{name}", set())
    known = [one.gpu_busy_pct for one in shown[-1].ranks if one.gpu_busy_pct is not None]
    if name in ("healthy", "straggler", "gemm", "mem_bound", "spin"):
        assert all(pct > 90 for pct in known)


def test_the_made_programs_are_marked_as_made() -> None:
    assert all(isinstance(one, Program) for one in PROGRAMS.values())
    assert next(stream(PROGRAMS["ViT, batch 128"])).host.name == "made"
