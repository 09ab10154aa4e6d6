"""The directory in which trainings and monitors meet: where it is, and whether sockets can be made in it."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
from pathlib import Path

from llmtop.errors import NotPossibleHere
from llmtop.naming import variable_names

MAX_DIRECTORY_BYTES = 85
"""A socket's path may have 107 bytes, of which its name takes up to 22 with a pid of seven digits."""


def runtime_dir(uid: int | None = None) -> Path:
    """Return where the sockets are: `$LLMTOP_DIR`, else ``/tmp/llmtop-<uid>``.

    Not XDG_RUNTIME_DIR: it is unset under SLURM, sudo and containers, so the two sides would disagree. A ``~`` is
    the user's home; a relative path begins at the folder in which the program stands, so that both sides agree
    where they were started in the same one.

    Raises:
        NotPossibleHere: the path is relative, and that folder is gone.
    """
    override = os.environ.get(variable_names.RUNTIME_DIR)
    if override:
        try:
            return Path(os.path.abspath(os.path.expanduser(override)))
        except FileNotFoundError:
            raise NotPossibleHere(
                f"LLMTOP_DIR is {override}, which is relative to a removed folder: set LLMTOP_DIR to an absolute "
                "path"
            ) from None
    return user_folder(os.geteuid() if uid is None else uid)


def user_folder(uid: int) -> Path:
    """Return a user's own directory, where `$LLMTOP_DIR` is not set."""
    return Path("/tmp") / f"llmtop-{uid}"


MEMORY_SNAPSHOT = "-oom.memory.pickle"
"""Ending, after the pid, of the snapshot of a process that an out-of-memory error ended."""


def memory_snapshot(pid: int) -> Path:
    """Return where the memory snapshot of a process lies if it has ended by an out-of-memory error.

    Raises:
        NotPossibleHere: as `runtime_dir`.
    """
    return runtime_dir() / f"{pid}{MEMORY_SNAPSHOT}"


def check_dir(directory: Path, owner: int | None = None) -> None:
    """Refuse a directory in which another user could put a socket of his own.

    Args:
        directory: where the sockets are.
        owner: uid that must own it; by default this user or root.

    Raises:
        NotPossibleHere: missing, too long for a socket, a symbolic link, not a directory, not owned by this user
            or root (by `owner`), or writable by others.
    """
    length = len(os.fsencode(directory))
    if length > MAX_DIRECTORY_BYTES:
        raise NotPossibleHere(
            f"{directory} has {length} bytes, the limit for the folder of a socket is {MAX_DIRECTORY_BYTES}: set "
            "LLMTOP_DIR "
            "to a shorter one, for the training and for llmtop"
        )
    try:
        info = os.lstat(directory)
    except FileNotFoundError:
        raise NotPossibleHere(
            f"{directory} does not exist, because no training has attached here yet: start one with llmtop run "
            "-- COMMAND"
        ) from None
    except OSError as error:
        raise NotPossibleHere(f"{directory} cannot be read: {error.strerror}; check its permissions") from None
    if stat.S_ISLNK(info.st_mode):
        raise NotPossibleHere(f"{directory} is a symbolic link; remove it or set LLMTOP_DIR to a folder of yours")
    if not stat.S_ISDIR(info.st_mode):
        raise NotPossibleHere(f"{directory} is not a folder; remove it or set LLMTOP_DIR to a folder of yours")
    if info.st_uid not in ((os.geteuid(), 0) if owner is None else (owner,)):
        raise NotPossibleHere(f"{directory} belongs to uid {info.st_uid}; set LLMTOP_DIR to a folder of yours")
    if info.st_mode & 0o022:
        raise NotPossibleHere(f"{directory} is writable by others; run: chmod 700 {directory}")


def make_dir(directory: Path) -> None:
    """Create the directory, and those above it, with mode 0700 where they are missing, then check it.

    Raises:
        NotPossibleHere: as `check_dir`, or it cannot be created.
    """
    if len(os.fsencode(directory)) > MAX_DIRECTORY_BYTES:
        check_dir(directory)
    try:
        for path in (*reversed(directory.parents), directory):
            if not os.path.lexists(path):
                with contextlib.suppress(FileExistsError):  # another rank was faster
                    os.mkdir(path, 0o700)
    except OSError as error:
        raise NotPossibleHere(
            f"{directory} cannot be created: {error.strerror}; set LLMTOP_DIR to a folder of yours "
            f"(not {tempfile.gettempdir()} itself)"
        ) from None
    check_dir(directory)


def no_socket_message(directory: Path, error: OSError) -> str:
    """Return the sentence for a directory in which no socket can be made."""
    return (
        f"no socket can be made in {directory}: {error.strerror or error}; set LLMTOP_DIR to a folder of yours "
        "that can be written, for the training and for llmtop"
    )


def check_socket_support(directory: Path) -> None:
    """Find out whether a training could publish there, by making a socket.

    Of a missing directory only whether it can be made.

    Raises:
        NotPossibleHere: as `check_dir`, or no socket can be made there.
    """
    there = os.path.lexists(directory)
    if there or len(os.fsencode(directory)) > MAX_DIRECTORY_BYTES:
        check_dir(directory)
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
        raise NotPossibleHere(no_socket_message(directory, error)) from None
