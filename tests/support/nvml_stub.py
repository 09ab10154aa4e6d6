"""A stand-in for libnvidia-ml.so.1 (tests/nvml_stub), built with gcc and driven by a scenario file.

The real binding loads it, in a child process through `environment()` or in this one (the fixture `nvml_stub`):

    scenario = Scenario.eight_gpus()
    scenario.set(3, util=100, power_watts=196)
    path = scenario.write(tmp_path / "scenario")
    subprocess.run([...], env=environment(build(), path))

Write the scenario again while a program runs and the driver's answers change under it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pynvml

from llmtop.model.signals import SIGNALS
from tests.support.processes import wait_for

SOURCES = Path(__file__).resolve().parents[1] / "nvml_stub"
SCENARIO_VARIABLE = "LLMTOP_NVML_SCENARIO"
GIB = 1 << 30

# What Scenario.set() takes, and the scenario's own key with the factor to its unit.
_VALUES: dict[str, tuple[str, float]] = {
    "util": ("util", 1),
    "util_sampled": ("util_sampled", 1),
    "mem_util": ("mem_util", 1),
    "mem_used_bytes": ("mem_used", 1),
    "mem_total_bytes": ("mem_total", 1),
    "mem_reserved_bytes": ("mem_reserved", 1),
    "power_watts": ("power_mw", 1000),
    "power_limit_watts": ("limit_mw", 1000),
    "energy_joules": ("energy_mj", 1000),
    "temperature_c": ("temp_c", 1),
    "mem_temperature_c": ("mem_temp_c", 1),
    "sm_clock_mhz": ("sm_mhz", 1),
    "sm_clock_max_mhz": ("sm_max_mhz", 1),
    "clock_event_reasons": ("reasons", 1),
    "pcie_gen": ("pcie_gen", 1),
    "pcie_width": ("pcie_width", 1),
    "pcie_rx_kb_per_s": ("pcie_rx_kb", 1),
    "pcie_tx_kb_per_s": ("pcie_tx_kb", 1),
    "ecc_uncorrected": ("ecc_uncorrected", 1),
    "retired_pending": ("retired_pending", 1),
    "remap_pending": ("remap_pending", 1),
    "remap_failure": ("remap_failure", 1),
    "gpm": ("gpm", 1),
    "mig_mode": ("mig_mode", 1),
    "lost": ("lost", 1),
    "sticky_loss": ("sticky_loss", 1),
}
# GPM metric numbers of nvml.h; rates are in MiB/s as NVML has them.
_NVML_H = {
    "sm_active": 2,
    "sm_occupancy": 3,
    "tensor_active": 5,
    "dram_active": 10,
    "gpm_pcie_tx_mib": 20,
    "gpm_pcie_rx_mib": 21,
    "nvlink_rx_mib": 60,
    "nvlink_tx_mib": 61,
}
_GPM_SHARES = {
    signal.field.removesuffix("_pct"): getattr(pynvml, f"NVML_GPM_METRIC_{signal.gpm}")
    for signal in SIGNALS
    if signal.gpm and signal.unit == "%"
}
_METRICS = {**_GPM_SHARES, **_NVML_H}
# A working H200 (medians of a bf16 GPT training).
_H200: dict[str, float] = {
    "util": 99,
    "util_sampled": 98,
    "mem_util": 47,
    "mem_used_bytes": 96 * GIB,
    "mem_total_bytes": 150_754_820_096,
    "mem_reserved_bytes": 600 << 20,
    "power_watts": 640,
    "power_limit_watts": 700,
    "energy_joules": 1_234_567,
    "temperature_c": 61,
    "mem_temperature_c": 72,
    "sm_clock_mhz": 1755,
    "sm_clock_max_mhz": 1980,
    "clock_event_reasons": 0,
    "pcie_gen": 5,
    "pcie_width": 16,
    "pcie_rx_kb_per_s": 30_000,
    "pcie_tx_kb_per_s": 12_000,
    "gpm": 1,
    **dict.fromkeys(_GPM_SHARES, 5),
    "sm_active": 94,
    "sm_occupancy": 41,
    "tensor_active": 54,
    "dram_active": 31,
    "gpm_pcie_tx_mib": 12,
    "gpm_pcie_rx_mib": 30,
    "nvlink_rx_mib": 0,
    "nvlink_tx_mib": 0,
}
# Microseconds, measured on an H200 with driver 580; the dear ones wait for the GPU's own processor.
CHEAP_CALLS = {
    "nvmlDeviceGetUtilizationRates": 60,
    "nvmlDeviceGetMemoryInfo_v2": 20,
    "nvmlDeviceGetPowerUsage": 30,
    "nvmlDeviceGetTemperature": 20,
    "nvmlDeviceGetClockInfo": 20,
    "nvmlDeviceGetCurrentClocksEventReasons": 20,
    "nvmlGpmSampleGet": 160,
    "nvmlGpmMetricsGet": 10,
}
DEAR_CALLS = {
    "nvmlDeviceGetPcieThroughput": 20_800,
    "nvmlDeviceGetTotalEnergyConsumption": 5_000,
    "nvmlDeviceGetFieldValues": 3_400,
    "nvmlDeviceGetProcessUtilization": 3_000,
    "nvmlDeviceGetSamples": 3_000,
}


def gpu_uuid(slot: int) -> str:
    """The UUID that `Scenario` gives the GPU in that slot."""
    return f"GPU-{slot:08x}-5107-4b0e-9d43-{slot:012x}"


def mig_uuid(slot: int, instance: int) -> str:
    """The UUID that `Scenario.mig` gives the MIG instance with that GPU instance id."""
    return f"MIG-{slot:08x}-{instance:04x}-4b0e-9d43-{instance:012x}"


@dataclass
class Scenario:
    """What the stand-in answers. GPUs are named by slot: a physical GPU, whatever index the driver gives it."""

    count: int = 1
    driver: str = "580.159.04"
    cuda: int = 13000
    name: str = "NVIDIA H200"
    order: list[int] | None = None
    lines: list[str] = field(default_factory=list)
    events: int = 0
    faults: dict[tuple[str, str, str], str] = field(default_factory=dict)
    processes: dict[tuple[int, int], str] = field(default_factory=dict)
    path: Path | None = None

    @classmethod
    def eight_gpus(cls) -> Scenario:
        """Eight H200s in a healthy training."""
        return cls(count=8)

    def set(self, gpu: int | None = None, **values: float | None) -> Scenario:
        """Set values of one GPU, or of all.

        Names are the snapshot's without `_pct`, and those of `_VALUES`; None makes the driver not have the value.
        """
        for key, value in values.items():
            if key in _METRICS:
                text = "nan" if value is None else f"{value:g}"
                self.lines.append(f"gpm {_slot(gpu)} {_METRICS[key]} {text}")
            elif key in ("util", "mem_util") and value is None:
                self.fail("nvmlDeviceGetUtilizationRates", 3, gpu=gpu)
            elif key == "util_sampled" and value is None:
                self.fail("nvmlDeviceGetSamples", 3, gpu=gpu)
            else:
                name, factor = _VALUES[key]
                self.lines.append(f"gpu {_slot(gpu)} {name} {round((value or 0) * factor)}")
        return self

    def rename(self, gpu: int, name: str) -> Scenario:
        """Give a GPU another product name."""
        self.lines.append(f"gpu {gpu} name {name}")
        return self

    def fail_metric(self, metric: str, code: int, gpu: int | None = None) -> Scenario:
        """Have one GPM metric carry its own nvmlReturn."""
        self.lines.append(f"gpm {_slot(gpu)} {_METRICS[metric]} 0 {code}")
        return self

    def fail(self, call: str, code: int, gpu: int | None = None) -> Scenario:
        """Have `call` ("*": every call about a GPU) answer an nvmlReturn; 0 makes it work again."""
        return self._fault(call, gpu, "error", code)

    def delay(self, call: str, microseconds: int, gpu: int | None = None, *, locked: bool = False) -> Scenario:
        """Have `call` take time, inside the lock that all `locked` calls share if asked."""
        self._fault(call, gpu, "latency", microseconds)
        return self._fault(call, gpu, "locked", 1) if locked else self

    def hang(self, call: str, gpu: int | None = None) -> Scenario:
        """Have `call` block until `mend`."""
        return self._fault(call, gpu, "hang", 1)

    def crash(self, call: str, number: int = 11, gpu: int | None = None) -> Scenario:
        """Have `call` end the process by that signal until `mend`; never in a test's own process."""
        return self._fault(call, gpu, "crash", number)

    def mend(self, call: str, gpu: int | None = None) -> Scenario:
        """Take back every fault of `call` on that GPU (or those for all GPUs)."""
        for key in [key for key in self.faults if key[:2] == (call, _slot(gpu))]:
            del self.faults[key]
        return self

    def measured_latencies(self) -> Scenario:
        """Give every call the time that it took on a real H200; dear calls share one lock, as in a driver."""
        for call, microseconds in CHEAP_CALLS.items():
            self.delay(call, microseconds)
        for call, microseconds in DEAR_CALLS.items():
            self.delay(call, microseconds, locked=True)
        return self

    def process(
        self, gpu: int, pid: int, mem_bytes: int, sm: int = -1, kind: str = "compute", instance: int = -1
    ) -> Scenario:
        """Put a process on a GPU; `sm` is its share in percent, -1 for no sample."""
        self.processes[gpu, pid] = f"process {gpu} {pid} {mem_bytes} {sm} {kind} {instance}"
        return self

    def end_process(self, gpu: int, pid: int) -> Scenario:
        """Take a process off a GPU."""
        del self.processes[gpu, pid]
        return self

    def mig(self, gpu: int, instance: int, used: int, total: int, name: str = "H200 MIG 1g.18gb") -> Scenario:
        """Put a GPU in MIG mode and add an instance."""
        self.set(gpu, mig_mode=1)
        self.lines.append(f"mig {gpu} {mig_uuid(gpu, instance)} {used} {total} {instance} {name}")
        return self

    def xid(self, gpu: int, number: int) -> Scenario:
        """Report an Xid error once to whoever is listening."""
        self.events += 1
        self.lines.append(f"event {gpu} {self.events} 8 {number}")
        return self

    def text(self) -> str:
        """The scenario file."""
        lines = [f"driver {self.driver}", f"cuda {self.cuda}"]
        for slot in range(self.count):
            lines += [f"gpu {slot} uuid {gpu_uuid(slot)}", f"gpu {slot} name {self.name}"]
        if self.order is not None:
            lines.append("order " + " ".join(map(str, self.order)))
        base = Scenario(count=self.count)
        if self.count:
            base.set(None, **_H200)
        faults = [f"fault {call} {gpu} {kind} {value}" for (call, gpu, kind), value in self.faults.items()]
        return "\n".join([*lines, *base.lines, *self.lines, *faults, *self.processes.values()]) + "\n"

    def write(self, path: Path | None = None) -> Path:
        """Write the file, at `path` or where it was last; a running stand-in follows at its next call."""
        self.path = path or self.path
        assert self.path is not None, "the first write names the file"
        fresh = self.path.with_suffix(".new")
        fresh.write_text(self.text())
        fresh.replace(self.path)
        return self.path

    def _fault(self, call: str, gpu: int | None, kind: str, value: int) -> Scenario:
        self.faults[call, _slot(gpu), kind] = str(value)
        return self


