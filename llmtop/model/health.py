"""Values on the progress of learning that a training logs, as parts of a snapshot."""

from __future__ import annotations

import msgspec


class LoggedSeries(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Values of one name that a training logged since the previous snapshot, oldest first.

    Only of losses, gradient norms, loss scales and learning rates (`llmtop.naming.metric_names`): each value
    counts there, also one that stands for a single step.
    """

    name: str
    steps: tuple[int, ...]
    """The step that each value belongs to."""
    values: tuple[float | None, ...]
    """None for what is not finite (NaN, Inf)."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The last complete checkpoint of a process."""

    step: int
    """Index of the step after which it was taken."""
    at: float
    """Unix time at which it was complete."""
    seconds: float
    """Duration from the call to its end."""
    blocked_seconds: float
    """Part of it in which the training waited."""
    interval_seconds: float | None = None
    """Median from one checkpoint to the next, of the last ones; None before the second."""
    path: str | None = None
    """File or folder, in the training's own view; None where unknown."""
    function: str | None = None
    """Called function: "torch.save", "async_save"; None where a phase of the script showed it."""
    size_bytes: int | None = None
    """Size of the file, or of all files in the folder; None where this machine cannot see it."""
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None
    """Size of the file system; None where this machine cannot see it, or it does not reply."""
    disk_bytes_per_s: float | None = None
    """How fast its free space shrinks, over the last checkpoints; None where unknown or where it does not."""
