"""Names of phases that llmtop itself gives."""

from __future__ import annotations

DATALOAD = "dataload"
"""The script waits for a batch."""
OUTSIDE = "outside"
"""Name of the time that no phase of a step covers."""
_UNTIMED = "untimed"


def phase_label(name: str) -> str:
    """Return a phase's name for a person; `OUTSIDE`, which snapshots and reports hold, reads "untimed"."""
    return _UNTIMED if name == OUTSIDE else name
