"""Limits on the requests of one monitor and of all of them together.

A connected process belongs to the same user, and still may be broken: stuck in a loop, stopped, of another
version. What it sends is bounded a frame, a second and in all; what it does not read is bounded; and the processor
time that all requests together take is a share of the run. Without a monitor none of this costs anything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from llmtop.errors import UnusableInput
from llmtop.protocol import wire

MAX_REQUEST = 1 << 14
"""Bytes in the largest frame that a monitor may send: the longest path with all that goes with it has 5 KiB.
Deeper nesting than fits in here could overflow the stack of a training that raised Python's recursion limit."""
MAX_WORD = 128
"""Characters in the id of a request, and in the name of an engine."""
MAX_PATH = 4096
MAX_OPTIONS = 32
MESSAGES_PER_S = 200
BYTES_PER_S = 1 << 20
MAX_UNREAD = 1 << 18
"""Bytes of answers that a monitor may leave unread beside one message with steps."""
CAPTURES_PER_S = 1.0
CAPTURES_AT_ONCE = 10
"""A request scans all objects of the process, even if it is refused then."""
STACKS_PER_S = 2.0
STACKS_AT_ONCE = 10
"""A sample takes 10 µs per thread; a screen that shows stacks samples once per second."""
ACCEPTED_AT_ONCE = 8
"""Connections taken before other work has its turn."""

LOOK_EVERY_S = 0.016
"""Requests that arrive within this time of each other are handled together."""
_SHARE = 0.01
_SAVED_S = 0.1
_LONGEST_REST_S = 1.0

PAUSE_PCT = 2.0
"""Share of the run's time for which a training may pause for monitors."""
PAUSES_SAVED_S = 20.0
"""Pause time that may be saved up: ten captures with nsys, each of which has two pauses."""
SHORTEST_PAUSE_S = 1.0
"""Duration that a shorter pause counts as. Pauses of nsys take 0.3 and 0.6 s. A monitor that requests one after
the other is stuck, however short they are."""
PAIR_WITHIN_S = 600.0

Clock = Callable[[], float]


class TooMuch(UnusableInput):
    """A monitor sends more than it may."""


def check(message: wire.FromMonitor) -> None:
    """Check the lengths of a request's texts, which are repeated in each reply.

    Raises:
        TooMuch: something in it is too long.
    """
    words = [getattr(message, name, "") for name in ("id", "engine", "want")]
    path, options = getattr(message, "path", ""), getattr(message, "options", {})
    if max(map(len, words)) > MAX_WORD or len(path) > MAX_PATH or len(options) > MAX_OPTIONS:
        raise TooMuch("a request came whose id, engine, path or options are longer than any can be")


class Allowance:
    """Rate limit: a number per second, and no more saved up than `at_once`."""

    def __init__(self, per_s: float, at_once: float, clock: Clock = time.monotonic) -> None:
        """Begin with a full bucket (token bucket).

        Args:
            per_s: how much is earned per second.
            at_once: size of the bucket.
            clock: monotonic seconds; another one for tests.
        """
        self._per_s = per_s
        self._at_once = at_once
        self._clock = clock
        self._left = at_once
        self._counted_at = clock()

    def take(self, amount: float = 1.0) -> bool:
        """Use some of it; returns False, with nothing used, where there is not so much left."""
        now = self._clock()
        self._left = min(self._at_once, self._left + (now - self._counted_at) * self._per_s)
        self._counted_at = now
        if amount > self._left:
            return False
        self._left -= amount
        return True


class Intake:
    """Messages that one monitor has sent."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self) -> None:
        self._messages = Allowance(MESSAGES_PER_S, MESSAGES_PER_S)
        self._bytes = Allowance(BYTES_PER_S, BYTES_PER_S)

    def add(self, messages: int, size: int) -> None:
        """Count what has just come.

        Raises:
            TooMuch: it is more than a second's share.
        """
        if not self._messages.take(messages) or not self._bytes.take(size):
            raise TooMuch(f"more than {MESSAGES_PER_S} messages or {BYTES_PER_S >> 20} MiB came within a second")


class Pace:
    """Paces requests so that those of all monitors together take 1 % of the time.

    A tenth of a second of processor time is saved up: the first requests of a few monitors are handled at once.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._saved = _SAVED_S
        self._counted_at = clock()
        self._not_before = 0.0
        self._began = 0

    def begin(self) -> None:
        """Called before the requests of a turn are handled."""
        self._began = time.thread_time_ns()

    def end(self) -> None:
        """Called after requests were handled: their CPU time determines the next turn."""
        now = self._clock()
        earned = (now - self._counted_at) * _SHARE
        self._saved = min(_SAVED_S, self._saved + earned) - (time.thread_time_ns() - self._began) / 1e9
        self._counted_at = now
        owed = min(_LONGEST_REST_S, max(0.0, -self._saved) / _SHARE)
        self._not_before = now + max(LOOK_EVERY_S, owed)

    def rest(self) -> float:
        """Return the seconds until requests are handled again; 0: now."""
        return max(0.0, self._not_before - self._clock())


class PauseBudget:
    """How long a training may still be paused.

    Who was paused for a tool to start must be paused for it to stop, or is harmed: after a pause that was allowed
    the next one is allowed as well.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._share = _pause_share()
        self._left = PAUSES_SAVED_S
        self._counted_at = clock()
        self._pair_until = 0.0
        self._is_second = False

    def refusal(self) -> str:
        """Return why there is none to be had now, and when there will be; "" for one that is allowed."""
        now = self._earn()
        self._is_second = now < self._pair_until
        if self._is_second or self._left > 0:
            return ""
        wait = f"ask again in {-self._left / self._share + 1:.0f} s" if self._share else "LLMTOP_PAUSE_PCT is 0"
        return f"it has been paused for {100 * self._share:g} % of its time, which is as long as it may be: {wait}"

    def spend(self, seconds: float) -> None:
        """Charge a pause of the training to the budget.

        Args:
            seconds: how long it lasted; at least `SHORTEST_PAUSE_S` is charged. The second pause of a pair, start
                and stop of one tool, is always allowed.
        """
        now = self._earn()
        self._left -= max(seconds, SHORTEST_PAUSE_S)
        self._pair_until = 0.0 if self._is_second else now + PAIR_WITHIN_S

    def _earn(self) -> float:
        now = self._clock()
        self._left = min(PAUSES_SAVED_S, self._left + (now - self._counted_at) * self._share)
        self._counted_at = now
        return now


def _pause_share() -> float:
    try:
        pct = float(os.environ.get("LLMTOP_PAUSE_PCT", PAUSE_PCT))
    except ValueError:
        pct = PAUSE_PCT
    return min(100.0, pct) / 100 if pct >= 0 else PAUSE_PCT / 100
