"""Becomes the command of a run, in an interpreter that knows no packages (-I -S):
`python start_command.py fixed|random CMD…`.

Its process is the leader of a session of its own, so that what ctrl+c sends can be sent to all of the command and
to nothing else, and no process of it is stopped for wanting the terminal. With "fixed" its addresses are not
randomized.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def _request_parent_death_signal() -> None:
    """A bench that is killed shall leave no training on the GPU: it then gets what ctrl+c sends, once."""
    with contextlib.suppress(OSError, AttributeError):  # a C library without it: the training goes on then
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0)


def main(layout: str, command: list[str]) -> None:
    """Exec it; on failure the shell's exit codes, 127 or 126, with a sentence."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    import os

    from llmtop.bench.run.memory_layout import fix_layout
    from llmtop.errors import LlmtopError
    from llmtop.format import printable
    from llmtop.launch.exec_in_place import exec_in_place

    _request_parent_death_signal()
    if layout == "fixed":
        fix_layout()  # where it is refused, bench has said so
    # Python takes SIGINT for itself at its start; a shell in the background would have it ignored.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        exec_in_place(command, os.environ)
    except LlmtopError as error:
        sys.stderr.write(f"llmtop: {printable(str(error))}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
