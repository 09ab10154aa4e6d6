"""An error of llmtop's own: one sentence for the person, and all that is known of it in a file."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from llmtop.errors import OwnError
from llmtop.format import printable_lines
from llmtop.version import __version__

KEPT_LOGS = 20
"""Number of kept logs; older ones are removed when a new one is written."""


def log_dir() -> Path:
    """Return where the logs are: ``$XDG_STATE_HOME/llmtop``, else ``~/.local/state/llmtop``."""
    state = os.environ.get("XDG_STATE_HOME", "")
    # A relative path is to be ignored (XDG Base Directory Specification).
    return (Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()) / "llmtop"


def new_log() -> Path | None:
    """Return a name for the log of this process, in a folder that is there; None if that cannot be written."""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: a user without a home
        directory = log_dir()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(directory, os.W_OK | os.X_OK):
            return directory / f"error-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    return None


def _log_elsewhere() -> Path | None:
    """Return a log in a new folder where temporary files are: anyone may write there, so the folder must be
    ours."""
    with contextlib.suppress(OSError):
        return Path(tempfile.mkdtemp(prefix="llmtop-")) / "error.log"
    return None


def log_own_error(error: BaseException) -> OwnError:
    """Write the log of an unexpected error.

    Returns:
        The sentence for the person, with the log's place.
    """
    # Loaded for an error alone.
    from llmtop.redaction.secret_filter import without_secrets, words_without_secrets

    shown = without_secrets(f"{type(error).__name__}: {error}").replace("\n", " ")
    what = f"an error of llmtop's own ended it ({shown})"
    log = new_log() or _log_elsewhere()
    if log is not None:
        _remove_old_logs(log.parent)
        command = " ".join(words_without_secrets(sys.argv))
        lines = [f"llmtop {__version__}, Python {sys.version}\n{command}\n\n", *traceback.format_exception(error)]
        text = printable_lines(without_secrets("".join(lines)))  # it is read in a terminal
        try:
            number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError:
            log = None
    if log is None:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        return OwnError(f"{what[:300]}{place}; no log of it could be written")
    return OwnError(f"{what[:300]}; please report it with {log}")


def _remove_old_logs(directory: Path) -> None:
    logs = sorted(directory.glob("error-*.log"))
    for old in logs[: max(0, len(logs) - KEPT_LOGS + 1)]:
        with contextlib.suppress(OSError):
            old.unlink()
