"""The `__call__` that a timed class of modules has.

It is a plain function, since torch.compile and torch.export treat it as one. Libraries that pickle a class of
`__main__` by value (cloudpickle, dill) take that function with it: so it lives in no module of llmtop's, uses
nothing of llmtop's but `timer`, and without that, after unpickling elsewhere, it does what the class does by
itself.

A `forward` may look at its callers: by a warning's stacklevel, by a frame's number, by how deep it can call
itself. So the timed call does not lie around that of torch but in its place, does what it does, and its frame
shows it. Only where that is impossible (a class with a `__call__` of its own, a replaced `nn.Module.__call__`, a
profiler of Python's calls, of which torch's recognizes modules by torch's own function) is there one frame more.
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Protocol

import torch

from llmtop.instrument.auto.patches.stand_ins import in_place_of

MISSING: Any = object()
Call = Callable[..., Any]


class BusyLoop(Protocol):
    """Conditions that a timed class checks before it reports a call."""

    @property
    def thread(self) -> int:
        """The thread whose calls are reported."""

    @property
    def busy(self) -> bool:
        """Return True if the call is part of another one."""

    @property
    def optimizing(self) -> bool:
        """Return True if that is an optimizer's step."""


class Timer(Protocol):
    """Receiver of the calls of a timed class's modules."""

    @property
    def loop(self) -> BusyLoop:
        """Loop that is asked first."""

    def begins(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], None] | None:
        """A module is called; returns what is to be called at the end, None for nothing."""

    def recovers(self) -> bool:
        """Return True if an optimizer's step that never ended is given up."""

    def failed(self, error: BaseException) -> None:
        """Called within `except` where seeing a call has failed: note that it cannot be seen, and why."""


class _Nobody:
    """Stands for a loop whose thread is none."""

    thread = 0
    busy = True
    optimizing = False


class CallListener:
    """Listener of a timed class's calls, in attributes, so that a check costs no call."""

    __slots__ = ("begins", "failed", "loop", "recovers")

    def __init__(self, timer: Timer) -> None:
        self.give_to(timer)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickling a timed class by value gives one that is not timed."""
        return type(None), ()

    def give_to(self, timer: Timer) -> None:
        """Notify this listener from now on."""
        self.loop: BusyLoop = timer.loop
        self.begins, self.failed, self.recovers = timer.begins, timer.failed, timer.recovers

    def rest(self) -> None:
        """Notify no listener."""
        self.loop = _Nobody


class TimedClass:
    """A class of modules whose calls are timed, until `restore`.

    A function that was compiled meanwhile is compiled again once that `__call__` is gone. Where that may be, it
    stays, and `listener` is given to another object, or rests.
    """

    def __init__(self, kind: Any, timer: Timer) -> None:
        self.kind = kind
        self.listener = CallListener(timer)
        self._own = vars(kind).get("__call__", MISSING)
        own = None if self._own is MISSING else self._own
        if own is not None and type(own) is not FunctionType:
            own = _bound(own)
        call = _timed_call(kind, own, self.listener, _TOOLS)
        if callable(self._own):
            functools.update_wrapper(call, self._own)
        kind.__call__ = self._call = call

    def restore(self) -> None:
        """Restore the original function of the class."""
        if vars(self.kind).get("__call__") is not self._call:
            return
        if self._own is MISSING:
            del self.kind.__call__
        else:
            self.kind.__call__ = self._own


def _timed_call(kind: Any, own: Call | None, timer: CallListener, tools: tuple[Any, ...]) -> Call:
    is_compiling, profiler, in_training_thread, bound, torchs = tools

    def __call__(module: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # Looked up at each call, as without us: torch.fx replaces Module.__call__ while it traces.
        call = super(kind, module).__call__ if own is None else bound(own, module)
        ends = None
        # is_compiling first: torch.compile takes it for a constant, and asks for nothing that changes.
        if not is_compiling() and timer is not None:
            if getattr(call, "__func__", None) is torchs and profiler() is None:
                call = module._call_impl if module._compiled_call_impl is None else module._compiled_call_impl
            loop = timer.loop
            if in_training_thread() == loop.thread and (not loop.busy or (loop.optimizing and timer.recovers())):
                try:
                    ends = timer.begins(module, args, kwargs)
                except BaseException as error:  # noqa: BLE001 - the door: see guard
                    timer.failed(error)
        if ends is None:
            return call(*args, **kwargs)
        try:
            return call(*args, **kwargs)
        finally:
            try:
                ends()
            except BaseException as error:  # noqa: BLE001 - the door
                timer.failed(error)

    return _homeless(__call__, kind, _IN_PLACE if own is None and _IN_PLACE is not None else __call__.__code__)


def _bound(own: Any) -> Call:
    """Calls what stands in a class as `__call__`, of which any descriptor may: functools.partialmethod."""

    def call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        bind = getattr(type(own), "__get__", None)
        return (own if bind is None else bind(own, module, type(module)))(*args, **kwargs)

    return _homeless(call, type(own), call.__code__)


def _homeless(function: Any, kind: type, code: CodeType) -> Call:
    """Return a copy of the function as if written where its code says, beside that class, and with no globals."""
    home = torch.nn.Module.__module__ if code is _IN_PLACE else kind.__module__
    made = FunctionType(
        code, {"__builtins__": __builtins__, "__name__": home}, "__call__", None, function.__closure__
    )
    made.__module__ = kind.__module__
    made.__qualname__ = f"{kind.__qualname__}.__call__"
    return made


def _torchs_own() -> Any:
    """Return `nn.Module.__call__` if it does no more than the timed version."""
    call: Any = vars(torch.nn.Module).get("__call__")
    code = getattr(call, "__code__", None)
    if code is None or set(code.co_names) != {"_compiled_call_impl", "_call_impl"}:
        return MISSING
    return call if code.co_varnames == ("self", "args", "kwargs") else MISSING


_TOOLS = torch.compiler.is_compiling, sys.getprofile, get_ident, functools.partial, _torchs_own()
"""Functions of torch and Python that the timed `__call__` uses; all of them can be pickled by name."""
_CODE = next(constant for constant in _timed_call.__code__.co_consts if isinstance(constant, CodeType))
_IN_PLACE = None if _TOOLS[-1] is MISSING else in_place_of(_CODE, _TOOLS[-1].__code__)
"""Code of the timed `__call__`, for a class that has torch's."""
