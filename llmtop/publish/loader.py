"""The wait for the next batch, as phase ``dataload``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from llmtop.publish.recorder import get, phase_of

T = TypeVar("T")
DATALOAD = "dataload"


class Loader(Generic[T]):
    """Iterates another iterable and times each wait. Everything else it hands through: len(), attributes."""

    def __init__(self, iterable: Iterable[T]) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[T]:
        return _Waits(self._iterable)

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # raises TypeError as the iterable itself would

    def __getattr__(self, name: str) -> Any:
        # A DataLoader's .dataset, .sampler.set_epoch(): wrapping must change nothing.
        if name == "_iterable":
            raise AttributeError(name)  # while being unpickled
        return getattr(self._iterable, name)


class _Waits(Iterator[T]):
    """One pass. The end of the data is no batch, so the wait for it belongs to no step and is not counted."""

    __slots__ = ("_inner", "_iterable")

    def __init__(self, iterable: Iterable[T]) -> None:
        self._iterable = iterable
        self._inner: Iterator[T] | None = None

    def __next__(self) -> T:
        wait = phase_of(DATALOAD)
        wait.__enter__()
        try:
            if self._inner is None:
                # Starting the workers of a DataLoader is part of the wait for its first batch.
                self._inner = iter(self._iterable)
            item = next(self._inner)
        except BaseException:
            get().cancel_phase(DATALOAD)
            raise
        wait.__exit__(None, None, None)
        return item
