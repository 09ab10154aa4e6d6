"""The wait for the next batch, as phase ``dataload``.

A torch DataLoader must stay one: Accelerate and Lightning shard what is an instance of that class, and make it
anew by its class and attributes. So `timed_loader` returns an instance of a subclass that shares the dictionary of
the original. Everything else gets a stand-in that passes on what it is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter_ns
from typing import Any, Generic, TypeVar

from llmtop.instrument.guest.guard import report_internal_error
from llmtop.instrument.record.recorder import get, phase_of
from llmtop.naming.own_phases import DATALOAD

T = TypeVar("T")
WAITS = "the waits for batches"
_classes: dict[type, type] = {}
_recorder = get()
_hooks = _recorder.hooks
_wait = phase_of(DATALOAD)


def timed_loader(iterable: Any) -> Any:
    """Return a loader like this one, whose waits are timed. One that is timed already is returned as it is."""
    kind = type(iterable)
    if kind is Loader or kind in _classes.values():
        return iterable
    data = sys.modules.get("torch.utils.data")
    if data is None or not issubclass(kind, data.DataLoader):
        return Loader(iterable)
    try:
        timed = _classes.get(kind)
        if timed is None:
            timed = _classes[kind] = _timed_class(kind)
        made: Any = object.__new__(timed)
        object.__setattr__(made, "__dict__", iterable.__dict__)
    except TypeError:  # a class that cannot be derived from, or that has no dictionary
        return Loader(iterable)
    return made


def _timed_class(kind: Any) -> type:
    """Return a subclass that differs in its iteration alone."""

    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807
        return _Waits(self, super(timed, self).__iter__)

    def __reduce_ex__(self: Any, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:  # noqa: N807
        # Pickled and copied as the original is, and timed where it arrives.
        original = object.__new__(kind)
        object.__setattr__(original, "__dict__", self.__dict__.copy())
        return timed_loader, (original,)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    timed: Any = type(kind)(
        kind.__name__, (kind,), {"__iter__": __iter__, "__reduce_ex__": __reduce_ex__, **names}
    )
    return timed  # type: ignore[no-any-return]


class Loader(Generic[T]):
    """Iterates another iterable and times each wait. Everything else it hands through."""

    __slots__ = ("__weakref__", "_iterable")

    def __init__(self, iterable: Iterable[T]) -> None:
        object.__setattr__(self, "_iterable", iterable)

    def __iter__(self) -> Iterator[T]:
        iterable = self._iterable
        return _Waits(iterable, lambda: iter(iterable))

    def __next__(self) -> T:
        """Wait for the next batch of an iterable that is an iterator itself, as a generator is."""
        item: T = _wait_for(self, self._iterable.__next__)
        return item

    def __len__(self) -> int:
        return len(self._iterable)

    def __bool__(self) -> bool:
        return bool(self._iterable)

    def __getitem__(self, key: Any) -> Any:
        return self._iterable[key]

    def __contains__(self, item: object) -> bool:
        return item in self._iterable

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Loader, (self._iterable,)

    def __getattr__(self, name: str) -> Any:
        # A loader's .dataset, .sampler.set_epoch(): wrapping must change nothing.
        return getattr(self._iterable, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._iterable, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._iterable, name)


class _Waits(Iterator[T]):
    """One pass. It begins where the script begins it, which may draw random numbers or start processes."""

    __slots__ = ("__weakref__", "_begun", "_ended", "_inner")

    def __init__(self, iterable: Any, begin: Callable[[], Iterator[T]]) -> None:
        self._begun = perf_counter_ns()
        self._inner = begin()
        self._ended = perf_counter_ns()

    def __next__(self) -> T:
        if not self._begun:
            return _wait_for(self, self._inner.__next__)
        begun, self._begun = self._begun, 0
        # Starting the workers of a DataLoader is part of the wait for its first batch, if that follows at once.
        at_once = perf_counter_ns() - self._ended < self._ended - begun
        return _wait_for(self, self._inner.__next__, begun if at_once else 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _wait_for(waits: Any, take: Callable[[], T], begun: int = 0) -> T:
    """Return the next item. The end of the data is none, so the wait for it belongs to no step and is not
    counted."""
    phase: Any = _wait
    try:
        if _hooks.before_batch is not None:
            phase = _hooks.before_batch(waits) or _wait
        phase.__enter__()
        if begun:
            _recorder.began_earlier(DATALOAD, begun)
    except BaseException as error:  # noqa: BLE001
        report_internal_error(WAITS, error)
    try:
        item = take()
    except BaseException:
        try:
            if phase is _wait:
                _recorder.cancel_phase(DATALOAD)
            else:
                phase.__exit__(None, None, None)
        except BaseException as error:  # noqa: BLE001
            report_internal_error(WAITS, error)
        raise
    phase.__exit__(None, None, None)
    return item
