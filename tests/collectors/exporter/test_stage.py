"""What is told of a snapshot: names, labels and what is absent, through Prometheus' own parser."""

from __future__ import annotations

import math
import re
import time
from typing import Any

import pytest
from prometheus_client import generate_latest

from collectors.exporter import names
from collectors.exporter.stage import ExportStage
from llmtop.model.health import Checkpoint
from llmtop.model.signals import SERIES, SIGNALS
from llmtop.model.snapshot import Alert, CollectiveCount, Gpu, Rank, Snapshot
from tests.collectors.exporter.test_totals import steps
from tests.support.processes import REPOSITORY
from tests.support.prometheus import Sample, of, samples
from tests.support.snapshots import gpu, rank, snapshot

FULL: dict[str, Any] = {
    **{signal.field: 12.0 for signal in SIGNALS if signal.series},
    "util_pct": 99.0,
    "mem_util_pct": 40.0,
    "power_watts": 640.0,
    "power_limit_watts": 700.0,
    "energy_joules": 5.0,
    "mem_used_bytes": 3 << 20,
    "mem_total_bytes": 10 << 20,
    "sm_clock_mhz": 1700.0,
    "temperature_c": 60.0,
    "mem_temperature_c": 70.0,
    "sm_active_pct": 94.0,
    "sm_occupancy_pct": 41.0,
    "tensor_active_pct": 54.0,
    "dram_active_pct": 31.0,
}


def told(*snapshots: Snapshot, others: Any = (), old: float = 0.0) -> list[Sample]:
    """What is told after these snapshots."""
    stage = ExportStage(interval=1.0, others=lambda: others)
    for one in snapshots:
        stage(one)
    return samples(generate_latest(stage).decode())


def now(**fields: Any) -> Snapshot:
    """A snapshot of this moment."""
    return snapshot(time.time(), monotonic=time.monotonic(), **fields)


def training(pid: int = 100, **fields: Any) -> Rank:
    """A rank that has made five steps in the future, so that they count."""
    usual = {"rank": 3, "local_rank": 1, "world_size": 8, "job": "train.py · slurm 4711", "uid": 1000}
    return rank(pid, **{**usual, "new_steps": steps(0, 5, at=time.time() + 10), **fields})


def value(page: list[Sample], name: str, **labels: str) -> float:
    (one,) = of(page, name, **labels)
    return one[2]


