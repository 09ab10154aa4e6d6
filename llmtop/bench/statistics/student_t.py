"""Quantiles of Student's t, for few runs: numpy alone, any degrees of freedom, whole or not."""

from __future__ import annotations

import math

import numpy as np

_POINTS = 20001


def t_quantile(probability: float, degrees: float) -> float:
    """Return the value that a t-distributed number stays below with this probability.

    With x = sqrt(degrees) tan(angle) its density is cos(angle) ** (degrees - 1) but for a factor, which is summed
    up and looked up backwards; right to three digits for what intervals need.

    Args:
        probability: from 0.5 up to, not including, 1.
        degrees: degrees of freedom, above 0; not whole ones come of runs whose noise differs (Welch).

    Raises:
        ValueError: `probability` or `degrees` is none such.
    """
    if not (0.5 <= probability < 1.0 and degrees > 0.0):
        raise ValueError(f"no quantile of t at {probability} with {degrees} degrees of freedom")
    degrees = min(degrees, 1000.0)  # beyond, it is the normal distribution
    # Close to a right angle the tail of few degrees lies, and close to none that of many: evenly in the tangent's
    # logarithm both are met.
    tangents = np.concatenate(([0.0], np.geomspace(1e-6, 1e9, _POINTS)))
    angles = np.arctan(tangents)
    density = np.exp((degrees - 1.0) * np.log(np.maximum(np.cos(angles), 1e-300)))
    pieces = 0.5 * (density[1:] + density[:-1]) * np.diff(angles)
    below = np.concatenate(([0.0], np.cumsum(pieces)))
    wanted = (probability - 0.5) * 2.0 * below[-1]
    return math.sqrt(degrees) * float(np.interp(wanted, below, tangents))
