"""Whether a dcgm-exporter is on this node, and what it tells of which GPU: that is left to it."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from collectors.alarm import Alarm
from llmtop.errors import UnusableInput

URL = "http://127.0.0.1:9400/metrics"
"""Where it listens unless told otherwise."""
AGAIN_SECONDS = 60.0
MOST_BYTES = 8 << 20
"""Of an answer: a node of 16 GPUs with 80 fields each has 400 KiB."""
LIMIT_SECONDS = 2.0
_LINE = re.compile(r'^(DCGM_FI_\w+)\{[^}]*?\bUUID="([^"]{1,128})"', re.MULTILINE)


class DcgmExporter:
    """Asks for the series of a dcgm-exporter now and then, in a thread of its own."""

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
        self._series: Collection[tuple[str, str]] | None = None
        self._closed = False
        self._wake = Alarm()
        self._thread = threading.Thread(target=self._run, name="llmtop-dcgm", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._closed = True
        self._wake.set()

    def series(self) -> Collection[tuple[str, str]] | None:
        """Pairs of UUID and name that it told last; empty where nobody answers, None until that is known."""
        return self._series

    def _run(self) -> None:
        while not self._closed:
            self._series = frozenset((uuid, name) for name, uuid in _LINE.findall(self._ask()))
            self._wake.wait(AGAIN_SECONDS)
            self._wake.clear()

    def _ask(self) -> str:
        """Its answer, or the beginning of it; "" where there is none."""
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
