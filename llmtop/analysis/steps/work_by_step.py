"""How much of the device's work falls into each whole step: the figures by which two captures can be compared.

Totals of a capture grow with its window, and a window may hold any number of steps and pieces of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmtop.analysis.steps.device_timeline import Lane
from llmtop.report.per_step import PerStep
from llmtop.trace.groups import ranked
from llmtop.trace.intervals import Ns


@dataclass(frozen=True)
class StepOfWork:
    """In which whole step of which lane each piece of device work began."""

    number: npt.NDArray[np.int32]
    """For each row of `Trace.ops` the number of its step, counted through all lanes; -1 outside of whole steps."""
    place: Ns
    """For each of these numbers the place of its lane among the lanes."""
    steps: Ns
    """For each lane how many whole steps it has."""

    @staticmethod
    def of(lanes: Sequence[Lane], ops: int) -> StepOfWork:
        """Of all lanes of a trace.

        Args:
            lanes: as `device_timeline.lanes_of` gives them.
            ops: how many rows `Trace.ops` has.
        """
        number = np.full(ops, -1, dtype=np.int32)
        steps = np.array([lane.counted for lane in lanes], dtype=np.int64)
        for lane, first in zip(lanes, (np.cumsum(steps) - steps).tolist(), strict=True):
            if lane.counted:
                edges = np.searchsorted(lane.ops.start, lane.bounds)
                own = np.arange(first, first + lane.counted, dtype=np.int32)
                number[lane.rows[edges[0] : edges[-1]]] = np.repeat(own, np.diff(edges))
        return StepOfWork(number, np.repeat(np.arange(len(lanes)), steps), steps)

    def figures(self, rows: Ns, group: Ns, took: Ns) -> dict[int, tuple[PerStep, ...]]:
        """What groups of device work come to a step, by group and in it by lane; without those in no whole step.

        Args:
            rows: which rows of `Trace.ops`.
            group: for each of these rows a number, its group.
            took: how long each took, ns.
        """
        number = self.number[rows]
        inside = np.flatnonzero(number >= 0)
        if not len(inside):
            return {}
        steps, lanes = len(self.place), len(self.steps)
        cells, which = ranked(group[inside] * steps + number[inside])
        counts = np.bincount(which).astype(np.float64)
        sums = np.bincount(which, weights=took[inside])
        pairs, which = ranked(cells // steps * lanes + self.place[cells % steps])
        of = self.steps[pairs % lanes]
        count = np.bincount(which, weights=counts) / of
        mean = np.bincount(which, weights=sums) / of
        # Steps without any of it count as zeros.
        deviation = np.sqrt(np.maximum(np.bincount(which, weights=sums**2) / of - mean**2, 0.0))
        found: dict[int, list[PerStep]] = {}
        for pair, *row in zip(
            pairs.tolist(), count.tolist(), (mean / 1e9).tolist(), (deviation / 1e9).tolist(), strict=True
        ):
            found.setdefault(pair // lanes, []).append(PerStep(pair % lanes, *row))
        return {own: tuple(rows_of) for own, rows_of in found.items()}
