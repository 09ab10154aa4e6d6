"""Timing the calls of the outermost modules of a training.

torch's own hooks are not used here, for what they do to a training: a hook for all modules slows down the call of
each one (some 2 µs, a hundred times a step) and makes torch.compile warn; a hook on one module is pickled with it
and forbids CUDA graphs of it. Instead the class of an outermost module gets a `__call__` that times it: instances,
checkpoints and all other modules stay as they are.

Which modules those are shows at the first backward pass: the roots of all trees that have something to train. When
such a root is never called itself (a LightningModule), its children are tried, and theirs. Where gc.freeze() has
hidden all modules, their classes are tried, and those that were called outermost in one step remain.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from llmtop.instrument.auto.model.batch_shape import count_tokens
from llmtop.instrument.auto.patches.module_calls import TimedClass
from llmtop.instrument.auto.training.loop import Loop
from llmtop.instrument.guest.guard import report_internal_error
from llmtop.instrument.pytorch import search

_PIPELINES = "torch.distributed.pipelining.stage"
MAX_LEVELS = 4
"""Levels below a root at which the outermost module is searched."""
MAX_CLASSES = 32
"""More candidates than this are not outermost modules."""
STEPS_WITHOUT = 2
"""Steps without a forward pass after which another model may have taken over: the search begins again."""
MAX_SEARCHES = 5
MODULES = "the modules of this script"

_gradients = torch.is_grad_enabled


class Modules:
    """Chooses which classes of modules are timed, and reports their calls to the loop."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._level = 0
        self._candidates: list[weakref.ref[nn.Module]] | None = None
        self._timed: list[TimedClass] = []
        self._before: dict[type, TimedClass] = {}
        """Classes that were timed before this process trained; they keep their `__call__`."""
        self._outermost: set[type] = set()
        self._hidden = False
        """True if the classes were taken for want of instances, and are to be thinned out after a step."""
        self.called = False
        """True if an outermost module was called since the last search."""
        self._searches = 0
        self._searched_at: int | None = None
        """`steps_without_forward` of the loop at the last search: it changes with each step."""
        self._roots: list[weakref.ref[nn.Module]] = []

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickling a timed class by value gives one that is not timed."""
        return type(None), ()

    def take_over(self, timed: dict[type, TimedClass]) -> None:
        """Use these timed classes, which rest, where it is their calls that are to be timed."""
        self._before.update(timed)

    @property
    def unknown(self) -> bool:
        """Return True if `search_if_unknown()` is to be called at this backward pass."""
        if self._hidden and self._outermost:
            return True
        if self.called or self._level > MAX_LEVELS:
            return self.loop.steps_without_forward >= STEPS_WITHOUT and self._searches < MAX_SEARCHES
        return True

    def roots(self) -> list[Any]:
        """Return the outermost modules with something to train, the one that was called last for the first time
        first."""
        return [root for reference in reversed(self._roots) if (root := reference()) is not None]

    def search_if_unknown(self) -> None:
        """Time the outermost modules; when none of those is called until the next time, search one level
        deeper."""
        try:
            if self._hidden and self._outermost:
                self._thin_out()
            elif self._may_find_more():
                self._search_next_level()
                self._searched_at = self.loop.steps_without_forward
        except BaseException as error:  # noqa: BLE001
            self._level = MAX_LEVELS + 1
            self._candidates = None
            self._hidden = False
            report_internal_error(MODULES, error)

    def _may_find_more(self) -> bool:
        """Return True if modules that were found last may have been called since.

        A pipeline has all forward passes of a step before its backward passes: what the first of these finds is
        called in the next step. Elsewhere the search goes on at each backward pass, so that a compiled step is
        compiled with what it has found.
        """
        if self.called or self._level > MAX_LEVELS or _PIPELINES not in sys.modules:
            return True
        return self.loop.steps_without_forward != self._searched_at

    def _search_next_level(self) -> None:
        if self.called or self._level > MAX_LEVELS:
            self.called, self._level, self._candidates = False, 0, None
            self.loop.steps_without_forward = 0
        self._searches += self._level == 0
        if self._candidates is None:
            found, optimizers = search.find_modules()
            self._roots = [weakref.ref(module) for module in found]
            self.loop.step_end_detector.remember_optimizers(optimizers)
        else:
            parents = [parent for candidate in self._candidates if (parent := candidate()) is not None]
            found = search.children(parents)
        self._level += 1
        self._restore()
        if not found and self._level == 1 and gc.get_freeze_count():
            self._time_unseen_classes()
            return
        classes = {type(module) for module in found}
        few = 0 < len(classes) <= MAX_CLASSES and self._level <= MAX_LEVELS
        self._candidates = [weakref.ref(module) for module in found] if few else None
        if self._candidates is None:
            if self._level == 1 and len(classes) > MAX_CLASSES:
                self.loop.recorder.cannot_see(MODULES, f"{len(classes)} classes of them are in no other module")
            self._level = MAX_LEVELS + 1
            return
        if self._level == 1:  # of the roots, which hold all there is to train
            self._watch(search.watchable(found))
        self._time(classes)

    def _time_unseen_classes(self) -> None:
        self._level = MAX_LEVELS + 1
        classes = search.unseen_classes()
        self._hidden = bool(classes)
        self._outermost = set()
        if not classes:
            self.loop.recorder.cannot_see(MODULES, "gc.freeze() hides them, and there are too many classes to try")
        self._time(classes)

    def _thin_out(self) -> None:
        """Leave those classes alone of which no instance was outermost in the step that has passed."""
        self._hidden = False
        self.called = True
        self._restore(but=self._outermost)

    def _watch(self, parameter: Callable[[], Any] | None) -> None:
        if parameter is not None:
            self.loop.watched = parameter

    def _time(self, classes: Iterable[type[nn.Module]]) -> None:
        for kind in classes:
            try:
                timed = self._before.get(kind)
                if timed is None:
                    timed = TimedClass(kind, self)
                else:
                    timed.listener.give_to(self)
                self._timed.append(timed)
            except BaseException as error:  # noqa: BLE001, PERF203 - a metaclass of the script's may forbid it
                report_internal_error(MODULES, error)

    def _restore(self, but: Iterable[type] = ()) -> None:
        kept = [timed for timed in self._timed if timed.kind in but]
        given_back = [timed for timed in self._timed if timed.kind not in but]
        self._timed = kept
        for timed in given_back:
            try:
                if timed.kind in self._before:
                    timed.listener.rest()
                else:
                    timed.restore()
            except BaseException as error:  # noqa: BLE001, PERF203 - as above
                report_internal_error(MODULES, error)

    def failed(self, error: BaseException) -> None:
        """Called within `except` where seeing a call has failed: note that it cannot be seen, and why."""
        self.loop.lost(MODULES, error)

    def recovers(self) -> bool:
        """Return True if it was a failed optimizer's step that had left the loop busy (`Loop.recovers`)."""
        try:
            return self.loop.recovers()
        except BaseException as error:  # noqa: BLE001 - the door: see guard
            self.failed(error)
            return False

    def begins(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], None] | None:
        """An outermost module is called.

        Returns:
            What is to be called when it has returned or raised; None if this is no forward pass of the training.
        """
        loop = self.loop
        if not _gradients():
            return loop.forward_without(module)
        recorder = loop.recorder
        if recorder.manual_used or not recorder.attached or recorder.off:
            loop.stands_down()
            return None
        training = module.training
        if self._hidden:
            self._add_outermost(module)
        if training:
            loop.trained = True
        elif loop.trained:
            batch = loop.tentative_begins()
            if loop.batches is not None:
                loop.batches.take(batch, first=not loop.batch_of)
            count_tokens(batch, args, kwargs, wants_size=False)
            return loop.tentative_ends
        if not self.called:
            self.called = not self._hidden
            self._candidates = None
        step = loop.forward_begins()
        if step is not None:
            called = id(module)
            if called not in loop.known.model.seen:  # which is emptied some times a second
                self._see(module)
            # The samples of the batch, and the tokens that the first module since a backward pass is given.
            first = loop.batch_of
            if loop.batches is not None:
                loop.batches.take(step, first=not first)
            if not first:
                loop.batch_of = first = called
            if first == called:
                count_tokens(step, args, kwargs, wants_size=False)
        return loop.forward_ends

    def _add_outermost(self, module: nn.Module) -> None:
        """Store the class of a module that is called outermost, and watch a parameter of the module."""
        self._outermost.add(type(module))
        if self.loop.watched() is None:
            self._watch(search.watchable([module]))

    def _see(self, module: nn.Module) -> None:
        """Learn what the model is from a module that is called outermost; a new one is a root."""
        self.loop.known.model.sees(module)
        if id(module) not in self.loop.trains:
            self.loop.trains_module(id(module))
            self._roots = [*self._roots[-MAX_CLASSES:], weakref.ref(module)]
