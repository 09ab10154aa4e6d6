"""Whether a training has made no step for long: its figures are then of what was before."""

from __future__ import annotations

from llmtop.snapshot import Rank

_LEAST_SECONDS, _STEPS = 5.0, 5.0
"""Without a step: so many seconds, and so many times the step that few exceed."""
_RARE = 1.5
"""So many times the long steps that come now and then: a checkpoint is no silence."""


def seconds(rank: Rank, now: float) -> float | None:
    """Since its last step, where that is long for a step of it; None where it is not, or nobody knows."""
    if rank.last_step_at is None or rank.kind != "step" or rank.state == "gone":
        return None
    usual = _STEPS * (rank.step_seconds_p95 or 0.0)
    rare = 0.0 if rank.rare is None else _RARE * rank.rare.seconds
    silent = now - rank.last_step_at
    return silent if silent >= max(_LEAST_SECONDS, usual, rare) else None
