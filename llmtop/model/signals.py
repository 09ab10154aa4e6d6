"""The signals of a GPU: one row each, from which every output is made.

A signal is a field of `llmtop.model.snapshot.Gpu` that a driver measures. Collectors, the exporter, the screen,
`--once`, gpu.csv and the report of a recording loop over `SIGNALS`: none names a signal's title, unit, bounds or
public name again (tests/model/test_signals.py).

The process that asks a driver imports this module, so it imports no msgspec, typing or dataclasses.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal, TypeAlias, TypeVar

    T = TypeVar("T")
    Unit: TypeAlias = Literal["%", "W", "J", "°C", "MHz", "B", "B/s", "", "reasons"]
    """Unit of the field's value; "": a plain number; "reasons": names of clock-event reasons."""
    Hue: TypeAlias = Literal["compute", "energy", "transfer"]
    Maker: TypeAlias = Literal["NVIDIA", "AMD", "Google"]
    Limit: TypeAlias = Literal["total", "pcie", "nvlink"]
    Bounds: TypeAlias = tuple[float, float]

MIB = 1 << 20
_TIB = 1 << 40


class Chart:
    """A signal's history on the screen of one GPU, in strips and on the time line."""

    __slots__ = ("hue", "key", "label", "limit", "optional", "title")

    def __init__(
        self,
        key: str,
        label: str,
        title: str,
        hue: Hue,
        limit: float | Limit = 100.0,
        *,
        optional: bool = False,
    ) -> None:
        """Describe the chart.

        Args:
            key: names its history.
            label: at most seven characters, where there is little room.
            title: in words, for large charts.
            hue: which colour its kind of signal has.
            limit: the upper end of its axis, the lower being 0: in the signal's unit, or "total" (`Signal.total`),
                or what the "pcie" or "nvlink" links of the GPU can carry one way.
            optional: left out where the GPU does not give it, instead of a dash.
        """
        self.key, self.label, self.title, self.hue = key, label, title, hue
        self.limit, self.optional = limit, optional


class Cell:
    """A signal's column in the table of GPUs and ranks. The title is also a word of `columns.gpus`."""

    __slots__ = ("beside", "key", "plus", "strong", "title", "weight", "width")

    def __init__(
        self,
        title: str,
        width: int,
        weight: int,
        *,
        key: str = "",
        plus: str = "",
        beside: str = "",
        strong: bool = False,
    ) -> None:
        """Describe the column.

        Args:
            title: with the unit, where the cells have none.
            width: in cells of the terminal.
            weight: of columns that do not fit, the largest goes first.
            key: names the column; by default the key of the chart.
            plus: another field, the value of which is added.
            beside: another field, the value of which is written behind this one's.
            strong: whether it stands out.
        """
        self.title, self.width, self.weight = title, width, weight
        self.key, self.plus, self.beside, self.strong = key, plus, beside, strong


class OnceItem:
    """A signal in the text of `--once`: "SM clock 1455 of 1980 MHz"."""

    __slots__ = ("names", "optional", "part")

    def __init__(self, *, part: str = "", optional: bool = False, **names: str) -> None:
        """Describe the item.

        Args:
            part: the word of this signal in an item that several share by name: "rx".
            optional: left out where the value is absent, instead of a dash.
            names: by maker: how it is called there. It is left out for makers that are not named.
        """
        self.names: Mapping[str, str] = names
        self.part, self.optional = part, optional


class Series:
    """A signal as a Prometheus series: dcgm-exporter's name and unit."""

    __slots__ = ("factor", "help", "less", "name", "untyped")

    def __init__(
        self, name: str, help: str, factor: float = 1.0, *, less: str = "", untyped: bool = False
    ) -> None:
        """Describe the series.

        Args:
            name: dcgm-exporter's.
            help: the HELP line.
            factor: from the field's unit to the series' own.
            less: another field, the value of which is subtracted first.
            untyped: it is a counter. DCGM's have no `_total`, which Prometheus' client adds: they have no type.
        """
        self.name, self.help, self.factor, self.less, self.untyped = name, help, factor, less, untyped


