"""The rules that need a GPU only, on measured series and on made-up ones."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pynvml
import pytest
from msgspec.structs import replace

from llmtop.hardware import clock_events
from llmtop.model.snapshot import Alert, Gpu, Host, Process, Rank, Snapshot
from llmtop.rules.engine import Rules, explain
from llmtop.rules.gpu import (
    GPU_ERROR,
    LOW_POWER_FULL_UTIL,
    MEMORY_BOUND,
    POWER_CAPPED,
    THROTTLED,
    values_missing_for_low_power,
)
from llmtop.rules.rule import AlertText
from llmtop.rules.state.gpu import GpuState
from tests.support import import_data

ONE, TWO = import_data.DATA / "h200" / "live", import_data.DATA / "h200x2" / "live"
SERIES = [(folder, name) for folder in (ONE, TWO) for name in import_data.names(folder)]
BUSY_ON_PAPER = {("h200", "spin"): {import_data.uuid(0)}, ("h200x2", "hang"): {import_data.uuid(0)}}

SPIN = {
    "util_pct": 100.0,
    "mem_util_pct": 0.0,
    "power_watts": 122.0,
    "power_limit_watts": 700.0,
    "sm_active_pct": 0.8,
    "dram_active_pct": 0.0,
    "tensor_active_pct": 0.0,
}
GEMM = {**SPIN, "power_watts": 692.0, "sm_active_pct": 96.0, "tensor_active_pct": 94.0, "mem_util_pct": 24.0}


def gpu(index: int = 3, **fields: object) -> Gpu:
    return Gpu(index=index, uuid=f"GPU-{index}", name="NVIDIA H200", **fields)  # type: ignore[arg-type]


def moment(time: float, *gpus: Gpu, ranks: tuple[Rank, ...] = (), pid: int | None = None) -> Snapshot:
    processes = () if pid is None else tuple(Process(pid=pid, gpu_uuid=one.uuid, state="running") for one in gpus)
    return Snapshot(time=time, host=Host(name="node"), gpus=gpus, ranks=ranks, processes=processes)


def ids(alerts: Iterable[Alert]) -> set[str]:
    return {alert.id for alert in alerts}


def feed(rules: Rules, times: Iterable[float], **fields: object) -> list[Alert]:
    """The alerts after the last of these moments, at which the GPU has these values."""
    alerts: tuple[Alert, ...] = ()
    for time in times:
        alerts = rules.apply(moment(time, gpu(**fields))).alerts
    return list(alerts)


@pytest.mark.parametrize(("folder", "name"), SERIES, ids=lambda value: getattr(value, "stem", value))
@pytest.mark.parametrize("interval", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("seen", ["gpus only", "ranks too", "without gpm"])
def test_only_spinning_gpus_are_called_busy_on_paper(folder: Path, name: str, interval: float, seen: str) -> None:
    rules, found, first = Rules(), {}, None
    for snapshot in import_data.load(
        folder, name, interval=interval, ranks=seen == "ranks too", gpm=seen != "without gpm"
    ):
        first = snapshot.time if first is None else first
        for alert in rules.apply(snapshot).alerts:
            if alert.id == "low_power_full_util":
                found.setdefault(alert.gpu, snapshot.time - first)
    assert set(found) == BUSY_ON_PAPER.get((folder.parent.name, name), set())
    assert all(after <= 5.0 for after in found.values())


@pytest.mark.parametrize(("folder", "name"), [(ONE, "spin"), (TWO, "hang")], ids=["spin", "hang"])
def test_two_samples_five_seconds_apart_are_enough(folder: Path, name: str) -> None:
    rules = Rules()
    seen = [ids(rules.apply(snapshot).alerts) for snapshot in import_data.load(folder, name, interval=5.0)]
    assert seen[:2] == [set(), {"low_power_full_util"}]


def test_the_sentence_names_the_gpu_and_its_numbers() -> None:
    rules, alerts = Rules(), ()
    for time in range(5):
        alerts = rules.apply(moment(float(time), gpu(**SPIN), pid=678)).alerts
    (alert,) = alerts
    assert alert.severity == "critical"
    assert alert.since == 0.0
    assert alert.summary == (
        "GPU 3 reports 100 % utilization but draws 122 of 700 W, and 0.8 % of its SMs are active: "
        "a kernel is spinning or stuck."
    )
    assert "py-spy dump --pid 678" in alert.next
    assert alert.evidence == {
        "util_pct": 100.0,
        "power_watts": 122.0,
        "power_limit_watts": 700.0,
        "power_share_pct": 17.429,
        "sm_active_pct": 0.8,
        "tensor_active_pct": 0.0,
        "dram_active_pct": 0.0,
        "mem_util_pct": 0.0,
    }


@pytest.mark.parametrize(
    ("attached", "cause", "severity", "advice"),
    [
        (0, "its 2 processes take turns, or a kernel is spinning or stuck.", "critical", "py-spy dump --pid 601"),
        (1, "its 2 processes take turns, or a kernel is spinning or stuck.", "critical", "py-spy dump --pid 601"),
        (2, "its 2 processes take turns.", "warning", "nvidia-cuda-mps-control -d"),
    ],
)
def test_processes_that_take_turns_are_no_stuck_kernel(
    attached: int, cause: str, severity: str, advice: str
) -> None:
    """Two trainings whose steps of 12 ms use the GPU for 0.9 ms each: an H100 had 93 % util, here it is 96."""
    shared = gpu(**SPIN | {"util_pct": 96.0, "power_watts": 143.0, "sm_active_pct": 1.3})
    processes = tuple(Process(pid=pid, gpu_uuid=shared.uuid, state="running") for pid in (601, 602))
    desktop = Process(pid=603, gpu_uuid=shared.uuid, state="running", gpu_computes=False)
    rules, alerts = Rules(), ()
    for second in range(5):
        ranks = tuple(
            Rank(
                pid=601 + at, host="node", gpu_uuid=shared.uuid, attached_at=0.0, state="running", step=80 * second
            )
            for at in range(attached)
        )
        seen = replace(moment(float(second), shared, ranks=ranks), processes=(*processes, desktop))
        alerts = rules.apply(seen).alerts
    alert = next(one for one in alerts if one.id == "low_power_full_util")
    assert alert.summary.endswith(cause)
    assert (alert.severity, alert.evidence["processes"]) == (severity, 2)
    assert advice in alert.next


def test_without_sm_activity_memory_util_decides_and_the_alert_says_so() -> None:
    bare = {key: value for key, value in SPIN.items() if key in ("util_pct", "power_watts", "power_limit_watts")}
    assert feed(Rules(), range(20), **bare) == []
    assert feed(Rules(), range(20), **bare, mem_util_pct=24.0) == []
    (alert,) = feed(Rules(), range(20), **bare, mem_util_pct=0.0)
    assert alert.severity == "warning"
    assert "SM activity is unavailable" in alert.summary
    assert "sm_active_pct" not in alert.evidence


@pytest.mark.parametrize(
    "changed",
    [
        {"power_watts": 250.0},  # 36 % of the limit
        {"sm_active_pct": 55.0},
        {"dram_active_pct": 45.0},  # memory-bound decoding at a fifth of the limit
        {"util_pct": 60.0},
        {"util_pct": None},  # MIG
        {"power_watts": None},
        {"power_limit_watts": None},
        {"util_pct": float("nan")},
    ],
    ids=str,
)
def test_real_work_and_undecidable_states_stay_silent(changed: dict[str, float | None]) -> None:
    assert feed(Rules(), range(30), **{**SPIN, **changed}) == []


@pytest.mark.parametrize("interval", [0.1, 0.5, 1.0, 2.0, 5.0, 10.0])
def test_the_hold_is_by_time_at_every_rate(interval: float) -> None:
    rules = Rules()
    raised_at = next(
        time
        for time in (interval * count for count in range(1000))
        if rules.apply(moment(time, gpu(**SPIN))).alerts
    )
    assert raised_at == pytest.approx(max(3.0, interval), abs=interval + 1e-6)
    assert raised_at >= min(3.0, interval)


def test_a_sample_that_the_driver_repeats_proves_nothing() -> None:
    rules = Rules()
    for time in range(12):
        assert rules.apply(moment(float(time), gpu(**SPIN, sampled_at=0.5))).alerts == ()


def test_a_gpu_whose_driver_hangs_loses_its_alert_once_its_values_are_old() -> None:
    rules = Rules()
    for time in range(6):
        alerts = rules.apply(moment(float(time), gpu(**SPIN, sampled_at=float(time)))).alerts
    assert ids(alerts) == {"low_power_full_util"}
    kept = [bool(rules.apply(moment(float(time), gpu(**SPIN, sampled_at=5.0))).alerts) for time in range(6, 40)]
    assert kept[0]
    assert not kept[-1]


def test_the_alert_goes_some_seconds_after_work_resumes() -> None:
    rules = Rules()
    assert ids(feed(rules, range(10), **SPIN)) == {"low_power_full_util"}
    (going,) = feed(rules, [10, 11, 12], **GEMM)
    assert going.id == "low_power_full_util"
    assert going.evidence["power_watts"] == 122.0, "it says what held, not what denies it"
    assert "122 of 700 W" in going.summary
    assert feed(rules, range(13, 20), **GEMM) == []


def test_clock_event_reasons_tell_a_power_cap_from_a_fault() -> None:
    capped = {**GEMM, "sm_clock_mhz": 1455.0, "sm_clock_max_mhz": 1980.0, "clock_event_reasons": ("sw_power_cap",)}
    (alert,) = feed(Rules(), range(6), **capped)
    assert (alert.id, alert.severity) == ("power_capped", "info")
    assert "1455 of 1980 MHz at 692 of 700 W" in alert.summary
    assert feed(Rules(), range(6), **{**capped, "sm_clock_mhz": 1980.0}) == []
    assert feed(Rules(), range(6), **{**capped, "sm_clock_max_mhz": None}) == []
    hot = {**capped, "temperature_c": 91.0, "clock_event_reasons": ("sw_power_cap", "sw_thermal_slowdown")}
    (alert,) = feed(Rules(), range(6), **hot)
    assert (alert.id, alert.severity) == ("throttled", "warning")
    assert "thermal limit" in alert.summary
    assert "91 °C" in alert.summary


def test_an_idle_gpu_is_not_throttled() -> None:
    idle = {**SPIN, "util_pct": 0.0, "clock_event_reasons": ("gpu_idle", "hw_slowdown")}
    assert feed(Rules(), range(9), **idle) == []


def test_a_fault_is_told_at_once_and_stays_for_a_moment() -> None:
    rules = Rules()
    (alert,) = feed(rules, [0], error="GPU is lost: it fell off the bus\x1b[31m")
    assert (alert.id, alert.severity) == ("gpu_error", "critical")
    assert alert.summary == "GPU 3 reports a driver error: GPU is lost: it fell off the bus·[31m."
    assert ids(feed(rules, [1, 2], **GEMM)) == {"gpu_error"}
    assert feed(rules, range(3, 9), **GEMM) == []


def test_an_error_brings_no_value_of_before_the_driver_fell_silent() -> None:
    rules = Rules()
    silent = {**GEMM, "temperature_c": 61.0, "sampled_at": 0.5, "error": "GPU is lost"}
    (alert,) = feed(rules, [1], **silent)
    assert alert.evidence == {"temperature_c": 61.0, "power_watts": 692.0}
    (alert,) = feed(rules, range(2, 20), **silent)
    assert alert.evidence.get("temperature_c") is None
    assert alert.evidence.get("power_watts") is None


def test_memory_bound_work_is_named_without_alarm() -> None:
    state = {**GEMM, "dram_active_pct": 88.0, "tensor_active_pct": 0.3}
    (alert,) = feed(Rules(), range(6), **state)
    assert (alert.id, alert.severity) == ("memory_bound", "info")
    assert feed(Rules(), range(6), **{**state, "tensor_active_pct": None}) == []


def test_every_gpu_is_judged_by_itself() -> None:
    rules = Rules()
    for time in range(6):
        work = [gpu(index, **(SPIN if index == 5 else GEMM)) for index in range(8)]
        alerts = rules.apply(moment(float(time), *work)).alerts
    assert [alert.gpu for alert in alerts] == ["GPU-5"]


def test_a_gpu_that_comes_back_begins_anew() -> None:
    rules = Rules()
    feed(rules, [0, 1, 2], **SPIN)
    rules.apply(moment(2.5))
    assert feed(rules, [3, 4], **SPIN) == []
    assert ids(feed(rules, [5, 6], **SPIN)) == {"low_power_full_util"}


def test_a_seek_in_a_recording_begins_anew_and_a_small_step_back_does_not() -> None:
    rules = Rules()
    assert feed(rules, [100, 101, 102, 103], **SPIN)
    assert feed(rules, [102.5, 103.5], **SPIN)
    assert feed(rules, [50, 51], **SPIN) == []
    assert feed(rules, [52, 53], **SPIN)
    assert feed(rules, [900, 901], **SPIN) == []


def test_every_rule_says_what_must_hold_and_why() -> None:
    for alert_id in ("low_power_full_util", "power_capped", "throttled", "gpu_error", "stalled", "memory_bound"):
        text = explain(alert_id)
        assert text.meaning
        assert text.condition
        assert text.source
    with pytest.raises(KeyError):
        explain("from_a_newer_version")


@pytest.mark.parametrize(
    ("reasons", "words", "advice"),
    [
        (("hw_power_brake",), "power brake of the power supply", "power supply"),
        (("hw_slowdown", "hw_power_brake"), "clocks (power brake of the power supply):", "power supply"),
        (("hw_slowdown", "hw_thermal_slowdown"), "clocks (thermal limit of the hardware):", "cooling"),
        (("hw_slowdown",), "hardware slowdown", "power supply"),
        (("sw_thermal_slowdown", "hw_power_brake"), "thermal limit of the driver and power brake", "cooling"),
    ],
)
def test_every_reason_that_slows_a_gpu_down_is_heard(reasons: tuple[str, ...], words: str, advice: str) -> None:
    braked = {**GEMM, "sm_clock_mhz": 900.0, "sm_clock_max_mhz": 1980.0, "clock_event_reasons": reasons}
    (alert,) = feed(Rules(), range(5), **braked)
    assert (alert.id, alert.severity) == ("throttled", "warning")
    assert words in alert.summary
    assert advice in alert.next


def test_those_reasons_throttle_that_nvml_calls_a_slowdown() -> None:
    slowdowns = {
        bit
        for name, bit in vars(pynvml).items()
        if name.startswith("nvmlClocksEventReason") and name.endswith("Slowdown")
    }
    found = set()
    for bit in clock_events.BITS:
        values = {**GEMM, "sm_clock_mhz": 900.0, "clock_event_reasons": clock_events.reason_names(bit)}
        found |= {bit for alert in feed(Rules(), range(5), **values) if alert.id == "throttled"}
    assert found == slowdowns


@pytest.mark.parametrize(
    ("error", "severity"),
    [
        *[(f"Xid {number}: … (program) at 10:00:00", "warning") for number in (13, 31, 43, 69)],
        ("Xid 45: a program's work was cleaned up at 10:00:00", "info"),
        *[(f"Xid {number}: … at 10:00:00", "critical") for number in (48, 62, 64, 74, 79, 94, 95, 119, 140)],
        *[(f"Xid {number}: … at 10:00:00", "warning") for number in (63, 92, 154)],
        ("Xid 4242: see the Xid catalogue of NVIDIA at 10:00:00", "warning"),
        ("Xid 45: cleaned up at 10:00:00; Xid 79: the GPU has fallen off the bus at 10:00:01", "critical"),
        ("Xid 63: a row; a memory row waits to be remapped: reset the GPU when its work is done", "warning"),
        ("a memory row could not be remapped: the GPU may need replacing", "critical"),
        ("memory pages wait to be retired: reset the GPU when its work is done", "warning"),
        ("1 uncorrectable memory error since the driver was loaded", "critical"),
        ("the driver has not answered for 12 s (nvmlDeviceGetPowerUsage)", "critical"),
        ("the driver no longer lists this GPU", "critical"),
        ("nvmlDeviceGetFieldValues has not returned for 12 s", "warning"),
        ("the GPU's InfoROM is corrupted (nvmlDeviceGetPowerUsage)", "warning"),
        ("something new; and nobody knows", "warning"),
    ],
)
def test_an_error_is_as_grave_as_what_is_lost(error: str, severity: str) -> None:
    (alert,) = feed(Rules(), range(3), **GEMM, error=error)
    assert (alert.id, alert.severity) == ("gpu_error", severity)


def test_a_programs_own_fault_is_not_looked_for_in_the_hardware() -> None:
    (own,) = feed(Rules(), range(3), **GEMM, error="Xid 31: page fault at 1; Xid 43: stopped at 1")
    assert "compute-sanitizer" in own.next
    (other,) = feed(Rules(), range(3), **GEMM, error="Xid 31: page fault at 1; Xid 79: gone at 1")
    assert "dmesg" in other.next


def test_a_pid_that_only_the_driver_knows_is_said_to_be_the_hosts() -> None:
    one = gpu(**SPIN)
    rules, alerts = Rules(), ()
    for time in range(5):
        foreign = Snapshot(
            time=float(time),
            host=Host(name="node"),
            gpus=(one,),
            processes=(Process(pid=4321, gpu_uuid=one.uuid, gpu_mem_bytes=1),),
        )
        alerts = rules.apply(foreign).alerts
    (alert,) = alerts
    assert "pid 4321" in alert.next
    assert "py-spy" not in alert.next
    assert "press s" not in alert.next


@pytest.mark.parametrize("interval", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("later", [0, 1])
def test_paced_rules_raise_and_clear_within_a_snapshot(interval: float, later: int) -> None:
    """Twelve seconds of low power at full utilization between times of work, judged at each snapshot and paced."""
    seen: dict[str, list[bool]] = {"each": [], "paced": []}
    each, paced = Rules(), Rules()
    for place in range(round(60.0 / interval)):
        time = place * interval
        values = SPIN if 20.0 <= time - later * interval < 32.0 else GEMM
        now = moment(time, gpu(sampled_at=time, **values))
        seen["each"].append("low_power_full_util" in ids(each.apply(now).alerts))
        seen["paced"].append("low_power_full_util" in ids(paced.apply_paced(now).alerts))
    changes = {
        name: [place for place in range(1, len(up)) if up[place] != up[place - 1]] for name, up in seen.items()
    }
    assert len(changes["each"]) == 2
    late = [ours - theirs for ours, theirs in zip(changes["paced"], changes["each"], strict=True)]
    assert late[0] in {0, 1}
    assert late[1] in {-1, 0, 1}


def test_paced_rules_judge_each_snapshot_of_a_second() -> None:
    each, paced = Rules(), Rules()
    for time in range(60):
        values = SPIN if 20 <= time < 32 else GEMM
        now = moment(float(time), gpu(sampled_at=float(time), **values))
        assert paced.apply_paced(now) == each.apply(now)


def state(**fields: object) -> GpuState:
    """One GPU after one sample, so that its means are its latest values."""
    one = gpu(**{"power_limit_watts": 700.0, **fields})
    found = GpuState(one, 0.0)
    found.update(one, 0.0)
    return found


BUSY = {"util_pct": 100.0, "power_watts": 140.0, "sm_active_pct": 1.0, "dram_active_pct": 0.0}


@pytest.mark.parametrize(
    ("changed", "raises", "keeps"),
    [
        ({"util_pct": 95.0}, True, True),
        ({"util_pct": 94.9}, False, True),
        ({"util_pct": 90.0}, False, True),
        ({"util_pct": 89.9}, False, False),
        ({"power_watts": 244.0}, True, True),  # 34.9 % of 700 W
        ({"power_watts": 245.0}, False, True),
        ({"power_watts": 314.0}, False, True),
        ({"power_watts": 315.0}, False, False),
        ({"sm_active_pct": 49.9}, True, True),
        ({"sm_active_pct": 50.0}, False, True),
        ({"sm_active_pct": 60.0}, False, False),
        ({"dram_active_pct": 19.9}, True, True),
        ({"dram_active_pct": 20.0}, False, True),
        ({"dram_active_pct": 25.0}, False, False),
        ({"dram_active_pct": None}, True, True),
        ({"sm_active_pct": None, "mem_util_pct": 9.9}, True, True),
        ({"sm_active_pct": None, "mem_util_pct": 10.0}, False, True),
        ({"sm_active_pct": None, "mem_util_pct": 15.0}, False, False),
        ({"sm_active_pct": None}, False, False),
        ({"activity_source": "gpm", "mem_util_pct": 50.0}, True, True),
        ({"activity_source": "dcgm"}, False, False),
        ({"activity_source": "dcgm", "mem_util_pct": 9.9}, True, True),
        ({"activity_source": "dcgm", "mem_util_pct": 10.0}, False, True),
        ({"activity_source": "dcgm", "mem_util_pct": 15.0}, False, False),
        ({"activity_source": "dcgm", "mem_util_pct": 5.0, "sm_active_pct": 60.0}, False, False),
    ],
    ids=str,
)
def test_low_power_at_full_utilization_has_the_documented_limits(
    changed: dict[str, object], raises: bool, keeps: bool
) -> None:
    one = state(**{**BUSY, **changed})
    assert (LOW_POWER_FULL_UTIL.holds(one, False), LOW_POWER_FULL_UTIL.holds(one, True)) == (raises, keeps)


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({}, ()),
        ({"util_pct": None}, ("utilization",)),
        ({"power_watts": None}, ("power",)),
        ({"power_watts": None, "power_limit_watts": None}, ("power",)),
        ({"power_limit_watts": None}, ("power limit",)),
        ({"power_limit_watts": 0.0}, ("power limit",)),
        ({"sm_active_pct": None}, ("SM activity",)),
        ({"sm_active_pct": None, "mem_util_pct": 9.0}, ()),
        ({"sm_active_pct": None, "mem_util_pct": 10.0, "power_watts": None}, ()),
        ({"util_pct": 94.0, "power_watts": None}, ()),
        ({"util_pct": 95.0, "power_watts": None}, ("power",)),
        ({"util_pct": None, "power_watts": 245.0}, ()),
        ({"util_pct": None, "power_watts": 244.0}, ("utilization",)),
        ({"util_pct": None, "sm_active_pct": 50.0}, ()),
        ({"util_pct": None, "sm_active_pct": 49.0}, ("utilization",)),
        ({"util_pct": None, "dram_active_pct": 20.0}, ()),
        ({"util_pct": None, "dram_active_pct": None}, ("utilization",)),
        ({"util_pct": None, "power_watts": None, "sm_active_pct": None}, ("utilization", "power", "SM activity")),
    ],
    ids=str,
)
def test_values_are_missing_only_where_the_present_ones_do_not_decide(
    changed: dict[str, object], missing: tuple[str, ...]
) -> None:
    values: dict[str, object] = {"power_limit_watts": 700.0, **BUSY, **changed}
    assert values_missing_for_low_power(gpu(**values)) == missing


CAPPED = {
    "util_pct": 100.0,
    "power_watts": 690.0,
    "sm_clock_mhz": 1455.0,
    "sm_clock_max_mhz": 1980.0,
    "clock_event_reasons": ("sw_power_cap",),
}


@pytest.mark.parametrize(
    ("changed", "raises", "keeps"),
    [
        ({}, True, True),
        ({"power_watts": 630.0}, True, True),  # 90 % of 700 W
        ({"power_watts": 629.0}, False, True),
        ({"power_watts": 560.0}, False, True),
        ({"power_watts": 559.0}, False, False),
        ({"power_watts": None}, False, False),
        ({"power_limit_watts": None}, False, False),
        ({"util_pct": 50.0}, True, True),
        ({"util_pct": 49.9}, False, False),
        ({"util_pct": None}, False, False),
        ({"sm_clock_mhz": 1980.0}, False, False),
        ({"sm_clock_mhz": 1979.0}, True, True),
        ({"sm_clock_mhz": None}, False, False),
        ({"sm_clock_max_mhz": None}, False, False),
        ({"clock_event_reasons": ("gpu_idle",)}, False, False),
        ({"clock_event_reasons": ()}, False, False),
        ({"clock_event_reasons": None}, False, False),
    ],
    ids=str,
)
def test_a_power_cap_needs_its_reason_a_lower_clock_and_work(
    changed: dict[str, object], raises: bool, keeps: bool
) -> None:
    one = state(**{**CAPPED, **changed})
    assert (POWER_CAPPED.holds(one, False), POWER_CAPPED.holds(one, True)) == (raises, keeps)


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        ({}, True),
        ({"util_pct": 5.1}, True),
        ({"util_pct": 5.0}, False),
        ({"util_pct": None}, True),
        ({"clock_event_reasons": ("sw_power_cap",)}, False),
        ({"clock_event_reasons": ()}, False),
        ({"clock_event_reasons": None}, False),
    ],
    ids=str,
)
def test_a_working_gpu_is_throttled(changed: dict[str, object], holds: bool) -> None:
    one = state(**{**CAPPED, "clock_event_reasons": ("hw_slowdown", "sw_power_cap"), **changed})
    assert THROTTLED.holds(one, False) is holds


@pytest.mark.parametrize(
    ("changed", "raises", "keeps"),
    [
        ({}, True, True),
        ({"dram_active_pct": 70.0}, True, True),
        ({"dram_active_pct": 69.9}, False, True),
        ({"dram_active_pct": 60.0}, False, True),
        ({"dram_active_pct": 59.9}, False, False),
        ({"tensor_active_pct": 19.9}, True, True),
        ({"tensor_active_pct": 20.0}, False, True),
        ({"tensor_active_pct": 24.9}, False, True),
        ({"tensor_active_pct": 25.0}, False, False),
        ({"util_pct": 90.0}, True, True),
        ({"util_pct": 89.9}, False, False),
        ({"util_pct": None}, False, False),
        ({"dram_active_pct": None}, False, False),
        ({"tensor_active_pct": None}, False, False),
    ],
    ids=str,
)
def test_memory_bound_work_has_the_documented_limits(
    changed: dict[str, object], raises: bool, keeps: bool
) -> None:
    values = {"util_pct": 100.0, "dram_active_pct": 88.0, "tensor_active_pct": 0.3, **changed}
    one = state(**values)
    assert (MEMORY_BOUND.holds(one, False), MEMORY_BOUND.holds(one, True)) == (raises, keeps)


@pytest.mark.parametrize(
    ("shown", "points", "summary"),
    [
        (
            LOW_POWER_FULL_UTIL.describe(state(**{**BUSY, "sm_active_pct": 9.96})),
            ("140 of 700 W at 100 % util", "a kernel is spinning or stuck", "SM active 10 %"),
            "10.0 % of its SMs are active",
        ),
        (
            LOW_POWER_FULL_UTIL.describe(state(**{**BUSY, "sm_active_pct": 10.0})),
            ("140 of 700 W at 100 % util", "a kernel is spinning or stuck", "SM active 10 %"),
            "and 10 % of its SMs are active",
        ),
        (
            LOW_POWER_FULL_UTIL.describe(state(**{**BUSY, "sm_active_pct": None, "mem_util_pct": 3.0})),
            ("140 of 700 W at 100 % util", "a kernel is spinning or stuck", "memory controller 3 % busy"),
            "its memory controller is 3 % busy",
        ),
        (
            THROTTLED.describe(
                state(**{**CAPPED, "clock_event_reasons": ("hw_thermal_slowdown",), "temperature_c": 91.0})
            ),
            ("thermal limit of the hardware", "91 °C", "SM clock 1455 of 1980 MHz", "690 of 700 W"),
            "(thermal limit of the hardware): SM clock 1455 of 1980 MHz at 690 of 700 W, 91 °C.",
        ),
        (
            POWER_CAPPED.describe(state(**CAPPED)),
            ("690 of 700 W", "normal for a busy GPU", "SM clock 1455 of 1980 MHz"),
            "SM clock 1455 of 1980 MHz at 690 of 700 W",
        ),
        (
            MEMORY_BOUND.describe(state(util_pct=99.0, dram_active_pct=88.0, tensor_active_pct=0.34)),
            ("DRAM active 88 %", "tensor cores active 0.3 %"),
            "DRAM is active 88 % of the time",
        ),
    ],
    ids=["SM below ten", "SM from ten on", "no SM activity", "throttled", "capped", "memory-bound"],
)
def test_clauses_and_sentence_have_the_same_numbers(
    shown: AlertText, points: tuple[str, ...], summary: str
) -> None:
    assert shown.points == points
    assert summary in shown.summary


def test_an_error_is_split_into_clauses_and_a_power_cable_is_named() -> None:
    failed = state(error="Xid 62: a microcontroller halted (program 7) since 10:00:00 for 3 s")
    assert GPU_ERROR.holds(failed, False)
    assert not GPU_ERROR.holds(state(), False)
    assert GPU_ERROR.describe(failed).points == (
        "Xid 62",
        "a microcontroller halted",
        "program 7",
        "since 10:00:00",
        "for 3 s",
    )
    assert "power cables" in GPU_ERROR.describe(state(error="no power cable is connected")).next


@pytest.mark.parametrize(
    ("attached", "pids", "foreign", "advice"),
    [
        ([9, 5], [3], [], "py-spy dump --pid 5"),
        ([], [8, 3], [], "py-spy dump --pid 3"),
        ([], [], [8, 4], "pid 4 "),
        ([], [], [], "nvidia-smi"),
    ],
)
def test_the_first_process_that_can_be_seen_is_advised_on(
    attached: list[int], pids: list[int], foreign: list[int], advice: str
) -> None:
    one = state(**BUSY)
    one.rank_pids, one.pids, one.foreign_pids = attached, pids, foreign
    assert advice in LOW_POWER_FULL_UTIL.describe(one).next
