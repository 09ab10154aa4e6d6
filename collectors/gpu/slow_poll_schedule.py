"""Times of the slow polls of each GPU.

A slow poll holds the driver's lock for up to 25 ms per GPU (H200). So it runs between two fast rounds, which come
at multiples of the interval, and no two GPUs queue behind each other. They come before a multiple of their own
pace, so that a snapshot at a long interval has them fresh.
"""

from __future__ import annotations

AFTER_FAST_SECONDS, SPACING_SECONDS = 0.03, 0.1
TOGETHER_SECONDS = 0.5
"""Where fast rounds are so far apart, those of all GPUs follow each other at once, in turns: where each has
a place of its own it finds the processor's caches cold, and eight took twice as much of it (1.7 ms/s, now 0.8)."""


def slow_offset(index: int, interval: float) -> float:
    """Return the offset in seconds of a GPU's slow poll from the multiples of its pace."""
    return separate_offset(index) if interval < TOGETHER_SECONDS else AFTER_FAST_SECONDS - TOGETHER_SECONDS


def separate_offset(index: int) -> float:
    """Return the same where each GPU has a place of its own."""
    return AFTER_FAST_SECONDS - (index + 1) * SPACING_SECONDS
