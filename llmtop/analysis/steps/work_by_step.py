"""How much of the device's work falls into each whole step: the figures by which two captures can be compared.

Totals of a capture grow with its window, and a window may hold any number of steps and pieces of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.report.per_step import PerStep
from llmtop.trace.groups import ROWS_AT_ONCE, rank_values
from llmtop.trace.intervals import Ns, Numbers
from llmtop.trace.model import take_rows


@dataclass(frozen=True)
class WorkSteps:
    """The whole step and the device timeline in which each piece of device work began."""

    number: npt.NDArray[np.int32]
    """For each row of `Trace.ops` the number of its step, counted through all timelines; -1 outside of whole
    steps."""
    place: Ns
    """For each of these numbers the index of its device timeline."""
    steps: Ns
    """Number of whole steps of each timeline."""

    @staticmethod
    def from_timelines(timelines: Sequence[DeviceTimeline], ops: int) -> WorkSteps:
        """Return the steps of all device timelines of a trace.

        Args:
            timelines: as of `device_timeline.device_timelines`.
            ops: how many rows `Trace.ops` has.
        """
        number = np.full(ops, -1, dtype=np.int32)
        steps = np.array([timeline.counted for timeline in timelines], dtype=np.int64)
        for timeline, first in zip(timelines, (np.cumsum(steps) - steps).tolist(), strict=True):
            if timeline.counted:
                edges = np.searchsorted(timeline.ops.start, timeline.bounds)
                own = np.arange(first, first + timeline.counted, dtype=np.int32)
                number[timeline.rows[edges[0] : edges[-1]]] = np.repeat(own, np.diff(edges))
        return WorkSteps(number, np.repeat(np.arange(len(timelines)), steps), steps)

    def per_step(self, rows: Numbers, group: Numbers, took: Ns) -> dict[int, tuple[PerStep, ...]]:
        """Return the device time per step, by group and in it by timeline; work outside of whole steps is left
        out.

        Args:
            rows: which rows of `Trace.ops`.
            group: for each of these rows a number, its group.
            took: how long each took, ns.
        """
        steps, timelines = len(self.place), len(self.steps)
        # Work outside of whole steps, number -1, is counted like a step and left out then: no copy of all rows.
        parts: list[tuple[Ns, npt.NDArray[np.float64], npt.NDArray[np.float64]]] = []
        for first in range(0, len(rows), ROWS_AT_ONCE):
            block = slice(first, first + ROWS_AT_ONCE)
            key = group[block].astype(np.int64) * (steps + 1)
            key += take_rows(self.number, rows[block])
            key += 1
            cells, which = rank_values(key)
            took_here = np.bincount(which, weights=took[block]).astype(np.float64)
            parts.append((cells, np.bincount(which).astype(np.float64), took_here))
        if not parts:
            return {}
        # Sums of whole ns below 2**53 are exact in any order.
        cells, which = rank_values(np.concatenate([part[0] for part in parts]))
        counts = np.bincount(which, weights=np.concatenate([part[1] for part in parts]))
        sums = np.bincount(which, weights=np.concatenate([part[2] for part in parts]))
        inside = cells % (steps + 1) > 0
        if not inside.any():
            return {}
        cells, counts, sums = cells[inside], counts[inside], sums[inside]
        own, step = cells // (steps + 1), cells % (steps + 1) - 1
        pairs, which = rank_values(own * timelines + self.place[step])
        of = self.steps[pairs % timelines]
        count = np.bincount(which, weights=counts) / of
        mean = np.bincount(which, weights=sums) / of
        # Steps without any of it count as zeros.
        deviation = np.sqrt(np.maximum(np.bincount(which, weights=sums**2) / of - mean**2, 0.0))
        found: dict[int, list[PerStep]] = {}
        for pair, *row in zip(
            pairs.tolist(), count.tolist(), (mean / 1e9).tolist(), (deviation / 1e9).tolist(), strict=True
        ):
            found.setdefault(pair // timelines, []).append(PerStep(pair % timelines, *row))
        return {one: tuple(rows_of) for one, rows_of in found.items()}
