"""Ranges of settings that the command line, the configuration and a training hold to."""

from __future__ import annotations

from typing import Final

MAX_CAPTURE_STEPS: Final = 1000
MIN_CAPTURE_SECONDS: Final = 0.1
MAX_CAPTURE_SECONDS: Final[float] = 600
"""Longest capture by the clock; a whole number, as the help shows it."""
MIN_INTERVAL_SECONDS: Final = 0.1
MAX_INTERVAL_SECONDS: Final = 3600.0
"""Longest time between two snapshots. GPM wants its samples 100 ms apart; above an hour nothing is live any
more."""
MIN_CLUSTER_INTERVAL_SECONDS: Final = 1.0
"""Shortest time between two rounds of queries to a Prometheus, which answers all clients."""
