"""What a driver may do wrong, and that it harms nothing but the values concerned."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

import collectors.nvml.device
import collectors.nvml.faults
import collectors.nvml.rounds
import collectors.nvml.source
from collectors.base.source import GpuReading
from collectors.nvml.calls import ABSENT, LOST, is_unspecific, status_text
from llmtop.model.signals import SIGNALS
from llmtop.model.snapshot import Gpu
from tests.support.nvml_source import OwnSource
from tests.support.nvml_stub import Driver, Scenario, gpu_uuid
from tests.support.processes import wait_for
from tests.support.readings import gpu_when, reading_when

GPM = {signal.field for signal in SIGNALS if signal.gpm and not signal.field.startswith("pcie_")} | {
    "activity_source"
}
# Which fields are absent when a call gives nothing.
FIELDS: dict[str, set[str]] = {
    "nvmlDeviceGetUtilizationRates": {"util_pct", "mem_util_pct"},
    "nvmlDeviceGetSamples": {"util_sampled_pct"},
    "nvmlDeviceGetPowerUsage": {"power_watts"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz"},
    "nvmlDeviceGetMaxClockInfo": {"sm_clock_max_mhz"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"clock_event_reasons"},
    "nvmlDeviceGetFieldValues": {"mem_temperature_c"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_gen"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_width"},
    "nvmlGpmSampleGet": GPM,
    "nvmlGpmMetricsGet": GPM,
    "nvmlDeviceGetEnforcedPowerLimit": set(),  # the management limit stands in
    "nvmlDeviceGetProcessUtilization": set(),
    "nvmlDeviceGetComputeRunningProcesses_v3": set(),
    "nvmlDeviceGetMigMode": set(),
    "nvmlDeviceGetTotalEccErrors": set(),
    "nvmlDeviceGetRemappedRows": set(),
    "nvmlDeviceGetSupportedEventTypes": set(),
    "nvmlDeviceRegisterEvents": set(),
    "nvmlDeviceGetName": set(),
}
CODES = [3, 4, 6, 9, 10, 14, 15, 16, 18, 20, 21, 77, 999]
PCIE = {"pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "pcie_source"}  # without GPM from NVML, a little later


def absent(gpu: Gpu) -> set[str]:
    fields = {name for name in gpu.__struct_fields__ if not name.startswith(("mig_", "xgmi_"))} - {"error"}
    return {name for name in fields if getattr(gpu, name) is None}


def whole(gpu: Gpu) -> bool:
    return not absent(gpu)


def well(gpu: Gpu) -> bool:
    """All of its values, and no error: with `impatient` a busy machine can make any GPU late for a moment."""
    return whole(gpu) and gpu.error is None


@pytest.mark.slow("random or many inputs; a neighbour has one case of each kind")
def test_any_call_may_answer_anything(nvml_stub: Driver) -> None:
    """Every (call, answer) on a GPU of its own, beside one that is well."""
    pairs = list(itertools.product(FIELDS, CODES))
    for start in range(0, len(pairs), 60):
        batch = pairs[start : start + 60]
        scenario = Scenario(count=len(batch) + 1)
        for slot, (call, code) in enumerate(batch):
            scenario.fail(call, code, gpu=slot)
        nvml_stub.now(scenario)
        source = OwnSource(0.2)
        source.start()
        well = gpu_when(source, len(batch), whole)
        assert well.error is None
        for slot, (call, code) in enumerate(batch):
            if code in LOST:
                gpu = gpu_when(source, slot, lambda gpu: gpu.error is not None)
                assert status_text(code) in (gpu.error or ""), (call, code)
                continue
            expected = FIELDS[call]
            gpu = gpu_when(source, slot, lambda gpu, expected=expected: absent(gpu) - PCIE <= expected)
            assert expected <= absent(gpu), (call, code)
            if code in ABSENT or code == 4 or is_unspecific(code):
                assert gpu.error is None, (call, code)
            else:
                gpu = gpu_when(source, slot, lambda gpu: gpu.error is not None)
                assert call.removesuffix("_v3") in (gpu.error or ""), (call, code)
        source.close()
    assert nvml_stub.violations == 0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is done every few seconds, or after some, is done sooner."""
    monkeypatch.setattr(collectors.nvml.source, "DISCOVERY_SECONDS", 0.2)
    monkeypatch.setattr(collectors.nvml.source, "RESTART_SECONDS", 0.3)
    monkeypatch.setattr(collectors.nvml.source, "RESTART_SECONDS_BESIDE_HEALTHY", 0.3)
    monkeypatch.setattr(collectors.nvml.rounds, "SLOW_SECONDS", 0.3)
    monkeypatch.setattr(collectors.nvml.device, "STALE_SECONDS", 0.5)


