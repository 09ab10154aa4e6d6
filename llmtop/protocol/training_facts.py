"""Parts of messages about what a training logs and saves."""

from __future__ import annotations

import msgspec


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
