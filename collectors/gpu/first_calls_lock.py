"""Threads that take turns, but wait for none that is stuck."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class FirstCallsLock:
    """A lock that counts as stuck once a thread has waited `patience` seconds: all threads then use a new one."""

    def __init__(self, patience: float) -> None:
        self._lock = threading.Lock()
        self._patience = patience

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Within ``with`` no other thread has its turn, but for one that is stuck."""
        lock = self._lock
        while not lock.acquire(timeout=self._patience):
            if self._lock is lock:
                self._lock = threading.Lock()
            lock = self._lock
        try:
            yield
        finally:
            lock.release()
