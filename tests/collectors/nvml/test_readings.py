"""What a healthy driver says, as it arrives in a reading: the real binding over the stand-in for NVML."""

from __future__ import annotations

import time

import pytest

import collectors.nvml.device
from collectors.base.source import GpuReading
from collectors.gpu.first_calls_lock import FirstCallsLock
from collectors.gpu.slow_poll_schedule import slow_offset
from collectors.nvml.rounds import slow_pace
from llmtop.hardware import clock_events
from llmtop.model.snapshot import Gpu
from tests.support.nvml_source import OwnSource
from tests.support.nvml_stub import GIB, Driver, Scenario, gpu_uuid, mig_uuid
from tests.support.processes import wait_for
from tests.support.readings import gpu_when, reading_when

MIB = 1 << 20


def complete(gpu: Gpu) -> bool:
    return gpu.sm_active_pct is not None and gpu.power_limit_watts is not None


def test_every_value_of_the_contract_arrives_in_its_unit(nvml_stub: Driver, source: OwnSource) -> None:
    nvml_stub.scenario.set(
        3,
        util=100,
        util_sampled=61,
        mem_util=7,
        mem_used_bytes=5 * GIB,
        power_watts=122,
        energy_joules=99,
        temperature_c=41,
        mem_temperature_c=45,
        sm_clock_mhz=1455,
        clock_event_reasons=0x4 | 0x40,
        sm_active=0.8,
        sm_occupancy=1.5,
        tensor_active=0.25,
        dram_active=3,
        fp32_active=2.5,
        gpm_pcie_rx_mib=8000,
        gpm_pcie_tx_mib=2,
        nvlink_rx_mib=50,
        nvlink_tx_mib=60,
    ).write()
    before = time.time()
    source.start()
    gpu = gpu_when(source, 3, complete)
    assert gpu.sampled_at is not None
    assert before <= gpu.sampled_at <= time.time()
    assert gpu == Gpu(
        index=3,
        uuid=gpu_uuid(3),
        name="NVIDIA H200",
        util_pct=100,
        util_sampled_pct=61,
        mem_util_pct=7,
        mem_used_bytes=5 * GIB,
        mem_total_bytes=150_754_820_096,
        power_watts=pytest.approx(122),
        power_limit_watts=pytest.approx(700),
        energy_joules=pytest.approx(99),
        temperature_c=41,
        mem_temperature_c=45,
        sm_clock_mhz=1455,
        sm_clock_max_mhz=1980,
        clock_event_reasons=("sw_power_cap", "hw_thermal_slowdown"),
        pcie_rx_bytes_per_s=8000 * MIB,
        pcie_tx_bytes_per_s=2 * MIB,
        pcie_source="gpm",
        pcie_gen=5,
        pcie_width=16,
        nvlink_rx_bytes_per_s=50 * MIB,
        nvlink_tx_bytes_per_s=60 * MIB,
        sm_active_pct=pytest.approx(0.8),
        sm_occupancy_pct=1.5,
        tensor_active_pct=0.25,
        dram_active_pct=3,
        fp32_active_pct=2.5,
        activity_source="gpm",
        sampled_at=gpu.sampled_at,
    )


def test_the_reading_names_the_driver_and_lists_gpus_in_its_order(source: OwnSource) -> None:
    assert source.latest() == GpuReading(settled=False), (
        "nothing is known, and nothing is wrong, before the driver was asked"
    )
    source.start()
    reading = reading_when(source, lambda reading: len(reading.gpus) == 8)
    assert [gpu.uuid for gpu in reading.gpus] == [gpu_uuid(slot) for slot in range(8)]
    assert (reading.driver_version, reading.cuda_version) == ("580.159.04", "13.0")
    assert reading.notes == ()


def test_values_follow_the_driver(nvml_stub: Driver, source: OwnSource) -> None:
    source.start()
    gpu_when(source, 2, lambda gpu: gpu.util_pct == 99)
    nvml_stub.scenario.set(2, util=17, sm_active=5).write()
    gpu = gpu_when(source, 2, lambda gpu: gpu.util_pct == 17 and gpu.sm_active_pct == 5)
    assert gpu.error is None


def test_the_drivers_own_samples_of_util_are_told_beside_it_and_absent_alone(
    nvml_stub: Driver, source: OwnSource
) -> None:
    source.start()
    gpu_when(source, 2, lambda gpu: (gpu.util_pct, gpu.util_sampled_pct) == (99, 98))
    nvml_stub.scenario.set(2, util_sampled=None, util=40).set(3, util_sampled=55).write()
    gpu_when(source, 3, lambda gpu: (gpu.util_pct, gpu.util_sampled_pct) == (99, 55))
    gpu = gpu_when(source, 2, lambda gpu: (gpu.util_pct, gpu.util_sampled_pct) == (40, None))
    assert gpu.error is None


