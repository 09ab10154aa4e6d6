"""Times after which a training without a step counts as quiet, and as stalled."""

QUIET_S = 5.0
QUIET_STEPS = 5.0
"""No step for so many seconds, and for so many times the usual one, is worth a look at the collectives: by the
training itself (`wire.Collectives`), and by a monitor that asks NCCL."""
COUNTS_LOOK_S = 1.0
"""How often a quiet training looks at its counts of collectives."""
COUNTS_STILL_S = 2 * COUNTS_LOOK_S
"""Two looks with the same counts take at most so long: an alert comes 5 to 7 s after the last step."""
STALLED_SECONDS = 60.0
STALLED_STEPS = QUIET_STEPS
"""Stalled is: alive, and no step, nor other work that can be seen, for max(STALLED_SECONDS, STALLED_STEPS times
the median step)."""


def quiet_seconds(usual: float) -> float:
    """Return the seconds without a step after which a training with steps of `usual` seconds is quiet."""
    return max(QUIET_S, QUIET_STEPS * usual)


RARE_TIMES = 1.5
"""Multiple of the rare long steps, a checkpoint for example, up to which a step is one of them."""


def stall_seconds(usual: float, rare: float | None) -> float:
    """Return the seconds from which a step, or the time since the last one, is a stall.

    Args:
        usual: the 95th percentile of the steps in seconds.
        rare: what the rare long steps take in seconds; None where there are none.
    """
    return max(quiet_seconds(usual), RARE_TIMES * (rare or 0.0))
