"""A stand-in for libamd_smi.so (tests/amd_stub), built with gcc for AMD's own binding and driven by a scenario.

The binding looks 180 functions up when it is imported; which, is read out of the binding, and those that no test
needs answer "not supported". The structures that are answered are the binding's own, filled here.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "amd_stub" / "amd_smi.c"
SCENARIO_VARIABLE = "LLMTOP_AMD_SCENARIO"
GIB = 1 << 30
HEALTHY: dict[str, Any] = {
    "util": 97,
    "mem_util": 41,
    "power_watts": 690,
    "average_watts": 0,
    "power_limit_watts": 750,
    "mem_used_bytes": 120 * GIB,
    "mem_total_bytes": 192 * GIB,
    "sm_clock_mhz": 1900,
    "sm_clock_max_mhz": 2100,
    "edge_c": None,
    "hotspot_c": 66,
    "mem_temperature_c": 58,
    "pcie_mts": 32_000,
    "pcie_width": 16,
    "energy_joules": 1_234_567,
    "xgmi_read_kib": 1_000_000,
    "xgmi_write_kib": 2_000_000,
    "name": "AMD Instinct MI300X",
}
"""A working MI300X, as AMD's documents describe it: none was at hand."""


def amd_uuid(slot: int) -> str:
    """What the stand-in's GPU in that slot is called by HIP."""
    return f"GPU-{slot:016x}"