def _slot(gpu: int | None) -> str:
    return "*" if gpu is None else str(gpu)


def build(missing: Iterable[str] = (), defines: Iterable[str] = ()) -> Path:
    """Compile the stand-in, once for each source and variant, and return libnvidia-ml.so.1.

    Args:
        missing: symbols that this driver does not have.
        defines: preprocessor switches; WIDE_PROCESS_INFO is the process list of drivers 535.43 to 535.86.
    """
    missing, defines = sorted(missing), sorted(defines)
    sources = [SOURCES / name for name in ("nvml.c", "scenario.c")]
    key = hashlib.sha256(repr((missing, defines)).encode())
    for file in (*sources, SOURCES / "scenario.h"):
        key.update(file.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"llmtop-nvml-{os.getuid()}-{key.hexdigest()[:16]}"
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        exports = library.with_name(f"exports-{os.getpid()}")
        hidden = "".join(f" {symbol};" for symbol in missing)
        exports.write_text(f"{{ global: *;{' local:' + hidden if hidden else ''} }};")
        fresh = library.with_name(f"{os.getpid()}.so")
        command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared"]
        command += ["-Wl,-soname,libnvidia-ml.so.1", f"-Wl,--version-script={exports}"]
        command += [f"-D{name}" for name in defines]
        subprocess.run(
            [*command, "-o", str(fresh), *map(str, sources), "-lpthread", "-lm"], check=True, timeout=240
        )
        exports.unlink()
        fresh.replace(library)
    return library


def environment(library: Path, scenario: Path, **extra: str) -> dict[str, str]:
    """The environment of a child process whose driver is the stand-in; CUDA_VISIBLE_DEVICES is left out."""
    repository = str(SOURCES.parents[1])
    mine = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    return {
        **mine,
        "PYTHONPATH": repository,
        "PYTHONUNBUFFERED": "1",
        **extra,
        # Last: `extra` may be a whole environment, with the scenario of a driver in this process.
        "LD_LIBRARY_PATH": str(library.parent),
        SCENARIO_VARIABLE: str(scenario),
    }


class Driver:
    """The stand-in as this process's driver: its scenario, and what it has seen of its caller."""

    def __init__(self, scenario_path: Path) -> None:
        """Load the plain variant; must come before anything else in the process uses NVML."""
        self.scenario = Scenario.eight_gpus()
        self.scenario.write(scenario_path)
        os.environ[SCENARIO_VARIABLE] = str(scenario_path)
        self._library = ctypes.CDLL(str(build()), mode=ctypes.RTLD_GLOBAL)
        self._library.nvml_stub_count.restype = ctypes.c_ulong

    def now(self, scenario: Scenario) -> Scenario:
        """Let the driver answer by another scenario from its next call on."""
        scenario.path = self.scenario.path
        scenario.write()
        self.scenario = scenario
        return scenario

    def count(self, call: str) -> int:
        """How often a call was made in this process."""
        return int(self._library.nvml_stub_count(call.encode()))

    def reset(self) -> None:
        """Free every call that hangs, and shut NVML down however often it was started."""
        self.now(Scenario.eight_gpus())
        wait_for(lambda: self._library.nvml_stub_inside() == 0)
        while self._library.nvmlShutdown() == 0:
            pass

    @property
    def gpm_samples(self) -> int:
        """GPM samples that are allocated and not freed."""
        return int(self._library.nvml_stub_gpm_alive())

    def forget_gpm(self) -> None:
        """Take the next GPM call for the first of the process."""
        self._library.nvml_stub_gpm_forget()

    @property
    def gpm_crowd(self) -> int:
        """How many threads were in GPM calls at once before any metrics were had; a real driver crashed so."""
        return int(self._library.nvml_stub_gpm_crowd())

    @property
    def violations(self) -> int:
        """How often NVML was shut down under a thread inside a call, which crashes a real driver's library."""
        return int(self._library.nvml_stub_violations())
