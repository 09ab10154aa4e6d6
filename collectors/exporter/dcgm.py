"""Whether a dcgm-exporter is on this node, and what it tells of which GPU: that is left to it."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection

from collectors.alarm import Alarm
from collectors.dcgm.page import URL, DcgmPage

AGAIN_SECONDS = 60.0
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
        self._page = DcgmPage(url)
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
            self._series = frozenset((uuid, name) for name, uuid in _LINE.findall(self._page.ask()))
            self._wake.wait(AGAIN_SECONDS)
            self._wake.clear()
