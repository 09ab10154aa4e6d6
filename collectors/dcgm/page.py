"""The text that a dcgm-exporter on this node gives."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import urlsplit

from collectors.base.listener import Listener, is_trusted, listeners, name_uids, untrusted_uids
from llmtop.errors import UnusableInput
from llmtop.naming.addresses import DCGM_EXPORTER

URL = DCGM_EXPORTER
MAX_BYTES = 8 << 20
"""Limit of an answer: a node of 16 GPUs with 80 fields each has 400 KiB."""
LIMIT_SECONDS = 2.0


class UntrustedListener(NamedTuple):
    """A listener at `URL` that is not believed."""

    uids: tuple[int, ...]
    """Users who listen there; empty where that cannot be read."""

    def sentence(self, how: str) -> str:
        """Return a sentence on the ignored data, the reason, and the next action.

        Args:
            how: to name the URL, which makes it believed.
        """
        return (
            f"{URL} is ignored: {name_uids(self.uids)}, and only root and llmtop's own user are trusted; if it is "
            f"this node's dcgm-exporter, {how}"
        )


class DcgmPage:
    """Where its text is; each `ask` is one request of two seconds at most, by the caller's thread."""

    def __init__(self, url: str | None = None) -> None:
        """Prepare to ask.

        Args:
            url: of its metrics, as the user names it. None: `URL`, where any user of the machine may listen; only
                a listener of root's or of this process's user is believed there.

        Raises:
            UnusableInput: that is no URL of http.
        """
        self._is_named = url is not None
        url = url or URL
        try:
            parts = urlsplit(url)
            is_usable = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
        except ValueError:  # no address of IPv6, or no number as its port
            is_usable = False
        if not is_usable:
            from llmtop.redaction.secret_filter import without_known_secrets  # for an error alone

            shown = without_known_secrets(url)
            raise UnusableInput(
                f"{shown!r} is not the URL of a dcgm-exporter, such as {URL}; pass none if there is no exporter"
            )
        self._host, self._port, self._path = str(parts.hostname), parts.port or 80, parts.path or "/metrics"
        self.ignored: UntrustedListener | None = None
        """Set by `ask` where a process of an untrusted user listens."""

    def ask(self) -> str:
        """Its answer, or the beginning of it; "" where there is none, or it is not believed."""
        before = frozenset() if self._is_named else listeners(self._host, self._port)
        if before and not is_trusted(before):
            self.ignored = _untrusted_listener(before)
            return ""
        answer = self._fetch()
        if answer is None or self._is_named:
            self.ignored = None
            return answer or ""
        after = listeners(self._host, self._port)
        self.ignored = None if is_trusted(after) else _untrusted_listener(after)
        # Another listener than before may be the one that answered.
        return answer if before == after and self.ignored is None else ""

    def _fetch(self) -> str | None:
        """None where no connection is accepted."""
        import http.client  # loads OpenSSL, 3 MiB that a monitor without an exporter saves

        connection = http.client.HTTPConnection(self._host, self._port, timeout=LIMIT_SECONDS)
        until, body = time.monotonic() + LIMIT_SECONDS, bytearray()
        try:
            connection.connect()
        except OSError:
            return None
        try:
            connection.request("GET", self._path)
            answer = connection.getresponse()
            while answer.status == http.client.OK and len(body) < MAX_BYTES and time.monotonic() < until:
                piece = answer.read1(1 << 16)
                if not piece:
                    break
                body += piece
        except (OSError, http.client.HTTPException, ValueError):
            return ""
        finally:
            connection.close()
        return body.decode("utf-8", "replace")


def _untrusted_listener(found: Collection[Listener]) -> UntrustedListener:
    return UntrustedListener(untrusted_uids(found))
