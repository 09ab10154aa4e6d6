"""Thresholds that the user has set in the configuration, in the place of those that a rule has by itself.

Rules are loaded after the configuration has been read (`llmtop.__main__`), so a threshold and the words about it
are made once, of the same number.
"""

from __future__ import annotations

from typing import Final

from llmtop import config
from llmtop.config import Alerts

CONFIGURED: Final[Alerts] = config.current().alerts


def threshold_pair(chosen: float | None, usual: tuple[float, float]) -> tuple[float, float]:
    """To raise an alert, and to keep it: the usual two, or the chosen one and a second as much easier."""
    return usual if chosen is None else (chosen, chosen * usual[1] / usual[0])
