"""GPUs that work for processes without steps: by their own counters alone."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from llmtop.model.snapshot import Alert, Gpu, Host, Process, Rank, Snapshot
from llmtop.rules.engine import Rules
from llmtop.rules.state.gpu import GpuState
from llmtop.rules.unattached import LAUNCHES_SLOWLY, LOW_ACTIVITY
from tests.support.snapshots import gpu

SPIN = {
    "util_pct": 100.0,
    "mem_util_pct": 0.0,
    "power_watts": 122.0,
    "power_limit_watts": 700.0,
    "sm_active_pct": 0.8,
    "dram_active_pct": 0.0,
    "tensor_active_pct": 0.0,
}


def moment(time: float, one: Gpu, ranks: tuple[Rank, ...] = (), pid: int | None = None) -> Snapshot:
    processes = () if pid is None else (Process(pid=pid, gpu_uuid=one.uuid, state="running"),)
    return Snapshot(time=time, host=Host(name="node"), gpus=(one,), ranks=ranks, processes=processes)


def ids(alerts: Iterable[Alert]) -> set[str]:
    return {alert.id for alert in alerts}


def state(**fields: object) -> GpuState:
    """One GPU after one sample, so that its means are its latest values."""
    one = gpu(3, **{"power_limit_watts": 700.0, **fields})
    found = GpuState(one, 0.0)
    found.update(one, 0.0)
    return found


WORK: dict[str, tuple[dict[str, float | None], set[str]]] = {
    "tiny model": ({"util_pct": 16, "sm_active_pct": 1, "power_watts": 125}, {"launch_bound"}),
    ".item() in layers": ({"util_pct": 17, "sm_active_pct": 4, "power_watts": 140}, {"launch_bound"}),
    "waits for data": ({"util_pct": 30, "sm_active_pct": 26, "power_watts": 315}, {"low_activity"}),
    "ResNet": ({"util_pct": 42, "sm_active_pct": 28, "power_watts": 250}, {"low_activity"}),
    "few SMs": ({"util_pct": 99, "sm_active_pct": 30, "power_watts": 400}, {"low_activity"}),
    "no GPM": ({"util_pct": 40, "sm_active_pct": None, "power_watts": 250}, {"low_activity"}),
    "healthy": ({"util_pct": 99, "sm_active_pct": 94, "power_watts": 640}, set()),
    "healthy, no GPM": ({"util_pct": 99, "sm_active_pct": None, "power_watts": 640, "mem_util_pct": 47}, set()),
    "idle": ({"util_pct": 0, "sm_active_pct": 0, "power_watts": 90}, set()),
    "copies": ({"util_pct": 20, "sm_active_pct": 0.4, "power_watts": 137, "pcie_rx_bytes_per_s": 8e9}, set()),
    "nothing known": ({"util_pct": None, "sm_active_pct": None, "power_watts": None}, set()),
    "elementwise": (
        {
            "util_pct": 100,
            "sm_active_pct": 99,
            "power_watts": 580,
            "dram_active_pct": 88,
            "tensor_active_pct": 0.3,
        },
        {"memory_bound"},
    ),
    "spin": ({**SPIN}, {"low_power_full_util"}),
}


@pytest.mark.parametrize("name", WORK)
def test_a_gpu_whose_process_is_not_attached_is_told_by_its_own_counters(name: str) -> None:
    values, expected = WORK[name]
    rules, alerts, seen = Rules(), (), set()
    for second in range(40):
        one = gpu(3, **{"power_limit_watts": 700.0, **values})
        alerts = rules.apply(moment(1000.0 + second, one, pid=77)).alerts
        seen |= ids(alerts)
    assert seen - {"power_capped"} == expected
    for alert in alerts:
        assert alert.severity == "info" or name == "spin"
        if alert.id in ("launch_bound", "low_activity"):
            assert "process 77" in alert.summary
            assert "llmtop run" in alert.next


@pytest.mark.parametrize("name", ["tiny model", "waits for data"])
def test_with_an_attached_process_or_none_the_counters_alone_say_nothing(name: str) -> None:
    values = {"power_limit_watts": 700.0, **WORK[name][0]}
    for pid, ranks in (
        (None, ()),
        (77, (Rank(pid=77, host="node", gpu_uuid=gpu(3).uuid, step=7),)),
    ):
        rules, seen = Rules(), set()
        for second in range(40):
            seen |= ids(rules.apply(moment(1000.0 + second, gpu(3, **values), ranks=ranks, pid=pid)).alerts)
        assert seen == set()


def test_an_attached_process_without_a_step_is_told_of_by_its_gpu_and_a_server_never() -> None:
    for step, expected in ((None, {"launch_bound"}), (7, set())):
        values = {"power_limit_watts": 700.0, **WORK["tiny model"][0]}
        ranks = (Rank(pid=77, host="node", gpu_uuid=gpu(3).uuid, kind="request", step=step),)
        rules, alerts = Rules(), ()
        for second in range(40):
            alerts = rules.apply(moment(1000.0 + second, gpu(3, **values), ranks=ranks, pid=77)).alerts
        assert ids(alerts) == expected
        assert all("llmtop run" not in alert.next for alert in alerts)


SMALL = {"util_pct": 50.0, "sm_active_pct": 5.0, "power_watts": 140.0}


@pytest.mark.parametrize(
    ("changed", "raises", "keeps"),
    [
        ({}, True, True),
        ({"util_pct": 5.0, "sm_active_pct": 1.0}, True, True),
        ({"util_pct": 4.9, "sm_active_pct": 1.0}, False, False),
        ({"util_pct": 89.9}, True, True),
        ({"util_pct": 90.0}, False, False),
        ({"sm_active_pct": 17.4}, True, True),  # 0.348 of the utilization
        ({"sm_active_pct": 17.5}, False, True),
        ({"sm_active_pct": 22.4}, False, True),
        ({"sm_active_pct": 22.6}, False, False),
        ({"util_pct": 89.0, "sm_active_pct": 29.9}, True, True),
        ({"util_pct": 89.0, "sm_active_pct": 30.0}, False, True),
        ({"util_pct": 89.9, "sm_active_pct": 40.0}, False, False),
        ({"power_watts": 279.0}, True, True),  # 39.9 % of 700 W
        ({"power_watts": 280.0}, False, True),
        ({"power_watts": 315.0}, False, False),
        ({"power_watts": None}, False, False),
        ({"sm_active_pct": None}, False, False),
        ({"pcie_rx_bytes_per_s": 1.49e9}, True, True),
        ({"pcie_rx_bytes_per_s": 1.5e9}, False, False),
    ],
    ids=str,
)
def test_small_kernels_of_a_process_without_steps_have_the_documented_limits(
    changed: dict[str, object], raises: bool, keeps: bool
) -> None:
    one = state(**{**SMALL, **changed})
    one.pids = [7]
    assert (LAUNCHES_SLOWLY.holds(one, False), LAUNCHES_SLOWLY.holds(one, True)) == (raises, keeps)


@pytest.mark.parametrize(
    ("changed", "raises", "keeps"),
    [
        ({"util_pct": 59.9, "sm_active_pct": 55.0}, True, True),
        ({"util_pct": 60.0, "sm_active_pct": 55.0}, False, True),
        ({"util_pct": 69.9, "sm_active_pct": 55.0}, False, True),
        ({"util_pct": 70.0, "sm_active_pct": 55.0}, False, False),
        ({"util_pct": 99.0, "sm_active_pct": 39.9}, True, True),
        ({"util_pct": 99.0, "sm_active_pct": 40.0}, False, True),
        ({"util_pct": 99.0, "sm_active_pct": 50.0}, False, False),
        ({"util_pct": 99.0, "sm_active_pct": None}, False, False),
        ({"util_pct": 40.0, "sm_active_pct": None}, True, True),
        ({"util_pct": None, "sm_active_pct": 20.0}, False, False),
        ({}, False, False),  # small kernels: the other rule
    ],
    ids=str,
)
def test_little_activity_of_a_process_without_steps_has_the_documented_limits(
    changed: dict[str, object], raises: bool, keeps: bool
) -> None:
    one = state(**{**SMALL, **changed})
    one.pids = [7]
    assert (LOW_ACTIVITY.holds(one, False), LOW_ACTIVITY.holds(one, True)) == (raises, keeps)


@pytest.mark.parametrize(
    ("pids", "foreign", "steps", "holds", "owner"),
    [
        ([7], [], [], True, "process 7"),
        ([], [9], [], True, "process 9"),
        ([7], [9], [], True, "2 processes"),
        ([7], [7], [], True, "process 7"),
        ([], [], [], False, "0 processes"),
        ([7], [], [7], False, "process 7"),
    ],
)
def test_counters_alone_count_where_processes_report_no_steps(
    pids: list[int], foreign: list[int], steps: list[int], holds: bool, owner: str
) -> None:
    one = state(**SMALL)
    one.pids, one.foreign_pids, one.step_pids = pids, foreign, steps
    assert LAUNCHES_SLOWLY.holds(one, False) is holds
    shown = LAUNCHES_SLOWLY.describe(one)
    assert f"the kernels of {owner} are small" in shown.summary
    assert shown.points == ("small kernels with gaps, util 50 %", "SM active 5.0 %", "140 W")
    assert shown.evidence == {
        "util_pct": 50.0,
        "sm_active_pct": 5.0,
        "tensor_active_pct": None,
        "dram_active_pct": None,
        "power_watts": 140.0,
        "power_limit_watts": 700.0,
    }
    assert LOW_ACTIVITY.describe(one).points == ("util 50 %", "SM active 5 %")
    assert LOW_ACTIVITY.describe(one).summary.endswith("50 % of the time, and 5 % of its SMs are active.")
    assert LOW_ACTIVITY.describe(state(util_pct=50.0)).summary.endswith("a kernel runs 50 % of the time.")
