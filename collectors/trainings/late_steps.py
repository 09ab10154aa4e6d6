"""Steps whose GPU times may still come: as far back as a GPU runs behind its host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from llmtop.model.snapshot import Step

LATE_SECONDS = 30.0
"""How long before the newest step a step may have begun: CUDA's queue holds some thousand kernels, which is
seconds. A host that waits in a step longer than that begins no newer one."""
_LEAST_STEPS, _MOST_STEPS = 16, 512

T = TypeVar("T")


def pop_old(known: dict[int, T], newest: Step, step_of: Callable[[T], Step]) -> list[T]:
    """Remove the steps that are too old for a GPU time, and return them, oldest first.

    Args:
        known: what is kept of each step by its index, in the order in which they came.
        newest: the last of them.
        step_of: returns the step of a value of `known`.
    """
    popped: list[T] = []
    while len(known) > _LEAST_STEPS:
        index, oldest = next(iter(known.items()))
        if len(known) <= _MOST_STEPS and step_of(oldest).started_at >= newest.started_at - LATE_SECONDS:
            break
        popped.append(known.pop(index))
    return popped
