"""Driver calls of one thread in a round: which calls were refused, and which one is running.

Loaded into the driver's own process: it imports nothing but the clock.
"""

from __future__ import annotations

import time


class CallRound:
    """Remembers a round's refusals; the driver's own class makes the calls."""

    def __init__(self) -> None:
        self.refusals: dict[str, int] = {}
        """The driver's error number by function since `begin()`."""
        self.answered = False
        """True if any function has answered since `begin()`."""
        self._inside: tuple[str, float] | None = None

    def begin(self) -> None:
        """Start a round of calls: forget the refusals of the round before."""
        self.refusals = {}
        self.answered = False

    def waiting(self) -> tuple[str, float] | None:
        """Return the call that this thread is inside of, and for how many seconds; for other threads to ask."""
        inside = self._inside
        return None if inside is None else (inside[0], time.monotonic() - inside[1])
