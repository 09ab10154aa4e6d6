"""Hugging Face Trainer: ``Trainer(..., callbacks=[LlmtopCallback()])``."""

from __future__ import annotations

import numbers
from typing import Any

from transformers import TrainerCallback

import llmtop
from llmtop.integrations.hooked import hooked_loop
from llmtop.publish import recorder


class LlmtopCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not followed by mypy here
    """Publishes the Trainer's steps, their number, and what it logs (loss, learning rate, gradient norm).

    A step is what the Trainer counts as one: all batches of one optimizer step, the wait for them included. The
    phases within it come from hooks on torch.
    """

    def __init__(self) -> None:
        self._loop = hooked_loop()
        self._recorder = recorder.get()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Publish from now on."""
        self._loop.boundary_from_outside = True
        llmtop.attach(total_steps=state.max_steps if state.max_steps > 0 else None)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The batches of a step are there."""
        if not self._recorder.manual_used:
            self._recorder.begin_step(index=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped."""
        if not self._recorder.manual_used:
            self._loop.end_step()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A batch of an evaluation is done."""
        self._recorder.saw_work()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Show what the Trainer logs beside the steps."""
        logs: dict[str, Any] = kwargs.get("logs") or {}
        llmtop.log(**{name: value for name, value in logs.items() if isinstance(value, numbers.Real)})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the steps of a loop that follows to the hooks again."""
        self._loop.boundary_from_outside = False
