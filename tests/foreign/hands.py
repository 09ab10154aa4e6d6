"""The calls of llmtop, for a program of `tests.foreign` that has them: real where it is run by hand, else nothing.

``import hands as llmtop`` stands for ``import llmtop``. Copied beside each program.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

HANDS = "FOREIGN_HANDS"

if os.environ.get(HANDS):
    from llmtop import attach, loader, log, phase, step
else:

    class _Nothing(contextlib.ContextDecorator):
        """A step or a phase that is none."""

        tokens: float | None = None
        samples: float | None = None

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            return None

    def attach(*args: Any, **kwargs: Any) -> None:
        return None

    def log(**metrics: Any) -> None:
        return None

    def loader(iterable: Any) -> Any:
        return iterable

    def step(*args: Any, **kwargs: Any) -> Any:
        return _Nothing()

    def phase(name: str) -> Any:
        return _Nothing()


__all__ = ["attach", "loader", "log", "phase", "step"]
