"""Rounds over all GPUs: of cheap values at every tick, of slow ones in between."""

from __future__ import annotations

import time

from collectors.base.periodic_thread import last_tick
from collectors.base.shared_rounds import SharedRounds
from collectors.gpu.poll_times import SLOW_SECONDS
from collectors.gpu.slow_poll_schedule import SPACING_SECONDS, TOGETHER_SECONDS, slow_offset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FAST_PATIENCE_SECONDS = 0.05
"""Time after which a round of cheap values goes on in another thread. Eight H200s take 4.3 ms (docs/figures.md),
and snapshots follow the tick by 0.2 s."""
SLOW_PATIENCE_SECONDS = 1.0
"""The same for slow values; a call takes up to 25 ms, and no snapshot waits for it."""
_LOOK_AFTER_SECONDS = 1.1 * FAST_PATIENCE_SECONDS
"""Time from the beginning of a round of cheap values to the look whether it is stuck."""


class GpuRounds:
    """The threads that sample GPUs."""

    def __init__(self, interval: float, at_end: Callable[[], None]) -> None:
        """Prepare; the threads start with the first GPU.

        Args:
            interval: seconds between rounds of cheap values.
            at_end: called after each of these rounds.
        """
        self.interval = interval
        """Seconds between rounds of cheap values."""
        self._count = 1
        self.fast = SharedRounds("gpus", interval, patience=FAST_PATIENCE_SECONDS, at_end=at_end)
        self.slow = SharedRounds("gpus-slow", slow_pace(interval), patience=SLOW_PATIENCE_SECONDS)
        self.set_interval(interval)

    def set_interval(self, seconds: float) -> None:
        """Change the pace of all rounds.

        Args:
            seconds: between rounds of cheap values; slow ones keep at least `SLOW_SECONDS`.
        """
        self.interval = seconds
        self.fast.set_seconds(seconds)
        spacing = SPACING_SECONDS if seconds < TOGETHER_SECONDS else 0.0
        self.slow.set_seconds(slow_pace(seconds), offset=slow_offset(self._count - 1, seconds), spacing=spacing)

    def set_count(self, count: int) -> None:
        """Take note of how many GPUs there are: spaced slow polls begin the earlier."""
        if count not in (0, self._count):
            self._count = count
            self.set_interval(self.interval)

    def hand_over(self) -> float:
        """Give rounds that are stuck to another thread.

        Returns:
            Seconds until the round of cheap values in hand, else the next one, should have ended.
        """
        self.fast.hand_over()
        self.slow.hand_over()
        now = time.monotonic()
        due = last_tick(now, self.interval) + min(_LOOK_AFTER_SECONDS, self.interval / 2)
        return (due if self.fast.is_busy and now < due else due + self.interval) - now


def slow_pace(interval: float) -> float:
    """Return the seconds between slow polls: `SLOW_SECONDS`, or slightly more to divide a longer interval evenly.

    Never less: at the exporter's 3 s a round in between would double what they cost, for values that are never
    shown.
    """
    return interval / (interval // SLOW_SECONDS) if interval > SLOW_SECONDS else SLOW_SECONDS
