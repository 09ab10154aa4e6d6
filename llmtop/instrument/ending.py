"""The end of a training: nothing of llmtop's holds it up, and none of its threads is inside PyTorch by then.

Called once, by `atexit`: after the script's own threads have ended, before the interpreter goes. A capture that is
armed or recording ends as failed at once; only a file that is being written may take some seconds more.

A process in which PyTorch's profiler records ends with a segmentation fault, and a forked child of one in which it
has recorded does not end at all: that is what its C++ destructors do, which run after Python. So what records is
stopped here; and where that cannot be done, the process is made to end without them, with the exit code it has.

Each part is guarded on its own, and a module that the server thread is still importing is not used: a process may
end while its first monitor connects. Nothing is imported here: the server thread may hold that module's lock. What
is imported late registers its part in `guest.registry`.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from llmtop.instrument.guest import registry, threads
from llmtop.instrument.guest.guard import run_alone
from llmtop.naming import variable_names

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State

_BEFORE_SERVER: tuple[tuple[registry.EndName, bool], ...] = (
    ("store", True),
    ("op_ranges", True),
    ("capture", False),
    ("pause", False),
)
"""Functions before the server ends, in this order; each with True if the destructors may still run when it
raises."""


keeps_run = False
"""True if a thread writes the run of this process; set by `startup`."""
_IMPORT_S = 0.1


def end(recorder: State) -> None:
    """End what is under way, and the publishing; a forked child, which has neither, comes here too."""
    if not registry.run_at_end("inherited", recorder, if_it_raises=True):
        skip_destructors()
    server = recorder.server
    if server is None:
        return
    clean = True
    for name, if_it_raises in _BEFORE_SERVER:
        clean &= registry.run_at_end(name, recorder, if_it_raises)
    run_alone(server.stop, otherwise=None)
    if keeps_run:  # it may still be importing what it needs
        threads.wait_until(lambda: registry.is_at_end("run_log"), _IMPORT_S)
    registry.run_at_end("run_log", recorder, if_it_raises=True)
    registry.run_at_end("stacks", recorder, if_it_raises=True)
    if not clean or run_alone(_kineto_has_traced, otherwise=False):
        skip_destructors()


def _kineto_has_traced() -> bool:
    """Return True if a capture from outside was begun here: those destructors crash as well while it runs."""
    directory = os.environ.get(variable_names.KINETO_SOCKET_DIR)
    return directory is not None and os.path.exists(f"{directory}/told-{os.getpid()}")


def skip_destructors() -> None:
    """Make the process, once Python has ended, exit at once with its exit code.

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
