"""How much of a run the window of all known steps is of: a monitor that came late knows the last minutes."""

from __future__ import annotations

from llmtop.format import duration
from llmtop.model.snapshot import Rank, Window

_WHOLE_SHARE = 0.95
"""The first step and those of a warm-up are in no window."""


def window_label(rank: Rank, window: Window) -> str:
    """Return what a window of a training is of: "all of the run", or "last 4m 10s"."""
    return "all of the run" if is_of_run(rank, window) else f"last {duration(window.seconds)}"


def is_of_run(rank: Rank, window: Window) -> bool:
    """Return True if a window is of all steps of a training, not only of those since a monitor came."""
    begun, ended = rank.attached_at, rank.last_step_at
    if window.name != "run" or begun is None or ended is None:
        return window.name == "run"
    return window.seconds >= _WHOLE_SHARE * (ended - begun)
