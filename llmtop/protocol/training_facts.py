"""Parts of messages about what a training logs, saves and waits for."""

from __future__ import annotations

from typing import Final

import msgspec

GARBAGE_COLLECTION: Final = "garbage collection"
"""Activity of a host outside phases, in words; ", started in " and a line may follow."""
CODE_AFTER: Final = "code after the phase "
"""Activity of a host outside phases whose line is not known, in words; the name of the phase follows."""


class LoggedValue(msgspec.Struct, array_like=True, gc=False):
    """One value that the training logged, and the step that it belongs to."""

    step: int
    name: str
    value: float
    """May be NaN or infinite."""


class SavedCheckpoint(msgspec.Struct, array_like=True, gc=False):
    """One checkpoint that has been written."""

    step: int
    """Index of the step after which it was taken."""
    ended_unix_ns: int
    """When it was complete."""
    taken_ns: int
    """Time from the call to its end."""
    blocked_ns: int
    """Part of it in which the training thread waited."""
    path: str = ""
    """Absolute path of the file or folder, in the training's own view; "" where unknown."""
    function: str = ""
    """Called function: "torch.save"."""


class SampledStep(msgspec.Struct, array_like=True, gc=False):
    """Time of the training thread in one step, without llmtop's own end of the step before."""

    ran_inside_ns: int
    """Processor time in phases."""
    slept_inside_ns: int
    """Beside the processor time, in stretches between two boundaries in which the thread has slept."""
    ran_outside_ns: int
    slept_outside_ns: int
    """The same in no phase."""
    queued_ns: int
    """Beside the processor time, in stretches without a sleep: waits for a CPU."""
