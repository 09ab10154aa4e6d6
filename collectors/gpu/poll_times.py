"""When a driver's library is asked, and how long its answers hold: the same for NVML and amdsmi."""

from __future__ import annotations

DISCOVERY_SECONDS = 2.0
"""Time between looks at which GPUs there are; also how soon a missing driver is tried again."""
FIRST_DISCOVERY_SECONDS = 2.0
"""For so long a reading without GPUs means that they are still being counted; then it has those found so far."""
RESTART_SECONDS = 5.0
"""The library is started again no more often than this while no GPU answers."""
RESTART_SECONDS_BESIDE_HEALTHY = 60.0
"""And than this while some GPU answers, because all of them miss a round then."""
SLOW_SECONDS = 2.0
"""Time between rounds of slow calls (NVML: 15 to 20 ms a GPU, perhaps under one lock of the driver). NVML's own
PCIe calls, made only where GPM has no PCIe rates, take 42 ms."""
SETTLE_SECONDS = 3.0
"""For so long a GPU may take until it has been sampled twice; then what there is has to do."""
STALE_SECONDS = 2.0
"""A value is dropped after three rounds without a fresh one, and not before this."""


def unanswered_note(waiting: tuple[str, float] | None) -> str | None:
    """Return the sentence on a call that has not returned since a look at the GPUs; None without one.

    Args:
        waiting: its name, and for how many seconds it has been under way.
    """
    if waiting is None or waiting[1] <= DISCOVERY_SECONDS:
        return None
    return f"the driver has not answered {waiting[0]} for {waiting[1]:.0f} s"
