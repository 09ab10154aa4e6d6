"""Rows that were painted, with all that they were painted from: only what differs is painted again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

Painted = TypeVar("Painted")

_MOST = 512
"""Places: more than any screen has lines."""


class RowCache:
    """Painted rows by place, and the content they were painted from. The rows are read-only."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[Hashable, tuple[object, object]] = {}

    def get(self, place: Hashable, made_of: object, paint: Callable[[], Painted]) -> Painted:
        """Return the painted content of a place.

        Args:
            place: what names it; a name stands for one type of `Painted`.
            made_of: all that it is painted from, to be compared by value.
            paint: makes it, where it was not made of the same the last time.
        """
        known = self._places.get(place)
        if known is not None and known[0] == made_of:
            return known[1]  # type: ignore[return-value]
        if len(self._places) >= _MOST:
            self._places.clear()
        painted = paint()
        self._places[place] = made_of, painted
        return painted
