"""Bounds of a driver's values. A value outside is no measurement, and is absent rather than shown.

Drivers answer "not available" with all bits set (4294967295 %, 16384 PiB), an unsigned temperature below zero as
4294967200, and a GPM metric of a unit that is powered down as whatever division gave. The bounds of each field are
in the table of signals (`llmtop.model.signals`).
"""

from __future__ import annotations

import math

from llmtop.model.signals import BYTES, SIGNALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeAlias

    Values: TypeAlias = dict[str, Any]
    """Fields of `llmtop.model.snapshot.Gpu` by name; a field that is missing or None is absent."""

BOUNDS: dict[str, tuple[float, float]] = {
    **{signal.field: signal.bounds for signal in SIGNALS if signal.bounds is not None},
    "mem_bytes": BYTES,
}
"""Least and most by field of `llmtop.model.snapshot.Gpu`, and `mem_bytes` of `collectors.base.source.GpuUse`."""
_OF_TOTAL = "mem_used_bytes"
"""The only field whose bounds depend on another one."""
PID_LIMIT = 1 << 22
"""Linux's PID_MAX_LIMIT: every pid is smaller."""
NO_REASONS = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""Masks of clock-event reasons with all bits set: being idle and being at the power limit exclude each other."""

ImplausibleValues = dict[str, float]
"""Implausible values by field."""


def plausible_pid(pid: int) -> bool:
    """Return True if a process on this system can have this pid."""
    return 0 < pid < PID_LIMIT


def plausible_values(values: Values, implausible: ImplausibleValues) -> Values:
    """Return the values without those that cannot be, which go to `implausible`. NaN is a driver's way to say
    "none"."""
    sound: Values = {}
    for name, value in values.items():
        bounds = BOUNDS.get(name)
        if (
            bounds is None
            or value is None
            or (name != _OF_TOTAL and bounds[0] <= value <= bounds[1])  # as NaN is not
            or _is_plausible(name, value, values, implausible)
        ):
            sound[name] = value
    return sound


def _is_plausible(name: str, value: float, values: Values, implausible: ImplausibleValues) -> bool:
    if math.isnan(value):
        return False
    least, most = BOUNDS[name]
    total = values.get("mem_total_bytes")
    if name == _OF_TOTAL and total is not None and 0 < total <= most:
        most = total
    if least <= value <= most:
        return True
    implausible[name] = value
    return False


def implausible_notes(found: Iterable[tuple[str, ImplausibleValues]]) -> list[str]:
    """Return one sentence per field with its implausible values and the names of the GPUs."""
    by_field: dict[str, list[tuple[str, float]]] = {}
    for gpu, implausible in found:
        for name, value in implausible.items():
            by_field.setdefault(name, []).append((gpu, value))
    notes = []
    for name, said in by_field.items():
        gpu, value = said[0]
        others = f" and {len(said) - 1} more like it" if len(said) > 1 else ""
        notes.append(f"the driver said {value:.10g} for {name} of {gpu}{others}: not shown, it cannot be")
    return notes
