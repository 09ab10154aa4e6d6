"""Hugging Face Trainer: ``Trainer(..., callbacks=[LlmtopCallback()])``."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

import llmtop
from llmtop.instrument.auto.training.loop import runs_below
from llmtop.integrations.guarded import run_guarded
from llmtop.integrations.hooked import hooked_loop, is_by_hand


class LlmtopCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not followed by mypy here
    """Publishes the Trainer's steps, their number, and what it logs (loss, learning rate, gradient norm).

    A step is what the Trainer counts as one: all batches of one optimizer step, the wait for them included. The
    phases within it come from hooks on torch.
    """

    def __init__(self) -> None:
        hooked_loop()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Publish this process from now on."""
        run_guarded(_begin_train, state.max_steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The batches of a step are there."""
        run_guarded(_begin_step, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the step: the optimizer has stepped."""
        run_guarded(_end_step)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A batch of an evaluation is done."""
        run_guarded(_saw_work)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Show what the Trainer logs beside the steps."""
        run_guarded(_log, kwargs.get("logs") or {})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the steps of a loop that follows to the hooks again."""
        run_guarded(_end_train)


def _begin_train(max_steps: int) -> None:
    loop = hooked_loop()
    loop.attach()
    loop.boundary_from_outside = _still_trains()
    llmtop.attach(total_steps=max_steps if max_steps > 0 else None)


def _still_trains() -> Callable[[], bool]:
    """Shows whether this Trainer trains: no callback is called after an exception."""
    file = getattr(sys.modules.get("transformers.trainer"), "__file__", None)
    if file is None or not runs_below(file):
        return lambda: True
    return lambda: runs_below(file)


def _begin_step(index: int) -> None:
    if not is_by_hand():
        hooked_loop().recorder.begin_step(index=index)


def _end_step() -> None:
    if not is_by_hand():
        hooked_loop().end_step()


def _log(logs: dict[str, Any]) -> None:
    llmtop.log(
        **{name: value for name, value in logs.items() if type(name) is str and isinstance(value, numbers.Real)}
    )


def _saw_work() -> None:
    hooked_loop().recorder.saw_work()


def _end_train() -> None:
    hooked_loop().boundary_from_outside = None
