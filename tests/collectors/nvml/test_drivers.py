"""Drivers of other ages, none at all, and the end of a process: each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.nvml_stub import GIB, Scenario, build, environment

READ = """
import sys, time
import msgspec
from tests.support.nvml_source import OwnSource

source = OwnSource(0.1)
source.start()
deadline = time.monotonic() + 120
while time.monotonic() < deadline:
    reading = source.latest()
    if reading.notes or (reading.gpus and {ready}):
        break
    time.sleep(0.02)
{then}
sys.stdout.write(msgspec.json.encode(reading).decode())
"""
CLOSE = "source.close()"


def read(library: Path, scenario: Path, ready: str = "True", then: str = CLOSE) -> dict[str, Any]:
    """The reading that another process had, which must have ended well."""
    done = subprocess.run(
        [sys.executable, "-c", READ.format(ready=ready, then=then)],
        env=environment(library, scenario),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    reading: dict[str, Any] = json.loads(done.stdout)
    return reading


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    scenario = Scenario(count=2)
    scenario.write(tmp_path / "scenario")
    return scenario


def path_of(scenario: Scenario) -> Path:
    assert scenario.path is not None
    return scenario.path


ALL_THERE = "all(gpu.power_limit_watts is not None and gpu.util_pct is not None for gpu in reading.gpus)"


def test_without_a_driver_there_is_a_sentence_and_no_gpu(tmp_path: Path, scenario: Scenario) -> None:
    folder = tmp_path / "no-driver"
    folder.mkdir()
    (folder / "libnvidia-ml.so.1").write_text("not a library")  # found before any real driver of this machine
    reading = read(folder / "libnvidia-ml.so.1", path_of(scenario))
    assert reading["gpus"] == []
    assert "no NVIDIA driver found" in reading["notes"][0]


def test_a_library_without_its_first_function_is_said_to_be_too_old(scenario: Scenario) -> None:
    reading = read(build(missing=["nvmlInitWithFlags"]), path_of(scenario))
    assert "this driver is too old" in reading["notes"][0]


def test_older_names_and_versions_of_functions_stand_in_for_newer_ones(scenario: Scenario) -> None:
    old = build(
        missing=[
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetGraphicsRunningProcesses_v3",
            "nvmlDeviceGetFieldValues",
            "nvmlDeviceGetEnforcedPowerLimit",
            "nvmlGpmQueryDeviceSupport",
            "nvmlDeviceGetMigMode",
            "nvmlDeviceGetRemappedRows",
        ]
    )
    scenario.set(0, clock_event_reasons=4, mem_used_bytes=GIB, mem_reserved_bytes=GIB, energy_joules=5)
    scenario.process(0, 4_000_001, GIB).write()
    reading = read(old, path_of(scenario), f"{ALL_THERE} and reading.gpus[0].pcie_source and reading.uses")
    gpu = reading["gpus"][0]
    assert gpu["clock_event_reasons"] == ["sw_power_cap"]
    assert gpu["mem_used_bytes"] == 2 * GIB, "the first version of this function counts what the driver reserves"
    assert (gpu["power_limit_watts"], gpu["energy_joules"]) == (700, 5)
    assert (gpu["pcie_source"], gpu["sm_active_pct"], gpu["mem_temperature_c"]) == ("nvml", None, None)
    assert [use["pid"] for use in reading["uses"]] == [4_000_001]
    assert gpu["error"] is None
    assert reading["notes"] == []


def test_a_newer_name_stands_in_for_one_that_was_removed(scenario: Scenario) -> None:
    new = build(missing=["nvmlDeviceGetTemperature", "nvmlDeviceGetCurrentClocksThrottleReasons"])
    gpu = read(new, path_of(scenario), ALL_THERE)["gpus"][0]
    assert (gpu["temperature_c"], gpu["clock_event_reasons"]) == (61, [])


def test_the_longer_process_list_of_drivers_535_is_not_misread(scenario: Scenario) -> None:
    pids = [4_000_001, 4_000_002, 4_000_003]
    for pid in pids:
        scenario.process(1, pid, GIB)
    scenario.write()
    reading = read(build(defines=["WIDE_PROCESS_INFO"]), path_of(scenario), "reading.uses")
    assert sorted((use["pid"], use["mem_bytes"]) for use in reading["uses"]) == [(pid, GIB) for pid in pids]


HANG = """
from pathlib import Path
import os
path = Path(os.environ["LLMTOP_NVML_SCENARIO"])
fresh = path.with_suffix(".hang")
hangs = "fault nvmlDeviceGetPowerUsage 0 hang 1", "fault nvmlDeviceGetFieldValues 1 hang 1", ""
fresh.write_text(path.read_text() + chr(10).join(hangs))
fresh.replace(path)
time.sleep(2.5)
"""


@pytest.mark.slow("test_closing_ends_it_also_inside_a_call_that_hangs finds the same fault")
def test_a_process_with_calls_that_hang_still_ends_by_itself(scenario: Scenario) -> None:
    reading = read(build(), path_of(scenario), ALL_THERE, then=HANG)
    assert len(reading["gpus"]) == 2
