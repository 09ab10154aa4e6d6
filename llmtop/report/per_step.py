"""Parts of the report: what kernels and operators come to in a step, by which captures can be set side by side."""

from __future__ import annotations

import msgspec


class PerStep(msgspec.Struct, frozen=True, array_like=True):
    """Work in a step of one device, mean over its whole steps: [place, count, seconds, deviation]."""

    place: int
    """Which device: its place in `Report.devices`. Those without whole steps have no such row."""
    count: float
    """Number of runs of a kernel, or of calls of an operator."""
    seconds: float
    """Device time, what ran at once added up."""
    deviation: float
    """How far the steps' seconds lie from their mean: the standard deviation."""