@pytest.fixture
def impatient_source(impatient: None, nvml_stub: Driver) -> Iterator[OwnSource]:
    source = OwnSource(0.1)
    yield source
    source.close()
    assert nvml_stub.violations == 0, "NVML was shut down under a thread"


@pytest.mark.parametrize("metric", ["sm_active", "tensor_active", "gpm_pcie_rx_mib", "nvlink_rx_mib"])
def test_a_gpm_metric_that_is_not_a_number_or_is_refused_is_absent_alone(
    nvml_stub: Driver, source: OwnSource, metric: str
) -> None:
    nvml_stub.scenario.set(0, **{metric: None}).fail_metric(metric, 3, gpu=1).write()
    source.start()
    field = {"gpm_pcie_rx_mib": "pcie_rx_bytes_per_s", "nvlink_rx_mib": "nvlink_rx_bytes_per_s"}.get(
        metric, f"{metric}_pct"
    )
    for index in (0, 1):
        gpu = gpu_when(
            source, index, lambda gpu: gpu.dram_active_pct is not None and gpu.energy_joules is not None
        )
        assert field in absent(gpu) or gpu.pcie_source == "nvml"
        assert gpu.error is None
    assert not absent(gpu_when(source, 2, whole))


@pytest.mark.parametrize("read", [-0.0, -1.2571e-14])
def test_what_rounding_leaves_below_zero_is_zero(nvml_stub: Driver, source: OwnSource, read: float) -> None:
    nvml_stub.scenario.set(0, tensor_active=read).write()
    source.start()
    assert str(gpu_when(source, 0, whole).tensor_active_pct) == "0.0"


def test_a_hanging_gpu_loses_its_values_and_delays_nobody(nvml_stub: Driver, impatient_source: OwnSource) -> None:
    source = impatient_source
    source.start()
    gpu_when(source, 3, whole)
    nvml_stub.scenario.hang("nvmlDeviceGetPowerUsage", gpu=3).set(5, util=12).write()
    stuck = gpu_when(source, 3, lambda gpu: "nvmlDeviceGetPowerUsage" in (gpu.error or ""))
    assert "the driver has not answered for" in (stuck.error or "")
    assert (stuck.util_pct, stuck.power_watts, stuck.sm_active_pct) == (None, None, None)
    gpu_when(source, 5, lambda gpu: gpu.util_pct == 12 and gpu.error is None)
    nvml_stub.scenario.mend("nvmlDeviceGetPowerUsage", gpu=3).write()
    gpu_when(source, 3, well)


@pytest.mark.slow(
    "waits out a hang; test_a_hanging_gpu_loses_its_values_and_delays_nobody has one of a cheap call"
)
def test_a_dear_call_that_hangs_takes_only_the_dear_values(nvml_stub: Driver, impatient_source: OwnSource) -> None:
    source = impatient_source
    nvml_stub.scenario.hang("nvmlDeviceGetFieldValues", gpu=1).write()
    source.start()
    words = "nvmlDeviceGetFieldValues has not returned for"
    gpu = gpu_when(source, 1, lambda gpu: words in (gpu.error or "") and gpu.sm_active_pct is not None)
    assert gpu.energy_joules is None
    assert gpu.util_pct == 99


