"""Phases begun and ended apart, as hooks do it."""

from __future__ import annotations

from llmtop.instrument.record.recorder import phase_of


def begin_phase(name: str) -> None:
    """Begin a phase in the calling thread."""
    phase_of(name).__enter__()


def end_phase(name: str) -> None:
    """End it; what was begun within it and not ended is left out."""
    phase_of(name).__exit__(None, None, None)
