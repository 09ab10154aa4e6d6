"""The value of a signal with its unit, as every text and screen writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from llmtop import format as fmt

if TYPE_CHECKING:
    from llmtop.model.signals import Unit

JOULES_PER_KWH: Final = 3.6e6
_TEXTS: Final[dict[Unit, Callable[[float | None], str]]] = {
    "%": fmt.percent,
    "W": fmt.watts,
    "J": lambda value: fmt.number(None if value is None else value / JOULES_PER_KWH, 2, " kWh"),
    "°C": lambda value: fmt.number(value, 0, " °C"),
    "MHz": lambda value: fmt.number(value, 0, " MHz"),
    "B": fmt.size,
    "B/s": fmt.rate,
    "": fmt.number,
}


def value_text(unit: Unit, value: float | None) -> str:
    """Return the value with its unit: "98%", "1980 MHz"; a dash if it is absent."""
    return _TEXTS[unit](value)


def axis_text(unit: Unit, value: float) -> str:
    """Return a value on an axis, short: a rate has no "/s" there."""
    if unit == "B/s":
        return fmt.rate(value).removesuffix("/s")
    if unit == "B":
        return fmt.size(value)
    return f"{value:.0f}{unit}" if unit == "%" else f"{value:.0f} {unit}".rstrip()
