"""Lightning: ``Trainer(profiler=LlmtopProfiler())``, for lightning.pytorch as for pytorch_lightning."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from typing import Any

import llmtop
from llmtop.integrations.guarded import run_guarded
from llmtop.integrations.hooked import hooked_loop

METRICS_SECONDS = 0.5
"""How often Lightning's metrics are read: making their dictionary takes longer than a step of llmtop's own."""

_LIBRARIES = ("lightning.pytorch", "pytorch_lightning")


def _profiler_class() -> Any:
    """Return the Profiler of the library that the script has imported, else of the one that is installed."""
    known = [name for name in _LIBRARIES if name in sys.modules]
    known += [name for name in _LIBRARIES if importlib.util.find_spec(name.partition(".")[0]) is not None]
    return importlib.import_module(f"{(known or _LIBRARIES)[0]}.profilers").Profiler


_Profiler: Any = _profiler_class()


class LlmtopProfiler(_Profiler):  # type: ignore[misc]  # which class that is shows only when it runs
    """Publishes steps, phases and metrics of a fit.

    A step ends with the optimizer's, so accumulated batches are one. ``dataload`` is what Lightning calls
    train_dataloader_next, ``forward`` the whole training_step (up to its first backward pass, with manual
    optimisation); the other phases come from hooks on torch. Validation and prediction belong to no step.
    """

    def __init__(self) -> None:
        super().__init__()
        hooked_loop()
        self._attached_in: int | None = None
        """The process; another may have been given this profiler."""
        self._metrics_due = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """For spawned ranks: all but the module of a fit that is over, which nothing may hold any more.

        Lightning sets that weak proxy in each process before a fit.
        """
        state = dict(vars(self))
        try:
            hasattr(state.get("_lightning_module"), "training_step")
        except ReferenceError:
            del state["_lightning_module"]
        return state

    def start(self, action_name: str) -> None:
        """Lightning begins an action, by its name of it."""
        run_guarded(self._begins, action_name)

    def stop(self, action_name: str) -> None:
        """Lightning has ended the action."""
        run_guarded(self._ends, action_name)

    def _begins(self, action_name: str) -> None:
        loop = hooked_loop()
        if loop.stands_down():
            return
        if action_name.endswith(".train_dataloader_next"):
            loop.dataload_begins()
        elif action_name.startswith("[Strategy]") and action_name.endswith(".training_step"):
            self._attach()
            loop.training_step_begins()

    def _ends(self, action_name: str) -> None:
        loop = hooked_loop()
        if loop.stands_down():
            return
        if action_name.endswith(".train_dataloader_next"):
            loop.dataload_ends(exhausted=False)
        elif action_name.startswith("[Strategy]") and action_name.endswith(".training_step"):
            loop.training_step_ends()
        elif action_name == "run_training_batch":
            self._log_metrics()

    def _attach(self) -> None:
        trainer = self._trainer()
        if self._attached_in != os.getpid() and trainer is not None:
            self._attached_in = os.getpid()
            hooked_loop().attach()
            llmtop.attach(total_steps=_total_steps(trainer))

    def _log_metrics(self) -> None:
        now = time.monotonic()
        trainer = self._trainer()
        if now >= self._metrics_due and trainer is not None:
            self._metrics_due = now + METRICS_SECONDS
            llmtop.log(**trainer.callback_metrics)

    def _trainer(self) -> Any:
        # Lightning sets this on every profiler before the fit (Trainer.__setup_profiler).
        module = getattr(self, "_lightning_module", None)
        return None if module is None else module.trainer


def _total_steps(trainer: Any) -> int | None:
    """Return how many optimizer steps the fit will have, as far as the trainer's own limits say."""
    if trainer.max_steps is not None and trainer.max_steps > 0:
        return int(trainer.max_steps)
    batches = trainer.num_training_batches
    if trainer.max_epochs is None or trainer.max_epochs < 0 or not 0 < batches < float("inf"):
        return None
    return int(trainer.max_epochs * -(-int(batches) // trainer.accumulate_grad_batches))
