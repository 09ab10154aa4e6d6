"""Confidence of a share that is known from samples."""

from __future__ import annotations

import math
from typing import Final

_Z95: Final = 1.96
"""Standard deviations of a normal distribution that hold 95 %."""


def wilson_interval(part: int, whole: int) -> tuple[float, float]:
    """Return the 95 % interval of a share, from 0 to 1 (E. B. Wilson, JASA 22, 1927).

    Args:
        part: samples that have it.
        whole: all samples; with none the share may be anything.
    """
    if whole <= 0:
        return 0.0, 1.0
    share, z2 = part / whole, _Z95 * _Z95
    middle = share + z2 / (2 * whole)
    spread = _Z95 * math.sqrt(share * (1 - share) / whole + z2 / (4 * whole * whole))
    return (middle - spread) / (1 + z2 / whole), (middle + spread) / (1 + z2 / whole)
