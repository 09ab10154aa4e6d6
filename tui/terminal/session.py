"""The terminal's side of the program: it is given back as it was, whatever ends the program.

Textual restores the terminal when it ends by itself. It does not when a signal ends the process, it reads a dead
terminal over and over, and it waits for ever on one that has stopped reading. So: signals ask the app to leave, a
thread sleeps until the terminal hangs up, and if the app has not left soon after being asked, the terminal is put
back from here and the process ends. What ends the process itself, a crash or SIGKILL, is left to
`tui.terminal.guardian`.
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

from llmtop.format import printable
from llmtop.system import crash
from tui.terminal.guardian import Guardian
from tui.terminal.textual_private import input_flags, local_flags

GRACE_SECONDS = 2.0
"""How long the app may take to leave by itself."""
ENDING = (
    *(signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
)
"""Signals that end the screen with 128 + their number."""

_BACK = (
    "\x18\x1b\\"  # end of what the screen may have been in the middle of: a title would swallow all that follows
    "\x1b[?2026l"  # end of a synchronised update
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"  # mouse
    "\x1b[?1004l\x1b[?2004l\x1b[?2048l"  # focus, paste, resize
    "\x1b[<u\x1b[?7h\x1b[0m\x1b[?1049l\x1b[?25h"  # keyboard, wrapping, colours, alternate screen, cursor
)
_SAVE_TITLE, _RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"


class TerminalGuard:
    """Watches over the terminal for as long as the program runs (a context manager)."""

    def __init__(self, ask_to_leave: Callable[[int], None]) -> None:
        """Store the present state of the terminal.

        Args:
            ask_to_leave: called with the exit code, in a thread of the guard's; must return at once.
        """
        self._ask = ask_to_leave
        self._input = sys.__stdin__.fileno() if sys.__stdin__ is not None else 0
        self._output = sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
        self._attributes: list[Any] | None = None
        with contextlib.suppress(termios.error):
            self._attributes = termios.tcgetattr(self._input)
        self._guardian: Guardian | None = None
        self._handlers: dict[int, Any] = {}
        # Exit codes, or 0 for a normal end. A handler may interrupt anything, so it only writes a byte.
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC)
        self._watcher = threading.Thread(target=self._watch, name="llmtop-tty", daemon=True)
        self._last_words = ""
        self._restored = False

    def __enter__(self) -> TerminalGuard:
        for number in ENDING:
            self._handlers[number] = signal.signal(number, self._on_signal)
        for number in (signal.SIGTSTP, signal.SIGCONT):  # the driver will handle them
            self._handlers[number] = signal.getsignal(number)
        if self._attributes is not None:
            raw, terminal = _as_driven(self._attributes), (self._input, self._output)
            back = _BACK + _RESTORE_TITLE
            self._guardian = Guardian(terminal, raw, self._attributes, back, crash.new_log())
            self._guardian.__enter__()
        self._watcher.start()
        self._write(_SAVE_TITLE)
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._wake_writer, b"\0")
        self._watcher.join(GRACE_SECONDS)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        if self._left_behind():
            self._restore()
        else:
            self._write(_RESTORE_TITLE)
        if self._guardian is not None:
            self._guardian.__exit__()

    def end_soon(self, code: int, last_words: str) -> None:
        """The app has failed: if it does not get to its end by itself, end it with this code and sentence."""
        self._last_words = last_words
        os.write(self._wake_writer, bytes([code]))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        os.write(self._wake_writer, bytes([128 + number]))

    def _watch(self) -> None:
        """Sleep until a signal comes, the terminal is gone, or the program ends; costs nothing until then."""
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        poll.register(self._input, 0)  # hang-up and error are always reported
        ready = dict(poll.poll())
        code = os.read(self._wake_reader, 1)[0] if self._wake_reader in ready else 128 + signal.SIGHUP
        if code == 0:
            return
        self._ask(code)
        deadline = time.monotonic() + GRACE_SECONDS
        while select.select([self._wake_reader], [], [], max(deadline - time.monotonic(), 0))[0]:
            if os.read(self._wake_reader, 1) == b"\0":
                return
        self._end(code)

    def _end(self, code: int) -> None:
        """Restore the terminal without the app's help, if possible, and end the process."""
        restoring = threading.Thread(target=self._restore, daemon=True)
        restoring.start()
        restoring.join(0.5)
        if self._guardian is not None and self._restored:  # else the guardian does it later
            self._guardian.dismiss()
        os._exit(code)

    def _left_behind(self) -> bool:
        """Return True if the terminal is not as it was, though the app has ended."""
        try:
            return self._attributes is not None and termios.tcgetattr(self._input) != self._attributes
        except termios.error:
            return False

    def _restore(self) -> None:
        if self._attributes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._input, termios.TCSANOW, self._attributes)
        with contextlib.suppress(termios.error):
            termios.tcflush(self._output, termios.TCOFLUSH)
        words = f"llmtop: {printable(self._last_words)}\n" if self._last_words else ""
        self._restored = self._write(_BACK + _RESTORE_TITLE + words)

    def _write(self, text: str) -> bool:
        """Write, if the terminal seems to read; a write that is too long for what it takes still waits."""
        with contextlib.suppress(OSError, ValueError):
            if os.isatty(self._output) and select.select([], [self._output], [], 0)[1]:
                return os.write(self._output, text.encode()) > 0
        return False


def _as_driven(attributes: list[Any]) -> list[Any]:
    """These terminal settings as Textual's driver changes them."""
    changed = [*attributes[:6], list(attributes[6])]
    changed[0], changed[3] = input_flags(changed[0]), local_flags(changed[3])
    changed[6][termios.VMIN] = 1
    return changed


def title(text: str) -> str:
    """Return the sequence that sets the terminal's title, which tmux shows and reports as activity."""
    return f"\x1b]2;{printable(text)}\x07"


def has_shell() -> bool:
    """Return True if a shell can continue us: the parent is of our session but not of our process group."""
    try:
        parent = os.getppid()
        return os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgrp()
    except OSError:
        return False
