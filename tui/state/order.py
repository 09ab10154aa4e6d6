"""Column by which a table is sorted."""

from __future__ import annotations

from typing import NamedTuple

STATE = "state"
"""Name of the last column of the tables of GPUs and ranks: alerts and states, the most severe first."""


class Order(NamedTuple):
    """Column by which a table is sorted, and the direction."""

    name: str = ""
    """Key of the column, else its title; empty: the usual order."""
    reverse: bool = False
    """Largest first."""
