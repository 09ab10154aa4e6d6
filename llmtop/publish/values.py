"""What a script passes, made safe to keep, and what is said of our own failures: nothing here waits or raises."""

from __future__ import annotations

import os
import sys
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


def whole(value: Any, otherwise: int) -> int:
    """A step's index as an int that fits a message; `otherwise` for anything else."""
    if type(value) is not int:
        if getattr(value, "is_cuda", False):
            return otherwise
        try:
            value = int(value)
        except Exception:  # noqa: BLE001 - anything may have been passed, and its __int__ may raise anything
            return otherwise
    return value if -_LARGEST < value < _LARGEST else otherwise


def name(value: object) -> str:
    """A phase's name as it is shown: never empty, printable, without the separator of nested phases."""
    plain = str(value).replace("/", ".") or "unnamed"
    return "".join(c if c.isprintable() else "?" for c in plain)


def complain(error: BaseException) -> None:
    """Say on stderr why publishing is off, but only to a user who asked by LLMTOP_DEBUG."""
    if os.environ.get("LLMTOP_DEBUG"):
        print(f"llmtop: not publishing: {error}", file=sys.stderr, flush=True)
