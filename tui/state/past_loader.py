"""Reads what runs keep of the time before this monitor was started, in threads."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from llmtop.model.snapshot import Rank, Snapshot
from tui.state.history import History, key_of
from tui.state.past_rows import PastRows, rows_of
from tui.state.sample_rows import LONG_SECONDS, recorded_rows, rows_of_samples

if TYPE_CHECKING:
    from collectors.past import SnapshotHistory
    from collectors.replay import SnapshotReader
    from collectors.runs.past import RunPast

_PAUSE_SECONDS = 0.02
"""Time between pieces, in which the screen takes keys."""
_READ_BACK_SECONDS = 60.0
"""Time after which the past is read again for long charts."""
_SHORT_SECONDS = 60.0
"""A training that attached so shortly before the monitor sends all that there is."""


class PastLoader:
    """Asks once for each training. All calls are the app's; what is found is handed over in other threads."""

    def __init__(
        self, hand_over: Callable[[PastRows], object], hand_over_samples: Callable[[PastRows], object]
    ) -> None:
        """Begin without anything.

        Args:
            hand_over: called in a thread, with each piece of a run as it is found.
            hand_over_samples: the same, with pieces of kept snapshots.
        """
        self._hand_over = hand_over
        self._hand_over_samples = hand_over_samples
        self._read_back_at = self._recording_read_until = -math.inf
        self._uid = os.geteuid()
        self._asked: set[tuple[str, int, float]] = set()
        self.older: list[Rank] = []
        """Trainings that ran before anything was seen of them here."""

    def start(self, work: Callable[[], Iterator[RunPast]]) -> None:
        """Hand over all that `work` yields."""
        _start(lambda: (rows for past in work() for rows in rows_of(past)), self._hand_over)

    def read_recording(self, open_reader: Callable[[], SnapshotReader], until: float) -> None:
        """Read what of a recording lies before an instant; what was read before stays.

        Args:
            open_reader: opens the recording once more.
            until: unix time.
        """
        since = self._recording_read_until
        if until > since:
            self._recording_read_until = until
            _start(lambda: recorded_rows(open_reader, since, until), self._hand_over_samples)

    def reach_back(self, history: History, newest: Snapshot, past: SnapshotHistory | None) -> None:
        """Read what runs and this monitor keep of times that the charts show and their buckets do not reach back
        to.

        Args:
            history: what the charts are of.
            newest: the newest snapshot.
            past: the snapshots that this monitor keeps; None before there are any.
        """
        reach, end = history.store.reach_seconds, history.newest or newest.time
        is_long = history.span is None or history.span > reach
        is_beyond = end - (history.end - history.seconds) > reach
        now = time.monotonic()
        if not (is_long or is_beyond) or now - self._read_back_at < _READ_BACK_SECONDS:
            return
        self._read_back_at = now
        self.ask_again(newest)
        begin = None if past is None else past.first_time
        if past is not None and begin is not None and begin < end - reach:
            until = end - reach + LONG_SECONDS
            _start(lambda: rows_of_samples(past.samples(until), begin, LONG_SECONDS), self._hand_over_samples)

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


def _start(work: Callable[[], Iterator[PastRows]], hand_over: Callable[[PastRows], object]) -> None:
    """Call `hand_over`, in a thread, with each piece that `work` yields."""

    def run() -> None:
        for rows in work():
            hand_over(rows)
            time.sleep(_PAUSE_SECONDS)

    threading.Thread(target=run, name="llmtop-past", daemon=True).start()


def _pasts(ranks: list[Rank], until: float) -> Iterator[RunPast]:
    from collectors.runs.past import running_pasts  # where there is a run

    yield from running_pasts(ranks, until)