@pytest.mark.slow("waits out a hang; test_a_hanging_gpu_loses_its_values_and_delays_nobody has a later one")
def test_a_hang_while_looking_for_gpus_is_said(nvml_stub: Driver, impatient_source: OwnSource) -> None:
    nvml_stub.scenario.hang("nvmlInitWithFlags").write()
    impatient_source.start()
    reading = reading_when(impatient_source, lambda reading: reading.notes)
    assert "the driver has not answered nvmlInit for" in reading.notes[0]
    nvml_stub.scenario.mend("nvmlInitWithFlags").write()
    reading_when(impatient_source, lambda reading: len(reading.gpus) == 8 and not reading.notes)


@pytest.mark.slow("waits out a hang; test_a_hanging_gpu_loses_its_values_and_delays_nobody has a later one")
def test_a_gpu_that_hangs_before_it_said_who_it_is_hides_nobody(
    nvml_stub: Driver, impatient_source: OwnSource
) -> None:
    source = impatient_source
    nvml_stub.scenario.hang("nvmlDeviceGetHandleByIndex_v2", gpu=3).hang("nvmlDeviceGetUUID", gpu=0).write()
    source.start()

    def only_those_two(reading: GpuReading) -> bool:
        with_error = [gpu.index for gpu in reading.gpus if gpu.error is not None]
        return len(reading.gpus) == 8 and whole(reading.gpus[7]) and with_error == [0, 3]

    reading = reading_when(source, only_those_two)
    assert (reading.gpus[3].uuid, reading.gpus[3].util_pct) == ("unknown-3", None)
    assert "the driver has not answered for" in (reading.gpus[3].error or "")
    nvml_stub.scenario.mend("nvmlDeviceGetHandleByIndex_v2", gpu=3).mend("nvmlDeviceGetUUID", gpu=0).write()
    reading = reading_when(source, lambda reading: all(whole(gpu) for gpu in reading.gpus))
    assert reading.gpus[3].uuid == gpu_uuid(3)


@pytest.mark.slow(
    "two codes of six; each waits for the driver",
    kept=(
        "15",
        "1",
    ),
)
@pytest.mark.parametrize("code", sorted(LOST))
def test_a_lost_gpu_is_named_and_comes_back(nvml_stub: Driver, impatient_source: OwnSource, code: int) -> None:
    source = impatient_source
    source.start()
    gpu_when(source, 6, whole)
    nvml_stub.scenario.fail("*", code, gpu=6).write()
    lost = gpu_when(source, 6, lambda gpu: status_text(code) in (gpu.error or "") and gpu.util_pct is None)
    assert lost.uuid == gpu_uuid(6)
    assert len(source.latest().gpus) == 8
    gpu_when(source, 5, well)
    nvml_stub.scenario.mend("*", gpu=6).write()
    gpu_when(source, 6, well)


def test_a_gpu_that_only_a_new_start_of_nvml_finds_comes_back_under_its_new_index(
    nvml_stub: Driver, impatient_source: OwnSource
) -> None:
    source = impatient_source
    nvml_stub.scenario.set(2, lost=1, sticky_loss=1).set(7, util=7).write()
    source.start()
    reading = reading_when(source, lambda r: len(r.gpus) == 8 and status_text(15) in (r.gpus[2].error or ""))
    assert reading.gpus[2].uuid == "unknown-2", "a GPU that was lost before it could say who it is"
    # The GPU is back; the driver lists it first from the next start on.
    nvml_stub.scenario.set(2, lost=0)
    nvml_stub.scenario.order = [2, 0, 1, 3, 4, 5, 6, 7]
    nvml_stub.scenario.write()
    reading = reading_when(source, lambda reading: reading.gpus[0].uuid == gpu_uuid(2) and whole(reading.gpus[0]))
    assert [gpu.uuid for gpu in reading.gpus] == [gpu_uuid(slot) for slot in nvml_stub.scenario.order]
    assert gpu_when(source, 7, whole).util_pct == 7


