"""Threads of llmtop's own inside a training, which the `threading` module does not know.

A script may join every thread that `threading.enumerate()` names, and at its end Python joins those that are no
daemons; neither may ever wait for llmtop. So these begin below `threading`, and each has a stop of its own, which
`ending` calls. Nothing that runs in one may ask for `threading.current_thread()`, which would put it on that list
after all; nor may `threading` itself be imported in one first, which would make that thread Python's main thread.
"""

from __future__ import annotations

import _thread
import select
import signal
import socket
import sys
import threading  # see above: the thread that imports it first is its main thread
import time
from collections.abc import Callable

from llmtop.system import procfs

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
"""Raised by the faulting thread itself: blocked, they would hide a crash's stack."""


_POLL_MS = 5
_IMPORT_SECONDS = 0.1
"""How long an exit waits for a thread that is within an import: usual ones take 20 to 50 ms, and one over a
network may take any time."""
_IMPORT_CODE = "<frozen importlib._bootstrap>"
"""File in which Python's tracebacks place the function that imports."""


class Thread:
    """One thread. It takes no signals: one that it took would not interrupt the training's sleep or read."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        """Describe it.

        Args:
            work: what it does; must let no exception out.
            name: as the system shows it, up to 15 characters.
        """
        self._work = work
        self._name = name
        self._once = _thread.allocate_lock()
        self._alive = _thread.allocate_lock()
        self._ident = 0
        self.native_id: int | None = None
        """The system's id of it, once it runs."""

    def start(self) -> None:
        """Begin; a second call does nothing.

        Raises:
            RuntimeError: the system has no thread to give.
        """
        if not self._once.locked():
            _start_new_thread()(self._run, ())

    def join(self, seconds: float) -> bool:
        """Wait for the thread to end.

        Args:
            seconds: the longest wait; 0.1 s while the thread imports, which may wait for the import lock of the
                caller.

        Returns:
            True if the thread has ended.
        """
        if not self._once.locked():
            return True
        patience = time.monotonic() + _IMPORT_SECONDS

        def ended_or_imports() -> bool:
            return not self._alive.locked() or (time.monotonic() >= patience and self._is_importing())

        wait_until(ended_or_imports, seconds)
        return not self._alive.locked()

    def _is_importing(self) -> bool:
        """Return True if the thread is within an import: searches the file, executes it, or waits for its lock."""
        frame = sys._current_frames().get(self._ident)
        while frame is not None and frame.f_code.co_filename != _IMPORT_CODE:
            frame = frame.f_back
        return frame is not None

    def _run(self) -> None:
        # A signal's handler that raised in `start` may have had it called twice.
        with self._alive:
            if not self._once.acquire(blocking=False):
                return
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
            self._ident = _thread.get_ident()
            self.native_id = _thread.get_native_id()
            # py-spy and the like know threads by the names that `threading` gives; the system's is here.
            procfs.set_own_thread_name(self.native_id, self._name)
            self._work()


def _start_new_thread() -> Callable[[Callable[[], None], tuple[()]], int]:
    """Python's own way to start a thread.

    debugpy (pydevd) puts a function of its own there, which asks for `threading.current_thread()` in each thread
    and traces it; it keeps Python's beside it, under this name.
    """
    start: Callable[[Callable[[], None], tuple[()]], int] = getattr(
        _thread, "_original_start_new_thread", _thread.start_new_thread
    )
    return start


def wait_for(event: threading.Event, seconds: float) -> bool:
    """Wait as `event.wait(seconds)` does, but by the monotonic clock on every build of Python.

    Args:
        event: polled, because its own wait may follow the wall clock (see `wait_until`).
        seconds: the longest wait.

    Returns:
        True if it is set.
    """
    return wait_until(event.is_set, seconds)


def wait_until(true: Callable[[], bool], seconds: float) -> bool:
    """Poll a condition until it holds.

    Locks and events of `threading` wait by the wall clock where Python was built for an older glibc (conda's and
    standalone builds). If that clock is set back by an hour, a wait of a moment lasts an hour.

    Args:
        true: called every `_POLL_MS`; must be quick and must not raise.
        seconds: the longest wait, by the monotonic clock.

    Returns:
        True if the condition held in time.
    """
    until = time.monotonic() + seconds
    nothing = select.poll()
    while not true():
        if time.monotonic() >= until:
            return False
        nothing.poll(_POLL_MS)
    return True


def replaced_by() -> str | None:
    """Return which library has put greenlets in the place of this process's threads and sockets; None: none has.

    A thread of ours would run on such stand-ins, in the training's own thread, and could stop it for good.
    """
    made_of = ((_thread, "allocate_lock"), (select, "poll"), (socket, "socket"))
    for module, name in made_of:
        owner = getattr(getattr(module, name, None), "__module__", module.__name__)
        if owner != module.__name__:
            return str(owner).partition(".")[0]
    return None
