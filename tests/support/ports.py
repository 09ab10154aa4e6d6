"""Ports for programs that bind one by its number, seconds after it was chosen."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

_FIRST, _LAST = 20_000, 32_767
_MOST_WORKERS = 16


def _last_outside() -> int:
    """The last port below those that the system gives to who binds port 0, of which no program is safe."""
    try:
        first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _LAST
    return min(_LAST, first_given - 1) if first_given > _FIRST + 1000 else _LAST


def _own_ports() -> range:
    """Those of this worker of pytest-xdist: no two workers of one run choose the same."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    number = int(worker) if worker.isdigit() else os.getpid()
    return range(_FIRST + number % _MOST_WORKERS, _last_outside() + 1, _MOST_WORKERS)


_given: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on now, and that the system gives to nobody; each call returns another one.

    Raises:
        AssertionError: there is none.
    """
    own = _own_ports()
    for port in random.SystemRandom().sample(own, len(own)):
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise AssertionError(f"no port of {own} is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
