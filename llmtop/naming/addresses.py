"""Addresses of other programs, where several modules name them."""

from __future__ import annotations

DCGM_EXPORTER = "http://127.0.0.1:9400/metrics"
"""Where a node's dcgm-exporter listens unless it is configured otherwise."""
PROMETHEUS_EXAMPLE = "http://node:9090"
"""What the URL of a Prometheus looks like."""
