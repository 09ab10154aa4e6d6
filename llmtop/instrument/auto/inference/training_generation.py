"""Text that a training generates: transformers' `generate` between and within its steps, a phase of its own.

In reinforcement learning it is most of a step; else it is samples for the log. Its forward passes are no part of
`forward`, and no evaluation.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from llmtop.instrument.auto.inference.generation import GENERATE, MODULE
from llmtop.instrument.auto.patches.replacements import Replaced
from llmtop.instrument.auto.training.loop import Loop, is_compiling


def listen(loop: Loop) -> None:
    """Time `generate` from now on, if transformers has been imported; called once, when a process trains."""
    kind = getattr(sys.modules.get(MODULE), "GenerationMixin", None)
    run = None if kind is None else vars(kind).get("generate")
    if not callable(run):
        return

    @functools.wraps(run)
    def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
        begun = False
        if not is_compiling():
            try:
                begun = loop.generation_begins()
            except BaseException as error:  # noqa: BLE001 - the door: see guard
                loop.lost(GENERATE, error)
        if not begun:
            return run(model, *args, **kwargs)
        try:
            return run(model, *args, **kwargs)
        finally:
            try:
                loop.generation_ends()
            except BaseException as error:  # noqa: BLE001 - the door
                loop.lost(GENERATE, error)

    Replaced().put(kind, "generate", generate)
