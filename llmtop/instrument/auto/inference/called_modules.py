"""Finds the modules that an inference process calls.

A training shows its modules by its first backward pass (`modules`); here there is none. Most scripts call `eval()`
on the module that they are going to call, so the classes of those are timed. Where nothing comes of that, the
roots of all trees of modules are searched when the script turns gradients off, and then what is below them: a few
times, each later than the one before. Either may find only a part of the module that is called: a search while a
model is made, or a class with its own `eval`. So at the first call of a timed class its callers are looked at.
`no_grad` and `inference_mode` are listened to only until a module has been found, or the process trains.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from llmtop.instrument.auto.patches.module_calls import TimedClass, Timer
from llmtop.instrument.auto.patches.replacements import AfterImport, Replaced
from llmtop.instrument.auto.training.timed_modules import MAX_CLASSES, MAX_LEVELS, MODULES
from llmtop.instrument.guest.guard import report_internal_error
from llmtop.instrument.pytorch import dynamo, search

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State

MAX_SEARCHES = 4
FIRST_SEARCH_NS = 200_000_000
"""A module found by `eval()` is called soon after. Each search waits twice as long as the one before."""
_TORCH = os.path.dirname(torch.__file__) + os.sep
_DECORATOR = os.path.join(_TORCH, "utils", "_contextlib.py")
_is_compiling = torch.compiler.is_compiling
_CALLS = frozenset(
    getattr(nn.Module, name).__code__ for name in ("_wrapped_call_impl", "_call_impl") if hasattr(nn.Module, name)
)
"""Code of torch's functions that are on the stack while a module is called."""
_SCRIPTED: tuple[type[nn.Module], ...] = tuple(
    getattr(torch.jit, name)
    for name in ("RecursiveScriptModule", "TopLevelTracedModule")
    if hasattr(torch.jit, name)
)
"""Classes of the modules that torch.jit makes of others."""


class Watcher(Timer, Protocol):
    """Receiver of module calls."""

    over: bool
    """True if the process trains."""

    @property
    def recorder(self) -> State:
        """Recorder of the process."""


class Forwards:
    """Chooses which classes of modules are timed while a process has not trained."""

    def __init__(self, inference: Watcher) -> None:
        self._inference = inference
        self._timed: dict[type, TimedClass] = {}
        self._called = False
        self._searches = 0
        self._next_search_ns = 0
        self._level = 0
        self._roots: list[weakref.ref[nn.Module]] = []
        self._compiler: AfterImport | None = None
        """Waits for the compiler, which has a class of modules of its own."""
        self._without = Replaced()
        if inference.over:
            return
        nn.Module.eval = self._listening(nn.Module.eval, self._evaluates, first=True)
        for kind in (torch.no_grad, torch.inference_mode):
            self._without.put(kind, "__enter__", self._listening(vars(kind)["__enter__"], self._turned_off))

    def note_call(self) -> bool:
        """A module of a timed class is called, within none of a timed class.

        Returns:
            Whether it is only a part of the module that is called, whose calls are timed from the next one on.
        """
        if self._called:
            return False
        around = _outermost_class()
        if around is not None and around not in self._timed:
            self._time([around])
            if around in self._timed:
                return True
        self.stop_searching()
        return False

    def stop_searching(self) -> None:
        """Stop searching, except for modules on which `eval()` is called: the work of the process is known."""
        if not self._called:
            self._called = True
            self._without.restore()

    def hand_over(self) -> dict[type, TimedClass]:
        """Listen no more; returns the timed classes that keep their call, which rest from now on.

        Those are the ones that compiled code may have traced, and else none: a class of which a training calls
        many modules, as a layer's, would have each of them pay for that call. `Module.eval` stays as it is in any
        case: it is called once an evaluation.
        """
        self._without.restore()
        if self._compiler is not None:
            self._compiler.forget()
        timed, self._timed = self._timed, {}
        kept = timed if dynamo.has_compiled() else {}
        for kind, one in timed.items():
            one.listener.rest()
            if kind not in kept:
                self._restore(one)
        self._roots.clear()
        return kept

    def _restore(self, timed: TimedClass) -> None:
        try:
            timed.restore()
        except BaseException as error:  # noqa: BLE001 - a metaclass of the script's may forbid it
            report_internal_error(MODULES, error)

    def _listening(self, run: Any, tell: Callable[[Any], None], *, first: bool = False) -> Any:
        """Return a function that does what `run` does, and calls `tell` with its first argument before or
        after."""

        @functools.wraps(run)
        def listening_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling():
                return run(self, *args, **kwargs)
            if not first:
                result = run(self, *args, **kwargs)
            try:
                tell(self)
            except BaseException as error:  # noqa: BLE001 - the door: see guard
                report_internal_error(MODULES, error)
            return run(self, *args, **kwargs) if first else result

        return listening_call

    def _evaluates(self, module: Any) -> None:
        """The script calls `eval()` on a module, which it may be about to call."""
        if not self._inference.over and issubclass(type(module), nn.Module):
            # torch.compile() or torch.jit may be next, and are too quick for a search.
            self._time([type(module), *_SCRIPTED, *dynamo.module_classes()])
            if self._compiler is None and not dynamo.module_classes():
                self._compiler = AfterImport([dynamo.MODULES], lambda _: self._time(dynamo.module_classes()))
            if not self._next_search_ns:
                self._next_search_ns = perf_counter_ns() + FIRST_SEARCH_NS

    def _turned_off(self, _: object) -> None:
        """Gradients are turned off, be it by the script or by a library."""
        if self._called or self._searches >= MAX_SEARCHES or self._inference.over:
            return
        now = perf_counter_ns()
        if now < self._next_search_ns or self._inference.recorder.manual_used or _is_torchs_own():
            return
        self._searches += 1
        self._next_search_ns = now + (FIRST_SEARCH_NS << self._searches)
        with dynamo.Paused():
            self._search()

    def _search(self) -> None:
        if self._level and self._level < MAX_LEVELS:
            parents = [root for one in self._roots if (root := one()) is not None]
            found = search.children(parents, trained=False)
        else:
            self._level = 0
            found = search.find_modules(trained=False).roots
        self._level += 1
        classes = {type(module) for module in found}
        if not 0 < len(classes) <= MAX_CLASSES:
            self._level, self._roots = 0, []
            return
        self._roots = [weakref.ref(module) for module in found]
        self._time(classes)

    def _time(self, classes: Iterable[type[nn.Module]]) -> None:
        for kind in classes:
            if kind in self._timed or len(self._timed) >= MAX_CLASSES:
                continue
            try:
                self._timed[kind] = TimedClass(kind, self._inference)
            except BaseException as error:  # noqa: BLE001 - a metaclass of the script's may forbid it
                report_internal_error(MODULES, error)


def _outermost_class() -> type[nn.Module] | None:
    """Return the class of the outermost module whose call is under way in this thread."""
    frame: Any = sys._getframe(2)
    found: type[nn.Module] | None = None
    while frame is not None:
        if frame.f_code in _CALLS:
            kind = type(frame.f_locals.get("self"))
            found = kind if issubclass(kind, nn.Module) else found
        frame = frame.f_back
    return found


def _is_torchs_own() -> bool:
    """Return True if torch itself turns gradients off, as it does to initialise parameters."""
    frame: Any = sys._getframe(3)
    if frame is not None and frame.f_code.co_filename == _DECORATOR:
        frame = frame.f_back
    return frame is None or frame.f_code.co_filename.startswith(_TORCH)
