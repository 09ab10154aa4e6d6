"""The process beside `llmtop run` that hosts Kineto's fabric until the training has ended.

It is no child of the training (which might wait for any child), holds neither its terminal nor its streams, and
ends by itself when the watched process is gone and nothing asks any more.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from llmtop.capture.kineto import daemon as kineto
from llmtop.capture.kineto import messages
from llmtop.capture.kineto.daemon import FabricHost
from llmtop.errors import NotPossibleHere
from llmtop.naming import variable_names
from llmtop.system import procfs


def start_host(environment: MutableMapping[str, str], watched: int) -> bool:
    """Prepare `environment` for captures of what is started with it, and host the fabric beside it.

    Args:
        environment: of the training to be; changed in place.
        watched: the pid with whose end the host may end (for a launcher that execs: its own).

    Returns:
        False, with nothing changed, where the user's own Kineto settings are in it or it cannot be hosted: a
        training is never kept from starting by this.
    """
    if variable_names.KINETO_DAEMON in environment or variable_names.KINETO_CONFIG in environment:
        return False
    try:
        directory, service, control = kineto.bind()
    except (NotPossibleHere, OSError):
        return False
    with service, control:
        _spawn(directory, service.fileno(), control.fileno(), watched)
    for name, value in kineto.environment(directory).items():
        environment.setdefault(name, value)
    return True


def _spawn(directory: Path, service: int, control: int, watched: int) -> None:
    """Start the host detached from this process."""
    home = str(Path(__file__).resolve().parents[3])
    variables = {**os.environ, "PYTHONPATH": home}
    # -P: the folder that the launcher was called in is no place to import from
    flags = ["-P"] if sys.version_info >= (3, 11) else []
    command = [sys.executable, *flags, "-m", "llmtop.capture.kineto.spawn", str(directory)]
    command += [str(service), str(control), str(watched)]
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    # Nothing may be raised past this point: two copies of the launcher would go on.
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        _detach(keep={service, control})
        os.execve(sys.executable, command, variables)
    finally:
        os._exit(127)


def _detach(keep: set[int]) -> None:
    """Close the terminal, the streams, the folder, and every file that a shell passed on."""
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for fd in procfs.open_descriptors():
        if fd > 2 and fd not in keep:
            with suppress(OSError):
                os.close(fd)
    for fd in keep:
        os.set_inheritable(fd, True)


def main(arguments: list[str]) -> None:
    """Host until the watched process and all that ask have gone."""
    directory, service, control, watched = arguments
    host = FabricHost(Path(directory), socket.socket(fileno=int(service)), socket.socket(fileno=int(control)))
    end = _pidfd(int(watched))
    try:
        while end is not None:
            host.serve_once(messages.POLL_SECONDS)
            if select.select([end], [], [], 0)[0] and not host.has_recent_pollers():
                break
    finally:
        host.close()


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # it has ended already, or never was


if __name__ == "__main__":
    main(sys.argv[1:])