def test_a_gpu_has_dcgm_s_names_units_and_labels() -> None:
    page = told(now(gpus=(gpu(2, **FULL),)))
    labels = {
        "gpu": "2",
        "UUID": "GPU-00000002",
        "modelName": "NVIDIA H200",
        "Hostname": "node",
        "hostname": "node",
    }
    assert value(page, "DCGM_FI_DEV_GPU_UTIL", **labels) == 99
    assert value(page, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", **labels) == 700
    assert value(page, "DCGM_FI_DEV_FB_USED", **labels) == 3, "MiB"
    assert value(page, "DCGM_FI_DEV_FB_FREE", **labels) == 7
    assert value(page, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", **labels) == 5000, "mJ"
    assert value(page, "DCGM_FI_PROF_SM_ACTIVE", **labels) == pytest.approx(0.94)
    assert {series.name for _, series in SERIES} <= {name for name, _, _ in page}


def test_what_a_gpu_does_not_give_is_absent_and_its_neighbours_are_there() -> None:
    page = told(now(gpus=(gpu(0, error="GPU is lost"), gpu(1, **FULL))))
    assert not of(page, "DCGM_FI_DEV_GPU_UTIL", gpu="0")
    assert len(of(page, "DCGM_FI_DEV_GPU_UTIL", gpu="1")) == 1


def test_an_xid_stays_as_dcgm_s_does() -> None:
    bad = now(gpus=(gpu(0, error="Xid 13: x at 10:00:00; Xid 79: the GPU has fallen off the bus at 10:00:01"),))
    assert value(told(bad, now(gpus=(gpu(0),))), "DCGM_FI_DEV_XID_ERRORS", gpu="0") == 79
    assert not of(told(now(gpus=(gpu(0),))), "DCGM_FI_DEV_XID_ERRORS"), "nothing was heard: that is no 0"


def test_series_that_a_dcgm_exporter_gives_are_left_to_it() -> None:
    both = now(gpus=(gpu(0, **FULL), gpu(1, **FULL)))
    page = told(both, others={("GPU-00000000", "DCGM_FI_DEV_GPU_UTIL")})
    assert not of(page, "DCGM_FI_DEV_GPU_UTIL", gpu="0")
    assert of(page, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", gpu="0"), "which its default list lacks"
    assert of(page, "DCGM_FI_DEV_GPU_UTIL", gpu="1"), "another GPU is not the one that it tells of"
    unknown = told(both, others=None)
    assert not [name for name, _, _ in unknown if name.startswith("DCGM")], "until it is known"


def test_mig_instances_are_told_by_their_parent_s_uuid_and_their_own_id() -> None:
    def instance(number: int, compute: int) -> Gpu:
        return gpu(
            0,
            uuid=f"MIG-{number}-{compute}",
            name="NVIDIA H200 MIG 1g.18gb",
            mig_parent_uuid="GPU-00000000",
            mig_index=number,
            mig_gpu_instance=number,
            mig_compute_instance=compute,
            mem_used_bytes=1 << 20,
        )

    page = told(now(gpus=(instance(7, 0), instance(8, 0), instance(8, 1))))
    assert len(of(page, "DCGM_FI_DEV_FB_USED")) == 2, "two compute instances of one would stand there twice"
    assert of(page, "DCGM_FI_DEV_FB_USED", UUID="GPU-00000000", GPU_I_ID="7", GPU_I_PROFILE="1g.18gb")


def test_a_rank_s_counters_have_rank_and_pid_and_the_rest_is_in_its_info() -> None:
    page = told(now(gpus=(gpu(1),), ranks=(training(gpu_uuid="GPU-00000001", last_step_at=1234.5),)))
    assert value(page, "llmtop_steps_total", rank="3", pid="100") == 4
    assert value(page, "llmtop_step_seconds_total") == pytest.approx(2.0)
    assert value(page, "llmtop_outside_seconds_total") == pytest.approx(0.4)
    assert value(page, "llmtop_phase_host_seconds_total", phase="forward") == pytest.approx(0.4)
    assert value(page, "llmtop_comm_wait_seconds_total") == pytest.approx(1.2)
    assert value(page, "llmtop_tokens_total") == 40
    assert value(page, "llmtop_last_step_timestamp_seconds") == 1234.5
    (info,) = of(page, "llmtop_rank_info")
    assert info[1] == {
        "run": "train.py · slurm 4711",
        "rank": "3",
        "local_rank": "1",
        "world_size": "8",
        "pid": "100",
        "uid": "1000",
        "gpu": "1",
        "UUID": "GPU-00000001",
        "kind": "step",
    }
    for name, labels, _ in page:
        if name.startswith("llmtop_") and name != "llmtop_node_info" and "_snapshot_" not in name:
            assert {"rank", "pid"} <= set(labels), name
    assert not of(page, "llmtop_phase_gpu_seconds_total"), "nobody has timed them"


def test_collectives_are_told_while_they_stand_still_and_not_before() -> None:
    stuck = training(collectives=(CollectiveCount(group="0 default_pg", enqueued=40, completed=39),))
    page = told(now(ranks=(stuck,)))
    assert value(page, "llmtop_collective_enqueued", pg="0 default_pg", rank="3", pid="100") == 40
    assert value(page, "llmtop_collective_completed", pg="0 default_pg") == 39
    assert not of(told(now(ranks=(stuck,)), now(ranks=(training(),))), "llmtop_collective_enqueued")
    unknown = training(collectives=(CollectiveCount(group="1", enqueued=40),))
    assert not of(told(now(ranks=(unknown,))), "llmtop_collective_completed"), "nobody knows: that is no 0"


def test_an_alert_names_its_gpu_and_rank_and_stands_there_once() -> None:
    alerts = (
        Alert(id="straggler", severity="warning", pid=100, gpu="GPU-00000001", since=1.0, summary="x"),
        Alert(id="straggler", severity="warning", pid=100, gpu="GPU-00000001", since=2.0, summary="y"),
        Alert(id="gpu_error", severity="critical", gpu="GPU-00000001", since=1.0, summary="z"),
        Alert(id="hung_collective", severity="critical", since=1.0, summary="z", evidence={"rank": 6}),
    )
    page = told(now(gpus=(gpu(1),), ranks=(training(gpu_uuid="GPU-00000001"),), alerts=alerts))
    assert len(of(page, "llmtop_alert")) == 3
    assert of(page, "llmtop_alert", id="straggler", rank="3", pid="100", gpu="1", severity="warning")
    assert of(page, "llmtop_alert", id="gpu_error", rank="", pid="", gpu="1", UUID="GPU-00000001")
    assert of(page, "llmtop_alert", id="hung_collective", rank="6"), "of a rank on another node"


def test_a_rank_that_is_gone_is_told_no_more() -> None:
    page = told(now(ranks=(training(), training(200))), now(ranks=(training(state="gone"), training(200))))
    assert not of(page, "llmtop_steps_total", pid="100")
    assert not of(page, "llmtop_rank_info", pid="100")
    assert of(page, "llmtop_steps_total", pid="200")


def test_a_process_that_attaches_anew_begins_at_zero() -> None:
    before = training(attached_at=1.0)
    page = told(now(ranks=(before,)), now(ranks=(training(attached_at=2.0, new_steps=()),)))
    assert value(page, "llmtop_steps_total") == 0


def test_two_that_claim_one_pid_do_not_void_the_page() -> None:
    page = told(now(ranks=(training(), training(job="another's"), training(200))))
    assert len(of(page, "llmtop_steps_total")) == 2


def test_when_snapshots_stop_only_their_age_is_told() -> None:
    stage = ExportStage(interval=1.0)
    stage(snapshot(time.time() - 60, monotonic=time.monotonic() - 60, gpus=(gpu(0, **FULL),), ranks=(training(),)))
    page = samples(generate_latest(stage).decode())
    kept = {"llmtop_snapshot_timestamp_seconds", "llmtop_snapshot_limit_seconds", "llmtop_node_info"}
    assert {name for name, _, _ in page} == kept
    stage(now(gpus=(gpu(0, **FULL),)))
    assert of(samples(generate_latest(stage).decode()), "DCGM_FI_DEV_GPU_UTIL")


def test_texts_of_others_cannot_break_out_of_their_label() -> None:
    evil = 'x"} 1\nllmtop_steps_total{rank="0",pid="1"} 99\n\x00\x1b]0;\u202e\\'
    page = told(now(ranks=(training(job=evil, gpu_uuid=evil), training(200))))
    assert [labels["pid"] for _, labels, _ in of(page, "llmtop_steps_total")] == ["100", "200"]
    (info,) = of(page, "llmtop_rank_info", pid="100")
    assert info[1]["run"].isprintable()
    assert "\n" not in info[1]["UUID"]


def test_no_command_line_is_told() -> None:
    secret = training(command="python train.py --token hunter2", note="hunter2", metrics={"hunter2": 1.0})
    alert = Alert(id="stalled", severity="critical", pid=100, since=1.0, summary="hunter2", next="hunter2")
    stage = ExportStage(interval=1.0)
    stage(now(ranks=(secret,), alerts=(alert,)))
    assert b"hunter2" not in generate_latest(stage)


def test_every_name_stands_in_the_contracts_with_its_labels() -> None:
    text = (REPOSITORY / "docs" / "contracts.md").read_text()
    for series in names.ALL:
        written = f"`{series.name}{{{','.join(series.labels)}}}`" if series.labels else f"`{series.name}`"
        assert written in text, f"{written} is no contract yet"
    for name in set(re.findall(r"`(DCGM_FI_\w+)`", text)):
        assert name in {series.name for _, series in SERIES} | {"DCGM_FI_DEV_XID_ERRORS"}


def test_health_roles_and_the_checkpoint_of_the_job() -> None:
    saved = Checkpoint(step=3, at=50.0, seconds=2.0, blocked_seconds=0.5)
    ranks = (
        training(
            100, step=5, metrics={"train/loss": 2.5, "loss": 9.0, "eval_loss": 1.0}, roles={"pp": 1, "tp": 0}
        ),
        training(101, step=6, rank=4, metrics={"loss": None, "lr": 1e-3}, checkpoint=saved),
    )
    page = told(now(ranks=ranks))
    assert value(page, "llmtop_loss", pid="100") == 2.5, "one of each kind, the first"
    assert math.isnan(value(page, "llmtop_loss", pid="101"))
    assert not of(page, "llmtop_grad_norm")
    assert value(page, "llmtop_checkpoint_timestamp_seconds", pid="100") == 50.0, "of the job, not of the rank"
    assert value(page, "llmtop_checkpoint_steps_at_risk", pid="100") == 2
    assert value(page, "llmtop_checkpoint_steps_at_risk", pid="101") == 3
    assert value(page, "llmtop_checkpoint_blocked_seconds", pid="101") == 0.5
    assert not of(page, "llmtop_checkpoint_interval_seconds"), "before the second"
    assert value(page, "llmtop_rank_role", pid="100", role="pp", coordinate="1") == 1
    assert len(of(page, "llmtop_rank_role")) == 2


def test_a_rank_has_a_bounded_number_of_series_whatever_it_logs() -> None:
    names_of = {f"part{number}/loss": 1.0 for number in range(300)}
    page = told(now(ranks=(training(metrics=names_of, roles={f"r{one}": one for one in range(30)}),)))
    assert len(of(page, "llmtop_loss")) == 1
    assert len(of(page, "llmtop_rank_role")) == 8
