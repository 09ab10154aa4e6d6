"""What rank_training.py can do wrong, for those who start it and do not import torch."""

from __future__ import annotations

PLANTED_AT = 60
"""The step from which on the last rank does it."""
PLANTS = (
    "nothing", "communication", "extra_forward", "sleep", "slow_data", "slow_clock", "neighbour",
    "computing_neighbour",
)  # fmt: skip
NEIGHBOURS = ("neighbour", "computing_neighbour")
"""A program of somebody else on that rank's GPU: one that copies memory, and one that multiplies matrices. Without
MPS the driver shares the GPU by time: about half of its SMs' time goes there."""
