"""The optional parts of llmtop, and how to install one of them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

EXTRAS: Final = MappingProxyType(
    {
        "amd": "amdsmi",
        "cluster": "prometheus-client httpx",
        "kernels": "ncu-report",
        "mcp": "mcp",
        "otel": "opentelemetry-exporter-otlp-proto-http prometheus-client",
        "tpu": "tpu-info",
    }
)
"""Packages of each extra of `pyproject.toml`, as arguments of pip."""


def pip_command(extra: str) -> str:
    """Return the command that installs the packages of an extra beside any llmtop, from a checkout or a wheel."""
    return f"pip install {EXTRAS[extra]}"


def how_to_install(extra: str) -> str:
    """Return both ways to install an extra: no package index has llmtop itself before its first release."""
    return f"in a checkout of llmtop: pip install '.[{extra}]'; elsewhere: {pip_command(extra)}"
