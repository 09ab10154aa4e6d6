"""NVTX ranges that nsys records: one `nvtx.annotate` a name, made once and entered again.

Ranges lie in NVTX's default domain. A step's is named ``step``, a phase's has the phase's own name without its
parents (nesting says those). `nvtx.annotate` is the one form that nvtx 0.2.10 and 0.2.17 share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STEP = "step"

Push = Callable[[], Any]
Pop = Callable[[Any, Any, Any], Any]

_module: Any = None
_pairs: dict[str, tuple[Push, Pop]] = {}


def _no_push() -> None:
    """NVTX is not there."""


def _no_pop(_kind: Any, _error: Any, _trace: Any) -> None:
    """NVTX is not there."""


def load() -> Any:
    """The nvtx module, or False when it cannot be imported; loaded on the first call."""
    global _module
    if _module is None:
        try:
            import nvtx

            _module = nvtx
        except Exception:  # noqa: BLE001 - whatever a broken install raises, the training goes on without ranges
            _module = False
    return _module


def pair(name: str) -> tuple[Push, Pop]:
    """The calls that open and close a range of that name in the calling thread."""
    found = _pairs.get(name)
    if found is None:
        nvtx = load()
        if nvtx:
            annotation = nvtx.annotate(name)
            found = (annotation.__enter__, annotation.__exit__)
        else:
            found = (_no_push, _no_pop)
        _pairs[name] = found
    return found


def nothing() -> tuple[Push, Pop]:
    """Calls of the same form that do nothing."""
    return _no_push, _no_pop


def start(name: str) -> Any:
    """Open a range that may end in another order or thread than it began in; pass the answer to `end`."""
    nvtx = load()
    return nvtx.start_range(name) if nvtx else None


def end(handle: Any) -> None:
    """Close what `start` opened."""
    if handle is not None and _module:
        _module.end_range(handle)
