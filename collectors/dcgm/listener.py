"""Who listens on a local port: whose answer it is that comes from there.

Any user may listen on a port above 1023 that is free. The kernel lists each listening socket with the uid of the
process that made it (/proc/net/tcp, tcp6), as this process's network and user namespaces see it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final, NamedTuple

_TABLES: Final = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_ROW: Final = re.compile(
    r"\s*\d+: (?P<address>[0-9A-F]{8}|[0-9A-F]{32}):(?P<port>[0-9A-F]{4}) \S+ 0A \S+ \S+ \S+ +(?P<uid>\d+)"
    r" +\d+ (?P<inode>\d+)\b"
)
"""One socket in the state LISTEN."""
_OVERFLOW_UID: Final = Path("/proc/sys/kernel/overflowuid")


class Listener(NamedTuple):
    """One listening socket."""

    inode: int
    uid: int


def listeners(address: str, port: int, tables: Collection[Path] = _TABLES) -> frozenset[Listener]:
    """The sockets that may accept a connection to this address; empty where none is seen.

    A container's port that is forwarded by packet filter rules has no listener in this network namespace.

    Args:
        address: an IP address of this machine.
        port: of TCP.
        tables: files of the kernel in the form of /proc/net/tcp.
    """
    wanted = _unmapped_address(address)
    return frozenset(
        listener
        for table in tables
        for place, listener in _listening(table, port)
        if place == wanted or ip_address(place).is_unspecified
    )


def is_trusted(found: Collection[Listener]) -> bool:
    """Whether root or this process's own user owns each of these sockets, and there is one."""
    uids = {listener.uid for listener in found}
    return bool(uids) and uids <= {0, os.geteuid()} - {_overflow_uid()}


def _listening(table: Path, port: int) -> Iterator[tuple[str, Listener]]:
    try:
        lines = table.read_text(encoding="ascii", errors="replace").splitlines()[1:]
    except OSError:
        return  # IPv6 may be off, and /proc hidden
    for line in lines:
        row = _ROW.match(line)
        if row is not None and int(row["port"], 16) == port:
            yield _address(row["address"]), Listener(int(row["inode"]), int(row["uid"]))


def _address(words: str) -> str:
    """An address as the kernel prints it: words of 32 bits, each in this machine's byte order."""
    raw = b"".join(
        int(words[place : place + 8], 16).to_bytes(4, sys.byteorder) for place in range(0, len(words), 8)
    )
    return _unmapped_address(str(ip_address(raw)))


def _unmapped_address(address: str) -> str:
    """The address, as IPv4 where it is one that IPv6 carries (::ffff:127.0.0.1)."""
    found = ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)


def _overflow_uid() -> int:
    """The overflow uid of this user namespace: it stands for any user outside it."""
    try:
        return int(_OVERFLOW_UID.read_text())
    except (OSError, ValueError):
        return 65534
