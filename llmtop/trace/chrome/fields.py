"""One event of a Chrome trace: the fields and arguments that matter here, whatever else it has."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import msgspec

Number = int | float | str | None
_NO_TEXT = msgspec.Raw(b"")
ELEMENT_BYTES = {
    **dict.fromkeys(
        ("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"), 1
    ),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
}
"""Bytes of one element of a collective's message, by PyTorch's name of its type (c10::ScalarType)."""


class Args(msgspec.Struct, gc=False):
    """Used arguments of an event, in the order of files; any event may have any."""

    sequence: Number = msgspec.field(name="Sequence number", default=None)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NO_TEXT)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NO_TEXT)
    """Left as text: a trace has few different ones, and most are never decoded."""
    device: Number = None
    stream: Number = None
    correlation: Number = None
    bytes: Number = None
    inDevice: Number = None  # noqa: N815  # the field's name in the file
    name: Number = None
    collective: Number = msgspec.field(name="Collective name", default=None)
    elements_in: Number = msgspec.field(name="In msg nelems", default=None)
    elements_out: Number = msgspec.field(name="Out msg nelems", default=None)
    group: Number = msgspec.field(name="Group size", default=None)
    dtype: Number = None


class MemoryArgs(Args, gc=False):
    """Arguments of a file with allocations: five more fields make each event a twentieth dearer to decode."""

    memory_bytes: Number = msgspec.field(name="Bytes", default=None)
    memory_level: Number = msgspec.field(name="Total Allocated", default=None)
    memory_reserved: Number = msgspec.field(name="Total Reserved", default=None)
    device_type: Number = msgspec.field(name="Device Type", default=None)
    device_id: Number = msgspec.field(name="Device Id", default=None)


class Event(msgspec.Struct, gc=False):
    """One event, as far as it matters here."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Number = None
    tid: Number = None
    ts: int | float | None = None
    dur: int | float | None = None
    args: Args | None = None


class ExactEvent(Event, gc=False):
    """An event of a clock with so early an origin that a float cannot resolve its nanoseconds."""

    ts: Decimal | None = None  # type: ignore[assignment]  # a number as well; never distinguished


class MemoryEvent(Event, gc=False):
    """An event of a file with allocations."""

    args: MemoryArgs | None = None


class ExactMemoryEvent(MemoryEvent, gc=False):
    """An `ExactEvent` of a file with allocations."""

    ts: Decimal | None = None  # type: ignore[assignment]  # as in ExactEvent


PRODUCT_US = 2.0**42
"""Up to here a float of µs times 1000 is the nearest whole number of ns."""
COARSE_US = 2.0**43
"""Microseconds from which (102 days) a float is more than a nanosecond off; of µs since 1970 it is 128."""
_NUMBER = re.compile(r"\s*[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d{1,2})?\s*$")
_LONGEST_TIME = 40
_plain_numbers = msgspec.json.Encoder(decimal_format="number")


def lenient_event(raw: Any, event: type[Event] = Event, args: type[msgspec.Struct] = Args) -> Event:
    """Return an event of which single fields may have any type; what does not fit is dropped.

    Args:
        raw: decoded JSON.
        event: the type to make.
        args: that of its arguments.
    """
    if not isinstance(raw, dict):
        return event()
    known: dict[str, Any] = {}
    for field in ("ph", "cat", "name"):
        if isinstance(raw.get(field), str):
            known[field] = raw[field]
    for field in ("ts", "dur"):
        value = _time(raw.get(field))
        if value is not None:
            known[field] = value
    for field in ("pid", "tid"):
        if isinstance(raw.get(field), int | float | Decimal | str):
            known[field] = raw[field]
    arguments = raw.get("args")
    if isinstance(arguments, dict):
        known["args"] = _lenient_args(arguments, args)
    return event(**known)


def _time(value: Any) -> int | float | Decimal | None:
    """Return a time in µs; some programs write it as text."""
    if isinstance(value, int | float | Decimal):
        return value
    if not isinstance(value, str) or len(value) > _LONGEST_TIME or not _NUMBER.match(value):
        return None
    return Decimal(value) if abs(float(value)) >= COARSE_US else float(value)


def _lenient_args(arguments: dict[Any, Any], args: type[msgspec.Struct]) -> Any:
    known: dict[str, Any] = {}
    for field, key in zip(args.__struct_fields__, args.__struct_encode_fields__, strict=True):
        value = arguments.get(key)
        if field in ("types", "dims"):
            if isinstance(value, list):
                known[field] = msgspec.Raw(_plain_numbers.encode(value))
        elif isinstance(value, int | float | str):
            known[field] = value
    return args(**known)
