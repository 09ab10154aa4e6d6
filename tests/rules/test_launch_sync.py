"""Launching and synchronising: what idle time is blamed on which, and what on neither."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmtop.model.snapshot import Alert, Cause, Gpu, Rank, Snapshot
from llmtop.rules.engine import Rules
from tests.support.measured_programs import PROGRAMS, stream

BASE = PROGRAMS["ResNet-50, batch 32"]
BOUND_IDS = {"launch_bound", "sync_bound", "input_bound", "h2d_bound"}
ITEM = (Cause(what="train.py:7 loss.item()", seconds=0.01),)
FIGURES = {"step_seconds_p50": 0.0269, "step_seconds_mean": 0.0269, "window_seconds": 15.0}


def alerts(rank: dict[str, Any], gpu: dict[str, Any] | None = None) -> list[Alert]:
    """What is up after some seconds of a training whose host launches all the time, with these figures."""
    rules, last = Rules(), ()
    for snapshot in stream(BASE, 12.0):
        last = rules.apply(_with(snapshot, rank, gpu or {})).alerts
    return [alert for alert in last if alert.id in BOUND_IDS]


def _with(snapshot: Snapshot, rank: dict[str, Any], gpu: dict[str, Any]) -> Snapshot:
    one: Rank = replace(snapshot.ranks[0], **{**FIGURES, "gpu_wait_pct": 0.0, "gpu_waits": (), **rank})
    card: Gpu = replace(snapshot.gpus[0], **gpu)
    return replace(snapshot, ranks=(one,), gpus=(card,))


def busy(pct: float | None, source: str = "util", *, bound: bool = False) -> dict[str, Any]:
    return {"gpu_busy_pct": pct, "gpu_busy_source": source, "gpu_busy_bound": bound}


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (busy(60.0), {"launch_bound"}),
        (busy(95.0), set()),
        (busy(88.0, "events", bound=True), {"launch_bound"}),
        ({**busy(60.0), "gpu_wait_pct": 25.0, "gpu_waits": ITEM}, {"sync_bound"}),
        ({**busy(60.0), "gpu_wait_pct": 12.0, "gpu_waits": ITEM}, {"launch_bound"}),
        ({**busy(15.0), "gpu_wait_pct": 12.0, "gpu_waits": ITEM}, {"sync_bound"}),
        ({**busy(5.0), "gpu_wait_pct": 4.0, "gpu_waits": ITEM}, {"launch_bound"}),
        ({**busy(97.0), "gpu_wait_pct": 60.0, "gpu_waits": ITEM}, set()),
        ({**busy(75.0), "outside_seconds": 0.0054}, set()),
        ({**busy(65.0), "outside_seconds": 0.0054}, {"launch_bound"}),
        ({**busy(75.0), "step_seconds_mean": 0.0345}, set()),
        ({**busy(60.0), "step_seconds_mean": 0.0300}, {"launch_bound"}),
    ],
    ids=[
        "idle",
        "kept busy",
        "idle by a bound",
        "waits much",
        "waits little",
        "waits for all that the GPU does",
        "waits for hardly anything",
        "waits for a busy GPU",
        "idle between the phases",
        "idle beyond that",
        "idle in rare long steps",
        "idle beyond these",
    ],
)
def test_idle_time_is_blamed_on_what_the_host_does(rank: dict[str, Any], expected: set[str]) -> None:
    assert {alert.id for alert in alerts(rank)} == expected


def test_the_alerts_say_by_which_witness_and_where_it_waits() -> None:
    (launch,) = alerts(busy(88.0, "events", bound=True))
    assert "the GPU is idle at least 12 % of the time (CUDA events)" in launch.summary
    assert (launch.evidence["gpu_idle_pct"], launch.evidence["gpu_idle_is"]) == (12.0, "at least")
    (sync,) = alerts({**busy(60.0), "gpu_wait_pct": 25.0, "gpu_waits": ITEM})
    assert "waits for the GPU in 25 % of each step, most in train.py:7 loss.item()" in sync.summary
    assert "the GPU is idle 40 % of the time (GPU-Util)" in sync.summary
    assert sync.evidence["waiting_calls_pct"] == 25.0
    assert sync.evidence["call"] == "train.py:7 loss.item()"


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ({"util_pct": 20.0, "sm_active_pct": 2.0, "power_watts": 120.0}, {"launch_bound"}),
        ({"util_pct": 97.0, "sm_active_pct": 60.0, "power_watts": 500.0}, set()),
        ({"util_pct": None, "sm_active_pct": None}, set()),
    ],
)
def test_where_nobody_can_tell_how_idle_it_is_the_whole_gpus_activity_decides(
    gpu: dict[str, Any], expected: set[str]
) -> None:
    assert {alert.id for alert in alerts(busy(None), gpu)} == expected


def test_before_it_is_known_whether_they_take_turns_launching_is_not_blamed() -> None:
    gpu = {"util_pct": 20.0, "sm_active_pct": 2.0, "power_watts": 120.0}
    assert alerts({**busy(None), "gpu_wait_pct": 14.0, "gpu_waits": ITEM}, gpu) == []


@pytest.mark.parametrize(
    ("waits", "rx", "generation", "expected"),
    [
        (30.0, 3e9, 5, {"h2d_bound"}),
        (2.0, 3e9, 5, {"launch_bound"}),
        (2.0, 8e9, 5, {"h2d_bound"}),
        (2.0, 3e9, None, {"h2d_bound"}),
        (None, 3e9, 5, {"h2d_bound"}),
    ],
    ids=["copies that block", "pinned memory", "a tenth of the link", "a link that nobody knows", "no looks"],
)
def test_batches_on_their_way_beside_the_work_are_no_bottleneck(
    waits: float | None, rx: float, generation: int | None, expected: set[str]
) -> None:
    gpu = {"pcie_rx_bytes_per_s": rx, "pcie_gen": generation, "pcie_width": 16, "sm_active_pct": 20.0}
    rank = {**busy(45.0), "gpu_wait_pct": waits, "gpu_waits": ITEM if waits else ()}
    assert {alert.id for alert in alerts(rank, gpu)} == expected
