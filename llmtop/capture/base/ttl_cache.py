"""Answers that are asked for at every refresh of a screen, take long to find, and change rarely."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

FRESH_SECONDS = 15.0
"""How long an answer holds: what it depends on changes when a program is installed or ends."""

Answer = TypeVar("Answer")


class TtlCache(Generic[Answer]):
    """Answers by what was asked; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Hashable, tuple[float, Answer]] = {}

    def get(self, key: Hashable, find: Callable[[], Answer]) -> Answer:
        """Return the answer of the last `FRESH_SECONDS`, else a new one."""
        now = time.monotonic()
        with self._lock:
            self._known = {k: v for k, v in self._known.items() if now - v[0] < FRESH_SECONDS}
            if key in self._known:
                return self._known[key][1]
        value = find()
        with self._lock:
            self._known[key] = (now, value)
        return value
