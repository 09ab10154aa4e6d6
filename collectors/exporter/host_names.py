"""Which Host values the exporter answers to.

A web page can make its visitor's browser ask any address that the page's own name is made to resolve to (DNS
rebinding), this machine's loopback address too. The browser then sends the page's name as Host, so the exporter
answers to its own names alone. An IP address as Host cannot come about in this way.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

ANY: Final = "*"
_RETRY_SECONDS: Final = 60.0
RESOLVER: Final = Path("/etc/resolv.conf")


class HostNames:
    """The names to which this exporter answers. Any thread may ask."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        """Find the names that need no name service.

        Args:
            allowed: names beside the machine's own; one that begins with a dot allows all names that end in it,
                and "*" allows any.
        """
        self._any = ANY in allowed
        self._suffixes = tuple(_normalize(name) for name in allowed if name.startswith("."))
        self._names = {"localhost", *map(_normalize, allowed), *_own_names()}
        self._lock = threading.Lock()
        self._asked_at: float | None = None

    def __contains__(self, host: object) -> bool:
        """Return True if the exporter answers to this value of Host; absent, it is from no browser."""
        if host is None or self._any:
            return True
        name = _name_in(str(host))
        if _is_address(name) or name in self._names or (name and name.endswith(self._suffixes)):
            return True
        self._ask()
        return name in self._names

    def _ask(self) -> None:
        """Add what the name service calls this machine: in the thread of who needs it, as it may take seconds."""
        with self._lock:
            if self._asked_at is None or time.monotonic() - self._asked_at > _RETRY_SECONDS:
                with suppress(OSError, UnicodeError):
                    name, aliases, _ = socket.gethostbyaddr(socket.gethostname())
                    self._names.update(map(_normalize, (name, *aliases)))
                self._asked_at = time.monotonic()


def _own_names() -> set[str]:
    """Return the host name, short and whole, and with each domain that names are searched in."""
    name = _normalize(socket.gethostname())
    short = name.partition(".")[0]
    return {name, short, *(f"{short}.{domain}" for domain in _search_domains(RESOLVER))} - {""}


def _search_domains(file: Path) -> set[str]:
    try:
        lines = file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return set()
    found = (line.split() for line in lines)
    domains = {
        _normalize(word) for words in found if words and words[0] in ("search", "domain") for word in words[1:]
    }
    return domains - {""}


def _name_in(host: str) -> str:
    """Return the name or address of "name:port", "[address]:port" and the like."""
    host = host.strip()
    if host.startswith("["):
        return host[1:].partition("]")[0].partition("%")[0]
    return _normalize(host.rpartition(":")[0] if host.count(":") == 1 else host)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _normalize(name: str) -> str:
    return name.lower().removesuffix(".")
