"""A dcgm-exporter on this node: its text, and what is taken from it where NVML has no counters (before Hopper)."""
