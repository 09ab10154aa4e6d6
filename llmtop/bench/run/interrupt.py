"""Signals that bench gets while a command runs: ctrl+c, and what ends a job. They only count."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Which of them came."""

    def __init__(self) -> None:
        self.signals: list[signal.Signals] = []

    def __bool__(self) -> bool:
        return bool(self.signals)


@contextmanager
def collect_interrupts() -> Iterator[Interrupts]:
    """Within it, such a signal is noted and does nothing else. For the main thread."""
    interrupts = Interrupts()

    def note(number: int, _frame: FrameType | None) -> None:
        interrupts.signals.append(signal.Signals(number))

    before = {number: signal.signal(number, note) for number in ENDING}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
