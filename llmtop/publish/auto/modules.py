"""Finding the outermost modules of a training, and timing their calls.

torch's own hooks are not used here, for what they do to a training: a hook for all modules slows down the call of
each one (some 2 µs, a hundred times a step) and makes torch.compile warn; a hook on one module is pickled with it
and forbids CUDA graphs of it. Instead the class of an outermost module gets a `__call__` that times it: instances,
checkpoints and all other modules stay as they are.

Which modules those are shows at the first backward pass: the roots of all trees that have something to train. When
such a root is never called itself (a LightningModule), its children are tried, and theirs.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from llmtop.publish.auto.batch import guess
from llmtop.publish.auto.loop import Loop

MAX_LEVELS = 4
"""How far below a root the outermost module is looked for."""
MAX_CLASSES = 32
"""More candidates than this are not outermost modules."""
STEPS_WITHOUT = 2
"""After so many steps without a forward pass another model may have taken over: the search begins again."""
MAX_SEARCHES = 5

_is_compiling = torch.compiler.is_compiling
_gradients = torch.is_grad_enabled


class Modules:
    """Which classes of modules are timed."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._level = 0
        self._candidates: list[nn.Module] | None = None
        self._timed: list[type[nn.Module]] = []
        self.called = False
        """Whether an outermost module has been called since they were looked for."""
        self._searches = 0
        self.trained = False
        """Whether a timed module was ever called in training mode with gradients."""

    @property
    def unknown(self) -> bool:
        """Whether `look()` is to be called at this backward pass."""
        if self.called or self._level > MAX_LEVELS:
            return self._loop.steps_without_forward >= STEPS_WITHOUT and self._searches < MAX_SEARCHES
        return True

    def look(self) -> None:
        """Time the outermost modules; when none of those is called until the next time, look one level deeper.

        Takes some 0.1 s for a million objects in the process, a few times in its life.
        """
        if self.called or self._level > MAX_LEVELS:
            self.called, self._level, self._candidates = False, 0, None
            self._loop.steps_without_forward = 0
        self._searches += self._level == 0
        found = _roots() if self._candidates is None else _children(self._candidates)
        self._level += 1
        self._restore()
        classes = {type(module) for module in found}
        self._candidates = found if 0 < len(classes) <= MAX_CLASSES and self._level <= MAX_LEVELS else None
        if self._candidates is None:
            self._level = MAX_LEVELS + 1
            return
        if self._level == 1:  # of the roots, which hold all there is to train
            parameter = next(p for module in found for p in module.parameters() if p.requires_grad)
            self._loop.watched = weakref.ref(parameter)
        for kind in classes:
            kind.__call__ = self._timing(kind)
            self._timed.append(kind)

    def _restore(self) -> None:
        for kind in self._timed:
            own = getattr(kind.__dict__["__call__"], "__wrapped__", None)
            if own is None:
                del kind.__call__
            else:
                kind.__call__ = own
        self._timed = []

    def _timing(self, kind: type[nn.Module]) -> Callable[..., Any]:
        own = kind.__dict__.get("__call__")
        loop = self._loop
        modules = self

        def timed_call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            # Looked up at each call, as without us: torch.fx replaces Module.__call__ while it traces.
            parent: Any = super(kind, module)
            # is_compiling first: torch.compile takes it for a constant, and asks for nothing that changes.
            if _is_compiling() or loop.busy or not modules.begins(module):
                return parent.__call__(*args, **kwargs) if own is None else own(module, *args, **kwargs)
            step = loop.forward_begins()
            if step is not None:
                guess(step, args, kwargs)
            try:
                return parent.__call__(*args, **kwargs) if own is None else own(module, *args, **kwargs)
            finally:
                loop.forward_ends()

        if own is not None:
            functools.update_wrapper(timed_call, own)
        return timed_call

    def begins(self, module: nn.Module) -> bool:
        """Whether a forward pass of the training begins with this call."""
        loop = self._loop
        if not _gradients() or (self.trained and not module.training):
            loop.evaluated = True
            loop.recorder.saw_work()
            return False
        recorder = loop.recorder
        if recorder.manual_used or not recorder.attached or recorder.off:
            loop.stands_down()
            return False
        self.trained = self.trained or module.training
        self.called = True
        self._candidates = None
        return True


def _modules() -> list[nn.Module]:
    # type() rather than isinstance(): a lazy proxy would be made to load what it stands for.
    return [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]


def _roots() -> list[nn.Module]:
    """Modules that no other module holds, and that have something to train."""
    every = _modules()
    held = {id(child) for module in every for child in module.__dict__.get("_modules", {}).values()}
    return [module for module in every if id(module) not in held and _trainable(module)]


def _children(parents: Iterable[nn.Module]) -> list[nn.Module]:
    found = []
    for parent in parents:
        for child in parent.children():
            # containers are never called
            found += _children([child]) if isinstance(child, nn.ModuleList | nn.ModuleDict) else [child]
    return [module for module in found if _trainable(module)]


def _trainable(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
