"""torch.compile and this package: its functions are not to be traced into a compiled function.

A phase in a function that torch.compile compiles would break the graph, or be an error with ``fullgraph=True``. So
replacements of step(), phase() and log() are registered with the compiler: things that do nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from llmtop.instrument.guest.guard import raised_by_user_code, report_internal_error

_replaced: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
_told = False
_asks: Callable[[], bool] | None = None


def untraced(stand_in: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the compiler use `stand_in`, of the same signature, for the decorated function."""

    def register(function: Any) -> Any:
        _replaced.append((function, stand_in))
        return function

    return register


def keep_untraced() -> None:
    """Register them once the compiler is loaded; cheap, and to be called again while it is not.

    Until then, a script's first use of a name asks `is_compiling`.
    """
    global _asks, _told
    if _asks is None:
        _asks = getattr(getattr(sys.modules.get("torch"), "compiler", None), "is_dynamo_compiling", None)
    if _told or "torch._dynamo" not in sys.modules:
        return
    _told = True
    try:
        from llmtop.instrument.pytorch.dynamo import keep_out

        keep_out()
        # New in torch 2.6; with an older one, a phase within a compiled function breaks its graph.
        substitute: Any = getattr(sys.modules["torch"].compiler, "substitute_in_graph", None)
        if substitute is not None:
            for function, stand_in in _replaced:
                substitute(function)(stand_in)
    except Exception as error:  # noqa: BLE001 - the door: see guard; graphs break, and that is all
        if raised_by_user_code(error):
            _told = False
        report_internal_error("how to keep torch.compile from compiling llmtop", error)


def is_compiling() -> bool:
    """Return True if torch.compile is tracing the caller, which it answers itself while it does."""
    return _asks is not None and _asks()
