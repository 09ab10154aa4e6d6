"""Checkpoints that this process has written, for a monitor that may come later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

KEPT = 16


class Saved(NamedTuple):
    """One checkpoint; times by the monotonic clock."""

    step: int
    ended_ns: int
    taken_ns: int
    blocked_ns: int
    path: str
    function: str


class SavedCheckpoints:
    """The last checkpoints. Written by any thread of the training."""

    __slots__ = ("_kept", "version", "wake")

    def __init__(self) -> None:
        self._kept: deque[Saved] = deque(maxlen=KEPT)
        self.version = 0
        self.wake: Callable[[], None] | None = None
        """Wakes the writer of the run: a process may be killed right after its checkpoint."""

    def add(self, saved: Saved) -> None:
        """Keep a checkpoint that is complete."""
        self._kept.append(saved)
        self.version += 1
        if self.wake is not None:
            self.wake()

    def read(self) -> list[Saved]:
        """Return the last ones, oldest first."""
        return list(self._kept.copy())
