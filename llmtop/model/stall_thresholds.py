"""From when on a training that makes no step is quiet."""

QUIET_S = 5.0
QUIET_STEPS = 5.0
"""No step for so many seconds, and for so many times the usual one, is worth a look at the collectives: by the
training itself (`wire.Collectives`), and by a monitor that asks NCCL."""
