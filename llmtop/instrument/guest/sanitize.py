"""Makes values of the script safe to keep, and reports llmtop's own failures.

Nothing here waits, or raises anything but what a signal's handler of the script's has raised.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from llmtop.errors import NotPossibleHere
from llmtop.format import printable
from llmtop.instrument.guest.interrupts import raised_by_handler
from llmtop.naming import variable_names

LARGEST = 1 << 62
"""Integers beyond do not fit a message."""
MAX_METRICS = 64
MAX_METRIC_NAME = 64
_SHOWN = 40

_warned: set[str] = set()
"""Warnings that this process has shown. A forked child, which may have a log of its own, starts empty."""
_said = False
"""True if it was printed that publishing is off. A forked child does not repeat it: one line is enough for a
job."""

os.register_at_fork(after_in_child=_warned.clear)

T = TypeVar("T")


def _convert_or_none(make: Callable[[Any], T], value: object) -> T | None:
    """`make(value)`, or None where that raises: the value is the script's."""
    try:
        return make(value)
    except Exception as error:  # anything may have been passed, and its own methods may raise anything
        if raised_by_handler(error):
            raise
        return None


def is_on_gpu(value: object) -> bool:
    """Return True if it is a tensor that a GPU may still be computing: to read it would be to wait."""
    return bool(_convert_or_none(_is_cuda, value))


def _is_cuda(value: object) -> bool:
    return bool(getattr(value, "is_cuda", False))


def number(value: Any) -> float | None:
    """Return a number that can be read without waiting for a device; None for anything else."""
    return value if type(value) is float else None if is_on_gpu(value) else _convert_or_none(_float, value)


def _float(value: Any) -> float:
    # Of a tensor with a graph torch would warn, on the script's stderr.
    return float(value.detach() if getattr(value, "requires_grad", False) else value)


def whole(value: Any, otherwise: int) -> int:
    """Return a step's index as an int that fits a message; `otherwise` for anything else."""
    found = value if type(value) is int else None if is_on_gpu(value) else _convert_or_none(int, value)
    return found if found is not None and -LARGEST < found < LARGEST else otherwise


def name(value: object) -> str:
    """Return a phase's name as it is shown: never empty, printable, without the separator of nested phases."""
    plain = value if type(value) is str else None if is_on_gpu(value) else _convert_or_none(str, value)
    return printable((plain or "").replace("/", ".") or "unnamed")


def metric_name(value: str) -> str:
    """Return a metric's name as it is shown."""
    return (
        value[:MAX_METRIC_NAME]
        if type(value) is str and value.isprintable()
        else printable(value)[:MAX_METRIC_NAME]
    )


def describe(value: object) -> str:
    """Return a value of the script's as it is shown in a sentence: short and printable."""
    if type(value) is str:
        return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")
    if type(value) is int and value.bit_length() > 4 * _SHOWN:
        return f"an integer of {value.bit_length()} bits"
    return repr(value) if type(value) in (int, float, bool) else f"a value of type {type(value).__name__}"


def warn(about: str, sentence: str) -> None:
    """Warn in the training's log that a value passed to llmtop cannot be used; once per subject."""
    if about not in _warned:
        _warned.add(about)
        _print_line(sentence)


def log_once(error: BaseException, aloud: bool = False) -> None:
    """Print on stderr why publishing is off.

    Args:
        error: why. What the user can fix (`NotPossibleHere`) is printed once; the rest only with LLMTOP_DEBUG.
        aloud: whether this process prints for its job: one line is enough for all ranks of a machine.
    """
    global _said
    quiet = bool(os.environ.get(variable_names.QUIET))
    mendable = isinstance(error, NotPossibleHere) and aloud and not _said and not quiet
    if mendable or os.environ.get("LLMTOP_DEBUG"):
        _said = _said or mendable
        run = launcher()
        if run is not None:
            run.claim()  # what follows is this run's one line
        _print_line(f"not publishing: {error}")


class Launcher(Protocol):
    """Module that `llmtop run` puts into this process (launch/inject/_llmtop_watch.py).

    It may come from another version of llmtop than this package, so the names of its functions are a contract.
    """

    def claim(self) -> bool:
        """Claim the one line that a run prints."""

    def attached(self) -> None:
        """Print that this run is watched."""

    def kept(self, path: str) -> None:
        """Print where the snapshot of an out-of-memory error is."""


def launcher() -> Launcher | None:
    """Return what `llmtop run` has put into this process; None where it did not start it.

    It is loaded before any module of llmtop, and beside the package: it cannot register itself here.
    """
    return cast("Launcher | None", sys.modules.get("_llmtop_watch"))


def _print_line(sentence: str) -> None:
    # Without stderr print() would take stdout, which is the script's.
    if sys.stderr is not None:
        try:
            print(f"llmtop: {printable(sentence)}", file=sys.stderr, flush=True)
        except Exception as error:  # closed, full, a terminal that has gone; the script's own may raise anything
            if raised_by_handler(error):
                raise
