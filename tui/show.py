"""The screen from start to end: the app in a terminal that is given back whatever ends it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from collectors.base.source import Feed
from llmtop.errors import EXIT_DONE, LlmtopError, too_many_open_files
from llmtop.system.crash import log_own_error
from tui.core.base_app import TerminalApp
from tui.core.theme_memory import ThemeMemory
from tui.terminal.session import TerminalGuard

if TYPE_CHECKING:
    from collectors.replay import SnapshotReader
    from collectors.runs.past import OpenedRun
    from llmtop.capture.prepared import PreparedCaptures


def show(
    feed: Feed,
    *,
    ascii: bool = False,
    theme: str | None = None,
    remember: bool = False,
    prepared: PreparedCaptures | None = None,
    opened: OpenedRun | None = None,
    recording: Callable[[], SnapshotReader] | None = None,
) -> int:
    """Run the screen until it is left, and give the terminal back whatever ends it.

    Args:
        feed: where snapshots come from; started and closed here.
        ascii: draw with ASCII characters only; also chosen when the locale is not UTF-8.
        theme: a theme's name.
        remember: begin with the theme that was chosen last, unless one is given, and remember the next choice.
        prepared: captures to open in place of taking some.
        opened: the run that the feed plays.
        recording: opens the recording that the feed plays once more.

    Returns:
        The exit code: 0 when the person quit, 128 + the signal's number after a signal or a lost terminal.

    Raises:
        UnusableInput: there is no such theme.
        NotPossibleHere: the limit of open files is too low.
        OwnError: an unexpected error; its traceback is in a log.
    """
    from tui.app import LlmtopApp

    memory = ThemeMemory() if remember else None
    return run(
        LlmtopApp(
            feed,
            ascii=ascii or not has_unicode(),
            theme=theme,
            memory=memory,
            prepared=prepared,
            run=opened,
            recording=recording,
        )
    )


def run(app: TerminalApp) -> int:
    """Run an app until it is left, and give the terminal back whatever ends it; returns and raises as `show`."""
    told: list[LlmtopError] = []
    with TerminalGuard(app.leave) as guard, _thread_errors_to(app):

        def failed(error: BaseException) -> None:
            if not told:
                told.append(too_many_open_files(error) or log_own_error(error))
                guard.end_soon(told[0].exit_code, str(told[0]))

        app.on_failure(failed)
        code = app.run()
        if app.failure is not None:
            failed(app.failure)
    if told:
        raise told[0]
    return EXIT_DONE if code is None else code


@contextmanager
def _thread_errors_to(app: TerminalApp) -> Iterator[None]:
    """Yield an error that ends a thread ends the screen as well: it would go on with what no longer moves."""
    before = threading.excepthook

    def end(error: threading.ExceptHookArgs) -> None:
        writer = error.thread is not None and error.thread.name == "textual-output"
        if error.exc_value is None or (writer and isinstance(error.exc_value, OSError)):
            return  # the terminal is gone, which the guard sees
        app.fail(error.exc_value)

    threading.excepthook = end
    try:
        yield
    finally:
        threading.excepthook = before


def has_unicode() -> bool:
    """Return True if there is more than ASCII to draw with.

    The bare C locale of containers shows neither; the Linux console's fonts lack most of the blocks.
    """
    if os.environ.get("TERM") == "linux":
        return False
    try:  # what Python writes to the terminal with, which PYTHONIOENCODING sets whatever the locale is
        "╭█⣿".encode(getattr(sys.__stderr__, "encoding", "utf-8"))
    except (UnicodeEncodeError, LookupError):
        return False
    locale = next((os.environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), "")
    charset = locale.partition(".")[2].lower()
    return not charset or "utf" in charset
