"""Owner of a local port: whose answer comes from there.

Any user may listen on a port above 1023 that is free. The kernel lists each listening socket with the uid of the
process that made it, as this process's network and user namespaces see it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

from llmtop.system import procfs
from llmtop.system.tcp_sockets import listening_sockets, unmapped_address

_USUAL_OVERFLOW_UID = 65534


class Listener(NamedTuple):
    """One listening socket."""

    inode: int
    uid: int


def listeners(address: str, port: int) -> frozenset[Listener]:
    """Return the sockets that may accept a connection to this address; empty where none is seen.

    A container's port that is forwarded by packet filter rules has no listener in this network namespace.

    Args:
        address: an IP address of this machine.
        port: of TCP.
    """
    wanted = unmapped_address(address)
    return frozenset(
        Listener(one.inode, one.uid)
        for one in listening_sockets()
        if one.port == port and (one.address == wanted or one.is_on_any_address)
    )


def is_trusted(found: Collection[Listener], owners: Collection[int] = ()) -> bool:
    """Return True if root, this process's own user or one of `owners` owns each of these sockets, and there is
    one.

    Args:
        found: sockets that may accept a connection.
        owners: uids of the processes that the answer is about.
    """
    uids = {listener.uid for listener in found}
    return bool(uids) and uids <= {0, os.geteuid(), *owners} - {_overflow_uid()}


def uids_of(pids: Iterable[int]) -> frozenset[int]:
    """Return the uids of processes of this machine, without those that are gone or hidden."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            found.add(os.stat(procfs.path(pid)).st_uid)
    return frozenset(found)


def untrusted_uids(found: Collection[Listener], owners: Collection[int] = ()) -> tuple[int, ...]:
    """Return the uids of those of the sockets that `is_trusted` does not trust."""
    return tuple(sorted({listener.uid for listener in found if not is_trusted((listener,), owners)}))


def name_uids(uids: Collection[int]) -> str:
    """Return the users who listen there, in a sentence; none where that cannot be read."""
    users = ", ".join(map(str, uids))
    return f"user {users} listens there" if users else "whose process listens there is not visible to this user"


def _overflow_uid() -> int:
    """Return the uid that stands for all that this user namespace has no number of: it may be any user's."""
    uid = procfs.kernel_setting("kernel", "overflowuid")
    return _USUAL_OVERFLOW_UID if uid is None else uid