def only_one_unlisted(source: OwnSource) -> tuple[GpuReading, Gpu]:
    """Wait for a reading with one GPU that the driver no longer lists, while all the others are well."""

    def found(reading: GpuReading) -> bool:
        errors = [gpu.error for gpu in reading.gpus if not well(gpu)]
        return len(errors) == 1 and "no longer lists" in (errors[0] or "")

    reading = reading_when(source, found)
    return reading, next(gpu for gpu in reading.gpus if gpu.error is not None)


def test_a_gpu_that_the_driver_no_longer_lists_keeps_its_row_until_it_is_back(
    nvml_stub: Driver, impatient_source: OwnSource
) -> None:
    source = impatient_source
    source.start()
    gpu_when(source, 2, whole)
    nvml_stub.scenario.order = [0, 1, 3, 4, 5, 6, 7]
    nvml_stub.scenario.set(2, lost=1).write()
    reading, gone = only_one_unlisted(source)
    assert status_text(15) in (gone.error or ""), "why it was lost is still said"
    assert (gone.uuid, gone.util_pct) == (gpu_uuid(2), None)
    assert len(reading.gpus) == 8
    nvml_stub.scenario.order = None
    nvml_stub.scenario.set(2, lost=0).write()
    reading = reading_when(source, lambda reading: all(whole(gpu) for gpu in reading.gpus))
    assert [gpu.uuid for gpu in reading.gpus] == [gpu_uuid(slot) for slot in range(8)]


@pytest.mark.slow("a hang beside a loss; test_a_lost_gpu_is_named_and_comes_back has a loss alone")
def test_nvml_is_not_restarted_while_a_thread_is_inside(nvml_stub: Driver, impatient_source: OwnSource) -> None:
    source = impatient_source
    source.start()
    gpu_when(source, 4, whole)
    shut = nvml_stub.count("nvmlShutdown")
    nvml_stub.scenario.hang("nvmlDeviceGetTemperature", gpu=4).write()
    gpu_when(source, 4, lambda gpu: "nvmlDeviceGetTemperature" in (gpu.error or ""))
    nvml_stub.scenario.set(2, lost=1).write()
    gpu_when(source, 2, lambda gpu: status_text(15) in (gpu.error or ""))
    looks = nvml_stub.count("nvmlDeviceGetCount_v2")
    wait_for(lambda: nvml_stub.count("nvmlDeviceGetCount_v2") > looks + 4)
    assert nvml_stub.count("nvmlShutdown") == shut
    gpu_when(source, 0, well)
    nvml_stub.scenario.mend("nvmlDeviceGetTemperature", gpu=4).set(2, lost=0).write()
    gpu_when(source, 4, whole)
    gpu_when(source, 2, whole)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (9, "kernel module is not loaded"),
        (18, "reboot, or reload the module"),
        (4, "no permission"),
        (999, "internal error"),
        (77, "error 77"),
    ],
)
def test_a_driver_that_does_not_start_is_said_in_words_and_tried_again(
    nvml_stub: Driver, impatient_source: OwnSource, code: int, sentence: str
) -> None:
    source = impatient_source
    nvml_stub.scenario.fail("nvmlInitWithFlags", code).write()
    source.start()
    reading = reading_when(source, lambda reading: reading.notes)
    assert sentence in reading.notes[0]
    assert reading.gpus == ()
    nvml_stub.scenario.mend("nvmlInitWithFlags").write()
    reading_when(source, lambda reading: len(reading.gpus) == 8 and not reading.notes)


def test_a_driver_without_gpus_is_said(nvml_stub: Driver, source: OwnSource) -> None:
    nvml_stub.now(Scenario(count=0))
    source.start()
    assert reading_when(source, lambda reading: reading.notes).notes == (
        "the NVIDIA driver is here, but it lists no GPU",
    )


