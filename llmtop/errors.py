"""What llmtop says when something cannot be done, and the exit code that goes with it."""

from __future__ import annotations

EXIT_DONE = 0
"""All done."""
EXIT_FINDING = 1
"""A finding that the caller asked to fail on (``--fail-over``, ``--fail-on``)."""
EXIT_USAGE = 2
"""Wrong usage, or an input that cannot be used (a foreign, empty or damaged file)."""
EXIT_ENVIRONMENT = 3
"""The environment does not allow it: no nsys, no permission, no process to watch, a full disk."""
EXIT_OWN_ERROR = 70
"""An error of llmtop's own; a sentence says where its log is."""


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
    """An error of llmtop's own (`llmtop.crash.own_error` makes them)."""

    exit_code = EXIT_OWN_ERROR
