"""What a script passes, made safe to keep: nothing here waits for a device or raises."""

from __future__ import annotations

from typing import Any

_LARGEST = 1 << 62
"""Integers beyond do not fit a message."""


def number(value: Any) -> float | None:
    """A number that can be read without waiting for a device; None for anything else."""
    if type(value) is float:
        return value
    if value is None or getattr(value, "is_cuda", False):
        return None
    try:
        return float(value)
    except Exception:  # noqa: BLE001 - anything may have been passed, and its __float__ may raise anything
        return None


def whole(value: Any) -> int | None:
    """A step's index as an int that fits a message; None for anything else."""
    if type(value) is not int:
        if getattr(value, "is_cuda", False):
            return None
        try:
            value = int(value)
        except Exception:  # noqa: BLE001 - anything may have been passed, and its __int__ may raise anything
            return None
    return value if -_LARGEST < value < _LARGEST else None


def name(value: object) -> str:
    """A phase's name as it is shown: never empty, printable, without the separator of nested phases."""
    plain = str(value).replace("/", ".") or "unnamed"
    return "".join(c if c.isprintable() else "?" for c in plain)
