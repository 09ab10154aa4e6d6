"""Textual's driver for terminals, made to outlive odd input and every way of being stopped.

What differs: bytes go through `tui.terminal.keyboard`, and SIGTSTP and SIGCONT are answered in the event loop
rather than in the middle of whatever it was doing. After a SIGCONT everything is set anew, because the terminal's
state is unknown: SIGSTOP cannot be seen coming, and shells set modes of their own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import termios
from collections.abc import Callable, Iterator
from typing import Any

from textual.app import App

from llmtop.system import procfs
from tui.terminal import textual_private
from tui.terminal.keyboard import Keyboard

_POLL_SECONDS = 0.1
_KEYS_END_SECONDS = 2.0
"""How long the thread that reads keys may take to end once it is woken."""
_READ_BYTES = 4096
_MORE_MILLISECONDS = 1
"""How long a read waits for more: a serial line brings a paste in single characters (115,200 baud: each 87 µs)."""
_USUAL_SIZE = (80, 24)
"""Columns and lines of a terminal of unknown size, such as a serial line."""
_LARGEST_SIZE = (1000, 400)
"""Columns and lines. The largest displays have some 960 columns of 8 pixels and 270 lines of 16."""
_DIGITS = 9
_SIZES = ("COLUMNS", "LINES")
"""Names of the size in the environment. `forget_unusable_sizes` has checked the values."""


class TerminalDriver(textual_private.HookedDriver):
    """The driver that `LlmtopApp` runs on."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        """Prepare as `LinuxDriver` does; the terminal is not touched yet.

        Args:
            app: gets the messages.
            debug: as of Textual's driver.
            mouse: True: the terminal is asked for mouse events.
            size: columns and rows; None: of the terminal.
        """
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        textual_private.set_initial_size(self)
        textual_private.guard_output(self)
        self._showing = False
        self._stopping = False
        self._setting_anew = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Ends the wait of the reading thread, which so need not poll ten times per second for a stop."""

    # --- modes ------------------------------------------------------------------------------------------------

    def start_application_mode(self) -> None:
        """Take the terminal, as soon as it is this process's turn."""
        self._wait_for_turn()
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._showing = textual_private.is_writing(self)

    def stop_application_mode(self) -> None:
        """Restore the terminal for the shell."""
        if self._showing:
            # tmux, if its window has grown meanwhile, puts lines of this screen above those of the shell.
            self.write("\x1b[2J")
        self._showing = False
        super().stop_application_mode()

    def disable_input(self) -> None:
        """Stop reading. What is typed and not read yet is for the next who reads.

        Textual throws it away, so that a shell does not get what a mouse did last. Where the terminal is only set
        anew, the next who reads is this screen, and a key pressed right after `fg` would be lost.
        """
        os.eventfd_write(self._wake, 1)
        if not self._setting_anew:
            super().disable_input()
        elif not self.exit_event.is_set():
            textual_private.disable_mouse(self)
            self.exit_event.set()
            textual_private.join_key_thread(self, _KEYS_END_SECONDS)
            self.exit_event.clear()

    def write(self, data: str) -> None:
        """Send to the terminal; while it is not ours, nothing."""
        if textual_private.is_writing(self):
            super().write(data)

    def close(self) -> None:
        """Flush the output, and write no more."""
        super().close()
        textual_private.stop_writing(self)

    def _wait_for_turn(self) -> None:
        """Stay stopped while a shell has the process in the background.

        The kernel stops a background process that sets the terminal. Checking first and stopping then would miss
        the SIGCONT of a shell that foregrounds the process in between.
        """
        self._stopping = True
        while not self._is_its_turn():
            pass  # continued, perhaps still in the background
        self._stopping = False

    def _is_its_turn(self) -> bool:
        try:
            termios.tcsetattr(self.fileno, termios.TCSANOW, termios.tcgetattr(self.fileno))
        except termios.error as error:  # any other: the terminal is gone, which the guard sees
            return bool(error.args[0] != errno.EINTR)
        return True

    # --- stopping and going on --------------------------------------------------------------------------------

    def answer_sigtstp(self) -> None:
        """Stop in the event loop."""
        self._call_soon(self._stop)

    def answer_sigcont(self) -> None:
        """Set the terminal anew in the event loop."""
        if not self._stopping:
            self._call_soon(self._resume)

    def _call_soon(self, step: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the program ends
            textual_private.driver_loop(self).call_soon_threadsafe(step)

    def _stop(self) -> None:
        """Restore the terminal, stop, and take the terminal again at SIGCONT."""
        showing = self._showing
        if showing:
            self.suspend_application_mode()
        self._stopping = True
        os.kill(os.getpid(), signal.SIGSTOP)
        self._stopping = False
        if showing:
            self._take_again()

    def _resume(self) -> None:
        """Set every mode again and draw all, after a SIGCONT that followed no SIGTSTP."""
        if not self._showing:
            return
        self._wait_for_turn()
        self._setting_anew = True
        self.suspend_application_mode()  # with the settings of before, so that they are what is remembered
        self._setting_anew = False
        self._take_again()

    def _take_again(self) -> None:
        self.resume_application_mode()
        app = textual_private.app_of(self)
        app.refresh(layout=True)
        app.screen.refresh(layout=True)

    # --- input ------------------------------------------------------------------------------------------------

    def read_keys(self) -> None:
        """An error here is one like any other in a thread (`tui.show.show`)."""
        self.run_input_thread()

    def run_input_thread(self) -> None:
        """Read until the driver stops; in a thread of its own."""
        keyboard = Keyboard()
        with self._opened_for_reading() as terminal:
            poll = select.poll()
            poll.register(terminal, select.POLLIN)
            poll.register(self._wake, select.POLLIN)
            while not self.exit_event.is_set():
                ready = dict(poll.poll(keyboard.wait_seconds * 1000))
                if ready.pop(self._wake, 0):
                    self.exit_event.wait(_POLL_SECONDS)  # it is set next
                if ready:
                    data = read_burst(terminal)
                    if not data:  # the terminal is gone, which the guard sees as well, and ends the program
                        self.exit_event.wait(_POLL_SECONDS)
                    for message in keyboard.feed(data):
                        self.process_message(message)
                for message in keyboard.tick():
                    self.process_message(message)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    @contextlib.contextmanager
    def _opened_for_reading(self) -> Iterator[int]:
        """Yield the terminal, so that a read never waits.

        What a shell took while this process was in the background, poll still promised. The descriptor that we
        were given must stay as it is, because the shell has the same one.
        """
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            own = os.open(procfs.descriptor_path(self.fileno), flags)
        except OSError:  # another user's terminal, after su
            yield self.fileno
            return
        try:
            yield own
        finally:
            os.close(own)

    def terminal_size(self) -> tuple[int, int]:
        """Columns and lines that the screen draws; at least one of each."""
        try:
            known = os.get_terminal_size(self.fileno)
        except OSError:
            known = os.terminal_size((0, 0))
        columns, lines = (
            size or int(os.environ.get(name, usual))
            for size, name, usual in zip(known, _SIZES, _USUAL_SIZE, strict=True)
        )
        return min(columns, _LARGEST_SIZE[0]), min(lines, _LARGEST_SIZE[1])


def forget_unusable_sizes() -> None:
    """Remove sizes that no terminal has from the environment: Textual and Rich believe them or fail."""
    for name, largest in zip(_SIZES, _LARGEST_SIZE, strict=True):
        value = os.environ.get(name, "")
        usable = value.isascii() and value.isdigit() and len(value) < _DIGITS and 0 < int(value) <= largest
        if not usable:
            os.environ.pop(name, None)


def read_burst(terminal: int) -> bytes:
    """Return the received bytes with those that follow at once: a paste is recognised by more than one key in a
    read."""
    try:
        data = os.read(terminal, _READ_BYTES)
    except OSError:
        return b""
    more = select.poll()
    more.register(terminal, select.POLLIN)
    if data and more.poll(_MORE_MILLISECONDS):
        with contextlib.suppress(OSError):
            data += os.read(terminal, _READ_BYTES)
    return data