@pytest.mark.parametrize(("kind", "computes"), [("compute", True), ("graphics", False), ("mps", True)])
def test_whether_a_process_computes_is_told_of_each(
    nvml_stub: Driver, source: OwnSource, kind: str, computes: bool
) -> None:
    nvml_stub.scenario.process(1, 77, GIB, kind=kind).process(1, 78, GIB).write()
    source.start()
    reading = reading_when(source, lambda reading: len(reading.uses) == 2)
    assert {use.pid: use.computes for use in reading.uses} == {77: computes, 78: True}


def test_gpm_pairs_are_never_closer_than_nvml_allows(nvml_stub: Driver) -> None:
    source = OwnSource(0.02)  # the stand-in answers NaN to a pair less than 100 ms apart, which would be absent
    source.start()
    gpu_when(source, 0, complete)
    seen = {source.latest().gpus[0].sm_active_pct for _ in range(40) if not time.sleep(0.02)}
    source.close()
    assert seen == {94.0}


def test_the_first_gpm_calls_are_made_one_after_another(
    nvml_stub: Driver, source: OwnSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectors.nvml.device, "first_calls_lock", FirstCallsLock(patience=60.0))
    nvml_stub.scenario.delay("nvmlGpmSampleGet", 20_000).write()
    nvml_stub.forget_gpm()
    source.start()
    for index in range(8):
        gpu_when(source, index, complete)
    assert nvml_stub.gpm_crowd == 1


