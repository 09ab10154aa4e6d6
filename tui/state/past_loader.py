"""Reads what runs keep of the time before this monitor was started, in threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from llmtop.model.snapshot import Rank, Snapshot
from tui.state.history import key_of
from tui.state.past_rows import PastRows, rows_of

if TYPE_CHECKING:
    from collectors.runs.past import RunPast

_PAUSE_SECONDS = 0.02
"""Time between pieces, in which the screen takes keys."""
_SHORT_SECONDS = 60.0
"""A training that attached so shortly before the monitor sends all that there is."""


class PastLoader:
    """Asks once for each training. All calls are the app's; what is found is handed over in other threads."""

    def __init__(self, hand_over: Callable[[PastRows], object]) -> None:
        """Begin without anything.

        Args:
            hand_over: called in a thread, with each piece as it is found.
        """
        self._hand_over = hand_over
        self._uid = os.geteuid()
        self._asked: set[tuple[str, int, float]] = set()
        self.older: list[Rank] = []
        """Trainings that ran before anything was seen of them here."""

    def start(self, work: Callable[[], Iterator[RunPast]]) -> None:
        """Hand over all that `work` yields."""
        self.start_rows(lambda: (rows for past in work() for rows in rows_of(past)), self._hand_over)

    @staticmethod
    def start_rows(work: Callable[[], Iterator[PastRows]], hand_over: Callable[[PastRows], object]) -> None:
        """Call `hand_over`, in a thread, with each piece that `work` yields."""

        def run() -> None:
            for rows in work():
                hand_over(rows)
                time.sleep(_PAUSE_SECONDS)

        threading.Thread(target=run, name="llmtop-past", daemon=True).start()

    def ask(self, snapshot: Snapshot, first: float) -> None:
        """Request the past of trainings that ran before this monitor's first snapshot of them.

        Args:
            snapshot: a live one.
            first: unix time of the first snapshot of this monitor.
        """
        new = [
            rank
            for rank in snapshot.ranks
            if rank.uid == self._uid
            and rank.state != "gone"
            and rank.attached_at is not None
            and rank.attached_at < first - _SHORT_SECONDS
            and key_of(rank) not in self._asked
        ]
        if new:
            self._asked |= {key_of(rank) for rank in new}
            self.older += new
            self.start(lambda: _pasts(new, first))

    def ask_again(self, snapshot: Snapshot) -> None:
        """Request the past of all trainings up to now, for charts that reach back further than the known data."""
        own = [rank for rank in snapshot.ranks if rank.uid == self._uid and rank.attached_at is not None]
        if own:
            self.start(lambda: _pasts(own, snapshot.time))


def _pasts(ranks: list[Rank], until: float) -> Iterator[RunPast]:
    from collectors.runs.past import running_pasts  # where there is a run

    yield from running_pasts(ranks, until)
