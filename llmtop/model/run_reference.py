"""Figures of an earlier run that serve as reference for a running training."""

from __future__ import annotations

from typing import Final

import msgspec

FIRST_SECONDS: Final = 3600.0
"""How long a training is held to it, and of which part of that run: later, sequences may be longer."""


class RunReference(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier run of the same command on the same hardware: the first rank of a training is held to it."""

    run: str
    """Its id, as of `llmtop runs`."""
    started: float
    """Unix time."""
    step_seconds_p50: float
    """Median step of its first hour, from start to start."""
    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    """Both: of one rank, the median; None where its script did not count them."""