class Signal:
    """One signal: what it is, its sources, and how each output has it (None or "": the output does not)."""

    __slots__ = (
        "bounds", "cell", "chart", "column", "dcgm", "field", "gpm", "once", "report", "series", "total", "tpu",
        "unit",
    )  # fmt: skip

    def __init__(
        self,
        field: str,
        unit: Unit,
        bounds: Bounds | None,
        *,
        total: str = "",
        gpm: str = "",
        dcgm: str = "",
        tpu: str = "",
        chart: Chart | None = None,
        cell: Cell | None = None,
        once: OnceItem | None = None,
        series: Series | None = None,
        column: str = "",
        report: str = "",
    ) -> None:
        """Describe the signal.

        A signal with a call of its own is read in `collectors.nvml.fields` or `collectors.amd.fields`.

        Args:
            field: of `llmtop.model.snapshot.Gpu`.
            unit: of the field's value.
            bounds: least and most that a driver's value can be; a value outside is absent. None: not a number.
            total: the field that it is a part of.
            gpm: the metric of NVIDIA's GPM, after `NVML_GPM_METRIC_`.
            dcgm: dcgm-exporter's name, where the driver gives nothing.
            tpu: libtpu's name.
            chart: on the screen.
            cell: in the table of GPUs and ranks.
            once: in the text of `--once`.
            series: of `llmtop export`.
            column: of bench's gpu.csv, as `nvidia-smi --query-gpu` calls it.
            report: its name in the report of a recording.
        """
        self.field, self.unit, self.bounds, self.total = field, unit, bounds, total
        self.gpm, self.dcgm, self.tpu = gpm, dcgm, tpu
        self.chart, self.cell, self.once, self.series = chart, cell, once, series
        self.column, self.report = column, report


# The bounds are wide: they tell what cannot be from what can, not what is usual.
_WHOLE = (0.0, 100.0)  # a whole number by definition
_SHARE = (0.0, 110.0)  # a share of time; GPM divides two counters that are read one after the other
_WATTS = (0.0, 10_000.0)  # today's largest GPU draws 1,400
_JOULES = (0.0, 1e13)  # 10 kW for 30 years
_CELSIUS = (-50.0, 200.0)  # silicon works from -40 to 125
_MHZ = (0.0, 10_000.0)  # today's fastest: 3,100
_PCIE = (0.0, 1e12)  # bytes/s; 16 lanes of PCIe 7.0 carry 0.25e12 one way
_LINKS = (0.0, 2e13)  # bytes/s; NVLink 5 carries 0.9e12 one way, all links of a GPU together
BYTES = (0.0, 16.0 * _TIB)  # today's largest GPU has 0.3 TiB

