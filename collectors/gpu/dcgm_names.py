"""DCGM's names of values, which are read from a dcgm-exporter, exported, and asked of a Prometheus."""

from __future__ import annotations

SM_ACTIVE = "DCGM_FI_PROF_SM_ACTIVE"
SM_OCCUPANCY = "DCGM_FI_PROF_SM_OCCUPANCY"
TENSOR_ACTIVE = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
DRAM_ACTIVE = "DCGM_FI_PROF_DRAM_ACTIVE"
POWER_USAGE = "DCGM_FI_DEV_POWER_USAGE"
POWER_LIMIT = "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"
TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
INSTANCE_LABEL = "GPU_I_ID"
"""Number of a MIG instance."""