def test_what_a_user_may_not_read_is_a_note_and_no_error(nvml_stub: Driver, source: OwnSource) -> None:
    nvml_stub.scenario.fail("nvmlDeviceGetProcessUtilization", 4).write()
    source.start()
    reading = reading_when(source, lambda reading: reading.notes)
    assert "no permission for nvmlDeviceGetProcessUtilization" in reading.notes[0]
    assert all(gpu.error is None for gpu in reading.gpus)


def test_an_xid_is_shown_with_its_meaning_and_forgotten_after_a_while(
    nvml_stub: Driver, impatient_source: OwnSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = impatient_source
    source.start()
    gpu_when(source, 5, whole)
    wait_for(lambda: nvml_stub.count("nvmlEventSetWait_v2") > 20)
    nvml_stub.scenario.xid(5, 79).write()
    gpu = gpu_when(source, 5, lambda gpu: "Xid 79" in (gpu.error or ""))
    assert "Xid 79: the GPU cannot be reached over PCIe (it has fallen off the bus) at " in (gpu.error or "")
    gpu_when(source, 4, well)
    nvml_stub.scenario.xid(5, 4242).write()
    gpu_when(source, 5, lambda gpu: gpu.error is not None and "Xid 4242" in gpu.error and "Xid 79" in gpu.error)
    monkeypatch.setattr(collectors.nvml.faults, "XID_RETENTION_SECONDS", 0.0)
    assert gpu_when(source, 5, lambda gpu: gpu.error is None).util_pct == 99


def test_a_gpu_that_has_almost_no_values_is_shown_without_an_error(nvml_stub: Driver, source: OwnSource) -> None:
    """As on GB10, whose memory is the machine's, or a vGPU."""
    scenario = nvml_stub.scenario
    gone = (
        "util",
        "util_sampled",
        "mem_total_bytes",
        "power_watts",
        "power_limit_watts",
        "energy_joules",
        "temperature_c",
    )
    more = ("mem_temperature_c", "sm_clock_mhz", "sm_clock_max_mhz", "pcie_gen", "pcie_width")
    scenario.set(0, gpm=0, **dict.fromkeys((*gone, *more)))
    for call in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetMigMode"):
        scenario.fail(call, 3, gpu=0)
    scenario.write()
    source.start()
    gpu_when(source, 1, whole)
    assert gpu_when(source, 0, lambda gpu: gpu.name != "GPU") == Gpu(
        index=0, uuid=gpu_uuid(0), name="NVIDIA H200", sampled_at=pytest.approx(time.time(), abs=60)
    )


def test_memory_faults_are_errors(nvml_stub: Driver, source: OwnSource) -> None:
    scenario = nvml_stub.scenario
    scenario.set(0, ecc_uncorrected=1).set(1, ecc_uncorrected=3, remap_pending=1).set(2, remap_failure=1)
    scenario.fail("nvmlDeviceGetRemappedRows", 3, gpu=3).set(3, retired_pending=1).write()
    source.start()
    errors = [gpu_when(source, index, lambda gpu: gpu.error is not None).error or "" for index in range(4)]
    assert errors[0] == "1 uncorrectable memory error since the driver was loaded"
    assert errors[1].startswith("3 uncorrectable memory errors")
    assert "waits to be remapped" in errors[1]
    assert "could not be remapped" in errors[2]
    assert "memory pages wait to be retired" in errors[3]


def test_a_damaged_name_does_not_stop_the_gpu(nvml_stub: Driver, source: OwnSource) -> None:
    assert nvml_stub.scenario.path is not None
    text = nvml_stub.scenario.rename(0, "@@").text().encode().replace(b"@@", b"H\xff\xfe200")
    fresh = nvml_stub.scenario.path.with_suffix(".new")
    fresh.write_bytes(text)
    fresh.replace(nvml_stub.scenario.path)
    source.start()
    gpu = gpu_when(source, 0, whole)
    assert gpu.name == "GPU"
    assert "InfoROM" in (gpu.error or "")


def test_a_refusal_without_a_reason_costs_its_value_alone(nvml_stub: Driver, source: OwnSource) -> None:
    nvml_stub.scenario.fail("nvmlDeviceGetCurrPcieLinkWidth", 999, gpu=2).write()
    source.start()
    reading = reading_when(source, lambda r: len(r.gpus) == 8 and r.notes)
    assert "internal error for nvmlDeviceGetCurrPcieLinkWidth" in reading.notes[0]
    gpu = gpu_when(source, 2, lambda gpu: gpu.power_limit_watts is not None)
    assert (gpu.pcie_width, gpu.pcie_gen, gpu.error) == (None, 5, None)
    assert gpu_when(source, 1, whole).error is None


def test_a_gpu_that_answers_nothing_else_has_an_error(nvml_stub: Driver, source: OwnSource) -> None:
    nvml_stub.scenario.fail("*", 999, gpu=2).write()
    source.start()
    gpu = gpu_when(source, 2, lambda gpu: gpu.error is not None)
    assert "internal error" in (gpu.error or "")
    assert gpu_when(source, 1, whole).error is None
    nvml_stub.scenario.mend("*", gpu=2).write()
    gpu_when(source, 2, whole)
    nvml_stub.scenario.fail("*", 999, gpu=2).write()
    assert "internal error" in (gpu_when(source, 2, lambda gpu: gpu.error is not None).error or "")


ALL_ONES, ALL_ONES_64 = 4294967295, (1 << 64) - 1
SENTINELS: dict[str, tuple[str, float]] = {
    **{one.field.removesuffix("_pct"): (one.field, 250) for one in SIGNALS if one.gpm and one.unit == "%"},
    "util": ("util_pct", ALL_ONES),
    "util_sampled": ("util_sampled_pct", 101),
    "mem_util": ("mem_util_pct", 101),
    "mem_total_bytes": ("mem_total_bytes", ALL_ONES_64),
    "power_watts": ("power_watts", ALL_ONES / 1000),
    "power_limit_watts": ("power_limit_watts", ALL_ONES / 1000),
    "energy_joules": ("energy_joules", 1.8e16),
    "temperature_c": ("temperature_c", 4294967200),
    "mem_temperature_c": ("mem_temperature_c", ALL_ONES),
    "sm_clock_mhz": ("sm_clock_mhz", ALL_ONES),
    "sm_clock_max_mhz": ("sm_clock_max_mhz", ALL_ONES),
    "clock_event_reasons": ("clock_event_reasons", ALL_ONES_64),
    "pcie_gen": ("pcie_gen", ALL_ONES),
    "pcie_width": ("pcie_width", 77),
    "sm_active": ("sm_active_pct", 1e300),
    "sm_occupancy": ("sm_occupancy_pct", -3),
    "tensor_active": ("tensor_active_pct", float("inf")),
    "dram_active": ("dram_active_pct", 250),
    "nvlink_rx_mib": ("nvlink_rx_bytes_per_s", 1e30),
    "nvlink_tx_mib": ("nvlink_tx_bytes_per_s", -1),
}


@pytest.mark.slow(
    "four fields stand for all; the others take the same way",
    kept=(
        "util_sampled",
        "temperature_c",
        "nvlink_rx_mib",
        "clock_event_reasons",
    ),
)
@pytest.mark.parametrize("key", SENTINELS)
def test_what_cannot_be_is_absent_and_said_once(nvml_stub: Driver, source: OwnSource, key: str) -> None:
    field, value = SENTINELS[key]
    nvml_stub.scenario.set(3, **{key: value}).write()
    source.start()
    reading = reading_when(source, lambda r: len(r.gpus) == 8 and r.notes and all(map(whole, r.gpus[:3])))
    notes = [note for note in reading.notes if field in note]
    assert len(notes) == 1, reading.notes
    assert notes[0].startswith("the driver said ")
    assert f"for {field} of GPU 3: not shown" in notes[0]
    gpu = gpu_when(source, 3, lambda gpu: absent(gpu) <= {field})
    assert (getattr(gpu, field), gpu.error) == (None, None)
    nvml_stub.now(Scenario.eight_gpus())
    reading_when(source, lambda r: not r.notes and getattr(r.gpus[3], field) is not None)


def test_many_gpus_that_say_the_same_make_one_sentence(nvml_stub: Driver, source: OwnSource) -> None:
    nvml_stub.scenario.set(None, util=ALL_ONES).write()
    source.start()
    reading = reading_when(source, lambda r: r.notes and "7 more" in r.notes[0])
    assert reading.notes == (
        "the driver said 4294967295 for util_pct of GPU 0 and 7 more like it: not shown, it cannot be",
    )


def test_more_memory_used_than_there_is_is_absent(nvml_stub: Driver, source: OwnSource) -> None:
    nvml_stub.scenario.set(3, mem_used_bytes=200 << 30, mem_total_bytes=100 << 30).write()
    source.start()
    gpu = gpu_when(source, 3, lambda gpu: gpu.mem_total_bytes == 100 << 30)
    assert gpu.mem_used_bytes is None


def test_pcie_rates_that_cannot_be_are_read_from_nvml_instead(nvml_stub: Driver, source: OwnSource) -> None:
    nvml_stub.scenario.set(3, gpm_pcie_rx_mib=1e30).write()
    source.start()
    gpu = gpu_when(source, 3, lambda gpu: gpu.pcie_rx_bytes_per_s is not None)
    assert (gpu.pcie_source, gpu.pcie_rx_bytes_per_s) == ("nvml", 30_000_000)


@pytest.mark.parametrize("pid", [0, 4194304, 4194305, 4294967295])
def test_an_odd_pid_hides_no_other_process(nvml_stub: Driver, source: OwnSource, pid: int) -> None:
    scenario = nvml_stub.scenario
    scenario.process(1, 4_000_001, 5, sm=10).process(1, pid, 6).process(1, 4_000_002, 7).process(2, 4_000_003, 8)
    scenario.write()
    source.start()
    reading = reading_when(source, lambda r: len(r.uses) == 3 and r.notes)
    assert sorted((use.pid, use.mem_bytes) for use in reading.uses) == [
        (4_000_001, 5),
        (4_000_002, 7),
        (4_000_003, 8),
    ]
    assert f"the driver said {pid} for pid of GPU 1: not shown" in reading.notes[0]


def test_shares_of_processes_come_back_after_the_wall_clock_stepped_back(
    nvml_stub: Driver, source: OwnSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver stamps its samples by the clock that is right, the monitor's is an hour ahead at first."""
    right = time.time_ns
    nvml_stub.scenario.process(0, 4_000_001, 5, sm=60).write()
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time_ns", lambda: right() + 3600 * 10**9)
        source.start()
        reading_when(source, lambda r: r.uses)
        time.sleep(0.3)  # the driver has a newer sample every 0.1 s
        assert reading_when(source, lambda r: r.uses).uses[0].sm_pct is None
    reading_when(source, lambda r: r.uses and r.uses[0].sm_pct == 60)


def test_why_a_gpu_was_lost_is_kept_when_the_driver_starts_without_it(
    nvml_stub: Driver, impatient_source: OwnSource
) -> None:
    source = impatient_source
    source.start()
    gpu_when(source, 1, whole)
    nvml_stub.scenario.set(1, lost=1).write()
    gpu_when(source, 1, lambda gpu: status_text(15) in (gpu.error or ""))
    nvml_stub.scenario.order = [0, 2, 3, 4, 5, 6, 7]
    nvml_stub.scenario.write()
    _, gone = only_one_unlisted(source)
    assert gone.uuid == gpu_uuid(1)
    assert (gone.error or "").startswith(status_text(15))
    assert "it was number 1" in (gone.error or "")
