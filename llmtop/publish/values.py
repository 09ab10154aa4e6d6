"""What a script passes, made safe to keep, and what is said of our own failures.

Nothing here waits, or raises anything but what a signal's handler of the script's has raised.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from llmtop.errors import NotPossibleHere
from llmtop.publish.interrupts import raised_by_handler

_LARGEST = 1 << 62
"""Integers beyond do not fit a message."""
_said = False


def number(value: Any) -> float | None:
    """A number that can be read without waiting for a device; None for anything else."""
    if type(value) is float:
        return value
    if value is None or getattr(value, "is_cuda", False):
        return None
    try:
        return float(value)
    except Exception as error:  # anything may have been passed, and its __float__ may raise anything
        if raised_by_handler(error):
            raise
        return None


def whole(value: Any, otherwise: int) -> int:
    """A step's index as an int that fits a message; `otherwise` for anything else."""
    if type(value) is not int:
        if getattr(value, "is_cuda", False):
            return otherwise
        try:
            value = int(value)
        except Exception as error:  # anything may have been passed, and its __int__ may raise anything
            if raised_by_handler(error):
                raise
            return otherwise
    return value if -_LARGEST < value < _LARGEST else otherwise


def name(value: object) -> str:
    """A phase's name as it is shown: never empty, printable, without the separator of nested phases."""
    plain = str(value).replace("/", ".") or "unnamed"
    return "".join(c if c.isprintable() else "?" for c in plain)


def complain(error: BaseException, aloud: bool = False) -> None:
    """Say on stderr why publishing is off.

    Args:
        error: why. What the user can mend (`NotPossibleHere`) is said once; the rest only to who asks by
            LLMTOP_DEBUG.
        aloud: whether this process speaks for its job: one line is enough for all ranks of a machine.
    """
    global _said
    mendable = isinstance(error, NotPossibleHere) and aloud and not _said
    if mendable or os.environ.get("LLMTOP_DEBUG"):
        _said = _said or mendable
        with contextlib.suppress(OSError, ValueError):  # a stderr that has been closed
            print(f"llmtop: not publishing: {error}", file=sys.stderr, flush=True)
