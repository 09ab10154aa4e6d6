"""A clock in ns that a test moves by hand."""

from __future__ import annotations

from types import ModuleType

import pytest


class ManualClock:
    """Stands for `perf_counter_ns`."""

    def __init__(self, now: int = 0) -> None:
        self.now = now
        self.per_call = 0
        """How much later it is after each reading."""

    def __call__(self) -> int:
        """Return the time."""
        now = self.now
        self.now += self.per_call
        return now

    def replace_in(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        """Let these modules read this clock."""
        for module in modules:
            monkeypatch.setattr(module, "perf_counter_ns", self)
