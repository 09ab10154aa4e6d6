"""Finds the profiler port of a training on torch_xla without a message to the training.

The script has called torch_xla.debug.profiler.start_server(PORT). Which port that is, the kernel tells; where it
may be one of several, each is connected to and listened to for a moment: a server of gRPC speaks first. Ports that
are bound to one address (gloo's and NCCL's) and MASTER_PORT are left alone.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from llmtop.capture.base.engine import Refusal
from llmtop.errors import NotPossibleHere
from llmtop.naming import variable_names
from llmtop.system import procfs
from llmtop.system.tcp_sockets import sockets_of

VARIABLE: Final = "LLMTOP_XLA_PORT"
"""Environment variable with the port, where it must be given: of the training, else of the monitor."""
START: Final = "torch_xla.debug.profiler.start_server(9012)   # in the script; keep the returned object"
_EXTENSION: Final = re.compile(r"/\S.*/_XLAC\.[^/]*\.so$")
_PACKAGES: Final = re.compile(r"^(/.*?/(?:site|dist)-packages)/")
_SPEAKS_SECONDS: Final = 1.0
_SETTINGS: Final = 4
"""The type of the first frame that a server of HTTP/2 sends."""
_HEAD: Final = 9
_NO_TORCH_XLA: Final = Refusal("the process has not imported torch_xla")


def loaded_extension(pid: int) -> Path | None:
    """Return the library of torch_xla that a process has loaded; None if it has none, or may not be inspected."""
    return next((Path(name) for name in _mapped_files(pid) if _EXTENSION.match(name)), None)


def package_folders(pid: int) -> list[str]:
    """Return the folders of packages from which a process has loaded libraries, that of torch_xla first."""
    found = [match[1] for name in _mapped_files(pid) if (match := _PACKAGES.match(name))]
    own = loaded_extension(pid)
    return list(dict.fromkeys([*([] if own is None else [str(own.parent)]), *found]))


def _mapped_files(pid: int) -> list[str]:
    try:
        return [name for name in procfs.mapped_files(pid) if name.endswith(".so")]
    except OSError:
        return []


def candidate_ports(pid: int) -> list[int]:
    """Return the candidates for the profiler's port: the configured one, else each possible one.

    Raises:
        NotPossibleHere: the process is another user's, the configured one is no port, or none that it listens on.
    """
    environ = procfs.environ(pid)
    known = sockets_of(pid)
    said = environ.get(VARIABLE) or os.environ.get(VARIABLE)
    if said:
        if not any(str(one.port) == said for one in known):
            there = ", ".join(sorted({str(one.port) for one in known})) or "none"
            raise NotPossibleHere(
                f"{VARIABLE} is {said[:20]}, but the process does not listen there (its ports: {there})"
            )
        return [int(said)]
    rendezvous = environ.get(variable_names.MASTER_PORT)
    return sorted({one.port for one in known if one.is_on_any_address and str(one.port) != rendezvous})


def refusal(pid: int) -> Refusal | None:
    """Return why no window can be had of a process by torch_xla's profiler; None if one can. Asks the kernel
    alone."""
    if loaded_extension(pid) is None:
        return _NO_TORCH_XLA
    try:
        there = candidate_ports(pid)
    except NotPossibleHere as refused:
        return Refusal(str(refused).partition(";")[0], f"set {VARIABLE}" if VARIABLE in str(refused) else "")
    if not _is_in_same_network(pid):
        return Refusal("the process is in another container, with its own network", "run llmtop in that container")
    return None if there else Refusal("the script has not started the profiler server of torch_xla", START)


def profiler_port(pid: int) -> int:
    """Return the port on which the profiler of a process listens.

    Raises:
        NotPossibleHere: none is one, or several may be.
    """
    there = candidate_ports(pid)
    speaking = [port for port in there if is_grpc_server(port)]
    if len(speaking) == 1:
        return speaking[0]
    name = f"pid {pid}"
    if speaking:
        several = ", ".join(map(str, speaking))
        raise NotPossibleHere(
            f"{name} has several gRPC servers (ports {several}): set {VARIABLE} to the port of the profiler"
        )
    if procfs.is_stopped(pid):
        raise NotPossibleHere(
            f"{name} is stopped, so its profiler does not reply: continue it with kill -CONT {pid}"
        )
    tried = ", ".join(map(str, there)) or "none"
    raise NotPossibleHere(
        f"{name} has no profiler server of torch_xla that answers (open ports: {tried}); start one in the "
        "script: torch_xla.debug.profiler.start_server(9012)"
    )


def is_grpc_server(port: int) -> bool:
    """Return True if a server of HTTP/2 listens at that port of this machine; nothing is sent to it."""
    for host in ("127.0.0.1", "::1"):
        with suppress(OSError):
            return _is_http2_greeting(socket.create_connection((host, port), _SPEAKS_SECONDS))
    return False


def _is_http2_greeting(connection: socket.socket) -> bool:
    with connection, suppress(OSError):
        head = b""
        while len(head) < _HEAD and (piece := connection.recv(_HEAD - len(head))):
            head += piece
        return len(head) == _HEAD and head[3] == _SETTINGS and not any(head[5:])
    return False


def serving_pids(pids: set[int]) -> dict[int, bool]:
    """Return those of these processes that have a port of torch_xla's profiler; False for a fork that inherited
    it."""
    ports: dict[int, set[int]] = {}
    for pid in pids:
        if loaded_extension(pid) is None:
            continue
        with suppress(NotPossibleHere):
            wanted = set(candidate_ports(pid))
            ports[pid] = {one.inode for one in sockets_of(pid) if one.port in wanted}
    found = {}
    for pid, inodes in ports.items():
        inherited = inodes and inodes <= ports.get(procfs.parent(pid) or 0, set())
        if inodes:
            found[pid] = not inherited
    return found


def _is_in_same_network(pid: int) -> bool:
    """Return True if a process is in this process's network namespace, as far as that is visible."""
    both = {procfs.namespace(pid, "net"), procfs.namespace("self", "net")}
    return len(both) == 1 or "" in both
