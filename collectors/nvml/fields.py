"""Which call of NVML gives which field of a Gpu, and who uses the GPU.

Measured on an H200 with driver 580: the cheap calls take 5 to 60 µs each. Field values (3 to 12 ms), energy (3 to
7 ms) and process utilisation (3 ms) wait for the GPU's own processor, perhaps under a lock of the driver, so they
are asked for less often and in another thread.
"""

from __future__ import annotations

import time

import pynvml

from collectors.gpu.bounds import NO_REASONS, plausible_pid, plausible_values
from collectors.nvml.calls import ABSENT, Caller, raw
from llmtop.hardware import clock_events
from llmtop.hardware.gpu_specs import shares_system_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from collectors.gpu.bounds import ImplausibleValues, Values

_VERSIONS = ("v3", "v2")
_MEMBERS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
}
"""Member of NVML's value union, by its type."""


def fast_values(call: Caller, handle: Any, implausible: ImplausibleValues) -> Values:
    """Fields polled at every tick.

    `power_watts` is PowerUsage: on Hopper the mean of the last second. The instant value is a field value, too
    slow for every tick.
    """
    utilization = call("nvmlDeviceGetUtilizationRates", handle)
    if call.is_lost:
        return {}
    values = memory_values(call, handle)
    if utilization is not None:
        values["util_pct"] = float(raw(utilization, "gpu"))
        values["mem_util_pct"] = float(raw(utilization, "memory"))
    values["power_watts"] = _scale_or_none(call("nvmlDeviceGetPowerUsage", handle), 1e-3)
    values["temperature_c"] = _scale_or_none(_temperature(call, handle), 1.0)
    values["sm_clock_mhz"] = _scale_or_none(call("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_SM), 1.0)
    reasons = call.first(
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), handle
    )
    if reasons in NO_REASONS:
        implausible["clock_event_reasons"] = reasons
    elif reasons is not None:
        values["clock_event_reasons"] = clock_events.reason_names(reasons)
    return values


def memory_values(call: Caller, handle: Any) -> Values:
    """Device memory as nvidia-smi shows it: the part that the driver reserves is not counted as used."""
    memory = call("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
    if memory is None and call.refusals["nvmlDeviceGetMemoryInfo"] in ABSENT:
        memory = call("nvmlDeviceGetMemoryInfo", handle)  # what drivers before 510 have
    if memory is None:
        return {}
    return {"mem_used_bytes": raw(memory, "used"), "mem_total_bytes": raw(memory, "total")}


def system_memory_values(call: Caller, gpu_name: str) -> Values:
    """Return the system's memory in place of a GPU's that has none of its own.

    Args:
        call: of the round in which the driver was asked for the GPU's memory.
        gpu_name: as NVML gives it.

    Returns:
        Fields of a Gpu; empty where the driver gave a value, failed in another way, or the GPU has its own memory.
    """
    if call.refusals.get("nvmlDeviceGetMemoryInfo") not in ABSENT or not shares_system_memory(gpu_name):
        return {}
    import psutil  # for such GPUs alone: this is the driver's process, which is kept small

    memory = psutil.virtual_memory()
    used = memory.total - memory.available
    return {"mem_used_bytes": used, "mem_total_bytes": memory.total, "memory_is_system": True}


def _temperature(call: Caller, handle: Any) -> Any:
    answer = call("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU)
    if answer is None and call.refusals["nvmlDeviceGetTemperature"] == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
        return call("nvmlDeviceGetTemperatureV", handle, pynvml.NVML_TEMPERATURE_GPU)
    return answer


def slow_values(call: Caller, handle: Any) -> Values:
    """Values of a GPU that change slowly or take long to ask for: fields of `llmtop.model.snapshot.Gpu`."""
    limit = call("nvmlDeviceGetEnforcedPowerLimit", handle)
    if call.is_lost:
        return {}
    if limit is None:
        limit = call("nvmlDeviceGetPowerManagementLimit", handle)
    fields = _fields(call, handle, (pynvml.NVML_FI_DEV_MEMORY_TEMP, pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION))
    mem_temperature, energy = fields or (None, None)
    if energy is None:
        energy = call("nvmlDeviceGetTotalEnergyConsumption", handle)
    return {
        "power_limit_watts": _scale_or_none(limit, 1e-3),
        "sm_clock_max_mhz": _scale_or_none(call("nvmlDeviceGetMaxClockInfo", handle, pynvml.NVML_CLOCK_SM), 1.0),
        "pcie_gen": call("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_width": call("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "mem_temperature_c": _scale_or_none(mem_temperature, 1.0),
        "energy_joules": _scale_or_none(energy, 1e-3),
    }


def sampled_util(call: Caller, handle: Any, since_us: int) -> tuple[float | None, int]:
    """Return the mean of the driver's own samples of GPU-Util.

    Args:
        call: makes the calls and keeps what the driver refused.
        handle: NVML's device handle.
        since_us: time stamp of the newest sample already used, µs of the driver's wall clock; 0 for all that it
            keeps. A stamp ahead of the wall clock by more than 1 s, left by a clock that was set back, becomes one
            1 s old.

    Returns:
        Percent, None where no sample is newer or the driver keeps none; and the newest stamp, for the next call.
    """
    latest = time.time_ns() // 1000 + 1_000_000
    if since_us > latest:
        since_us = latest - 2_000_000
    answer = call("nvmlDeviceGetSamples", handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since_us)
    if answer is None or answer[0] not in _MEMBERS:
        return None, since_us
    member = _MEMBERS[answer[0]]
    stamped = [(raw(sample, "timeStamp"), sample) for sample in answer[1]]
    fresh = [(stamp, sample) for stamp, sample in stamped if since_us < stamp <= latest]
    if not fresh:
        return None, since_us
    values = [float(getattr(raw(sample, "sampleValue"), member)) for _, sample in fresh]
    return sum(values) / len(values), max(stamp for stamp, _ in fresh)


def pcie_values(call: Caller, handle: Any) -> Values:
    """NVML's own PCIe rates over a window of 20 ms; the two calls block for 42 ms."""
    tx = call("nvmlDeviceGetPcieThroughput", handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    if call.is_lost:
        return {}
    rx = call("nvmlDeviceGetPcieThroughput", handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    if tx is None and rx is None:
        return {}
    return {
        "pcie_tx_bytes_per_s": _scale_or_none(tx, 1000.0),  # the driver's KB
        "pcie_rx_bytes_per_s": _scale_or_none(rx, 1000.0),
        "pcie_source": "nvml",
    }


def _scale_or_none(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _fields(call: Caller, handle: Any, numbers: tuple[int, ...]) -> tuple[float | None, ...] | None:
    answer = call("nvmlDeviceGetFieldValues", handle, list(numbers))
    return None if answer is None else tuple(_field(field) for field in answer)


def _field(field: Any) -> float | None:
    kind = raw(field, "valueType")
    if raw(field, "nvmlReturn") != pynvml.NVML_SUCCESS or kind not in _MEMBERS:
        return None
    value: float = getattr(raw(field, "value"), _MEMBERS[kind])
    return value


class RunningProcess:
    """A process on a GPU as the driver lists it.

    The pid is that of the caller's pid namespace (seen with driver 580.159 on an H100; older ones give the host's,
    also inside a container: NVIDIA/open-gpu-kernel-modules#614).
    """

    def __init__(self, pid: int, mem_bytes: int | None) -> None:
        """Keep what NVML lists.

        Args:
            pid: in this process's pid namespace with driver 580, the host's with older ones (see the class).
            mem_bytes: GPU memory of the process; None where the driver does not report it.
        """
        self.pid, self.mem_bytes = pid, mem_bytes
        self.computes = False
        """True if it has a context to compute in; a desktop only draws."""


def running_processes(call: Caller, handle: Any, implausible: ImplausibleValues) -> list[RunningProcess] | None:
    """Return every process with a context on the GPU (compute, graphics, MPS), once each; None when that is
    refused.

    A pid that no process can have goes to `implausible`, and the others stay.
    """
    found: dict[int, RunningProcess] = {}
    answered = False
    for kind in ("Compute", "Graphics", "MPSCompute"):
        listed = _list(call, handle, kind, implausible)
        answered = answered or listed is not None
        for process in listed or ():
            known = found.get(process.pid)
            process.computes = kind != "Graphics" or (known is not None and known.computes)
            if known is None or (process.mem_bytes or 0) > (known.mem_bytes or 0):
                found[process.pid] = process
            else:
                known.computes = process.computes or known.computes
    return list(found.values()) if answered else None


def _list(call: Caller, handle: Any, kind: str, implausible: ImplausibleValues) -> list[RunningProcess] | None:
    """Return one list, in the version of its struct that makes most sense.

    Drivers 535.43 to 535.86 have a longer struct behind the newest version's symbol; read with the usual one, many
    pids are 0 or -1. Their second version is sound. Where both have as many odd pids, the driver means them.
    """
    best: list[Any] | None = None
    for version in _VERSIONS:
        answer = call(f"nvmlDeviceGet{kind}RunningProcesses_{version}", handle)
        if answer == []:  # as most are
            return []
        if answer is not None and (best is None or len(_implausible_pids(answer)) <= len(_implausible_pids(best))):
            best = answer
        if call.is_lost or (best is not None and not _implausible_pids(best)):
            break
    if best is None:
        return None
    for pid in _implausible_pids(best)[:1]:
        implausible["pid"] = pid
    sound = (process for process in best if plausible_pid(process.pid))
    return [
        RunningProcess(one.pid, plausible_values({"mem_bytes": one.usedGpuMemory}, implausible).get("mem_bytes"))
        for one in sound
    ]


def _implausible_pids(answer: list[Any]) -> list[int]:
    return [process.pid for process in answer if not plausible_pid(process.pid)]


def process_shares(call: Caller, handle: Any, since_us: int) -> tuple[dict[int, float], int]:
    """Return the mean SM utilisation per process.

    Args:
        call: makes the calls and keeps what the driver refused.
        handle: NVML's device handle.
        since_us: time stamp of the newest sample already used, µs of the driver's wall clock. After the wall clock
            is set back, stamps from before lie ahead of it; these samples are left out.

    Returns:
        Percent by pid, and the newest stamp, for the next call. A process without a newer sample is absent, which
        is not 0.
    """
    latest = time.time_ns() // 1000 + 1_000_000
    if since_us > latest:
        since_us = latest - 2_000_000
    samples = call("nvmlDeviceGetProcessUtilization", handle, since_us)
    fresh = [sample for sample in samples or () if since_us < sample.timeStamp <= latest]
    shares: dict[int, list[int]] = {}
    for sample in fresh:
        if plausible_pid(sample.pid) and sample.smUtil <= 100:
            shares.setdefault(sample.pid, []).append(sample.smUtil)
    newest = max((sample.timeStamp for sample in fresh), default=since_us)
    return {pid: sum(values) / len(values) for pid, values in shares.items()}, newest