def build(missing: Sequence[str] = ()) -> Path:
    """Compile the stand-in, once for each source and variant, and return its folder for $ROCM_PATH.

    Args:
        missing: functions that this library does not have.
    """
    wrapper = Path(_binding(), "amdsmi_wrapper.py").read_text()
    names = set(re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", wrapper)) - set(missing)
    own = set(re.findall(r"\b(amdsmi_(?!status)\w+)", SOURCE.read_text())) - set(missing)
    functions = "".join(f"NONE({name})\n" for name in sorted(names - own))
    key = hashlib.sha256((repr(sorted(missing)) + functions + SOURCE.read_text()).encode()).hexdigest()[:16]
    home = Path(tempfile.gettempdir()) / f"llmtop-amd-{os.getuid()}-{key}"
    library = home / "lib" / "libamd_smi.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as scratch:
            Path(scratch, "functions.h").write_text(functions)
            fresh = Path(scratch, "fresh.so")
            hidden = [f"-D{name}=hidden_{name}" for name in missing]
            command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-fPIC", "-shared", f"-I{scratch}", *hidden]
            size = len(_filled("proc_info_t"))
            command += [f"-DPROCESS_SIZE={size}", "-o", str(fresh), str(SOURCE), "-lpthread"]
            subprocess.run(command, check=True, timeout=240)
            fresh.replace(library)
    return home


def _binding() -> str:
    spec = find_spec("amdsmi")
    assert spec is not None
    assert spec.origin is not None, "the package amdsmi is in the extra test"
    return str(Path(spec.origin).parent)


@cache
def _structures() -> dict[str, Any]:
    """The binding's structures, without its library: the part of it before the functions."""
    text = Path(_binding(), "amdsmi_wrapper.py").read_text()
    start = text.index("_libraries = {}")
    text = text[:start] + text[text.index("# values for enumeration", start) :]
    text = re.sub(r"^\w+ = _libraries\[.*$|^\w+\.(restype|argtypes) = .*$", "", text, flags=re.MULTILINE)
    module = ModuleType("amdsmi_structures")
    exec(compile(text, "amdsmi_wrapper.py", "exec"), module.__dict__)
    return module.__dict__


def _filled(structure: str, **values: Any) -> bytes:
    """The bytes of amdsmi_`structure`, the given members set; "a.b" is a member of a member."""
    one = _structures()[f"amdsmi_{structure}"]()
    for name, value in values.items():
        *path, last = name.split("__")
        place = one
        for part in path:
            place = getattr(place, part)
        setattr(place, last, value.encode() if isinstance(value, str) else value)
    return bytes(one)


class AmdScenario:
    """What the stand-in answers, by slot: a GPU's number."""

    def __init__(self, path: Path, count: int = 8) -> None:
        """So many healthy GPUs; written to `path`."""
        self.path, self.count = path, count
        self.values: dict[int, dict[str, Any]] = {slot: dict(HEALTHY) for slot in range(count)}
        self.processes: dict[int, list[tuple[int, int]]] = {}
        self.faults: dict[tuple[str, str, str], int] = {}
        self.raw: list[str] = []
        self.write()

    def set(self, slot: int, **values: Any) -> AmdScenario:
        """Set values of one GPU, by the names of `HEALTHY`; None: the driver does not have it."""
        assert values.keys() <= HEALTHY.keys()
        self.values[slot].update(values)
        return self

    def process(self, slot: int, pid: int, mem_bytes: int) -> AmdScenario:
        """Put a process on a GPU."""
        self.processes.setdefault(slot, []).append((pid, mem_bytes))
        return self

    def fault(self, call: str, kind: str, value: int = 1, slot: int | None = None) -> AmdScenario:
        """Have `call` ("*": all about a GPU) fail: "error" with a status, "latency" in µs, "hang", "crash"."""
        self.faults[call, "*" if slot is None else str(slot), kind] = value
        return self

    def mend(self) -> AmdScenario:
        """Take back all faults."""
        self.faults.clear()
        return self

    def write(self) -> AmdScenario:
        """Have it hold from the next call on."""
        lines = [f"gpus {self.count}"]
        for slot in range(self.count):
            for call, key, data in self._answers(slot):
                lines.append(f"answer amdsmi_{call} {slot} {key} {data.hex()}")
        lines += self.raw
        lines += [f"fault {call} {slot} {kind} {value}" for (call, slot, kind), value in self.faults.items()]
        fresh = self.path.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.path)
        return self

    def _answers(self, slot: int) -> Iterable[tuple[str, int, bytes]]:
        has = self.values[slot]
        yield "get_gpu_enumeration_info", 0, _filled("enumeration_info_t", hip_uuid=amd_uuid(slot))
        yield "get_gpu_asic_info", 0, _filled("asic_info_t", market_name=has["name"], asic_serial="0x1")
        yield "get_gpu_driver_info", 0, _filled("driver_info_t", driver_version="6.10.5", driver_name="amdgpu")
        yield (
            "get_gpu_activity",
            0,
            _filled("engine_usage_t", gfx_activity=_or(has["util"]), umc_activity=_or(has["mem_util"])),
        )
        yield (
            "get_power_info",
            0,
            _filled(
                "power_info_t",
                current_socket_power=_or(has["power_watts"]),
                average_socket_power=_or(has["average_watts"]),
            ),
        )
        if has["power_limit_watts"] is not None:
            cap = _filled("power_cap_info_t", power_cap=has["power_limit_watts"] * 1_000_000)
            yield "get_power_cap_info", 0, cap
        clock = _filled("clk_info_t", clk=_or(has["sm_clock_mhz"]), max_clk=_or(has["sm_clock_max_mhz"]))
        yield "get_clock_info", _structures()["AMDSMI_CLK_TYPE_GFX"], clock
        for call, name in (
            ("get_gpu_memory_usage", "mem_used_bytes"),
            ("get_gpu_memory_total", "mem_total_bytes"),
        ):
            if has[name] is not None:
                yield call, 0, bytes(ctypes.c_uint64(has[name]))
        for sensor, name in (("EDGE", "edge_c"), ("HOTSPOT", "hotspot_c"), ("VRAM", "mem_temperature_c")):
            if has[name] is not None:
                number = _structures()[f"AMDSMI_TEMPERATURE_TYPE_{sensor}"]
                yield "get_temp_metric", number, bytes(ctypes.c_int64(has[name]))
        yield (
            "get_pcie_info",
            0,
            _filled(
                "pcie_info_t", pcie_metric__pcie_speed=has["pcie_mts"], pcie_metric__pcie_width=has["pcie_width"]
            ),
        )
        if has["energy_joules"] is not None:
            count = ctypes.c_uint64(round(has["energy_joules"] * 1e6 / 16))
            yield "get_energy_count", 0, bytes(count) + bytes(ctypes.c_float(16)) + bytes(8)
        if has["xgmi_read_kib"] is not None:
            yield "get_link_metrics", 0, self._links(has)
        listed = [
            _filled("proc_info_t", name="python", pid=pid, mem=mem + GIB, memory_usage__vram_mem=mem)
            for pid, mem in self.processes.get(slot, ())
        ]
        if listed:
            yield "get_gpu_process_list", 0, b"".join(listed)

    def _links(self, has: dict[str, Any]) -> bytes:
        metrics = _structures()["amdsmi_link_metrics_t"]()
        metrics.num_links = 3
        for number, link in enumerate(metrics.links[:3]):
            link.link_type = 1 if number == 2 else 2  # the last one is PCIe's
            link.read, link.write = has["xgmi_read_kib"] // 2, has["xgmi_write_kib"] // 2
        return bytes(metrics)


def _or(value: Any) -> int:
    """How the library says that there is none."""
    return 0xFFFFFFFF if value is None else int(value)


def environment(home: Path, scenario: Path) -> dict[str, str]:
    """What a process needs whose AMD driver is the stand-in."""
    return {"ROCM_PATH": str(home), SCENARIO_VARIABLE: str(scenario)}
