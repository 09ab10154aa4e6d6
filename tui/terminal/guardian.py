"""Restoration of the terminal when the screen cannot do it: after a crash, or SIGKILL.

Nothing in a dying process can be trusted to do that, so a process beside it does: a shell of a third of a MiB that
sleeps on a socket (`guardian.sh`). It is a child of the monitor, in a session of its own, so that what is sent to
the monitor's group does not reach it; the monitor stays the process that the shell started, waits for and stops,
and its exit status is its own. The monitor's only other lasting child is the one that runs the driver's library.

A fault (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) is reported by Python's faulthandler, into the same socket. That
one holds a few hundred bytes, so that the dying process waits in its write until the guardian has put the terminal
back: a parent that waits for the monitor finds the terminal as it was. Its other threads live on until then, and
the one that writes frames would draw over the shell: the guardian sends a byte first, and `GuardedOutput` then
writes no more. After SIGKILL (the kernel's for lack of memory, too) the guardian is a moment later than the shell,
and then leaves settings alone that the shell has made its own.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import socket
import subprocess
from pathlib import Path
from typing import IO, Any

_SCRIPT = Path(__file__).with_name("guardian.sh")
_END = b"end\n"
_SEND_BYTES = 1
"""Asked for as the socket's buffer; the kernel makes it its smallest, which some six short writes fill."""
_WAIT_SECONDS = 1.0

_present: Guardian | None = None


class Guardian:
    """The process beside the screen (a context manager)."""

    def __init__(
        self, terminal: tuple[int, int], raw: list[Any], before: list[Any], back: str, log: Path | None
    ) -> None:
        """Start it; without a shell on this machine there is none.

        Args:
            terminal: the file descriptors of its input and output.
            raw: the settings (`termios.tcgetattr`) that the screen makes.
            before: the settings to put back.
            back: what to send to the terminal.
            log: where a crash's traceback goes; None: nowhere.
        """
        self._process: subprocess.Popen[bytes] | None = None
        self._socket, theirs = socket.socketpair()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        escaped = "".join(f"\\0{ord(character):03o}" for character in back)
        arguments = [as_stty(raw), as_stty(before), escaped, str(log or "")]
        with theirs, contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                ["/bin/sh", str(_SCRIPT), *arguments],
                stdin=theirs.fileno(),
                stdout=terminal[0],
                stderr=terminal[1],
                cwd="/",
                start_new_session=True,
            )

    def __enter__(self) -> Guardian:
        global _present
        if self._process is not None:
            _present = self
            faulthandler.enable(self._socket.fileno())
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_WAIT_SECONDS)

    def dismiss(self) -> None:
        """The terminal has been given back; may be called more than once."""
        global _present
        if _present is self:
            _present = None
            faulthandler.disable()
        with contextlib.suppress(OSError):
            self._socket.send(_END, socket.MSG_DONTWAIT)
        self._socket.close()

    def is_giving_back(self) -> bool:
        """Return True once the guardian has read that this process had a fault."""
        with contextlib.suppress(OSError):  # usually BlockingIOError: nothing has come
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        return False

    def leave_to_parent(self) -> None:
        """Called in a forked child, whose crash or life must not be taken for the screen's."""
        faulthandler.disable()
        self._socket.close()


class GuardedOutput:
    """The file of the terminal for the thread that writes frames, until a fault."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def fileno(self) -> int:
        """Return the descriptor of the terminal."""
        return self._file.fileno()

    def write(self, text: str) -> int:
        """Write; raises OSError where the guardian gives the terminal back, as for a terminal that is gone."""
        _check_terminal()
        return self._file.write(text)

    def flush(self) -> None:
        """Write what is buffered; raises as `write`."""
        _check_terminal()
        self._file.flush()


def _check_terminal() -> None:
    if _present is not None and _present.is_giving_back():
        raise OSError(errno.EIO, "the terminal is given back after a fault")


def _in_forked_child() -> None:
    global _present
    if _present is not None:
        _present.leave_to_parent()
        _present = None


os.register_at_fork(after_in_child=_in_forked_child)


def as_stty(attributes: list[Any]) -> str:
    """Settings in the form of `stty -g`, which `stty` takes."""
    flags, characters = attributes[:4], attributes[6]
    codes = [code if isinstance(code, int) else code[0] for code in characters]
    return ":".join(f"{number:x}" for number in (*flags, *codes))
