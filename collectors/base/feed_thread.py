"""The thread in which a feed (live or from a recording) gives its snapshots."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_JOIN_SECONDS = 2.0


class FeedThread:
    """One daemon thread that is started once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[T], None], argument: T) -> None:
        """Call `work` with the argument in the thread."""
        self._thread = threading.Thread(target=work, args=(argument,), name=self._name, daemon=True)
        self._thread.start()

    def wait_for_end(self) -> None:
        """Wait a little for its end; returns at once where it was not started, or is the thread that asks."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=_JOIN_SECONDS)
