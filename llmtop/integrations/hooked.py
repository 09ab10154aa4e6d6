"""The hooks on torch, for an integration."""

from __future__ import annotations

from llmtop.publish import auto
from llmtop.publish.auto.loop import Loop


def hooked_loop() -> Loop:
    """The loop of this process, with the hooks on.

    Raises:
        ImportError: this torch is too old for them.
    """
    loop: Loop = auto.install()
    loop.recorder.facts.auto = True
    return loop
