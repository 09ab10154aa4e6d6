"""The terminal's side of the program: it is given back as it was, whatever ends the program.

Textual restores the terminal when it ends by itself. It does not when a signal ends the process, it reads a dead
terminal over and over, and it waits for ever on one that has stopped reading. So: signals ask the app to leave, a
thread sleeps until the terminal hangs up, and if the app has not left soon after being asked, the terminal is put
back from here and the process ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

GRACE_SECONDS = 2.0
"""How long the app may take to leave by itself."""

_BACK = (
    "\x1b[?2026l"  # end of a synchronised update
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?2048l"  # mouse, focus, paste, resize
    "\x1b[<u\x1b[?7h\x1b[0m\x1b[?1049l\x1b[?25h"  # keyboard, wrapping, colours, alternate screen, cursor
)
_SAVE_TITLE, _RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"


class TerminalGuard:
    """Watches over the terminal for as long as the program runs (a context manager)."""

    def __init__(self, ask_to_leave: Callable[[int], None]) -> None:
        """Remember the terminal as it is now.

        Args:
            ask_to_leave: called with the exit code, in a thread of the guard's; must return at once.
        """
        self._ask = ask_to_leave
        self._input = sys.__stdin__.fileno() if sys.__stdin__ is not None else 0
        self._output = sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
        self._attributes: list[Any] | None = None
        with contextlib.suppress(termios.error):
            self._attributes = termios.tcgetattr(self._input)
        self._handlers: dict[int, Any] = {}
        # Numbers of signals, or 0 for a normal end. A handler may interrupt anything, so it only writes a byte.
        self._heard, self._tell = os.pipe2(os.O_CLOEXEC)
        self._watcher = threading.Thread(target=self._watch, name="llmtop-tty", daemon=True)

    def __enter__(self) -> TerminalGuard:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            self._handlers[number] = signal.signal(number, self._on_signal)
        self._watcher.start()
        self._write(_SAVE_TITLE)
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._tell, b"\0")
        self._watcher.join()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._heard)
        os.close(self._tell)
        self._write(_RESTORE_TITLE)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        os.write(self._tell, bytes([number]))

    def _watch(self) -> None:
        """Sleep until a signal comes, the terminal is gone, or the program ends; costs nothing until then."""
        poll = select.poll()
        poll.register(self._heard, select.POLLIN)
        poll.register(self._input, 0)  # hang-up and error are always reported
        ready = dict(poll.poll())
        number = os.read(self._heard, 1)[0] if self._heard in ready else signal.SIGHUP
        if number == 0:
            return
        self._ask(128 + number)
        deadline = time.monotonic() + GRACE_SECONDS
        while select.select([self._heard], [], [], max(deadline - time.monotonic(), 0))[0]:
            if os.read(self._heard, 1) == b"\0":
                return
        self._end(128 + number)

    def _end(self, code: int) -> None:
        """Put the terminal back without the app's help, if it lets itself be put back, and end the process."""
        restoring = threading.Thread(target=self._restore, daemon=True)
        restoring.start()
        restoring.join(0.5)
        os._exit(code)

    def _restore(self) -> None:
        if self._attributes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._input, termios.TCSANOW, self._attributes)
        with contextlib.suppress(termios.error):
            termios.tcflush(self._output, termios.TCOFLUSH)
        self._write(_BACK + _RESTORE_TITLE)

    def _write(self, text: str) -> None:
        """Write, if the terminal seems to read; a write that is too long for what it takes still waits."""
        with contextlib.suppress(OSError, ValueError):
            if os.isatty(self._output) and select.select([], [self._output], [], 0)[1]:
                os.write(self._output, text.encode())


def title(text: str) -> str:
    """What sets the terminal's title, which tmux shows and reports as activity."""
    return f"\x1b]2;{text}\x07"
