"""AMD's GPUs: the real binding over the stand-in for its library, which fails at will, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import collectors.driver.source
from collectors.amd import presence
from collectors.base.source import GpuReading, GpuUse
from collectors.driver.all_gpus import AllGpus
from collectors.driver.source import DriverSource
from collectors.gpu.selection import with_whole_uuids
from llmtop.model.snapshot import Gpu, Rank
from tests.support import amd_stub, nvml_stub
from tests.support.amd_stub import GIB, AmdScenario, amd_uuid
from tests.support.nvml_stub import Scenario
from tests.support.processes import environment, repeat_until, wait_for
from tests.support.readings import gpu_when, reading_when
from tests.support.terminal import Terminal

LLMTOP = [sys.executable, "-m", "llmtop"]
FIELDS: dict[str, set[str]] = {
    "get_gpu_activity": {"util_pct", "mem_util_pct"},
    "get_power_info": {"power_watts"},
    "get_power_cap_info": {"power_limit_watts"},
    "get_clock_info": {"sm_clock_mhz", "sm_clock_max_mhz"},
    "get_gpu_memory_usage": {"mem_used_bytes"},
    "get_gpu_memory_total": {"mem_total_bytes"},
    "get_temp_metric": {"temperature_c", "mem_temperature_c"},
    "get_pcie_info": {"pcie_gen", "pcie_width"},
    "get_energy_count": {"energy_joules"},
    "get_link_metrics": {"xgmi_rx_bytes_per_s", "xgmi_tx_bytes_per_s"},
    "get_gpu_process_list": set(),
    "get_gpu_asic_info": set(),
}
"""Which fields are absent when a call gives nothing."""
KNOWN = set().union(*FIELDS.values())
QUIET, PERMISSION, VAGUE = (2, 3, 20, 30, 40), 10, (7, 16, 4242)
GRAVE = (8, 12, 15)


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AmdScenario:
    """Eight GPUs of the stand-in for whatever process is started from here, and no NVIDIA driver."""
    scenario = AmdScenario(tmp_path / "amd")
    for name, value in amd_stub.environment(amd_stub.build(), scenario.path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ROCM_HOME", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(collectors.driver.source, "RESTART_SECONDS", (0.3, 1.5))
    return scenario


@pytest.fixture
def amd(scenario: AmdScenario) -> Iterator[DriverSource]:
    """A source that samples ten times a second; it has been started."""
    source = DriverSource(0.1, "AMD")
    source.start()
    yield source
    source.close()


def absent(gpu: Gpu) -> set[str]:
    return {name for name in KNOWN if getattr(gpu, name) is None}


def test_every_value_arrives_in_its_unit_and_the_rest_is_absent(scenario: AmdScenario, amd: DriverSource) -> None:
    scenario.set(3, util=12, mem_util=7, power_watts=301, edge_c=41, hotspot_c=55, energy_joules=99_008)
    scenario.process(3, 4242, 5 * GIB).write()
    gpu = gpu_when(amd, 3, lambda gpu: gpu.util_pct == 12 and gpu.energy_joules == 99_008 and not absent(gpu))
    assert gpu == Gpu(
        index=3,
        uuid=amd_uuid(3),
        name="AMD Instinct MI300X",
        vendor="AMD",
        util_pct=12,
        mem_util_pct=7,
        mem_used_bytes=120 * GIB,
        mem_total_bytes=192 * GIB,
        power_watts=301,
        power_limit_watts=750,
        energy_joules=99_008,
        temperature_c=41,
        mem_temperature_c=58,
        sm_clock_mhz=1900,
        sm_clock_max_mhz=2100,
        pcie_gen=5,
        pcie_width=16,
        xgmi_rx_bytes_per_s=0,
        xgmi_tx_bytes_per_s=0,
        sampled_at=gpu.sampled_at,
    )
    assert amd.latest().uses == (GpuUse(pid=4242, gpu_uuid=amd_uuid(3), mem_bytes=5 * GIB),)
    assert amd.latest().driver_version == "6.10.5"


def test_xgmi_rates_are_what_the_links_carried_without_pcie(scenario: AmdScenario, amd: DriverSource) -> None:
    gpu_when(amd, 0, lambda gpu: not absent(gpu))
    before = time.monotonic()
    scenario.set(0, xgmi_read_kib=1_000_000 + (4 << 20), xgmi_write_kib=2_000_000 + (8 << 20)).write()
    gpu = gpu_when(amd, 0, lambda gpu: (gpu.xgmi_rx_bytes_per_s or 0) > 0)
    carried, most = (4 << 20) * 1024, (time.monotonic() - before) + 2.5
    assert gpu.xgmi_rx_bytes_per_s is not None
    assert (
        carried / most < gpu.xgmi_rx_bytes_per_s <= carried / 0.01
    )  # two rounds of a busy machine may be that near
    assert gpu.xgmi_tx_bytes_per_s == pytest.approx(2 * gpu.xgmi_rx_bytes_per_s)
    scenario.set(0, xgmi_read_kib=5, xgmi_write_kib=5).write()
    gpu_when(amd, 0, lambda gpu: gpu.xgmi_rx_bytes_per_s is None)  # reset: no rate, and no negative one


def test_a_model_without_an_edge_sensor_or_a_current_power_has_the_next_best(
    scenario: AmdScenario, amd: DriverSource
) -> None:
    scenario.set(1, edge_c=None, hotspot_c=77, power_watts=None, average_watts=210).write()
    gpu = gpu_when(amd, 1, lambda gpu: gpu.power_watts == 210)
    assert gpu.temperature_c == 77


def test_what_cannot_be_is_absent_and_said(scenario: AmdScenario, amd: DriverSource) -> None:
    scenario.set(2, util=250, mem_used_bytes=1 << 62, sm_clock_mhz=4_000_000_000).write()
    gpu = gpu_when(amd, 2, lambda gpu: gpu.util_pct is None and gpu.power_watts is not None)
    assert gpu.mem_used_bytes is gpu.sm_clock_mhz is None
    assert any("util_pct of GPU 2" in note for note in amd.latest().notes)


@pytest.mark.slow("random or many inputs; a neighbour has one case of each kind")
@pytest.mark.parametrize("call", FIELDS)
def test_any_call_may_answer_anything(scenario: AmdScenario, call: str) -> None:
    """Each answer on a GPU of its own from its first call on, beside one that is well."""
    codes = [*QUIET[:2], QUIET[4], PERMISSION, VAGUE[1], *GRAVE[:2]]
    for slot, code in enumerate(codes):
        scenario.fault(f"amdsmi_{call}", "error", code, slot)
    scenario.write()
    source = DriverSource(0.1, "AMD")
    source.start()
    try:
        for slot, code in enumerate(codes):
            gpu = gpu_when(source, slot, lambda gpu: absent(gpu) == FIELDS[call])
            if code in GRAVE:
                assert f"(amdsmi_{call})" in (gpu_when(source, slot, lambda gpu: gpu.error).error or "")
            else:
                assert gpu.error is None, code
        assert gpu_when(source, 7, lambda gpu: not absent(gpu)).error is None
        reading_when(source, lambda reading: {"render", "gives no reason"} <= _said(reading, call))
    finally:
        source.close()


def _said(reading: GpuReading, call: str) -> set[str]:
    mine = [note for note in reading.notes if f"amdsmi_{call}" in note]
    return {word for word in ("render", "gives no reason") if any(word in note for note in mine)}


@pytest.mark.slow("test_a_gpu_that_hangs_takes_no_neighbour_and_no_process_with_it finds much of it")
def test_a_gpu_that_hangs_delays_no_other(scenario: AmdScenario, amd: DriverSource) -> None:
    gpu_when(amd, 5, lambda gpu: not absent(gpu))
    scenario.fault("amdsmi_get_power_info", "hang", slot=5).write()
    gpu = gpu_when(amd, 5, lambda gpu: gpu.error)
    assert "has not answered" in (gpu.error or "")
    assert gpu.util_pct is None
    at = gpu_when(amd, 4, lambda gpu: not absent(gpu)).sampled_at
    gpu_when(amd, 4, lambda gpu: gpu.sampled_at > at)
    scenario.mend().write()
    gpu_when(amd, 5, lambda gpu: gpu.error is None and not absent(gpu))


def test_a_crash_takes_the_values_and_not_the_monitor(scenario: AmdScenario, amd: DriverSource) -> None:
    gpu_when(amd, 7, lambda gpu: not absent(gpu))
    scenario.fault("amdsmi_get_gpu_activity", "crash", 11, slot=2).write()
    reading = reading_when(amd, lambda reading: any("crashed (SIGSEGV)" in note for note in reading.notes))
    assert [(gpu.vendor, gpu.util_pct) for gpu in reading.gpus] == [("AMD", None)] * 8
    scenario.mend().write()
    gpu_when(amd, 2, lambda gpu: gpu.error is None and not absent(gpu))


def test_a_driver_that_was_lost_is_started_again(scenario: AmdScenario, amd: DriverSource) -> None:
    gpu_when(amd, 0, lambda gpu: not absent(gpu))
    scenario.fault("*", "error", 34).write()
    gpu_when(amd, 0, lambda gpu: "modprobe amdgpu" in (gpu.error or ""))
    scenario.mend().write()
    gpu_when(amd, 0, lambda gpu: gpu.error is None and not absent(gpu))


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [("init", 34, "modprobe amdgpu"), ("init", 18, "not be initialised"), ("get_socket_handles", 10, "render")],
)
def test_a_driver_that_does_not_start_says_why(
    scenario: AmdScenario, amd: DriverSource, call: str, code: int, words: str
) -> None:
    scenario.fault(f"amdsmi_{call}", "error", code).write()
    source = DriverSource(0.1, "AMD")
    source.start()
    try:
        reading_when(source, lambda reading: any(words in note for note in reading.notes))
        scenario.mend().write()
        gpu_when(source, 7, lambda gpu: not absent(gpu))
    finally:
        source.close()


def test_a_library_that_does_not_fit_the_binding_is_one_sentence(
    scenario: AmdScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCM_PATH", str(amd_stub.build(missing=["amdsmi_get_link_metrics"])))
    source = DriverSource(0.1, "AMD")
    source.start()
    try:
        (note,) = reading_when(source, lambda reading: reading.notes).notes
        assert "does not fit the libamd_smi.so here" in note
        assert "amdsmi_get_link_metrics" in note
    finally:
        source.close()


def test_no_library_is_one_sentence(
    scenario: AmdScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    source = DriverSource(0.1, "AMD")
    source.start()
    try:
        (note,) = reading_when(source, lambda reading: reading.notes).notes
        assert "libamd_smi.so was not found" in note
    finally:
        source.close()


# ---- beside NVIDIA's ----


@pytest.fixture
def everything(scenario: AmdScenario) -> Iterator[Callable[[], AllGpus]]:
    started: list[AllGpus] = []

    def start() -> AllGpus:
        started.append(AllGpus(0.1))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_amd_alone_has_no_word_of_nvidia(everything: Callable[[], AllGpus]) -> None:
    reading = reading_when(everything(), lambda reading: len(reading.gpus) == 8 and reading.settled)
    assert reading.notes == ()
    assert [gpu.index for gpu in reading.gpus] == list(range(8))


def test_a_machine_with_both(
    everything: Callable[[], AllGpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: AmdScenario
) -> None:
    nvidia = Scenario(count=2)
    monkeypatch.setenv(nvml_stub.SCENARIO_VARIABLE, str(nvidia.write(tmp_path / "nvidia")))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_stub.build().parent))
    source = everything()
    reading = reading_when(source, lambda reading: len(reading.gpus) == 10 and reading.settled)
    assert [(gpu.index, gpu.vendor) for gpu in reading.gpus] == [
        *((i, "NVIDIA") for i in range(2)),
        *((i, "AMD") for i in range(2, 10)),
    ]
    assert any("GPU 2 and up are AMD's" in note for note in reading.notes)
    assert reading.driver_version == nvidia.driver
    scenario.fault("amdsmi_get_gpu_activity", "crash", 11).write()
    crashed = reading_when(source, lambda reading: any("AMD: the driver's library" in n for n in reading.notes))
    assert all(gpu.util_pct is not None for gpu in crashed.gpus[:2]), "NVIDIA's are not concerned"
    assert [gpu.index for gpu in crashed.gpus] == list(range(10))


def test_a_machine_with_neither(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setattr(presence, "gpu_count", lambda: 0)
    source = AllGpus(0.1)
    source.start()
    try:
        reading = reading_when(source, lambda reading: reading.notes)
        assert reading.gpus == ()
        assert len(reading.notes) == 1
    finally:
        source.close()


def test_amds_gpus_without_the_binding_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "gpu_count", lambda: 1)
    monkeypatch.setattr(presence, "has_binding", lambda: False)
    source = AllGpus(0.1)
    source.start()
    try:
        (note,) = reading_when(source, lambda reading: reading.notes).notes
        assert "pip install '.[amd]'; elsewhere: pip install amdsmi" in note
    finally:
        source.close()


def test_a_training_of_pytorch_on_rocm_finds_its_gpu() -> None:
    gpus = (Gpu(index=0, uuid="GPU-6b8b2e2f5ba7ba5f", name="AMD", vendor="AMD"),)
    said = "GPU-36623862-3265-3266-3562-613762613566"
    rank = Rank(pid=1, host="n", gpu_uuid=said)
    assert with_whole_uuids((rank,), gpus)[0].gpu_uuid == gpus[0].uuid


# ---- the programs ----


def test_once_and_json_tell_amds_gpus(scenario: AmdScenario, runtime_dir: Path) -> None:
    def run(*arguments: str) -> str:
        env = environment(LLMTOP_DIR=str(runtime_dir))
        return subprocess.run(
            [*LLMTOP, *arguments], env=env, capture_output=True, text=True, check=True, timeout=240
        ).stdout

    # On a busy machine the driver answers too late for the first.
    text = repeat_until(partial(run, "--once"), lambda text: "GPU 7  AMD Instinct MI300X" in text)
    assert "XGMI rx" in text
    assert "NVLink" not in text
    gpus = repeat_until(lambda: json.loads(run("--once", "--json"))["gpus"], lambda gpus: gpus)
    assert [gpu["vendor"] for gpu in gpus] == ["AMD"] * 8


@pytest.mark.slow("a screen each; test_once_and_json_tell_amds_gpus has the values")
@pytest.mark.parametrize(
    "size", [(60, 15), (80, 24), (120, 30), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}"
)
def test_the_pane_shows_eight_of_them(scenario: AmdScenario, runtime_dir: Path, size: tuple[int, int]) -> None:
    with Terminal([*LLMTOP, "-i", "0.5"], size, LLMTOP_DIR=str(runtime_dir)) as terminal:
        wait_for(lambda: "690" in terminal.text(), what="the power of a GPU on the screen")
        scenario.fault("amdsmi_get_gpu_activity", "crash", 11).write()
        wait_for(lambda: "crashed" in terminal.text(), what="the crash on the screen")
        scenario.mend().write()
        wait_for(lambda: "690" in terminal.text(), what="the power again")
