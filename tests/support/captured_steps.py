"""Counts the steps of a capture of a real training, which other programs may slow down."""

from __future__ import annotations

from llmtop.report.model import Report


def whole_steps(report: Report) -> int:
    """Return how many whole steps a capture has.

    Args:
        report: of the capture; it leaves the first one out of the shares, and states so, where the start of the
            capture slowed that step down.
    """
    return report.steps.count + report.steps.left_out.count("the first whole step (slowed down by the start")
