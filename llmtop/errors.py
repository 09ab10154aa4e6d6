"""Errors that are shown to the user as one sentence, and their exit codes."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

EXIT_DONE = 0
"""All done."""
EXIT_FINDING = 1
"""A finding that the caller asked to fail on (``--fail-over``, ``--fail-on``)."""
EXIT_USAGE = 2
"""Wrong usage, or an input that cannot be used (a foreign, empty or damaged file)."""
EXIT_ENVIRONMENT = 3
"""The environment does not allow it: no nsys, no permission, no process to watch, a full disk."""
EXIT_OWN_ERROR = 70
"""An internal error of llmtop; its sentence names the log."""


class LlmtopError(Exception):
    """One sentence for the user: what went wrong, where, and what to do about it.

    The command line prints it on stderr without a traceback and exits with `exit_code`; the screen shows it.
    """

    exit_code = EXIT_ENVIRONMENT


class UnusableInput(LlmtopError):
    """A file, an argument or a message that cannot be used as it is."""

    exit_code = EXIT_USAGE


class NotPossibleHere(LlmtopError):
    """The environment does not allow it; the sentence names the one command or setting that would."""

    exit_code = EXIT_ENVIRONMENT


class OwnError(LlmtopError):
    """An error of llmtop's own (`llmtop.system.crash.log_own_error` makes them)."""

    exit_code = EXIT_OWN_ERROR


_FREE_DESCRIPTORS = 32
"""The screen had 20 open files at most, without a training; each rank takes one more."""
_RAISE = "Raise the limit: ulimit -n 1024"


def check_open_files() -> None:
    """Check that this process may open the files that a command needs; costs a few microseconds.

    Raises:
        NotPossibleHere: the limit of open files is too low.
    """
    taken: list[int] = []
    try:
        while len(taken) < _FREE_DESCRIPTORS:
            taken.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
    except OSError as error:
        refused = too_many_open_files(error)
        if refused is not None:
            raise NotPossibleHere(
                f"the limit of open files allows {len(taken)} more, and llmtop needs {_FREE_DESCRIPTORS}. {_RAISE}"
            ) from None
    finally:
        for descriptor in taken:
            with suppress(OSError):
                os.close(descriptor)


def too_many_open_files(error: BaseException) -> NotPossibleHere | None:
    """Return the sentence for an error that the limit of open files caused; None for any other error."""
    if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    where = f" ({error.filename})" if error.filename else ""
    whose = "this process" if error.errno == errno.EMFILE else "this machine"
    return NotPossibleHere(f"{whose} has as many open files as its limit allows{where}. {_RAISE}")
