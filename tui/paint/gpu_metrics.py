"""The signals of a GPU that have a chart: how each is read and written, and on which fixed axis it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from llmtop import format as fmt
from llmtop.hardware.gpu_specs import nvlink_bytes_per_s, pcie_bytes_per_s
from llmtop.model.signal_text import axis_text, value_text
from llmtop.model.signals import CHARTS, Chart, Signal
from llmtop.model.snapshot import Gpu

if TYPE_CHECKING:
    from llmtop.model.signals import Unit

Hue = Literal["compute", "energy", "transfer"]
GIB = 2**30
GB = 1e9


class Metric(Struct, frozen=True):
    """One figure of a GPU."""

    key: str
    label: str
    """Label of at most seven characters, in cards."""
    title: str
    """Title in words, for large charts."""
    hue: Hue
    value: Callable[[Gpu], float | None]
    limit: Callable[[Gpu], float | None]
    """Upper end of the axis, whose lower end is 0; None when this GPU does not report it."""
    text: Callable[[Gpu], str]
    """Text with its unit; an absent value is a dash."""
    axis: Callable[[float], str]
    """A value on the axis, short."""
    optional: bool = False
    """Left out of a card when the GPU does not give it, instead of a dash."""


def short_name(name: str) -> str:
    """Return a GPU's model without its maker: "H200"."""
    return fmt.printable(name).removeprefix("NVIDIA ").removeprefix("GeForce ")


_TOTALS: dict[Unit, tuple[float, str]] = {"W": (1.0, " W"), "B": (GIB, " GiB")}
"""Units in which a signal is written with its total: the divisor, and the unit that is written."""


def total_text(signal: Signal, gpu: Gpu) -> str:
    """Return a signal against its total, without the unit: "686/700" W, "113/141" GiB; alone if the total is
    absent."""
    divisor, _ = _TOTALS[signal.unit]
    value, total = getattr(gpu, signal.field), getattr(gpu, signal.total)
    digits = 1 if signal.unit == "B" and total is not None and total < 16 * GIB else 0
    suffix = "" if total is None else f"/{fmt.number(total / divisor, digits)}"
    return fmt.number(None if value is None else value / divisor, digits) + suffix


def has_total_text(signal: Signal) -> bool:
    """Return True if the signal is written against its total."""
    return bool(signal.total) and signal.unit in _TOTALS


def _text(signal: Signal, gpu: Gpu) -> str:
    if has_total_text(signal) and getattr(gpu, signal.total) is not None:
        return total_text(signal, gpu) + _TOTALS[signal.unit][1]
    return value_text(signal.unit, getattr(gpu, signal.field))


# Ends of the axes where the link or the model is unknown: drawn, never shown as numbers.
_USUAL_PCIE = pcie_bytes_per_s(4, 16) or GB
_USUAL_NVLINK = 450 * GB


def pcie_limit(gpu: Gpu) -> float:
    """Bandwidth of the link in one direction; Gen 4 x16 when the driver does not report it."""
    return pcie_bytes_per_s(gpu.pcie_gen or 4, gpu.pcie_width or 16) or _USUAL_PCIE


def nvlink_limit(gpu: Gpu) -> float:
    """Return the highest rate of all NVLinks together one way; 450 GB/s for a model that is not in the table."""
    return nvlink_bytes_per_s(gpu.name) or _USUAL_NVLINK


_LINK_LIMITS: dict[str, Callable[[Gpu], float]] = {"pcie": pcie_limit, "nvlink": nvlink_limit}


def _limit(signal: Signal, chart: Chart) -> Callable[[Gpu], float | None]:
    limit = chart.limit
    if not isinstance(limit, str):
        return lambda _: limit
    return _LINK_LIMITS[limit] if limit in _LINK_LIMITS else attrgetter(signal.total)


def _metric(signal: Signal, chart: Chart) -> Metric:
    return Metric(
        chart.key,
        chart.label,
        chart.title,
        chart.hue,
        attrgetter(signal.field),
        _limit(signal, chart),
        lambda gpu: _text(signal, gpu),
        lambda value: axis_text(signal.unit, value),
        chart.optional,
    )


METRICS: tuple[Metric, ...] = tuple(_metric(signal, chart) for signal, chart in CHARTS)
BY_KEY = {metric.key: metric for metric in METRICS}
