"""Arithmetic on sets of time intervals, the ground of every share in a report.

A `Spans` is a set of instants, held as disjoint half-open intervals [start, end) in ascending order, in ns. All
functions are pure, vectorised, and linear or n log n in the number of intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ns: TypeAlias = npt.NDArray[np.int64]
"""Nanoseconds, or anything counted in 64 bits."""
Numbers: TypeAlias = npt.NDArray[np.signedinteger[Any]]
"""Whole numbers of 32 or 64 bits, such as names, rows and ids. A product of two needs 64 bits."""


@dataclass(frozen=True)
class Spans:
    """Disjoint, ascending, non-empty intervals. Make one with `union`; the constructor checks nothing."""

    starts: Ns
    ends: Ns

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Ns:
        """How long each interval is, in ns; as many as there are intervals."""
        return self.ends - self.starts

    @property
    def total(self) -> int:
        """How long all intervals are together, in ns."""
        return int(self.lengths.sum())


_NONE = np.empty(0, dtype=np.int64)
EMPTY = Spans(_NONE, _NONE)


def union(starts: Ns, ends: Ns) -> Spans:
    """Return the instants that lie in any of the intervals, which may overlap, touch, be empty or come in any
    order.

    An interval that ends before it starts counts as empty.
    """
    keep = ends > starts
    if not keep.any():
        return EMPTY
    if not keep.all():
        starts, ends = starts[keep], ends[keep]
    if (starts[1:] < starts[:-1]).any():  # else they are in order, as files have them as a rule
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    # A new interval begins where a start lies beyond everything that came before it.
    begins = np.empty(len(starts), dtype=bool)
    begins[0] = True
    np.greater(starts[1:], reach[:-1], out=begins[1:])
    if begins.all():  # as work of one stream: these are the columns of the table themselves, no copy
        return Spans(starts, ends)
    lasts = np.append(np.flatnonzero(begins)[1:] - 1, len(starts) - 1)
    return Spans(starts[begins], reach[lasts])


def union_of(*sets: Spans) -> Spans:
    """Return the instants that lie in any of the sets."""
    return (
        union(np.concatenate([s.starts for s in sets]), np.concatenate([s.ends for s in sets])) if sets else EMPTY
    )


def intersection(a: Spans, b: Spans) -> Spans:
    """Return the instants that lie in `a` and in `b`."""
    if not len(a) or not len(b):
        return EMPTY
    # Every interval of the result starts at a start of one set that lies inside the other.
    in_b = np.searchsorted(b.starts, a.starts, side="right") - 1
    in_a = np.searchsorted(a.starts, b.starts, side="right") - 1
    a_inside = (in_b >= 0) & (a.starts < b.ends[np.maximum(in_b, 0)])
    b_inside = (in_a >= 0) & (b.starts < a.ends[np.maximum(in_a, 0)])
    # A common start would be found from both sides.
    b_inside &= ~((in_a >= 0) & (a.starts[np.maximum(in_a, 0)] == b.starts))
    starts = np.concatenate([a.starts[a_inside], b.starts[b_inside]])
    ends = np.concatenate(
        [
            np.minimum(a.ends[a_inside], b.ends[in_b[a_inside]]),
            np.minimum(b.ends[b_inside], a.ends[in_a[b_inside]]),
        ]
    )
    order = np.argsort(starts, kind="stable")
    return Spans(starts[order], ends[order])


def difference(a: Spans, b: Spans) -> Spans:
    """Return the instants that lie in `a` and not in `b`."""
    if not len(a) or not len(b):
        return a
    low, high = min(int(a.starts[0]), int(b.starts[0])), max(int(a.ends[-1]), int(b.ends[-1]))
    return intersection(a, _gaps(b, low, high))


def complement(a: Spans, start: int, end: int) -> Spans:
    """Return the instants of [start, end) that do not lie in `a`, the gaps at both edges included.

    Args:
        a: set of instants.
        start: begin of the window, in ns.
        end: end of the window (excluded), in ns.
    """
    first, stop = int(np.searchsorted(a.starts, start, side="right")) - 1, int(np.searchsorted(a.ends, end))
    # No gap lies across an edge of the window: those within are between the set's own columns, without a copy.
    if 0 <= first < stop < len(a) and a.ends[first] >= start and a.starts[stop] <= end:
        gaps = Spans(a.ends[first:stop], a.starts[first + 1 : stop + 1])
        if (gaps.ends > gaps.starts).all():
            return gaps
    return _gaps(clip(a, start, end), start, end)


def _gaps(a: Spans, start: int, end: int) -> Spans:
    """Return the instants of [start, end) that do not lie in `a`, which lies within it."""
    starts = np.concatenate([np.array([start], dtype=np.int64), a.ends])
    ends = np.concatenate([a.starts, np.array([end], dtype=np.int64)])
    keep = ends > starts
    return Spans(starts[keep], ends[keep])


def clip(a: Spans, start: int, end: int) -> Spans:
    """Return the instants of `a` within a window.

    Args:
        a: set of instants.
        start: begin of the window, in ns.
        end: end of the window (excluded), in ns.
    """
    if not len(a):
        return EMPTY
    starts, ends = np.maximum(a.starts, start), np.minimum(a.ends, end)
    keep = ends > starts
    return Spans(starts[keep], ends[keep])


def time_before(a: Spans, instants: Ns) -> Ns:
    """Return how much of `a` lies before each instant.

    Args:
        a: set of instants.
        instants: (n,) int64, in ns.

    Returns:
        (n,) int64, in ns.
    """
    if not len(a):
        return np.zeros(len(instants), dtype=np.int64)
    done = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(a.lengths)])
    at = np.searchsorted(a.starts, instants, side="right")
    last = np.maximum(at - 1, 0)
    open_part = np.minimum(instants, a.ends[last]) - a.starts[last]
    return np.where(at > 0, done[last] + open_part, 0)


def overlap_per_interval(a: Spans, parts: Spans) -> Ns:
    """Return how much of `parts` lies in each interval of `a`, in ns.

    Args:
        a: a set.
        parts: each interval of it lies within one of `a`.
    """
    at = np.searchsorted(a.starts, parts.starts, side="right") - 1
    # The sums are floats, which hold whole ns up to 104 days.
    return np.bincount(at, weights=parts.lengths, minlength=len(a)).astype(np.int64)


def overlap_with(starts: Ns, ends: Ns, a: Spans) -> Ns:
    """For each interval [start, end), which may overlap one another, how much of it lies in `a`, in ns."""
    return time_before(a, np.maximum(ends, starts)) - time_before(a, starts)


def contains(a: Spans, instants: Ns) -> npt.NDArray[np.bool_]:
    """Return whether each instant lies in `a`.

    Args:
        a: set of instants.
        instants: (n,) int64, in ns.

    Returns:
        (n,) bool.
    """
    if not len(a):
        return np.zeros(len(instants), dtype=bool)
    at = np.searchsorted(a.starts, instants, side="right") - 1
    return np.asarray((at >= 0) & (instants < a.ends[np.maximum(at, 0)]))
