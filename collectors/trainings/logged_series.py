"""Logged values of one training that no snapshot has had yet."""

from __future__ import annotations

import math

from llmtop.model.health import LoggedSeries
from llmtop.protocol.training_facts import LoggedValue

MOST = 4096
"""Values kept for the next snapshot; the oldest go first."""


class PendingValues:
    """Values that arrived since the last snapshot, each once: history comes again after a reconnect."""

    def __init__(self) -> None:
        self._waiting: list[LoggedValue] = []
        self._known_until: dict[str, int] = {}
        """The last step of each name."""

    def add(self, logged: list[LoggedValue], *, is_history: bool) -> None:
        """Take values, oldest first.

        Args:
            logged: as they arrived.
            is_history: whether steps of the same message had finished before this monitor subscribed: then values
                up to the last known step of a name are passed over.
        """
        for one in logged:
            if is_history and one.step <= self._known_until.get(one.name, -1):
                continue
            self._waiting.append(one)
            self._known_until[one.name] = one.step
        del self._waiting[:-MOST]

    def take(self) -> tuple[LoggedSeries, ...]:
        """Return the values since the last call, by name."""
        taken, self._waiting = self._waiting, []
        by_name: dict[str, list[LoggedValue]] = {}
        for one in taken:
            by_name.setdefault(one.name, []).append(one)
        return tuple(
            LoggedSeries(
                name=name,
                steps=tuple(one.step for one in values),
                values=tuple(one.value if math.isfinite(one.value) else None for one in values),
            )
            for name, values in by_name.items()
        )
