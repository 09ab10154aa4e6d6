"""TCP sockets that listen, as the kernel lists them in /proc/PID/net/tcp and tcp6."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

from llmtop.system import procfs

_TABLES: Final = ("tcp", "tcp6")
_ROW: Final = re.compile(
    r"\s*\d+: (?P<address>[0-9A-F]{8}|[0-9A-F]{32}):(?P<port>[0-9A-F]{4}) \S+ 0A \S+ \S+ \S+ +(?P<uid>\d+)"
    r" +\d+ (?P<inode>\d+)\b"
)
"""One socket in the state LISTEN."""


class ListeningSocket(NamedTuple):
    """One row of the kernel's table."""

    address: str
    """An IP address; of IPv4 also where IPv6 carries it (::ffff:127.0.0.1)."""
    port: int
    uid: int
    inode: int

    @property
    def is_on_any_address(self) -> bool:
        """Return True if it accepts connections to all addresses of the machine."""
        return ip_address(self.address).is_unspecified


def listening_sockets(pid: procfs.Pid = "self") -> Iterator[ListeningSocket]:
    """Yield the sockets that listen in a process's network namespace, as its user namespace sees them.

    Nothing where this cannot be seen: IPv6 may be off, and the files hidden.
    """
    for name in _TABLES:
        for line in procfs.text(pid, "net", name).splitlines()[1:]:
            row = _ROW.match(line)
            if row is not None:
                yield ListeningSocket(
                    _address(row["address"]), int(row["port"], 16), int(row["uid"]), int(row["inode"])
                )


def sockets_of(pid: int) -> list[ListeningSocket]:
    """Return those of them that the process has open."""
    opened = set(procfs.opened_files(pid))
    return [one for one in listening_sockets(pid) if f"socket:[{one.inode}]" in opened]


def unmapped_address(address: str) -> str:
    """Return the address, as IPv4 where it is one that IPv6 carries (::ffff:127.0.0.1)."""
    found = ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)


def _address(words: str) -> str:
    """Return an address as the kernel prints it: words of 32 bits, each in this machine's byte order."""
    raw = b"".join(
        int(words[place : place + 8], 16).to_bytes(4, sys.byteorder) for place in range(0, len(words), 8)
    )
    return unmapped_address(str(ip_address(raw)))
