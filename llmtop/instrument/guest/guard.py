"""The one door between llmtop and the training that it runs in.

Whatever of llmtop's runs inside a call of the script stands in a ``try`` whose ``except`` comes here. What went
wrong is noted once, where the monitor shows it, and the script's own call goes on as if llmtop were not there.
What is the script's passes: KeyboardInterrupt and its like, and what a signal's handler of the script, or another
thread of it, has raised into a line of ours that happened to run.

Hooks catch BaseException: before they pass on what is the script's they put their own state in order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from llmtop.instrument.guest.interrupts import raised_by_handler
from llmtop.instrument.guest.sanitize import log_once

_LARGEST_REASON = 200
_OURS = frozenset({"llmtop", "torch", "msgspec", "nvtx", "numpy"})
"""Modules whose exceptions may come out of llmtop's own lines, beside those of Python itself."""
T = TypeVar("T")


def _nobody_listens(what: str, why: str) -> None:
    """Stands for the recorder's `cannot_see` until there is a recorder."""


note: Callable[[str, str], None] = _nobody_listens
"""Callback for reporting unobservable state; set by the recorder."""


def report_internal_error(what: str, error: BaseException) -> None:
    """Note that llmtop does not see something, and why; to be called in the ``except`` that caught `error`.

    Args:
        what: what is not seen: "the waits for batches".
        error: what came out of llmtop's own work.

    Raises:
        BaseException: `error` itself, where it is the script's.
    """
    if raised_by_user_code(error):
        raise error
    try:
        note(what, f"{type(error).__name__}: {error}"[:_LARGEST_REASON])
        log_once(error)
    except Exception:  # noqa: BLE001 - a text that cannot be made of the error, stderr that is closed
        return


def run_alone(part: Callable[[], T], otherwise: T) -> T:
    """Run one part of an exit, or of what follows a fork: the parts after it run whatever it raises.

    Ctrl+C, and what a signal's handler raises, end only this part: without llmtop they would come after the
    script's last line, and change neither its output nor its exit code.

    Args:
        part: what to run.
        otherwise: what to return if it raises.
    """
    try:
        return part()
    except BaseException as error:  # noqa: BLE001 - see above
        try:
            log_once(error)
        except BaseException:  # noqa: BLE001 - a handler once more, stderr that is closed
            return otherwise
        return otherwise


def raised_by_user_code(error: BaseException) -> bool:
    """Return True if an exception out of llmtop's own lines was raised there by the script.

    By a signal's handler (see `interrupts`), or by another thread of it (PyThreadState_SetAsyncExc): that has no
    frame at all, so it is recognized by its class.
    """
    if not isinstance(error, Exception) or raised_by_handler(error):
        return True
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    defined_in = str(type(error).__module__).partition(".")[0]
    return raised_in == "llmtop" and defined_in not in _OURS and defined_in not in sys.stdlib_module_names
