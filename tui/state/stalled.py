"""True if a training has made no step for long: its figures are then of what was before."""

from __future__ import annotations

from llmtop.model.snapshot import Rank
from llmtop.model.stall_thresholds import quiet_seconds

# The training checks its collectives against the median step. Here rates leave the screen, which must
# not flicker with slow steps: so this compares with p95, and a checkpoint does not count.
_RARE = 1.5
"""Multiple of the rare long steps."""


def stalled_seconds(rank: Rank, now: float) -> float | None:
    """Return the seconds since the last step if they are long for this rank; None if not, or if unknown."""
    if rank.last_step_at is None or rank.kind != "step" or rank.state == "gone":
        return None
    usual = quiet_seconds(rank.step_seconds_p95 or 0.0)
    rare = 0.0 if rank.rare is None else _RARE * rank.rare.seconds
    silent = now - rank.last_step_at
    return silent if silent >= max(usual, rare) else None


def stands_still(rank: Rank) -> bool:
    """Return True if no step of the rank is under way by its state: what it did before is then not what it does
    now."""
    return rank.state in ("stalled", "stopped", "gone")
