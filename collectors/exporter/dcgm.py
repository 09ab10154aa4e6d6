"""Detects a dcgm-exporter on this node; the metrics that it exports are not exported twice."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection

from collectors.base.interruptible_sleep import InterruptibleSleep
from collectors.dcgm.page import URL, DcgmPage, UntrustedListener

POLL_SECONDS = 60.0
_LINE = re.compile(r'^(DCGM_FI_\w+)\{[^}]*?\bUUID="([^"]{1,128})"', re.MULTILINE)


class DcgmExporter:
    """Asks for the series of a dcgm-exporter now and then, in a thread of its own."""

    def __init__(self, url: str | None = None, warn: Callable[[str], None] = lambda _: None) -> None:
        """Prepare to ask.

        Args:
            url: of its metrics, as the user names it; None: the usual place, if root or this user listens there.
            warn: called by the thread, once for each listener that is ignored.

        Raises:
            UnusableInput: that is no URL of http.
        """
        self._page = DcgmPage(url)
        self._warn = warn
        self._series: Collection[tuple[str, str]] | None = None
        self._closed = False
        self._wake = InterruptibleSleep()
        self._thread = threading.Thread(target=self._run, name="llmtop-dcgm", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._closed = True
        self._wake.set()

    def series(self) -> Collection[tuple[str, str]] | None:
        """Pairs of UUID and metric that it exported last; empty without an exporter, None until known."""
        return self._series

    @property
    def untrusted_listener(self) -> UntrustedListener | None:
        """Return the untrusted listener on that port."""
        return self._page.ignored

    def _run(self) -> None:
        warned: UntrustedListener | None = None
        while not self._closed:
            self._series = frozenset((uuid, name) for name, uuid in _LINE.findall(self._page.ask()))
            ignored = self._page.ignored
            if ignored is not None and ignored != warned:
                warned = ignored
                self._warn(ignored.sentence(f"pass --dcgm-exporter {URL}") + "; the GPU series are exported here")
            self._wake.wait(POLL_SECONDS)
            self._wake.clear()
