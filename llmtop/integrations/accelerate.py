"""Hugging Face Accelerate: ``Accelerator(log_with=LlmtopTracker(total_steps=...))``.

``accelerator.init_trackers("project")`` then publishes this process, and ``accelerator.log({"loss": loss}, step)``
shows the numbers beside its steps. Accelerated optimizers, loaders and models need nothing else: a step ends when
the optimizer really steps, so what ``accelerator.accumulate`` collects is one.
"""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker

import llmtop
from llmtop.integrations.guarded import run_guarded
from llmtop.integrations.hooked import hooked_loop


class LlmtopTracker(GeneralTracker):  # type: ignore[misc]  # accelerate is not followed by mypy here
    """Publishes every process's steps and what is logged.

    Args:
        total_steps: optimizer steps of the whole training, for progress and the remaining time.
    """

    name = "llmtop"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, total_steps: int | None = None) -> None:
        super().__init__()
        self._total_steps = total_steps
        hooked_loop()

    @property
    def tracker(self) -> Any:
        """There is no run object: the monitor reads this process."""
        return None

    def start(self) -> None:
        """Publish this process from now on; Accelerate calls it once."""
        run_guarded(self._start)

    def _start(self) -> None:
        hooked_loop().attach()  # in a process that has been given this tracker, too
        llmtop.attach(total_steps=self._total_steps)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Do nothing: hyperparameters are not shown."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Show what the script logs with Accelerate beside its steps."""
        run_guarded(_log, values)


def _log(values: dict[str, Any]) -> None:
    llmtop.log(**{name: value for name, value in values.items() if isinstance(name, str)})
