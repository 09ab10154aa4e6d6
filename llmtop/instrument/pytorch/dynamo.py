"""Keeping torch.compile from compiling llmtop.

Where a compiled function breaks its graph (to call backward, say), what Python runs there is offered to the
compiler frame by frame. torch's own files are on its list of files to leave alone, ours are not; and in a compiled
hook `is_compiling()` is always true, so it would record nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

MODULES = "torch._dynamo.eval_frame"
"""Module of torch with the class of modules that torch.compile() makes."""


def keep_out() -> None:
    """Make torch.compile run the loaded functions of llmtop and nvtx as they are.

    Where a compiled function calls one of them it may still be traced, so that breaks no graph.
    """
    skip = _skip()
    if skip is None:
        return
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and name.partition(".")[0] in ("llmtop", "nvtx"):
            for code in _codes(vars(module).values(), file):
                skip(code)


class Paused:
    """Disable the compiler within ``with``: for one-time work that loads or scans a lot."""

    def __enter__(self) -> None:
        eval_frame: Any = sys.modules.get("torch._C._dynamo.eval_frame")
        self._set: Callable[[Any], Any] = getattr(eval_frame, "set_eval_frame", lambda _: None)
        self._before = self._set(None)

    def __exit__(self, *_: object) -> None:
        self._set(self._before)


def has_compiled() -> bool:
    """Return True if compiled code may be there, which is compiled again when functions that it traced change."""
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    return compiler is not None and getattr(compiler, "FRAME_COUNTER", 1) > 0


def module_classes() -> list[type]:
    """Return the class of modules that torch.compile() makes; empty while the compiler is not loaded."""
    found = getattr(sys.modules.get(MODULES), "OptimizedModule", None)
    return [found] if isinstance(found, type) else []


def _skip() -> Callable[[CodeType], Any] | None:
    """Return the effect of `torch._dynamo.decorators.skip` without loading torch._dynamo (1 to 2 s)."""
    eval_frame: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if hasattr(eval_frame, "skip_code"):
        skip: Callable[[CodeType], Any] = eval_frame.skip_code
        return skip
    try:
        action = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
        set_strategy = eval_frame.set_code_exec_strategy
    except AttributeError:
        return None  # a torch that does it another way: steps within one compiled function are then not seen
    return lambda code: set_strategy(code, strategy)


def _codes(things: Iterable[Any], file: str) -> Iterator[CodeType]:
    """Yield the code of functions, methods and properties that were written in that file, and code that stands
    alone."""
    for found in list(things):
        if isinstance(found, CodeType):
            yield found
        thing = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
        if isinstance(thing, FunctionType):
            if thing.__code__.co_filename == file:
                yield from _with_inner(thing.__code__)
        elif isinstance(thing, property):
            yield from _codes([thing.fget], file)
        elif isinstance(thing, type) and getattr(sys.modules.get(thing.__module__), "__file__", None) == file:
            yield from _codes(vars(thing).values(), file)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
