"""A program in a pseudo-terminal of its own, and the screen that it draws there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Sequence
from typing import Any

import pyte

from tests.support import preloaded
from tests.support.processes import REPOSITORY, busy_limit, environment, wait_for


class Terminal:
    """Runs a command in a new pseudo-terminal and reads what it writes (a context manager)."""

    def __init__(
        self,
        command: Sequence[str],
        size: tuple[int, int] = (100, 30),
        *,
        controlling: bool = True,
        forked: bool = True,
        **extra: str,
    ) -> None:
        """Start the command; tests.support.screen without variables of its own in a fork, which costs less.

        Args:
            command: argv.
            size: columns and lines; 0: unknown. Of more than 1000 columns and 400 lines, so many are kept.
            controlling: whether it is the command's controlling terminal, so that hanging up sends SIGHUP.
            forked: False: by Python from its start in any case.
            extra: environment variables.
        """
        self._master, slave = pty.openpty()
        self._reading = threading.Event()
        self._reading.set()
        self._lock = threading.Lock()
        self.raw = b""
        self._screen = pyte.Screen(min(size[0] or 100, 1000), min(size[1] or 30, 400))
        self._stream = pyte.ByteStream(self._screen)
        self._unread: list[bytes] = []
        self._text = ""
        self._set_size(*size)
        self.before = termios.tcgetattr(slave)
        self._slave = slave

        def own_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        usual = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8"}
        env = environment(**{**usual, **extra})
        for name in {"COLUMNS", "LINES"} - set(extra):
            env.pop(name, None)  # of a terminal around the tests
        if list(command[:3]) == [sys.executable, "-m", "tests.support.screen"] and not extra and forked:
            self.process: subprocess.Popen[bytes] | preloaded.Fork = preloaded.start(
                "screen", command[3:], [slave] * 3, env, session=True, controlling=controlling
            )
        else:
            self.process = subprocess.Popen(
                list(command),
                stdin=slave,
                stdout=slave,
                stderr=slave,
                cwd=REPOSITORY,
                env=env,
                start_new_session=True,
                preexec_fn=own_terminal if controlling else None,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(busy_limit(10))
        self._reading.set()
        for descriptor in (self._master, self._slave):
            if descriptor >= 0:
                os.close(descriptor)
        self._master = self._slave = -1

    def _read(self) -> None:
        while self._master >= 0:
            self._reading.wait(100)
            try:
                if not select.select([self._master], [], [], 0.05)[0]:
                    continue
                with self._lock:
                    data = os.read(self._master, 65536)
                    self.raw += data
                    self._unread.append(data)
            except (OSError, ValueError):
                return

    def stop_reading(self) -> None:
        """Be a terminal that hangs: nothing is read, so writes block once the buffer is full."""
        self._reading.clear()

    def go_on_reading(self) -> None:
        """Read again."""
        self._reading.set()

    def hang_up(self) -> None:
        """Be gone, as a closed window or a lost connection."""
        self._reading.set()
        master, self._master = self._master, -1
        slave, self._slave = self._slave, -1
        os.close(slave)
        os.close(master)

    def keys(self, text: str) -> None:
        """Type."""
        self.type_bytes(text.encode())

    def type_bytes(self, data: bytes) -> None:
        """Type what may be no text."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._master, rest) :]

    def write_as_the_program(self, data: bytes) -> None:
        """Have the terminal get this as if the command had written it."""
        os.write(self._slave, data)

    def resize(self, columns: int, lines: int) -> None:
        """Change the size, as a dragged window does."""
        with self._lock:
            self._draw()
            self._screen.resize(lines, columns)
            self._text = "\n".join(self._screen.display)
        self._set_size(columns, lines)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGWINCH)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def text(self) -> str:
        """What is on the screen."""
        with self._lock:
            if self._unread:
                self._draw()
                self._text = "\n".join(self._screen.display)
            return self._text

    def _draw(self) -> None:
        """Have pyte draw what has come: only when somebody looks, for it takes longer than the program itself."""
        unread, self._unread = self._unread, []
        for data in unread:
            # A program that is stopped in the middle of a sequence leaves one that pyte has no method for.
            with contextlib.suppress(TypeError):
                self._stream.feed(data)

    def is_full(self) -> bool:
        """Whether the program's next write would wait, while nobody reads."""
        return not select.select([], [self._slave], [], 0)[1]

    def change_settings(self, *words: str) -> None:
        """Do what `stty WORDS` does, from outside."""
        subprocess.run(["stty", *words], stdin=self._slave, check=True, timeout=240)

    def attributes(self) -> list[Any]:
        """The terminal's settings now."""
        return termios.tcgetattr(self._slave)

    def shows(self, words: str, seconds: float = 20.0) -> None:
        """Wait until these words are on the screen."""
        try:
            wait_for(lambda: words in self.text(), seconds)
        except AssertionError:
            raise AssertionError(f"not within {seconds} s: {words!r} on:\n{self.text()}") from None

    def ends(self, seconds: float = 20.0) -> int:
        """Wait until the command has ended and what it wrote is read, and return its exit code."""
        code = self.process.wait(busy_limit(seconds))
        if self._reading.is_set() and self._master >= 0:
            wait_for(lambda: not select.select([self._master], [], [], 0)[0], seconds, "the rest of what it wrote")
            with self._lock:
                return code
        return code
