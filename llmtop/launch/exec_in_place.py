"""Turning this process into the command: no wrapper is left that could stand between it and its terminal."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from llmtop.errors import LlmtopError

_FIRST_FREE = 3
"""The lowest number that is no standard stream's."""


class CommandNotStarted(LlmtopError):
    """The command could not be started; exits as a shell, env and timeout do: 127 not found, 126 otherwise."""

    def __init__(self, sentence: str, *, found: bool) -> None:
        super().__init__(sentence)
        self.exit_code = 126 if found else 127


def occupy_closed_streams(*, for_command: bool) -> None:
    """Open /dev/null in the place of standard streams that the caller has closed.

    Else the next file or socket of ours would get such a number and be taken for the stream.

    Args:
        for_command: whether the command gets /dev/null as well; else the streams are closed for it as for us.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < _FIRST_FREE:  # the lowest number that is free
        os.set_inheritable(number, for_command)
    os.close(number)


def exec_in_place(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Become the command: same pid, parent, process group, terminal, streams and limits.

    Raises:
        CommandNotStarted: there is no such command, or it cannot be executed.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # one that the caller has closed
            with contextlib.suppress(OSError):  # a full disk, or a reader that has gone
                stream.flush()
    # Python ignores these two for itself at its start, and what is ignored stays ignored across exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without #!: a shell runs it, and so does execvp(3)
            os.execve("/bin/sh", ["/bin/sh", *command], dict(environment))
        raise not_started(command[0], error) from None


def not_started(program: str, error: OSError) -> CommandNotStarted:
    """Return the error for a failed exec."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return CommandNotStarted(f"{program}: no such command; check its name and PATH", found=False)
    return CommandNotStarted(f"{program} cannot be executed: {error.strerror}", found=True)
