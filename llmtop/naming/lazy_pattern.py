"""Regular expressions that are compiled when they are first used.

Compiling takes 0.1 to 1 ms each. Tables of names have dozens of them, which neither the first frame of a monitor
nor a training that has only just started needs.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False  # loading typing would take a training's Python some milliseconds
if TYPE_CHECKING:
    from typing import Any


class _LazyPattern:
    """Has the methods of `re.Pattern`, each fetched at its first call."""

    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by copy and pickle, before anything is set
            raise AttributeError(name)
        method = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, method)
        return method


def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return what `re.compile` returns, without compiling it yet; a wrong pattern raises `re.error` when used.

    Args:
        text: the pattern.
        flags: as of `re.compile`.
    """
    return _LazyPattern(text, flags)  # type: ignore[return-value]
