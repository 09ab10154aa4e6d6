"""The `__call__` that a timed class of modules has.

It is a plain function, since torch.compile and torch.export look at what stands in a class as at one. Libraries
that pickle a class of `__main__` by value (cloudpickle, dill) take that function with it: so it lives in no module
of llmtop's, uses nothing of llmtop's but `timer`, and without that, as whoever unpickles it has it, it does what
the class does by itself.
"""

from __future__ import annotations

import functools
from _thread import get_ident
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from llmtop.instrument.auto.modules import Modules

MISSING: Any = object()
Call = Callable[..., Any]


class TimedClass:
    """A class of modules whose calls are timed until `restore`."""

    def __init__(self, kind: Any, timer: Modules) -> None:
        self.kind = kind
        self._own = vars(kind).get("__call__", MISSING)
        own = None if self._own is MISSING else self._own
        if own is not None and type(own) is not FunctionType:
            own = _bound(own)
        call = _timed(kind, own, timer, torch.compiler.is_compiling, get_ident)
        if callable(self._own):
            functools.update_wrapper(call, self._own)
        kind.__call__ = self._call = call

    def restore(self) -> None:
        """Give the class back what it had."""
        if vars(self.kind).get("__call__") is not self._call:
            return
        if self._own is MISSING:
            del self.kind.__call__
        else:
            self.kind.__call__ = self._own


def _timed(kind: Any, own: Call | None, timer: Modules, is_compiling: Callable[[], bool], here: Call) -> Call:
    def __call__(module: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # Looked up at each call, as without us: torch.fx replaces Module.__call__ while it traces.
        parent: Any = super(kind, module)
        # is_compiling first: torch.compile takes it for a constant, and asks for nothing that changes.
        ends = None
        if not is_compiling() and timer is not None:
            loop = timer.loop
            if here() == loop.thread and (not loop.busy or (loop.optimizing and timer.recovers())):
                try:
                    ends = timer.begins(module, args, kwargs)
                except BaseException as error:  # noqa: BLE001 - the door: see guard
                    timer.failed(error)
        if ends is None:
            return parent.__call__(*args, **kwargs) if own is None else own(module, *args, **kwargs)
        try:
            return parent.__call__(*args, **kwargs) if own is None else own(module, *args, **kwargs)
        finally:
            try:
                ends()
            except BaseException as error:  # noqa: BLE001 - the door
                timer.failed(error)

    return _homeless(__call__, kind)


def _bound(own: Any) -> Call:
    """Calls what stands in a class as `__call__`, of which any descriptor may: functools.partialmethod."""

    def call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        bind = getattr(type(own), "__get__", None)
        return (own if bind is None else bind(own, module, type(module)))(*args, **kwargs)

    return _homeless(call, type(own))


def _homeless(function: Any, kind: type) -> Call:
    """The same function, as if it had been written beside that class, and with no globals."""
    known = {"__builtins__": __builtins__, "__name__": kind.__module__}
    made = FunctionType(function.__code__, known, "__call__", None, function.__closure__)
    made.__module__ = kind.__module__
    made.__qualname__ = f"{kind.__qualname__}.__call__"
    return made
