"""Whether a training has made no step for long: its figures are then of what was before."""

from __future__ import annotations

from llmtop.model.snapshot import Rank
from llmtop.model.stall_thresholds import quiet_seconds

# Where a quiet training is asked which collectives it stands in, the median step is the usual one: a look that
# finds nothing costs nothing. Here rates leave the screen, which must not flicker with slow steps: so the step
# that few exceed is the usual one, and a checkpoint is no silence.
_RARE = 1.5
"""So many times the long steps that come now and then."""


def seconds(rank: Rank, now: float) -> float | None:
    """Since its last step, where that is long for a step of it; None where it is not, or nobody knows."""
    if rank.last_step_at is None or rank.kind != "step" or rank.state == "gone":
        return None
    usual = quiet_seconds(rank.step_seconds_p95 or 0.0)
    rare = 0.0 if rank.rare is None else _RARE * rank.rare.seconds
    silent = now - rank.last_step_at
    return silent if silent >= max(usual, rare) else None
