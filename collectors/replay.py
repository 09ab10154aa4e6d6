"""A recording as a feed: the same snapshots, the same rules, with the recording's clock."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from collectors.base import pipeline
from collectors.base.feed_thread import FeedThread
from collectors.base.interruptible_sleep import InterruptibleSleep
from collectors.base.pipeline import Stage
from collectors.gpu_busy import GpuBusy
from collectors.refigure import RecomputeFigures
from llmtop.errors import UnusableInput
from llmtop.format import duration
from llmtop.model.snapshot import Snapshot

MIN_SPEED, MAX_SPEED = 0.25, 16.0
HISTORY_SECONDS = 300.0
"""Seconds of history read after a jump, for the charts; at most `HISTORY_SNAPSHOTS` snapshots."""
HISTORY_SNAPSHOTS = 1200
GAP_SECONDS, GAP_TIMES = 90.0, 5.0
"""A gap longer than both (seconds, and multiples of the usual one) is a hole in the recording. The screen's keys
set intervals of up to 60 s."""
GAP_NOTE_SECONDS = 10.0
"""Time for which the snapshots after a hole have a note on it."""
_GAP_PLAY_SECONDS = 1.0  # what a hole takes to play
_GROWTH_SECONDS = 1.0  # seconds between checks for new data at the end, in case it is still being written


class _Stretch(Protocol):
    """Part of what is replayed."""

    @property
    def first(self) -> float:
        """Unix time of its first snapshot."""


class SnapshotReader(Protocol):
    """Source of a replay: a recording (`llmtop.recording.reader_writer.Reader`, which documents each method),
    or a run."""

    recordings: int

    @property
    def path(self) -> Path:
        """Return its name for notes."""

    @property
    def members(self) -> Sequence[_Stretch]:
        """Its parts, the oldest first; empty where it has no snapshot."""

    @property
    def damage(self) -> str | None:
        """A sentence on what of it cannot be played."""

    @property
    def length(self) -> float:
        """Seconds from the first snapshot to the last."""

    @property
    def median_gap(self) -> float:
        """Seconds between two snapshots as they mostly are."""

    def snapshots(self, start: float = 0.0, first_member: int | None = None) -> Iterator[tuple[float, Snapshot]]:
        """Yield (position in seconds, snapshot) from the first at or after `start`."""

    def approach(self, position: float, seconds: float) -> Iterator[tuple[float, Snapshot]]:
        """Yield what leads up to a position, from `seconds` before it on, then all that follows."""

    def position_before(self, position: float) -> float | None:
        """Return the position of the last snapshot at or before this one; None if there is none."""

    def refresh(self) -> bool:
        """Take in what was written since; returns whether there is anything."""

    def close(self) -> None:
        """Close what is open."""


class ReplayFeed:
    """Plays a recording (`Feed` and `ReplayControls` of collectors/base/source.py).

    Figures are made anew of the steps that the recording holds, the alerts that were recorded are dropped and the
    rules applied anew, so a recording shows the results of this version. `make_rules` is called again for each
    jump: rules remember, and what they remember must be of that time.
    """

    def __init__(
        self,
        reader: SnapshotReader,
        make_rules: Callable[[], Stage],
        speed: float = 1.0,
        *,
        make_figures: Callable[[], Stage] = RecomputeFigures,
    ) -> None:
        """Take over an open recording.

        Args:
            reader: closed by `close()`.
            make_rules: makes the stage that adds the alerts.
            speed: to begin with; infinity plays as fast as the snapshots are taken.
            make_figures: makes the stage that works out figures anew.

        Raises:
            UnusableInput: it has no snapshot.
        """
        if not reader.members:
            raise UnusableInput(
                f"{reader.path} holds no snapshot" + (f": {reader.damage}" if reader.damage else "")
            )
        self._reader, self._make_rules, self._make_figures = reader, make_rules, make_figures
        self._stages: tuple[Stage, ...] = (make_figures(), GpuBusy(), make_rules())
        self._lock = threading.Lock()
        self._wake = InterruptibleSleep()
        self._closed = self._paused = self._ended = False
        self._speed = speed
        self._position = 0.0
        self._jump_to: float | None = None
        self._jump_back = False
        self._hole: tuple[float, float] | None = None  # where the last one ended, and how long it was
        self._on_jump: Callable[[list[Snapshot]], None] = lambda _history: None
        self._on_end: Callable[[], None] = lambda: None
        self._thread = FeedThread("llmtop-replay")

    @property
    def interval(self) -> float:
        """Seconds between the recorded snapshots as they mostly are, as they are shown at this speed."""
        return max(0.05, self._reader.median_gap / self._speed)

    def set_interval(self, seconds: float) -> None:
        """Do nothing: a recording keeps the interval at which it was made; `set_speed` plays it faster.

        Args:
            seconds: ignored.
        """

    @property
    def position(self) -> float:
        """Seconds from the first snapshot to the one shown now, or to where a jump is under way."""
        jump = self._jump_to
        return self._position if jump is None else jump

    @property
    def length(self) -> float:
        """Seconds from the first snapshot to the last."""
        return self._reader.length

    @property
    def started_at(self) -> float:
        """Unix time of the first snapshot, in seconds."""
        return self._reader.members[0].first

    @property
    def paused(self) -> bool:
        """Return True if the person stopped it."""
        return self._paused

    @property
    def ended(self) -> bool:
        """Return True if the last snapshot has been shown."""
        return self._ended

    @property
    def speed(self) -> float:
        """How many times faster than it was recorded the recording is played."""
        return self._speed

    def toggle(self) -> None:
        """Pause, or go on; at the end, start again from the beginning."""
        with self._lock:
            if self._ended and not self._paused:
                self._jump_to = 0.0
            else:
                self._paused = not self._paused
        self._wake.set()

    def set_speed(self, speed: float) -> None:
        """Change the speed, held between `MIN_SPEED` and `MAX_SPEED`."""
        with self._lock:
            self._speed = min(max(speed, MIN_SPEED), MAX_SPEED)
        self._wake.set()

    def seek(self, seconds: float) -> None:
        """Jump to a position of the recording.

        Where nothing was recorded just then, this is the last snapshot before it on the way back, and the next one
        on the way forward. So a jump always changes the position.

        Args:
            seconds: from the beginning of the recording; clipped to its length.
        """
        with self._lock:
            self._jump_back = seconds < self.position
            self._jump_to = min(max(seconds, 0.0), self._reader.length)
        self._wake.set()

    def on_jump(self, callback: Callable[[list[Snapshot]], None]) -> None:
        """Register `callback`, called after each jump with the snapshots before the new position."""
        self._on_jump = callback

    def on_end(self, callback: Callable[[], None]) -> None:
        """Register `callback`, called in the feed's thread each time the last snapshot has been shown."""
        self._on_end = callback

    def start(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Play in a thread of the feed's own."""
        self._thread.start(self._play, on_snapshot)

    def close(self) -> None:
        """Stop and close the recording."""
        with self._lock:
            self._closed = True
        self._wake.set()
        self._thread.wait_for_end()
        self._reader.close()

    def _judge(self, snapshot: Snapshot) -> Snapshot:
        snapshot = replace(snapshot, source="replay", alerts=())
        for note in self._notes():
            snapshot = pipeline.with_note(snapshot, note)
        return pipeline.run(self._stages, snapshot)

    def _notes(self) -> Iterator[str]:
        if self._hole is not None and 0 <= self._position - self._hole[0] < GAP_NOTE_SECONDS:
            yield f"nothing was recorded for {duration(self._hole[1])} before this; skipped"
        if self._reader.damage:
            yield self._reader.damage
        if self._reader.recordings > 1:
            yield f"{self._reader.path} holds {self._reader.recordings} recordings, played one after the other"

    def _seconds_to(self, position: float) -> float:
        """Seconds of the recording that pass until that position, of which a hole takes next to none."""
        gap = position - self._position
        if gap > GAP_SECONDS and gap > GAP_TIMES * self._reader.median_gap:
            self._hole = (position, gap)
            return 0.0 if math.isinf(self._speed) else _GAP_PLAY_SECONDS * self._speed
        return gap

    def _play(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        upcoming = self._reader.snapshots()
        while not self._closed:
            jump = self._take_jump()
            if jump is not None:
                upcoming = self._jump(jump, on_snapshot)
                continue
            following = next(upcoming, None)
            if following is None:
                upcoming = self._wait_at_end()
                continue
            position, snapshot = following
            if self._wait(self._seconds_to(position)):
                self._ended = False
                self._position = position
                on_snapshot(self._judge(snapshot))

    def _take_jump(self) -> float | None:
        with self._lock:
            jump, self._jump_to = self._jump_to, None
            if jump is not None and self._jump_back:
                jump = self._reader.position_before(jump) or 0.0
            return jump

    def _jump(self, target: float, on_snapshot: Callable[[Snapshot], None]) -> Iterator[tuple[float, Snapshot]]:
        """Judge what lies before the target with fresh rules, show the snapshot there, and return what follows."""
        self._stages = (self._make_figures(), GpuBusy(), self._make_rules())
        before: deque[tuple[float, Snapshot]] = deque(maxlen=HISTORY_SNAPSHOTS)
        upcoming = self._reader.approach(target, HISTORY_SECONDS)
        following: tuple[float, Snapshot] | None = None
        for following in upcoming:
            if following[0] >= target - 1e-6:  # as in Reader.snapshots
                break
            before.append(following)
        if following is None:
            return upcoming
        if before and before[-1] is following:
            before.pop()
        history = [self._judge(snapshot) for _, snapshot in before]
        self._on_jump(history)
        self._ended = False
        self._position = following[0]
        on_snapshot(self._judge(following[1]))
        return upcoming

    def _wait(self, seconds: float) -> bool:
        """Sleep so many seconds of the recording; False when a jump or the end of all came first."""
        waited = 0.0
        while True:
            self._wake.clear()  # before looking: what changes from here on ends the wait below
            if self._closed or self._jump_to is not None:
                return False
            left, speed = seconds - waited, self._speed
            if self._paused:
                self._wake.wait()
            elif left <= 0:
                return True
            else:
                since = time.monotonic()
                self._wake.wait(left / speed)
                waited += (time.monotonic() - since) * speed

    def _wait_at_end(self) -> Iterator[tuple[float, Snapshot]]:
        """Wait for a jump, or for more of a recording that is still being written; return what follows."""
        self._ended = True
        self._on_end()
        while not self._closed and self._jump_to is None:
            known = len(self._reader.members)
            if self._reader.refresh():
                return self._reader.snapshots(first_member=known)
            self._wake.clear()
            if not self._closed and self._jump_to is None:
                self._wake.wait(_GROWTH_SECONDS)
        return iter(())
