"""Pass on what a command writes to standard error, and keep its last line: `python -I -S stderr_relay.py FD`.

A process of its own, so that a command that is left running when the bench ends does not write into a broken pipe.
The memory file FD holds the last line, and nothing on a disk does. Once it also has `INTERRUPTED` behind that, a
traceback that ends in KeyboardInterrupt is left out: the bench has caused it.
"""

from __future__ import annotations

import os
import signal
import sys

LINE_BYTES = 4096
INTERRUPTED = b"i"
READ_BYTES = 65536
_TRACEBACK = b"Traceback (most recent call last):"
_HELD_BYTES = 1 << 20
"""Limit for a traceback that is held back until its last line is known."""


def main(memory: int) -> None:
    """Read standard input to its end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the command may have something to write at ctrl+c
    line = held = b""
    while data := os.read(0, READ_BYTES):
        held = _without_interrupt(held + data) if held or _is_interrupted(memory) else _pass_chunk(data)
        *ended, line = (line + data).replace(b"\r", b"\n").split(b"\n")
        line = line[-LINE_BYTES:]
        last = next((one for one in (line, *reversed(ended)) if one.strip()), None)
        if last is not None:
            last = last.strip()[-LINE_BYTES:]
            os.pwrite(memory, last.ljust(LINE_BYTES, b"\0"), 0)
    _pass_on(held)


def _is_interrupted(memory: int) -> bool:
    return os.pread(memory, 1, LINE_BYTES) == INTERRUPTED


def _pass_chunk(data: bytes) -> bytes:
    _pass_on(data)
    return b""


def _without_interrupt(data: bytes) -> bytes:
    """Pass on all but a traceback that ends in KeyboardInterrupt; return what of it is to be held back.

    A traceback is the line that opens it, indented and empty lines, and one line that names the exception. Python
    3.11 has an empty line where the mark under a line of source would be nothing but blanks.
    """
    while (start := data.find(_TRACEBACK)) >= 0:
        _pass_on(data[:start])
        data = data[start:]
        lines = data.split(b"\n")
        after = enumerate(lines[1:-1], 1)
        end = next((at for at, line in after if line.strip() and not line.startswith((b" ", b"\t"))), None)
        if end is None:
            return data if len(data) < _HELD_BYTES else _pass_chunk(data)
        if lines[end].strip() != b"KeyboardInterrupt":
            _pass_on(b"\n".join(lines[: end + 1]) + b"\n")
        data = b"\n".join(lines[end + 1 :])
    opening = data[data.rfind(b"\n") + 1 :]
    opening = opening if _TRACEBACK.startswith(opening) else b""
    _pass_on(data.removesuffix(opening))
    return opening


def _pass_on(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:  # nothing reads any more; the command must not notice
        return


if __name__ == "__main__":
    main(int(sys.argv[1]))
