"""The hooks on torch, for an integration.

An integration holds nothing of them: libraries copy and pickle their callbacks, and start processes with them.
"""

from __future__ import annotations

from llmtop.instrument import auto
from llmtop.instrument.auto.training.loop import Loop
from llmtop.instrument.record import recorder


def hooked_loop() -> Loop:
    """Return the loop of this process, with the hooks on.

    Raises:
        ImportError: this torch is too old for them.
    """
    loop: Loop = auto.install()
    loop.recorder.facts.auto = True
    return loop


def is_by_hand() -> bool:
    """Return True if the script records its steps itself."""
    return recorder.get().manual_used
