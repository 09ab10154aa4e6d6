"""Whether sockets can be made in a directory: what a training finds out, and what the doctor tells."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from llmtop import wire
from llmtop.errors import NotPossibleHere


def no_socket(directory: Path, error: OSError) -> str:
    """The sentence for a directory in which no socket can be made."""
    return (
        f"no socket can be made in {directory}: {error.strerror or error}; set LLMTOP_DIR to a folder of yours "
        "that can be written, for the training and for llmtop"
    )


def check(directory: Path) -> None:
    """Find out whether a training could publish there, by making a socket.

    Of a missing directory only whether it can be made.

    Raises:
        NotPossibleHere: as `check_dir`, or no socket can be made there.
    """
    there = os.path.lexists(directory)
    if there or len(os.fsencode(directory)) > wire.MAX_DIRECTORY_BYTES:
        wire.check_dir(directory)
    if not there:
        above = next(path for path in directory.parents if os.path.lexists(path))
        if not os.path.isdir(above) or not os.access(above, os.W_OK | os.X_OK):
            raise NotPossibleHere(f"{directory} cannot be created in {above}; set LLMTOP_DIR to a folder of yours")
        return
    probe = directory / f"{os.getpid()}-try.new"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(os.fspath(probe))
        os.unlink(probe)
    except OSError as error:
        raise NotPossibleHere(no_socket(directory, error)) from None
