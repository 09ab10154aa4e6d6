"""Check the GPU collectors on a machine with a real GPU: python -m tests.gpu.check_collectors [> facts.json]

Prints one JSON object: what each call costs, what a sampling round costs idle and beside a matrix product, which
fields the driver does not give, and how the reading compares with nvidia-smi. Takes about a minute and changes
nothing.
Exits 1 when something does not hold; "failed" then says what.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import psutil
import pynvml

from benchmarks.bench_sampling import percentile, rounds
from collectors.base.source import GpuReading
from collectors.machine.processes import ProcessSource
from llmtop.model.snapshot import Gpu
from tests.support.nvml_source import OwnSource

WORK = """
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("running", flush=True)
while True:
    for _ in range(50):
        b = a @ a
    torch.cuda.synchronize()
"""
# Column of nvidia-smi, field of Gpu, factor from its unit, allowed difference (absolute, in the field's unit).
COMPARED = (
    ("memory.used", "mem_used_bytes", 1 << 20, 64 << 20),
    ("memory.total", "mem_total_bytes", 1 << 20, 1 << 20),
    ("power.draw", "power_watts", 1.0, 60.0),
    ("power.limit", "power_limit_watts", 1.0, 1.0),
    ("temperature.gpu", "temperature_c", 1.0, 4.0),
    ("clocks.sm", "sm_clock_mhz", 1.0, 300.0),
    ("clocks.max.sm", "sm_clock_max_mhz", 1.0, 1.0),
    ("utilization.gpu", "util_pct", 1.0, 20.0),
    ("pcie.link.gen.current", "pcie_gen", 1.0, 0.0),
    ("pcie.link.width.current", "pcie_width", 1.0, 0.0),
)


def main() -> int:
    """Measure, compare and print."""
    facts: dict[str, Any] = {"failed": []}
    pynvml.nvmlInit()
    count = pynvml.nvmlDeviceGetCount()
    facts["driver"], facts["gpus"] = pynvml.nvmlSystemGetDriverVersion(), count
    facts["call_ms"] = call_costs(pynvml.nvmlDeviceGetHandleByIndex(0))
    facts["idle"] = observe(facts, count, busy=False)
    facts["cpu_pct_of_a_core_at_1_hz"] = cpu_share()
    with working() as pid:
        facts["working"] = observe(facts, count, busy=pid is not None)
        if pid is not None:
            facts["processes"] = processes(facts, pid)
    print(json.dumps(facts, indent=1))
    return 1 if facts["failed"] else 0


def call_costs(handle: Any) -> dict[str, dict[str, float | int | str]]:
    """Milliseconds of each call that the collectors make: median, p95, worst, first; or the refusal."""
    sample = _try(pynvml.nvmlGpmSampleAlloc)
    events = _try(pynvml.nvmlEventSetCreate)
    since = time.time_ns() // 1000 - 2_000_000
    calls: dict[str, Callable[[], object]] = {
        "Name": lambda: pynvml.nvmlDeviceGetName(handle),
        "UtilizationRates": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle),
        "MemoryInfo_v2": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2),
        "PowerUsage": lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
        "Temperature": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        "ClockInfo": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "CurrentClocksEventReasons": lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        "GpmSampleGet": lambda: pynvml.nvmlGpmSampleGet(handle, sample),
        "EnforcedPowerLimit": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle),
        "MaxClockInfo": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "CurrPcieLinkGeneration": lambda: pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "CurrPcieLinkWidth": lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "FieldValues(82, 83)": lambda: pynvml.nvmlDeviceGetFieldValues(handle, [82, 83]),
        "FieldValues(82)": lambda: pynvml.nvmlDeviceGetFieldValues(handle, [82]),
        "FieldValues(83)": lambda: pynvml.nvmlDeviceGetFieldValues(handle, [83]),
        "TotalEnergyConsumption": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
        "Samples of util": lambda: pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since),
        "ProcessUtilization": lambda: pynvml.nvmlDeviceGetProcessUtilization(handle, since),
        "ComputeRunningProcesses_v3": lambda: pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle),
        "GraphicsRunningProcesses_v3": lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3(handle),
        "MPSComputeRunningProcesses_v3": lambda: pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle),
        "MigMode": lambda: pynvml.nvmlDeviceGetMigMode(handle),
        "TotalEccErrors": lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0),
        "RemappedRows": lambda: pynvml.nvmlDeviceGetRemappedRows(handle),
        "SupportedEventTypes": lambda: pynvml.nvmlDeviceGetSupportedEventTypes(handle),
        "RegisterEvents": lambda: pynvml.nvmlDeviceRegisterEvents(handle, 8, events),
        "EventSetWait_v2(0 ms)": lambda: pynvml.nvmlEventSetWait_v2(events, 0),
        "HandleByIndex": lambda: pynvml.nvmlDeviceGetHandleByIndex(0),
        "UUID": lambda: pynvml.nvmlDeviceGetUUID(handle),
        "PcieThroughput(TX)": lambda: pynvml.nvmlDeviceGetPcieThroughput(handle, 0),
    }
    costs = {name: _cost(call) for name, call in calls.items()}
    if events is not None:
        pynvml.nvmlEventSetFree(events)
    if sample is not None:
        pynvml.nvmlGpmSampleFree(sample)
    return costs


def _try(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except pynvml.NVMLError:
        return None


def _cost(call: Callable[[], object], repeats: int = 40) -> dict[str, float | int | str]:
    seconds: list[float] = []
    refused: dict[str, float | int | str] = {}
    for _ in range(repeats):
        began = time.perf_counter()
        try:
            call()
        except pynvml.NVMLError as error:
            refused = {"refused": error.value}
        seconds.append(time.perf_counter() - began)
        time.sleep(0.005)
    figures = {"median": percentile(seconds, 0.5), "p95": percentile(seconds, 0.95), "worst": max(seconds)}
    return {**{name: round(value * 1e3, 4) for name, value in {**figures, "first": seconds[0]}.items()}, **refused}


def observe(facts: dict[str, Any], gpus: int, *, busy: bool) -> dict[str, Any]:
    """A reading, its rounds, what is absent in it, and how it compares with nvidia-smi."""
    seconds = rounds(gpus, count=60, interval=0.25)
    p95 = percentile(seconds, 0.95) * 1e3
    if p95 > (10 if gpus == 1 else 30):
        facts["failed"].append(f"a sampling round of {gpus} GPU takes {p95:.1f} ms (p95, busy: {busy})")
    source = OwnSource(0.5)
    source.start()
    time.sleep(3)
    reading, shown = source.latest(), nvidia_smi()
    source.close()
    for gpu in reading.gpus:
        if gpu.error is not None:
            facts["failed"].append(f"GPU {gpu.index}: {gpu.error}")
        if gpu.sm_active_pct is not None and busy and gpu.index == 0 and gpu.sm_active_pct < 50:
            facts["failed"].append(f"SM activity of a matrix product reads {gpu.sm_active_pct}")
        if gpu.mig_parent_uuid is None:
            facts["failed"] += differences(gpu, shown[gpu.uuid])
    return {
        "round_ms": {"median": percentile(seconds, 0.5) * 1e3, "p95": p95, "worst": max(seconds) * 1e3},
        "absent": {gpu.uuid: absent(gpu) for gpu in reading.gpus},
        "reading": msgspec.to_builtins(reading),
        "nvidia_smi": shown,
    }


def absent(gpu: Gpu) -> list[str]:
    """The fields that the driver gives no value for."""
    return [name for name in gpu.__struct_fields__ if getattr(gpu, name) is None]


def nvidia_smi() -> dict[str, dict[str, str]]:
    """What nvidia-smi shows at this moment, by UUID."""
    columns = ["uuid", *(column for column, *_ in COMPARED)]
    answer = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
        timeout=3600,
    )
    rows = [line.split(", ") for line in answer.stdout.strip().splitlines()]
    return {row[0]: dict(zip(columns[1:], row[1:], strict=True)) for row in rows}


def differences(gpu: Gpu, shown: dict[str, str]) -> list[str]:
    """Where the reading and nvidia-smi are further apart than two looks within a second may be."""
    found = []
    for column, field, factor, allowed in COMPARED:
        ours, theirs = getattr(gpu, field), shown[column]
        if theirs.startswith("["):  # [N/A], [Not Supported]
            if ours is not None:
                found.append(f"GPU {gpu.index}: {field} is {ours}, nvidia-smi has none")
        elif ours is None or abs(ours - float(theirs) * factor) > allowed:
            found.append(f"GPU {gpu.index}: {field} is {ours}, nvidia-smi says {theirs} ({column})")
    return found


def cpu_share() -> float:
    """Percent of one core that sampling every GPU once a second takes, over ten seconds."""
    source = OwnSource(1.0)
    source.start()
    time.sleep(3)
    me = psutil.Process()
    before = sum(me.cpu_times()[:2])
    time.sleep(10)
    share = (sum(me.cpu_times()[:2]) - before) * 10
    source.close()
    return share


@contextmanager
def working() -> Iterator[int | None]:
    """A process that multiplies matrices on GPU 0, by its pid; None where there is no torch."""
    child = subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    runs = child.stdout.readline().strip() == "running"
    time.sleep(3)
    yield child.pid if runs else None
    child.kill()
    child.wait(600)


def processes(facts: dict[str, Any], pid: int) -> dict[str, Any]:
    """How the driver lists that process, and what the system says about it."""
    source = OwnSource(1.0)
    joined = ProcessSource(lambda: source.latest().uses, lambda: (pid,))
    source.start()
    joined.start()
    time.sleep(5)
    reading: GpuReading = source.latest()
    rows = joined.latest()
    joined.close()
    source.close()
    if not reading.uses:
        facts["failed"].append("the driver lists no process beside a matrix product (a sandbox may hide them)")
    return {
        "pid": pid,
        "pid_namespace": os.readlink("/proc/self/ns/pid"),
        "uses": msgspec.to_builtins(reading.uses),
        "rows": msgspec.to_builtins(rows),
    }


if __name__ == "__main__":
    sys.exit(main())
