"""Pass on what a command writes to standard error, and keep its last line: `python -I -S stderr_relay.py FD`.

A process of its own, so that a command that is left running when the bench ends does not write into a broken pipe.
The memory file FD holds the last line, and nothing on a disk does.
"""

from __future__ import annotations

import os
import signal
import sys

LINE_BYTES = 4096
_READ_BYTES = 65536


def main(memory: int) -> None:
    """Read standard input to its end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the command may have something to write at ctrl+c
    line = b""
    while data := os.read(0, _READ_BYTES):
        _pass_on(data)
        *ended, line = (line + data).replace(b"\r", b"\n").split(b"\n")
        line = line[-LINE_BYTES:]
        last = next((one for one in (line, *reversed(ended)) if one.strip()), None)
        if last is not None:
            last = last.strip()[-LINE_BYTES:]
            os.pwrite(memory, last.ljust(LINE_BYTES, b"\0"), 0)


def _pass_on(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:  # nothing reads any more; the command must not notice
        return


if __name__ == "__main__":
    main(int(sys.argv[1]))
