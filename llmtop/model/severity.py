"""Severity of alerts and findings: the three words of the contract, and their order."""

from __future__ import annotations

from typing import Final, Literal

Severity = Literal["info", "warning", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")
"""The mildest first."""


def severity_rank(severity: str) -> int:
    """Return the place in `SEVERITIES`: 0 info, 1 warning, 2 critical; 0 too for a word that a newer version
    wrote."""
    return next((place for place, known in enumerate(SEVERITIES) if known == severity), 0)
