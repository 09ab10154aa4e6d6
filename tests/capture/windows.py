"""Windows of py-spy that are long enough on a busy machine too, where it may get no CPU for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from llmtop.errors import NotPossibleHere

LONGER = (3.0, 10.0)
"""Seconds of the windows that are tried where the one before had too few samples."""
NO_SAMPLES = "py-spy wrote no samples"
T = TypeVar("T")


def sampled(
    capture: Callable[[float], T], is_enough: Callable[[T], bool] = lambda found: True, first: float = 0.3
) -> T:
    """Return what `capture(seconds)` found in a window of that length, a longer one where it was too short.

    Args:
        capture: called with the seconds; what it raises is passed on, except that there were no samples.
        is_enough: whether the samples that it found are enough to judge them. The last window's are returned
            whatever they are.
        first: seconds of the first window.
    """
    for seconds in (first, LONGER[0]):
        try:
            found = capture(seconds)
        except NotPossibleHere as error:
            if NO_SAMPLES not in str(error):
                raise
            continue
        if is_enough(found):
            return found
    return capture(LONGER[1])