def test_gpm_is_left_alone_on_demand(
    nvml_stub: Driver, source: OwnSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMTOP_NO_GPM", "1")
    before = nvml_stub.count("nvmlGpmSampleGet")
    source.start()
    gpu = gpu_when(source, 0, lambda gpu: gpu.pcie_source is not None)
    assert gpu.pcie_source == "nvml"
    assert gpu.sm_active_pct is None
    assert nvml_stub.count("nvmlGpmSampleGet") == before


@pytest.mark.slow("test_a_hanging_gpu_loses_its_values_and_delays_nobody finds much of it")
def test_a_gpu_that_hangs_in_its_first_gpm_call_keeps_no_other_from_its_own(
    nvml_stub: Driver, source: OwnSource
) -> None:
    nvml_stub.scenario.hang("nvmlGpmSampleGet", 3).write()
    source.start()
    for index in (0, 1, 2, 4, 5, 6, 7):
        gpu_when(source, index, complete)
    assert source.latest().gpus[3].sm_active_pct is None


def test_closing_gives_gpm_samples_back_and_shuts_down_with_nobody_inside(nvml_stub: Driver) -> None:
    source = OwnSource(0.1)
    before, shut = nvml_stub.gpm_samples, nvml_stub.count("nvmlShutdown")
    source.start()
    gpu_when(source, 7, complete)
    assert nvml_stub.gpm_samples > before
    source.close(seconds=30)
    assert nvml_stub.gpm_samples == before
    assert nvml_stub.count("nvmlShutdown") == shut + 1
    assert nvml_stub.violations == 0


def test_the_blocking_pcie_call_is_made_only_where_gpm_is_missing(nvml_stub: Driver, source: OwnSource) -> None:
    before = nvml_stub.count("nvmlDeviceGetPcieThroughput")
    source.start()
    assert gpu_when(source, 0, complete).pcie_source == "gpm"
    assert nvml_stub.count("nvmlDeviceGetPcieThroughput") == before
    source.close()

    nvml_stub.scenario.set(0, gpm=0, pcie_rx_kb_per_s=8000, pcie_tx_kb_per_s=3).write()
    other = OwnSource(0.1)
    other.start()
    gpu = gpu_when(other, 0, lambda gpu: gpu.pcie_rx_bytes_per_s is not None)
    other.close()
    assert (gpu.pcie_rx_bytes_per_s, gpu.pcie_tx_bytes_per_s, gpu.pcie_source) == (8_000_000, 3_000, "nvml")
    assert gpu.sm_active_pct is None
    assert gpu.error is None


def test_dear_calls_are_made_less_often_than_cheap_ones(nvml_stub: Driver, source: OwnSource) -> None:
    cheap, dear = "nvmlDeviceGetUtilizationRates", ("nvmlDeviceGetFieldValues", "nvmlDeviceGetProcessUtilization")
    energy = "nvmlDeviceGetTotalEnergyConsumption"
    before = {call: nvml_stub.count(call) for call in (cheap, *dear, energy)}
    source.start()
    wait_for(lambda: nvml_stub.count(cheap) - before[cheap] >= 8 * 30)
    for call in dear:
        assert nvml_stub.count(call) - before[call] < (nvml_stub.count(cheap) - before[cheap]) / 4
    assert nvml_stub.count(energy) == before[energy], "field values hold the energy already"


def test_the_pace_can_be_changed(nvml_stub: Driver) -> None:
    source = OwnSource(3600)
    source.start()
    gpu_when(source, 0, complete)
    nvml_stub.scenario.set(0, util=3).write()
    source.set_interval(0.1)
    gpu_when(source, 0, lambda gpu: gpu.util_pct == 3)
    source.close()


def test_processes_are_listed_once_with_their_memory_and_share(nvml_stub: Driver, source: OwnSource) -> None:
    scenario = nvml_stub.scenario
    scenario.process(0, 4_000_001, 9 * GIB, sm=60).process(0, 4_000_002, GIB)
    scenario.process(1, 4_000_003, 2 * GIB, kind="graphics", sm=5).process(1, 4_000_004, GIB, kind="mps").write()
    source.start()
    reading = reading_when(source, lambda reading: len(reading.uses) == 4)
    uses = {use.pid: (use.gpu_uuid, use.mem_bytes, use.sm_pct) for use in reading.uses}
    assert uses == {
        4_000_001: (gpu_uuid(0), 9 * GIB, 60.0),
        4_000_002: (gpu_uuid(0), GIB, None),
        4_000_003: (gpu_uuid(1), 2 * GIB, 5.0),
        4_000_004: (gpu_uuid(1), GIB, None),
    }
    scenario.end_process(0, 4_000_001).write()
    reading_when(source, lambda reading: len(reading.uses) == 3)


def test_mig_instances_are_rows_after_their_gpu(nvml_stub: Driver, source: OwnSource) -> None:
    scenario = nvml_stub.now(Scenario(count=2))
    scenario.mig(0, 7, used=GIB, total=18 * GIB).mig(0, 9, used=2 * GIB, total=18 * GIB)
    scenario.process(0, 4_000_004, GIB, instance=9).write()
    source.start()
    reading = reading_when(source, lambda r: len(r.gpus) == 4 and r.gpus[2].sm_active_pct is not None and r.uses)
    whole, first, second, other = reading.gpus
    assert (whole.uuid, other.uuid) == (gpu_uuid(0), gpu_uuid(1))
    assert whole.util_pct is None, "a GPU in MIG mode has no utilisation"
    assert whole.power_watts is not None
    assert [(one.uuid, one.mig_parent_uuid, one.index) for one in (first, second)] == [
        (mig_uuid(0, 7), gpu_uuid(0), 0),
        (mig_uuid(0, 9), gpu_uuid(0), 0),
    ]
    assert [one.number for one in reading.gpus] == ["0", "0:0", "0:1", "1"]
    assert [(one.mig_gpu_instance, one.mig_compute_instance) for one in (first, second)] == [(7, 0), (9, 0)]
    assert (second.mem_used_bytes, second.mem_total_bytes) == (2 * GIB, 18 * GIB)
    assert (second.util_pct, second.power_watts, second.error) == (None, None, None)
    assert [(use.pid, use.gpu_uuid) for use in reading.uses] == [(4_000_004, mig_uuid(0, 9))]


def test_a_reading_is_settled_once_every_instance_was_sampled_twice(
    nvml_stub: Driver, source: OwnSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectors.nvml.device, "SETTLE_SECONDS", 60.0)
    scenario = nvml_stub.now(Scenario(count=2))
    scenario.mig(0, 7, used=GIB, total=18 * GIB).mig(0, 9, used=2 * GIB, total=18 * GIB)
    scenario.delay("nvmlDeviceGetMigMode", 400_000, gpu=0).write()
    source.start()
    reading = reading_when(source, lambda r: r.settled and r.gpus)
    assert len(reading.gpus) == 4
    assert all(gpu.sm_active_pct is not None for gpu in reading.gpus if gpu.mig_parent_uuid is not None)


def test_reasons_have_names_and_a_new_bit_is_not_lost() -> None:
    assert clock_events.reason_names(0) == ()
    assert clock_events.reason_names(0x1FF) == (
        "gpu_idle",
        "applications_clocks",
        "sw_power_cap",
        "hw_slowdown",
        "sync_boost",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake",
        "display",
    )
    assert clock_events.reason_names(0x1000 | 0x8) == ("hw_slowdown", "reason_0x1000")


@pytest.mark.parametrize("interval", [0.1, 1.0, 2.0, 2.5, 3.0, 5.0, 7.0, 30.0, 3600.0])
def test_dear_rounds_come_with_every_instant_of_a_long_interval(interval: float) -> None:
    pace = slow_pace(interval)
    assert 2.0 <= pace < 4.0
    if interval > 2.0:
        assert interval / pace == pytest.approx(round(interval / pace))


@pytest.mark.parametrize("interval", [0.1, 0.25, 0.4, 0.5, 1.0, 2.0, 5.0])
def test_dear_rounds_lie_between_two_fast_ones(interval: float) -> None:
    """Each takes up to 25 ms; where fast rounds are far apart those of many GPUs follow each other."""
    offsets = [slow_offset(index, interval) for index in range(8)]
    in_a_row = len(offsets) if len(set(offsets)) == 1 else 1
    for offset in offsets:
        after_fast = offset % min(interval, 0.1 if in_a_row == 1 and interval < 0.5 else 0.5)
        assert after_fast > 0.02
        assert after_fast + in_a_row * 0.025 < min(interval, 0.5)
