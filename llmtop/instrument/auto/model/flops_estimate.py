"""FLOPs of a step from the model's parameters, for an estimate of its MFU; or the reason why there is none.

A module that was called outermost is examined once, and again at intervals, since parameters may be frozen or
freed while it trains. Used in the training thread alone; keeps no module alive.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from llmtop.instrument.auto.model import compute_dtype
from llmtop.instrument.auto.model.flops_per_token import Estimate, estimate
from llmtop.instrument.guest.guard import report_internal_error

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State

AGAIN_S = 30.0
"""Examining the modules of a large model takes some milliseconds."""
MOST_MODULES = 8
MODEL = "what the model computes, for its MFU"
MODULES_TOGETHER = "several modules are called side by side"


class ModelFacts:
    """Facts on the module that is called outermost; None where there are several."""

    __slots__ = ("_again_at", "_autocast", "_by_loss", "_module", "_recorder", "curious", "seen")

    def __init__(self, recorder: State) -> None:
        self._recorder = recorder
        self.seen: dict[int, weakref.ref[Any]] = {}
        """Modules that were called outermost since the last `refresh`, by id()."""
        self.curious = True
        """True if `sees_loss` is to be called at the next backward pass."""
        self._module: weakref.ref[Any] | None = None
        self._autocast: Any = None
        self._by_loss: Any = None
        self._again_at = 0.0

    def sees(self, module: Any) -> None:
        """An outermost module is called, for the first time since the last `refresh`."""
        try:
            number, seen = id(module), self.seen
            if len(seen) < MOST_MODULES:
                seen[number] = weakref.ref(module, lambda _: seen.pop(number, None))
            if self._module is None or self._module() is not module:
                self.curious = True
            self._autocast = compute_dtype.by_autocast(module)
        except BaseException as error:  # noqa: BLE001 - the door: see guard
            report_internal_error(MODEL, error)

    def sees_loss(self, tensors: Any) -> None:
        """Gradients are about to be computed of this: a good moment to see in what the model computes."""
        self.curious = False
        try:
            self._by_loss = compute_dtype.by_graph(tensors)
        except BaseException as error:  # noqa: BLE001 - the door
            self._by_loss = None
            report_internal_error(MODEL, error)

    def refresh(self) -> None:
        """Publish what is new."""
        modules = [module for reference in list(self.seen.values()) if (module := reference()) is not None]
        several = len(self.seen) > 1
        self.seen.clear()
        if not modules:
            return
        module, now = modules[0], time.monotonic()
        if several:
            self._module = None
            self._publish(Estimate(None, MODULES_TOGETHER), None)
        elif self._module is None or self._module() is not module or now >= self._again_at:
            self._module, self._again_at = weakref.ref(module), now + AGAIN_S
            self._publish(estimate(module), compute_dtype.name_of(self._dtype(module)))

    def _dtype(self, module: Any) -> Any:
        if self._by_loss is not None:
            return self._by_loss
        return self._autocast or compute_dtype.by_accelerate(module) or compute_dtype.by_parameters(module)

    def _publish(self, found: Estimate, dtype: str | None) -> None:
        facts = self._recorder.facts
        told = found.flops_per_token, found.why_not, dtype
        if told != (facts.seen_flops_per_token, facts.flops_unknown, facts.seen_dtype):
            facts.seen_flops_per_token, facts.flops_unknown, facts.seen_dtype = told
            facts.changed()
            self._recorder.wake_server()
