"""GPUs without memory of their own (GB10, Jetson): the system's memory, named as such."""

from __future__ import annotations

import psutil
import pynvml
import pytest

from collectors.exporter.gpu_series import LastXids, families
from llmtop.hardware.gpu_specs import shares_system_memory
from tests.support.nvml_source import OwnSource
from tests.support.nvml_stub import Driver
from tests.support.readings import gpu_when, reading_when

MEMORY = "nvmlDeviceGetMemoryInfo"
PCIE = ("nvmlDeviceGetPcieThroughput", "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth")


def _refuse_memory(driver: Driver, name: str) -> None:
    for call in (MEMORY, f"{MEMORY}_v2", *PCIE):
        driver.scenario.fail(call, pynvml.NVML_ERROR_NOT_SUPPORTED, 0)
    driver.scenario.fail("nvmlGpmQueryDeviceSupport", pynvml.NVML_ERROR_NOT_SUPPORTED, 0)
    driver.scenario.rename(0, name).write()


def test_an_integrated_gpu_has_the_memory_of_the_system_and_a_note(nvml_stub: Driver, source: OwnSource) -> None:
    _refuse_memory(nvml_stub, "NVIDIA GB10")
    source.start()
    gpu = gpu_when(source, 0, lambda one: one.mem_used_bytes is not None and one.power_limit_watts is not None)
    assert gpu.memory_is_system
    assert gpu.mem_total_bytes == psutil.virtual_memory().total
    assert gpu.pcie_rx_bytes_per_s is gpu.pcie_gen is None
    reading = reading_when(source, lambda one: any("GB10" in note for note in one.notes))
    (note,) = [note for note in reading.notes if "GB10" in note]
    assert "shares the system's memory" in note
    assert "no PCIe link" in note
    names = {family.name for family in families((gpu,), "node", LastXids(), ())}
    assert "DCGM_FI_DEV_POWER_USAGE" in names
    assert not names & {"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"}


def test_another_gpu_whose_memory_is_refused_has_none(nvml_stub: Driver, source: OwnSource) -> None:
    _refuse_memory(nvml_stub, "NVIDIA H200")
    source.start()
    gpu = gpu_when(source, 0, lambda one: one.power_limit_watts is not None and one.power_watts is not None)
    assert gpu.mem_used_bytes is gpu.mem_total_bytes is None
    assert not gpu.memory_is_system


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("NVIDIA GB10", True),
        ("Orin (nvgpu)", True),
        ("NVIDIA Thor", True),
        ("NVIDIA GB200", False),
        ("NVIDIA GH200 480GB", False),
        ("NVIDIA H100 80GB HBM3", False),
    ],
)
def test_integrated_gpus_by_name(name: str, shares: bool) -> None:
    assert shares_system_memory(name) is shares
