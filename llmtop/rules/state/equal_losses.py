"""True if ranks that logged the same loss for long do not any more."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, NamedTuple

EQUAL: Final = 1e-6
"""Relative difference up to which two losses are equal: ranks that reduce a loss together have the same bits."""
DIFFERENT: Final = 1e-5
LEAST_EQUAL: Final = 100
"""Steps for which they were equal before a difference counts."""
LEAST_DIFFERENT: Final = 3
MOST_STEPS: Final = 512
"""Steps that wait for the values of other ranks."""


class Divergence(NamedTuple):
    """Where the losses of ranks began to differ."""

    metric: str
    step: int
    values: Mapping[Hashable, float]
    """Values by rank, at the last compared step."""
    odd: tuple[Hashable, ...]
    """Ranks that differ from most others; all of them where none has a majority."""
    equal_steps: int
    """Steps for which they were equal before."""


class _Compared:
    """One loss in all ranks that log it."""

    __slots__ = ("different_from", "different_steps", "equal_steps", "ranks", "waiting")

    def __init__(self) -> None:
        self.ranks: set[Hashable] = set()
        self.waiting: dict[int, dict[Hashable, float]] = {}
        self.equal_steps = 0
        self.different_from: int | None = None
        self.different_steps = 0


class EqualLosses:
    """Compares the losses of one job's ranks, step by step."""

    def __init__(self) -> None:
        self.divergence: Divergence | None = None
        """Since their losses differ; None while they are equal, and where they never were."""
        self._compared: dict[str, _Compared] = {}

    def add(self, rank: Hashable, losses: Iterable[tuple[str, int, float]]) -> None:
        """Take the losses (name, step, value) of a rank."""
        for name, step, value in losses:
            compared = self._compared.setdefault(name, _Compared())
            compared.ranks.add(rank)
            compared.waiting.setdefault(step, {})[rank] = value

    def compare(self) -> None:
        """Compare the steps of which all ranks have told their loss."""
        for name, compared in self._compared.items():
            if len(compared.ranks) < 2:
                self._drop_old(compared)
                continue
            complete = [step for step, values in compared.waiting.items() if len(values) == len(compared.ranks)]
            for step in sorted(complete):
                self._judge(name, compared, step, compared.waiting.pop(step))
            self._drop_old(compared)

    def _drop_old(self, compared: _Compared) -> None:
        for step in sorted(compared.waiting)[: max(0, len(compared.waiting) - MOST_STEPS)]:
            del compared.waiting[step]

    def _judge(self, name: str, compared: _Compared, step: int, values: dict[Hashable, float]) -> None:
        finite = [value for value in values.values() if math.isfinite(value)]
        largest = max((abs(value) for value in finite), default=0.0)
        apart = max(finite) - min(finite) if len(finite) == len(values) else math.inf if finite else 0.0
        if apart <= EQUAL * largest:
            if self.divergence is not None and self.divergence.metric == name:
                self.divergence = None
            compared.equal_steps += 1
            compared.different_from, compared.different_steps = None, 0
            return
        if apart < DIFFERENT * largest or compared.equal_steps < LEAST_EQUAL:
            if compared.equal_steps < LEAST_EQUAL:
                compared.equal_steps = 0
            return
        compared.different_steps += 1
        if compared.different_from is None:
            compared.different_from = step
        if compared.different_steps >= LEAST_DIFFERENT:
            self.divergence = Divergence(name, compared.different_from, values, _odd(values), compared.equal_steps)


def _odd(values: Mapping[Hashable, float]) -> tuple[Hashable, ...]:
    """Return the ranks outside the largest group of equal values; all ranks where that is no majority."""
    groups: list[list[Hashable]] = []
    for rank, value in values.items():
        for group in groups:
            other = values[group[0]]
            if value == other or abs(value - other) <= EQUAL * max(abs(value), abs(other)):
                group.append(rank)
                break
        else:
            groups.append([rank])
    largest = max(groups, key=len)
    if 2 * len(largest) <= len(values):
        return tuple(values)
    return tuple(rank for rank in values if rank not in largest)
