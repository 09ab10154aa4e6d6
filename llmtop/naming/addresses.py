"""Addresses of other programs, where several modules name them."""

from __future__ import annotations

from urllib.parse import urlsplit

DCGM_EXPORTER = "http://127.0.0.1:9400/metrics"
"""Where a node's dcgm-exporter listens unless it is configured otherwise."""
PROMETHEUS_EXAMPLE = "http://node:9090"
"""Example of a Prometheus URL."""


def is_server_url(url: str) -> bool:
    """Return True if a text is a URL of http or https with a host and, if any, a port of 1 to 65535."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # no address of IPv6, or no number as its port
        return False
    return is_usable and not any(letter.isspace() for letter in url)


def without_login(url: str) -> str:
    """Return a URL, also an invalid one, without user and password."""
    scheme, separator, rest = url.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2]
