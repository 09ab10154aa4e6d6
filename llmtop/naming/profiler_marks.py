"""Names that llmtop gives to ranges in a profiler's timeline, by which it finds them again in the trace."""

from __future__ import annotations

STEP = "llmtop.step"
DEVICES_DONE = "llmtop.devices_done"
"""The host waits until the devices have done what was launched."""
