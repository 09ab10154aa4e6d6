"""What a bench came to, as text."""

from __future__ import annotations

from llmtop.bench.model import Bench


def render(found: Bench) -> str:
    """A line for each figure over all runs, and what has to be said of single ones."""
    return "\n".join(str(run.ended) for run in found.runs)
