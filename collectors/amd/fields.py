"""Calls of amdsmi for each field of a Gpu and for its processes. The binding returns "N/A" for absent values.

PCIe rates stay absent: what amdsmi has is packets of one second, asked for by a call that takes it, or both
directions in one.
"""

from __future__ import annotations

import time

from collectors.gpu.bounds import plausible_pid, plausible_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from collectors.amd.calls import AmdCaller
    from collectors.gpu.bounds import ImplausibleValues, Values

_GENERATIONS = {2_500: 1, 5_000: 2, 8_000: 3, 16_000: 4, 32_000: 5, 64_000: 6}
"""PCIe generation by MT/s."""
_XGMI_LINK = 2
"""amdsmi_link_type_t."""
_KIB = 1024
_UNSET = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})


def identity(call: AmdCaller, handle: Any) -> tuple[str | None, str | None]:
    """UUID, as HIP and rocminfo write it where that is known, and the name on the market."""
    known = call("amdsmi_get_gpu_enumeration_info", handle) or {}
    uuid = known.get("hip_uuid") or None
    if uuid is None:
        own = call("amdsmi_get_gpu_device_uuid", handle)
        uuid = f"GPU-{own}" if own else None
    asic = call("amdsmi_get_gpu_asic_info", handle) or {}
    name = asic.get("market_name")
    return uuid, name if name and name != "N/A" else None


def fast_values(call: AmdCaller, handle: Any) -> Values:
    """Return the values that are polled at every tick."""
    smi = call.smi
    activity = call("amdsmi_get_gpu_activity", handle) or {}
    if call.is_lost:
        return {}
    power = call("amdsmi_get_power_info", handle) or {}
    clock = call("amdsmi_get_clock_info", handle, smi.AmdSmiClkType.GFX) or {}
    draws = (_number(power.get(f"{kind}_socket_power")) for kind in ("current", "average"))
    vram = smi.AmdSmiMemoryType.VRAM
    return {
        "util_pct": _number(activity.get("gfx_activity")),
        "mem_util_pct": _number(activity.get("umc_activity")),
        "mem_used_bytes": _number(call("amdsmi_get_gpu_memory_usage", handle, vram)),
        "mem_total_bytes": _number(call("amdsmi_get_gpu_memory_total", handle, vram)),
        # The one that this model does not have reads 0 with some drivers: a GPU always draws something.
        "power_watts": next((watts for watts in draws if watts), None),
        "temperature_c": _temperature(call, handle, "EDGE", "HOTSPOT"),
        "sm_clock_mhz": _number(clock.get("clk")),
        "sm_clock_max_mhz": _number(clock.get("max_clk")),
    }


def slow_values(call: AmdCaller, handle: Any) -> Values:
    """Values that change slowly or take long to ask for."""
    cap = call("amdsmi_get_power_cap_info", handle) or {}
    if call.is_lost:
        return {}
    pcie = (call("amdsmi_get_pcie_info", handle) or {}).get("pcie_metric", {})
    energy = call("amdsmi_get_energy_count", handle) or {}
    count, unit = _number(energy.get("energy_accumulator")), _number(energy.get("counter_resolution"))
    return {
        "power_limit_watts": _scale_or_none(_number(cap.get("power_cap")), 1e-6),
        "mem_temperature_c": _temperature(call, handle, "VRAM"),
        "energy_joules": None if count is None or unit is None else count * unit * 1e-6,
        "pcie_gen": _GENERATIONS.get(int(_number(pcie.get("pcie_speed")) or 0)),
        "pcie_width": _number(pcie.get("pcie_width")) or None,
    }


def _temperature(call: AmdCaller, handle: Any, *sensors: str) -> float | None:
    """Return the temperature of the first of the sensors that the model has: an MI300 has no sensor at its
    edge."""
    for sensor in sensors:
        kinds = call.smi.AmdSmiTemperatureType, call.smi.AmdSmiTemperatureMetric
        told = call("amdsmi_get_temp_metric", handle, kinds[0][sensor], kinds[1].CURRENT)
        if told is not None:
            return _number(told)
    return None


class Xgmi:
    """Rates of the links between GPUs, from what they have carried between two rounds."""

    def __init__(self) -> None:
        self._before: tuple[float, int, int] | None = None

    def read(self, call: AmdCaller, handle: Any) -> Values:
        """Rates since the round before; empty in the first one, without such links, and after a reset."""
        told = call("amdsmi_get_link_metrics", handle) or {"links": [], "num_links": 0}
        links = [
            one
            for one in told["links"][: told["num_links"]]
            if one["link_type"] == _XGMI_LINK and _UNSET.isdisjoint((one["read"], one["write"]))
        ]
        if not links:
            self._before = None
            return {}
        now = time.monotonic(), sum(one["read"] for one in links), sum(one["write"] for one in links)
        before, self._before = self._before, now
        if before is None or now[0] <= before[0] or now[1] < before[1] or now[2] < before[2]:
            return {}
        seconds = now[0] - before[0]
        return {
            "xgmi_rx_bytes_per_s": (now[1] - before[1]) * _KIB / seconds,
            "xgmi_tx_bytes_per_s": (now[2] - before[2]) * _KIB / seconds,
        }


def uses(call: AmdCaller, handle: Any, uuid: str, implausible: ImplausibleValues) -> list[Values]:
    """Return the processes on a GPU as fields of `collectors.base.source.GpuUse`.

    Args:
        call: makes the calls and keeps what amdsmi refused.
        handle: amdsmi's processor handle.
        uuid: of the GPU; copied into each row.
        implausible: receives values out of range, by field; such a process has no `mem_bytes`.

    Returns:
        One row per process; empty where amdsmi refuses. `mem_bytes` is VRAM in bytes, or None.
    """
    found = []
    for process in call("amdsmi_get_gpu_process_list", handle) or ():
        pid = process["pid"]
        if not plausible_pid(pid):
            implausible["pid"] = pid
            continue
        mem = plausible_values({"mem_bytes": _number(process["memory_usage"]["vram_mem"])}, implausible).get(
            "mem_bytes"
        )
        found.append({"pid": pid, "gpu_uuid": uuid, "mem_bytes": None if mem is None else int(mem)})
    return found


def _number(value: Any) -> float | None:
    """`value`, where it is a number, and not the one with all bits set, which means that there is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value in _UNSET:
        return None
    return value


def _scale_or_none(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
