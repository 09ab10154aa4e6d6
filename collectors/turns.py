"""Threads that take turns, but wait for none that is stuck."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """A lock that is only asked for: whoever has waited for `patience` seconds goes ahead without it."""

    def __init__(self, patience: float) -> None:
        self._lock = threading.Lock()
        self._patience = patience

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Within ``with`` no other thread has its turn, unless it lost patience."""
        mine = self._lock.acquire(timeout=self._patience)
        try:
            yield
        finally:
            if mine:
                self._lock.release()