SIGNALS: tuple[Signal, ...] = (
    Signal(
        "util_pct", "%", _WHOLE,
        tpu="tpu.runtime.tensorcore.dutycycle.percent",
        chart=Chart("util", "util", "GPU utilisation (a kernel was running)", "compute"),
        cell=Cell("util", 4, 3, strong=True),
        once=OnceItem(NVIDIA="util", AMD="util", Google="duty cycle"),
        series=Series("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %)"),
        column="utilization.gpu [%]",
        report="util",
    ),
    Signal("util_sampled_pct", "%", _WHOLE),
    Signal(
        "mem_util_pct", "%", _WHOLE,
        chart=Chart("mem_util", "mem rw", "Memory read or written (NVML)", "transfer", optional=True),
        once=OnceItem(NVIDIA="memory util", AMD="memory util"),
        series=Series("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %)"),
        column="utilization.memory [%]",
    ),
    Signal(
        "mem_used_bytes", "B", BYTES,
        total="mem_total_bytes",
        tpu="tpu.runtime.hbm.memory.usage.bytes",
        chart=Chart("memory", "memory", "Memory in use", "transfer", "total"),
        cell=Cell("mem GiB", 7, 5),
        once=OnceItem(NVIDIA="memory", AMD="memory", Google="memory"),
        series=Series("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB)", 1 / MIB),
        column="memory.used [MiB]",
    ),
    Signal(
        "mem_total_bytes", "B", BYTES,
        tpu="tpu.runtime.hbm.memory.total.bytes",
        series=Series("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB)", 1 / MIB, less="mem_used_bytes"),
        column="memory.total [MiB]",
    ),
    Signal(
        "power_watts", "W", _WATTS,
        total="power_limit_watts",
        chart=Chart("power", "power", "Power", "energy", "total"),
        cell=Cell("power", 9, 2, strong=True),
        once=OnceItem(NVIDIA="power", AMD="power"),
        series=Series("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W)"),
        column="power.draw [W]",
    ),
    Signal(
        "power_limit_watts", "W", _WATTS,
        series=Series("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "Power limit (in W)"),
        column="power.limit [W]",
    ),
    Signal(
        "energy_joules", "J", _JOULES,
        once=OnceItem(NVIDIA="energy", AMD="energy"),
        series=Series("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy (in mJ)", 1000, untyped=True),
    ),
    Signal(
        "temperature_c", "°C", _CELSIUS,
        chart=Chart("temperature", "temp", "Temperature", "energy"),
        cell=Cell("temp", 4, 11),
        once=OnceItem(NVIDIA="temperature", AMD="temperature"),
        series=Series("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C)"),
        column="temperature.gpu",
    ),
    Signal(
        "mem_temperature_c", "°C", _CELSIUS,
        chart=Chart("mem_temperature", "mem temp", "Memory temperature", "energy", optional=True),
        series=Series("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C)"),
        column="temperature.memory",
    ),
    Signal(
        "sm_clock_mhz", "MHz", _MHZ,
        total="sm_clock_max_mhz",
        chart=Chart("clock", "clock", "SM clock", "energy", "total"),
        cell=Cell("MHz", 5, 15),
        once=OnceItem(NVIDIA="SM clock", AMD="clock"),
        series=Series("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz)"),
        column="clocks.current.sm [MHz]",
    ),
    Signal("sm_clock_max_mhz", "MHz", _MHZ, column="clocks.max.sm [MHz]"),
    Signal("pcie_gen", "", (1.0, 16.0), column="pcie.link.gen.current"),  # 7 is the newest
    Signal("pcie_width", "", (1.0, 32.0), column="pcie.link.width.current"),  # the widest link of the standard
    Signal("clock_event_reasons", "reasons", None, column="clocks_event_reasons.active"),
    Signal(
        "pcie_rx_bytes_per_s", "B/s", _PCIE,
        gpm="PCIE_RX_PER_SEC",
        dcgm="DCGM_FI_PROF_PCIE_RX_BYTES",
        chart=Chart("pcie_rx", "PCIe rx", "PCIe receive (host to device)", "transfer", "pcie"),
        cell=Cell("PCIe rx/tx", 10, 7, key="pcie", beside="pcie_tx_bytes_per_s"),
        once=OnceItem(part="rx", NVIDIA="PCIe", AMD="PCIe"),
        series=Series("DCGM_FI_PROF_PCIE_RX_BYTES", "Data received over PCIe (in bytes per second)"),
    ),
    Signal(
        "pcie_tx_bytes_per_s", "B/s", _PCIE,
        gpm="PCIE_TX_PER_SEC",
        dcgm="DCGM_FI_PROF_PCIE_TX_BYTES",
        chart=Chart("pcie_tx", "PCIe tx", "PCIe send (device to host)", "transfer", "pcie"),
        once=OnceItem(part="tx", NVIDIA="PCIe", AMD="PCIe"),
        series=Series("DCGM_FI_PROF_PCIE_TX_BYTES", "Data sent over PCIe (in bytes per second)"),
    ),
    Signal(
        "nvlink_rx_bytes_per_s", "B/s", _LINKS,
        gpm="NVLINK_TOTAL_RX_PER_SEC",
        dcgm="DCGM_FI_PROF_NVLINK_RX_BYTES",
        chart=Chart("nvlink_rx", "NVL rx", "NVLink receive", "transfer", "nvlink", optional=True),
        cell=Cell("NVL/s", 5, 13, key="nvlink", plus="nvlink_tx_bytes_per_s"),
        once=OnceItem(part="rx", NVIDIA="NVLink"),
        series=Series("DCGM_FI_PROF_NVLINK_RX_BYTES", "Data received over NVLink (in bytes per second)"),
    ),
    Signal(
        "nvlink_tx_bytes_per_s", "B/s", _LINKS,
        gpm="NVLINK_TOTAL_TX_PER_SEC",
        dcgm="DCGM_FI_PROF_NVLINK_TX_BYTES",
        chart=Chart("nvlink_tx", "NVL tx", "NVLink send", "transfer", "nvlink", optional=True),
        once=OnceItem(part="tx", NVIDIA="NVLink"),
        series=Series("DCGM_FI_PROF_NVLINK_TX_BYTES", "Data sent over NVLink (in bytes per second)"),
    ),
    Signal(
        "xgmi_rx_bytes_per_s", "B/s", _LINKS,
        chart=Chart("xgmi_rx", "XGMI rx", "XGMI receive", "transfer", "nvlink", optional=True),
        cell=Cell("XGMI/s", 6, 18, key="xgmi", plus="xgmi_tx_bytes_per_s"),
        once=OnceItem(part="rx", AMD="XGMI"),
    ),
    Signal(
        "xgmi_tx_bytes_per_s", "B/s", _LINKS,
        chart=Chart("xgmi_tx", "XGMI tx", "XGMI send", "transfer", "nvlink", optional=True),
        once=OnceItem(part="tx", AMD="XGMI"),
    ),
    Signal(
        "sm_active_pct", "%", _SHARE,
        gpm="SM_UTIL",
        dcgm="DCGM_FI_PROF_SM_ACTIVE",
        chart=Chart("sm", "SM", "SM active", "compute"),
        cell=Cell("SM", 4, 8),
        once=OnceItem(NVIDIA="SM active"),
        series=Series("DCGM_FI_PROF_SM_ACTIVE", "Ratio of cycles an SM has work", 0.01),
        report="sm_active",
    ),
    Signal(
        "sm_occupancy_pct", "%", _SHARE,
        gpm="SM_OCCUPANCY",
        dcgm="DCGM_FI_PROF_SM_OCCUPANCY",
        chart=Chart("occupancy", "occup.", "SM occupancy", "compute", optional=True),
        once=OnceItem(NVIDIA="occupancy"),
        series=Series("DCGM_FI_PROF_SM_OCCUPANCY", "Ratio of resident warps", 0.01),
    ),
    Signal(
        "tensor_active_pct", "%", _SHARE,
        gpm="ANY_TENSOR_UTIL",
        dcgm="DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        chart=Chart("tensor", "tensor", "Tensor cores active", "compute"),
        cell=Cell("tens", 4, 12),
        once=OnceItem(NVIDIA="tensor"),
        series=Series("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of tensor cycles", 0.01),
        report="tensor_active",
    ),
    Signal(
        "dram_active_pct", "%", _SHARE,
        gpm="DRAM_BW_UTIL",
        dcgm="DCGM_FI_PROF_DRAM_ACTIVE",
        tpu="tpu.runtime.hbm.utilization.percent",
        chart=Chart("dram", "DRAM", "DRAM bandwidth in use", "transfer"),
        cell=Cell("DRAM", 4, 14),
        once=OnceItem(NVIDIA="DRAM", Google="HBM bandwidth"),
        series=Series("DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of cycles with memory traffic", 0.01),
        report="dram_active",
    ),
    Signal(
        "fp32_active_pct", "%", _SHARE,
        gpm="FP32_UTIL",
        dcgm="DCGM_FI_PROF_PIPE_FP32_ACTIVE",
        chart=Chart("fp32", "FP32", "FP32 active outside tensor cores", "compute", optional=True),
        once=OnceItem(optional=True, NVIDIA="FP32"),
        series=Series("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "Ratio of cycles the FP32 pipe is active", 0.01),
        column="fp32.active [%]",
    ),
)  # fmt: skip
"""Signals in the order of gpu.csv's columns: a new signal goes to the end."""

BY_FIELD = {signal.field: signal for signal in SIGNALS}


def _signals_with_facet(first: Sequence[str], facet: Callable[[Signal], T | None]) -> tuple[tuple[Signal, T], ...]:
    """Return the signals that have this facet, with it: `first` by field, then the others in the table's order."""
    rest = [signal.field for signal in SIGNALS if signal.field not in first]
    signals = [BY_FIELD[field] for field in (*first, *rest)]
    return tuple((signal, found) for signal in signals if (found := facet(signal)))


# Orders that are part of what users know. A new signal need not be named: it comes last.
CHARTS = _signals_with_facet(
    (
        "util_pct", "power_watts", "mem_used_bytes", "sm_active_pct", "tensor_active_pct", "dram_active_pct",
        "temperature_c", "sm_clock_mhz", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "nvlink_rx_bytes_per_s",
        "nvlink_tx_bytes_per_s", "mem_util_pct", "sm_occupancy_pct", "mem_temperature_c",
    ),
    lambda signal: signal.chart,
)  # fmt: skip
CELLS = _signals_with_facet(
    (
        "power_watts", "util_pct", "sm_active_pct", "tensor_active_pct", "dram_active_pct", "mem_used_bytes",
        "temperature_c", "sm_clock_mhz",
    ),
    lambda signal: signal.cell,
)  # fmt: skip
ONCE_ITEMS = _signals_with_facet(
    (
        "util_pct", "mem_util_pct", "power_watts", "mem_used_bytes", "temperature_c", "sm_clock_mhz",
        "sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct", "pcie_rx_bytes_per_s",
        "pcie_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s", "energy_joules",
    ),
    lambda signal: signal.once,
)  # fmt: skip
SERIES = _signals_with_facet(
    (
        "util_pct", "mem_util_pct", "power_watts", "power_limit_watts", "energy_joules", "mem_used_bytes",
        "mem_total_bytes", "sm_clock_mhz", "temperature_c",
    ),
    lambda signal: signal.series,
)  # fmt: skip
TPU_METRICS = _signals_with_facet(("mem_total_bytes", "mem_used_bytes"), lambda signal: signal.tpu)
"""Metrics in the order in which libtpu is queried."""
