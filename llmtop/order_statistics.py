"""Percentiles and spread of step times without numpy: live figures and reports compute them here.

The median of values is `statistics.median` everywhere (`numpy.median` of arrays): the mean of the two in the
middle of an even number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def percentile(ordered: Sequence[float], pct: float) -> float | None:
    """Return a percentile, linear between neighbours as numpy's default method rounds: from the nearer neighbour.

    Args:
        ordered: values in ascending order; not checked.
        pct: 0 to 100; not checked.

    Returns:
        In the unit of the values; None without values.
    """
    if not ordered:
        return None
    place = (len(ordered) - 1) * pct / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    part, apart = place - low, ordered[high] - ordered[low]
    return ordered[low] + apart * part if part < 0.5 else ordered[high] - apart * (1 - part)


def spread_pct(values: Iterable[float]) -> float | None:
    """Return the interquartile range in percent of the median; None without values or a positive median."""
    ordered = sorted(values)
    low, middle, high = (percentile(ordered, pct) for pct in (25, 50, 75))
    if low is None or middle is None or high is None or middle <= 0:
        return None
    return 100.0 * (high - low) / middle
