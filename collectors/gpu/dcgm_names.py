"""DCGM's names of values, which are exported and asked of a Prometheus: those of the table of signals."""

from __future__ import annotations

from llmtop.model.signals import SERIES

_NAMES = {signal.field: series.name for signal, series in SERIES}
SM_ACTIVE = _NAMES["sm_active_pct"]
TEMPERATURE = _NAMES["temperature_c"]
INSTANCE_LABEL = "GPU_I_ID"
"""Number of a MIG instance."""
