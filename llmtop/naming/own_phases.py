"""Names of phases that llmtop itself gives."""

from __future__ import annotations

DATALOAD = "dataload"
"""The script waits for a batch."""
OUTSIDE = "outside"
"""What no phase of a step covers."""
