"""Frames of a stack as the allocator recorded them: those of Python, and what C++ ones tell of autograd.

torch's default for a history is stacks="all": the frames of C++ come first, innermost first, and those of Python
follow. In autograd's own thread there are only C++ ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple


class StackLine(NamedTuple):
    """One line of a stack."""

    file: str
    """File with forward slashes, also where Windows wrote it; empty for a mark of C++ frames."""
    line: int
    function: str


Stack = tuple[StackLine, ...]
"""The innermost frame first, as torch has them; empty where none was recorded."""

GRADIENT: Final = StackLine("", 0, "AccumulateGrad")
"""Mark: autograd keeps what was allocated as a gradient."""
AUTOGRAD: Final = StackLine("", 0, "autograd engine")
"""Mark: allocated while autograd ran the backward pass."""
AUTOCAST: Final = StackLine("", 0, "autocast cast")
"""Mark: autocast made it, a copy of a tensor in the lower precision."""
CACHE_CLEARED: Final = StackLine("", 0, "autocast cache cleared")
"""Mark of a release: the context of autocast ended, and with it the copies of weights that it kept."""
NATIVE: Final = StackLine("", 0, "C++ without Python")
"""Mark: no frame of Python, and none of autograd's."""
_PYTHON: Final = re.compile(r"\.py[xc]?$|^<")
_MOST: Final = 512
"""Frames of Python that are kept, the innermost ones."""


def stack_of(frames: Iterable[StackLine]) -> Stack:
    """Return the frames of Python with marks for what those of C++ tell; unchanged where all are of Python."""
    python, is_gradient, is_autograd, is_native = [], False, False, False
    autocast: list[StackLine] = []
    for frame in frames:
        if _PYTHON.search(frame.file):
            python.append(frame)
        else:
            is_native = True
            is_gradient = is_gradient or "AccumulateGrad" in frame.function
            is_autograd = is_autograd or "torch::autograd::Engine" in frame.function
            if "at::autocast::" in frame.function and not autocast:
                autocast = _autocast_mark(frame.function)
    first = [GRADIENT] if is_gradient else []
    last = [*autocast, *([AUTOGRAD] if is_autograd else [])]
    found = (*first, *python[:_MOST], *last)
    return found or ((NATIVE,) if is_native else ())


def _autocast_mark(function: str) -> list[StackLine]:
    if "at::autocast::cached_cast" in function:
        return [AUTOCAST]
    return [CACHE_CLEARED] if "at::autocast::clear_cache" in function else []


def normalized_file(file: str) -> str:
    """Return a file's name with forward slashes, as all rules on paths have them."""
    return file.replace("\\", "/") if "\\" in file else file
