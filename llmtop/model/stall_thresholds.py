"""From when on a training that makes no step is quiet, and from when on it is stalled."""

QUIET_S = 5.0
QUIET_STEPS = 5.0
"""After this many seconds and multiples of the usual step time without a step, the collectives are checked: by the
training itself (`wire.Collectives`), and by a monitor that queries NCCL."""
STALLED_SECONDS = 60.0
STALLED_STEPS = QUIET_STEPS
"""Stalled is: alive, and no step, nor other work that can be seen, for max(STALLED_SECONDS, STALLED_STEPS times
the median step)."""


def quiet_seconds(usual: float) -> float:
    """Return the seconds without a step after which a training with steps of `usual` seconds is quiet."""
    return max(QUIET_S, QUIET_STEPS * usual)
