"""Stretches in which a capture of llmtop's holds or slows the training: it starts, stops or writes its file."""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from typing import NamedTuple

_KEPT = 256
"""The ring seldom holds steps from before so many."""


class CaptureHold(NamedTuple):
    """One such stretch; times by the monotonic clock."""

    engine: str
    begun_ns: int
    ended_ns: int


class CaptureHolds:
    """The last stretches. Written by the thread that trains and by that of a capture, read by others."""

    __slots__ = ("_kept", "_open")

    def __init__(self) -> None:
        self._kept: deque[CaptureHold] = deque(maxlen=_KEPT)
        self._open: tuple[str, int] | None = None

    def begin(self, engine: str) -> None:
        """Begin a stretch, unless one is under way."""
        if self._open is None:
            self._open = engine, perf_counter_ns()

    def end(self) -> None:
        """End the stretch that is under way, if there is one."""
        begun = self._open
        if begun is not None:
            self.add(*begun, perf_counter_ns())
            self._open = None

    def add(self, engine: str, begun_ns: int, ended_ns: int) -> None:
        """Keep a stretch that has ended."""
        self._kept.append(CaptureHold(engine, begun_ns, ended_ns))

    def since(self, ended_ns: int) -> list[CaptureHold]:
        """Return those that ended later than this, oldest first; the one under way up to now."""
        begun, now = self._open, perf_counter_ns()
        if begun is None and not self._kept:
            return []
        found = [one for one in self._kept.copy() if one.ended_ns > ended_ns]
        return found if begun is None else [*found, CaptureHold(*begun, now)]

    @property
    def has_any(self) -> bool:
        """Return True if there is a stretch that `overlap` may find."""
        return self._open is not None or bool(self._kept)

    def overlap(self, begun_ns: int, ended_ns: int) -> bool:
        """Return True if one of them overlaps with this stretch."""
        begun = self._open
        if begun is not None and begun[1] < ended_ns:
            return True
        if not self._kept:
            return False
        return any(one.begun_ns < ended_ns and one.ended_ns > begun_ns for one in self._kept.copy())
