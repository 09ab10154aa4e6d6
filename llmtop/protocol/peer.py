"""Peer of a unix socket."""

from __future__ import annotations

import os
import socket
import struct

_PEERCRED = struct.Struct("3i")  # pid, uid, gid of struct ucred


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of the process at the other end, in this process's namespaces.

    On the connecting side that is the process that called listen(). A pid of 0 means that it is not visible from
    here.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    pid, uid, _ = _PEERCRED.unpack(raw)
    return pid, uid


def peer_allowed(uid: int) -> bool:
    """Return True if a peer of that uid is trusted: the same user, or root."""
    return uid in (os.geteuid(), 0)
