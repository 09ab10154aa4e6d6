"""Snapshots of the time before the live screen was started, made from the files of runs in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llmtop.model.snapshot import Rank, Snapshot

if TYPE_CHECKING:
    from collectors.runs.earlier import EarlierSnapshots


class EarlierView:
    """Makes one snapshot at a time; only the newest of several waiting requests is served."""

    def __init__(self, hand_over: Callable[[float, Snapshot | None], object]) -> None:
        """Store the callback; no file is read yet.

        Args:
            hand_over: called in a thread with the requested instant and its snapshot, or None without one.
        """
        self._hand_over = hand_over
        self._lock = threading.Lock()
        self._requested: float | None = None
        self._works = False
        self._made: EarlierSnapshots | None = None
        self._trainings = 0

    def ask(self, instant: float, ranks: Sequence[Rank]) -> None:
        """Request a snapshot.

        Args:
            instant: unix time.
            ranks: trainings that ran before the screen was started.
        """
        with self._lock:
            self._requested = instant
            if self._works:
                return
            self._works = True
        threading.Thread(target=self._work, args=(list(ranks),), name="llmtop-earlier", daemon=True).start()

    def _work(self, ranks: list[Rank]) -> None:
        while (instant := self._next_request()) is not None:
            self._hand_over(instant, self._made_at(instant, ranks))

    def _next_request(self) -> float | None:
        with self._lock:
            instant, self._requested = self._requested, None
            self._works = instant is not None
            return instant

    def _made_at(self, instant: float, ranks: list[Rank]) -> Snapshot | None:
        from collectors.runs.earlier import EarlierSnapshots  # where there is a run

        try:
            if self._made is None or len(ranks) != self._trainings:
                self._made, self._trainings = EarlierSnapshots(ranks), len(ranks)
            return self._made.at(instant)
        except (OSError, ValueError, LookupError, ArithmeticError):  # files that are gone or damaged
            return None
