"""Snapshots for programs: from a feed to standard output, until a signal, a closed pipe or the end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol, TypeVar

from collectors.base.interruptible_sleep import InterruptibleSleep

ENDING = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
)
"""Signals that end a stream or a recording as if it were at its end: whole, and with exit code 0."""


Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class _Feed(Protocol[Item_co]):
    def start(self, on_snapshot: Callable[[Item_co], None], /) -> None: ...

    def close(self) -> None: ...


class _Signalled(BaseException):
    """A signal came that ends the stream. Raised in the main thread, which only waits meanwhile."""


class SnapshotStream:
    """Lets a feed's thread do the work while the main thread waits for the end.

    So a signal never comes in the middle of a line or of a write to a recording.
    """

    def __init__(self) -> None:
        self._finished = False
        self._begun: float | None = None
        """When the first snapshot arrived, by the monotonic clock; None: not yet."""
        self._wake = InterruptibleSleep()
        self._error: BaseException | None = None

    def finish(self) -> None:
        """End `run`; from any thread."""
        self._finished = True
        self._wake.set()

    def run(self, feed: _Feed[Item], consume: Callable[[Item], None], seconds: float | None = None) -> None:
        """Call a function with each snapshot until `finish()`, a signal of `ENDING`, or the time limit.

        Args:
            feed: started here, and closed before this returns.
            consume: called in the feed's thread.
            seconds: time limit from the first snapshot on, by the monotonic clock; None: none. A busy machine
                takes seconds to start the sources, and the stream would otherwise end without a snapshot.

        Raises:
            Exception: what `consume` raised, or what ended a thread; either ends the stream.
        """

        def guarded(snapshot: Item) -> None:
            if self._finished:
                return
            if self._begun is None:
                self._begun = time.monotonic()
                self._wake.set()
            try:
                consume(snapshot)
            except Exception as error:  # noqa: BLE001  carried to the main thread, which raises it
                self._fail(error)

        before = threading.excepthook
        threading.excepthook = lambda error: self._fail(error.exc_value)
        try:
            self._run(feed, guarded, seconds)
        finally:
            threading.excepthook = before

    def _fail(self, error: BaseException | None) -> None:
        self._error = self._error or error
        self.finish()

    def _run(self, feed: _Feed[Item], guarded: Callable[[Item], None], seconds: float | None) -> None:
        with _signals_raise():
            try:
                feed.start(guarded)
                self._wait(seconds)
            except _Signalled:
                pass
        self.finish()
        feed.close()
        if self._error is not None:
            raise self._error

    def _wait(self, seconds: float | None) -> None:
        while not self._finished:
            left = None if seconds is None or self._begun is None else self._begun + seconds - time.monotonic()
            if left is not None and left <= 0:
                return
            if self._wake.wait(left):
                self._wake.clear()


@contextmanager
def _signals_raise() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _Signalled

    before = {number: signal.signal(number, stop) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
