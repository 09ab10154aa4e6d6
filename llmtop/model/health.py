"""What a training logs about how it learns, as parts of a snapshot."""

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
