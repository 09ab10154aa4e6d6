"""The text that a dcgm-exporter on this node gives."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from llmtop.errors import UnusableInput

URL = "http://127.0.0.1:9400/metrics"
"""Where it listens unless told otherwise."""
MOST_BYTES = 8 << 20
"""Of an answer: a node of 16 GPUs with 80 fields each has 400 KiB."""
LIMIT_SECONDS = 2.0


class DcgmPage:
    """Where its text is; each `ask` is one request of two seconds at most, by the caller's thread."""

    def __init__(self, url: str = URL) -> None:
        """Prepare to ask.

        Args:
            url: of its metrics.

        Raises:
            UnusableInput: that is no URL of http.
        """
        parts = urlsplit(url)
        try:
            port = parts.port or 80
        except ValueError:
            port = 0
        if parts.scheme != "http" or not parts.hostname or not port:
            raise UnusableInput(f"{url!r} is no URL of a dcgm-exporter, such as {URL}; none: there is none to ask")
        self._host, self._port, self._path = parts.hostname, port, parts.path or "/metrics"

    def ask(self) -> str:
        """Its answer, or the beginning of it; "" where there is none."""
        import http.client  # OpenSSL comes with it, 3 MiB that a monitor does without where nobody is asked

        connection = http.client.HTTPConnection(self._host, self._port, timeout=LIMIT_SECONDS)
        until, body = time.monotonic() + LIMIT_SECONDS, bytearray()
        try:
            connection.request("GET", self._path)
            answer = connection.getresponse()
            while answer.status == http.client.OK and len(body) < MOST_BYTES and time.monotonic() < until:
                piece = answer.read1(1 << 16)
                if not piece:
                    break
                body += piece
        except (OSError, http.client.HTTPException, ValueError):
            return ""
        finally:
            connection.close()
        return body.decode("utf-8", "replace")
