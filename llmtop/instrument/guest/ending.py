"""The end of a training: nothing of llmtop's holds it up, and none of its threads is inside PyTorch by then.

Called once, by `atexit`: after the script's own threads have ended, before the interpreter goes. A capture that is
armed or recording ends as failed at once; only a file that is being written may take `WRITE_SECONDS` more.

A process in which PyTorch's profiler records ends with a segmentation fault, and a forked child of one in which it
has recorded does not end at all: that is what its C++ destructors do, which run after Python. So what records is
stopped here; and where that cannot be done, the process is made to end without them, with the exit code it has.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State

WRITE_SECONDS = 10.0
"""How long an exit waits for the file of a capture."""
DRAIN_SECONDS = 1.0
"""And for a thread that waits for the GPU."""


def end(recorder: State) -> None:
    """End what is under way, and the publishing; a forked child, which has neither, comes here too."""
    captures = sys.modules.get("llmtop.instrument.control.self_capture")
    pausing = sys.modules.get("llmtop.instrument.control.pause")
    if captures is not None and captures.inherited():
        skip_destructors()
    if recorder.server is None:
        return
    listener = sys.modules.get("llmtop.instrument.control.store_listener")
    if listener is not None:
        listener.end_with_process()
    marking = sys.modules.get("llmtop.instrument.control.op_ranges")
    if marking is not None:
        marking.end_here(recorder)
    clean = captures is None or captures.end_with_process(WRITE_SECONDS)
    clean &= pausing is None or pausing.end_with_process(DRAIN_SECONDS)
    recorder.server.stop()
    stacks = sys.modules.get("llmtop.instrument.serve.own_stacks")
    if stacks is not None:
        stacks.end_with_process()
    if not clean or _kineto_has_traced():
        skip_destructors()


def _kineto_has_traced() -> bool:
    """Whether a capture from outside was begun here: those destructors crash as well while it runs."""
    directory = os.environ.get("KINETO_IPC_SOCKET_DIR")
    return directory is not None and os.path.exists(f"{directory}/told-{os.getpid()}")


def skip_destructors() -> None:
    """Have the process, once Python has ended, leave at once with its exit code.

    Functions given to on_exit(3) run last first, so this one before all destructors that are there already. What C
    has buffered is written.
    """
    try:
        libc = ctypes.CDLL(None)
        on_exit, leave, flush = libc.on_exit, libc._exit, libc.fcloseall
    except (OSError, AttributeError):
        return  # a C library without them, as musl
    on_exit(ctypes.cast(leave, ctypes.c_void_p), None)
    on_exit(ctypes.cast(flush, ctypes.c_void_p), None)
