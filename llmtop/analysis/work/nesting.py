"""Spans that lie in each other on threads, as operators and Python frames do: which one an instant lies in."""

from __future__ import annotations

import functools
import itertools
from typing import Protocol

import numpy as np

from llmtop.trace.intervals import Ns

_MOST_STEPS = 4096
"""Deepest nesting that is followed: Python's own limit is 1,000 frames, and a damaged file has any."""


class ThreadSpans(Protocol):
    """Columns of spans: times in ns, and the process and thread they are on."""

    @property
    def start(self) -> Ns:
        """When each began."""

    @property
    def end(self) -> Ns:
        """When each ended."""

    @property
    def process(self) -> Ns:
        """The pid."""

    @property
    def thread(self) -> Ns:
        """The tid."""


class Nesting:
    """Some of the spans of a table, thread by thread in order of their start.

    Positions are places in that order; `rows` has the row of the table of each.
    """

    def __init__(self, table: ThreadSpans, rows: Ns) -> None:
        """Sort them.

        Args:
            table: with the spans.
            rows: which of its rows; those without a length are passed over, since nothing lies in them.
        """
        rows = rows[table.end[rows] > table.start[rows]]
        process, thread = table.process[rows], table.thread[rows]
        start, end = table.start[rows], table.end[rows]
        one = len(rows) and (process == process[0]).all() and (thread == thread[0]).all()
        if not one or (start[1:] <= start[:-1]).any():  # else they are in order, as files have them as a rule
            order = np.lexsort((-end, start) if one else (-end, start, thread, process))
            rows, start, end = rows[order], start[order], end[order]
            process, thread = process[order], thread[order]
        self.rows: Ns = rows
        self._starts, self._ends = start, end
        new = np.flatnonzero((np.diff(process) != 0) | (np.diff(thread) != 0)) + 1
        edges = np.concatenate([[0], new, [len(rows)]]).tolist() if len(rows) else [0]
        self._of_thread = {
            (int(process[low]), int(thread[low])): (low, high) for low, high in itertools.pairwise(edges)
        }

    def __len__(self) -> int:
        return len(self.rows)

    @functools.cached_property
    def parents(self) -> Ns:
        """The position of the span directly around each; -1 where there is none."""
        found = np.full(len(self.rows), -1, dtype=np.int64)
        for low, high in self._of_thread.values():
            inside = self._parents_on(self._starts[low:high], self._ends[low:high])
            found[low:high] = np.where(inside >= 0, inside + low, -1)
        return found

    @staticmethod
    def _parents_on(starts: Ns, ends: Ns) -> Ns:
        """Return `parents` on one thread: the last span before that lies one level higher."""
        # How many are open where each begins: those that began before, less those that have ended.
        depth = np.arange(len(starts), dtype=np.int32)
        depth -= np.searchsorted(np.sort(ends), starts, side="right").astype(np.int32)
        order = np.argsort(depth, kind="stable")
        levels = np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)
        parents = np.full(len(starts), -1, dtype=np.int64)
        for above, own in itertools.pairwise(levels):
            at = np.searchsorted(above, own) - 1
            parents[own] = np.where(at >= 0, above[np.maximum(at, 0)], -1)
        # Rounded times let a span end within its neighbour: such a span is no parent.
        for _ in range(_MOST_STEPS):
            wrong = np.flatnonzero((parents >= 0) & (ends[parents] <= starts))
            if not len(wrong):
                return parents
            parents[wrong] = parents[parents[wrong]]
        return np.where((parents >= 0) & (ends[parents] <= starts), -1, parents)

    def innermost(self, process: Ns, thread: Ns, instants: Ns) -> Ns:
        """Return the position of the innermost span that each instant lies in; -1 for none.

        Args:
            process: on which process and
            thread: thread each instant is.
            instants: in ns.
        """
        found = np.full(len(instants), -1, dtype=np.int64)
        if not len(self.rows) or not len(instants):
            return found
        order = np.lexsort((thread, process))
        new = (np.diff(process[order]) != 0) | (np.diff(thread[order]) != 0)
        for own in np.split(order, np.flatnonzero(new) + 1):
            edges = self._of_thread.get((int(process[own[0]]), int(thread[own[0]])))
            if edges is not None:
                found[own] = self._innermost(edges[0], edges[1], instants[own])
        return found

    def _innermost(self, low: int, high: int, instants: Ns) -> Ns:
        at = np.searchsorted(self._starts[low:high], instants, side="right") - 1
        at = np.where(at >= 0, at + low, -1)
        for _ in range(_MOST_STEPS):
            ended = np.flatnonzero((at >= 0) & (self._ends[at] <= instants))
            if not len(ended):
                return at
            at[ended] = self.parents[at[ended]]
        return np.where((at >= 0) & (self._ends[at] <= instants), -1, at)
