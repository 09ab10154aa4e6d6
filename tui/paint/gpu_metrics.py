"""The figures of a GPU as data: how each is called, read, written, and on which fixed axis it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Literal

from msgspec import Struct

from llmtop import format as fmt
from llmtop.hardware.gpu_specs import nvlink_bytes_per_s, pcie_bytes_per_s
from llmtop.model.snapshot import Gpu

Hue = Literal["compute", "energy", "transfer"]
GIB = 2**30
GB = 1e9


class Metric(Struct, frozen=True):
    """One figure of a GPU."""

    key: str
    label: str
    """At most seven characters, in cards."""
    title: str
    """In words, for large charts."""
    hue: Hue
    value: Callable[[Gpu], float | None]
    limit: Callable[[Gpu], float | None]
    """Upper end of the axis, whose lower end is 0; None when this GPU does not report it."""
    text: Callable[[Gpu], str]
    """With its unit; an absent value is a dash."""
    axis: Callable[[float], str]
    """A value on the axis, short."""
    optional: bool = False
    """Left out of a card when the GPU does not give it, instead of a dash."""


def _hundred(_: Gpu) -> float:
    return 100.0


def short_name(name: str) -> str:
    """A GPU's model without its maker: "H200"."""
    return fmt.printable(name).removeprefix("NVIDIA ").removeprefix("GeForce ")


def power_text(gpu: Gpu) -> str:
    """Power drawn against the limit: "686/700 W"."""
    if gpu.power_limit_watts is None:
        return fmt.watts(gpu.power_watts)
    return f"{fmt.number(gpu.power_watts)}/{fmt.number(gpu.power_limit_watts)} W"


def memory_text(gpu: Gpu) -> str:
    """Used of total in GiB: "113/141 GiB"."""
    total, used = gpu.mem_total_bytes, gpu.mem_used_bytes
    if total is None:
        return fmt.size(used)
    digits = 0 if total >= 16 * GIB else 1
    shown = fmt.number(None if used is None else used / GIB, digits)
    return f"{shown}/{total / GIB:.{digits}f} GiB"


# Ends of the axes where the link or the model is unknown: drawn, never shown as numbers.
_USUAL_PCIE = pcie_bytes_per_s(4, 16) or GB
_USUAL_NVLINK = 450 * GB


def pcie_limit(gpu: Gpu) -> float:
    """Bandwidth of the link in one direction; Gen 4 x16 when the driver does not report it."""
    return pcie_bytes_per_s(gpu.pcie_gen or 4, gpu.pcie_width or 16) or _USUAL_PCIE


def nvlink_limit(gpu: Gpu) -> float:
    """What all links together can carry in one direction; 450 GB/s for a model that is not in the table."""
    return nvlink_bytes_per_s(gpu.name) or _USUAL_NVLINK


def _percent(
    key: str, label: str, title: str, hue: Hue, value: Callable[[Gpu], float | None], *, optional: bool = False
) -> Metric:
    return Metric(
        key,
        label,
        title,
        hue,
        value,
        _hundred,
        lambda gpu: fmt.percent(value(gpu)),
        lambda v: f"{v:.0f}%",
        optional,
    )


def _rate(
    key: str,
    label: str,
    title: str,
    value: Callable[[Gpu], float | None],
    limit: Callable[[Gpu], float],
    opt: bool,
) -> Metric:
    return Metric(key, label, title, "transfer", value, limit, lambda gpu: fmt.rate(value(gpu)), fmt.size, opt)


METRICS: tuple[Metric, ...] = (
    _percent("util", "util", "GPU utilisation (a kernel was running)", "compute", attrgetter("util_pct")),
    Metric(
        "power",
        "power",
        "Power",
        "energy",
        attrgetter("power_watts"),
        attrgetter("power_limit_watts"),
        power_text,
        lambda v: f"{v:.0f} W",
    ),
    Metric(
        "memory",
        "memory",
        "Memory in use",
        "transfer",
        attrgetter("mem_used_bytes"),
        attrgetter("mem_total_bytes"),
        memory_text,
        fmt.size,
    ),
    _percent("sm", "SM", "SM active", "compute", attrgetter("sm_active_pct")),
    _percent("tensor", "tensor", "Tensor cores active", "compute", attrgetter("tensor_active_pct")),
    _percent("dram", "DRAM", "DRAM bandwidth in use", "transfer", attrgetter("dram_active_pct")),
    Metric(
        "temperature",
        "temp",
        "Temperature",
        "energy",
        attrgetter("temperature_c"),
        _hundred,
        lambda g: fmt.number(g.temperature_c, 0, " °C"),
        lambda v: f"{v:.0f} °C",
    ),
    Metric(
        "clock",
        "clock",
        "SM clock",
        "energy",
        attrgetter("sm_clock_mhz"),
        attrgetter("sm_clock_max_mhz"),
        lambda g: fmt.number(g.sm_clock_mhz, 0, " MHz"),
        lambda v: f"{v:.0f} MHz",
    ),
    _rate(
        "pcie_rx", "PCIe rx", "PCIe receive (host to device)", attrgetter("pcie_rx_bytes_per_s"), pcie_limit, False
    ),
    _rate(
        "pcie_tx", "PCIe tx", "PCIe send (device to host)", attrgetter("pcie_tx_bytes_per_s"), pcie_limit, False
    ),
    _rate("nvlink_rx", "NVL rx", "NVLink receive", attrgetter("nvlink_rx_bytes_per_s"), nvlink_limit, True),
    _rate("nvlink_tx", "NVL tx", "NVLink send", attrgetter("nvlink_tx_bytes_per_s"), nvlink_limit, True),
    _percent(
        "mem_util",
        "mem rw",
        "Memory read or written (NVML)",
        "transfer",
        attrgetter("mem_util_pct"),
        optional=True,
    ),
    _percent("occupancy", "occup.", "SM occupancy", "compute", attrgetter("sm_occupancy_pct"), optional=True),
    Metric(
        "mem_temperature",
        "mem temp",
        "Memory temperature",
        "energy",
        attrgetter("mem_temperature_c"),
        _hundred,
        lambda g: fmt.number(g.mem_temperature_c, 0, " °C"),
        lambda v: f"{v:.0f} °C",
        optional=True,
    ),
    _rate("xgmi_rx", "XGMI rx", "XGMI receive", attrgetter("xgmi_rx_bytes_per_s"), nvlink_limit, True),
    _rate("xgmi_tx", "XGMI tx", "XGMI send", attrgetter("xgmi_tx_bytes_per_s"), nvlink_limit, True),
)

BY_KEY = {metric.key: metric for metric in METRICS}
