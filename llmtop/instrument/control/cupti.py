"""Unloads CUPTI, PyTorch's profiler's source of GPU events, when a recording has ended.

PyTorch leaves it there unless TEARDOWN_CUPTI is "1" (pytorch#144455): on an H100 the steps of a launch-bound
training took 35 % longer from its first capture on, until it ended. Before CUDA 12.6 a recording after it could
crash a process with CUDA graphs, so there it stays. It goes in the first calls of CUDA after the recording: a
thread of PyTorch's waits for them. A recording that began before them could wait for ever (kineto#1554), and so
would a process that ends before them, in the destructor of what the thread waits for.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from llmtop.system import procfs

WORD = "TEARDOWN_CUPTI"
FIRST_CUDA = (12, 6)
GONE_AFTER_SECONDS = 2.0
"""Time by which a training has called CUDA many times."""
LAST_CALLS_SECONDS = 0.05
"""How long a process that ends calls CUDA where no thread is known to wait: the script may have recorded, too."""
AT_MOST_SECONDS = 1.0
"""How long it does where one is."""
_BETWEEN_CALLS_SECONDS = 0.001

_ended_s = float("-inf")
_waiting: set[int] = set()
"""Threads, by the kernel's number, that began when a recording ended and have the name of the thread that ended
it: PyTorch gives the one that waits no name of its own, as it does to its others."""


def leave_when_done(torch: Any) -> None:
    """Make PyTorch release CUPTI when a recording ends; the user's own setting counts. Before it begins.

    It is asked for good: what has been torn down once must be made again, of which PyTorch thinks only while the
    word stands.
    """
    if WORD not in os.environ and cuda_of(torch) >= FIRST_CUDA:
        os.environ[WORD] = "1"


def end_recording(end: Callable[[], object]) -> None:
    """End a recording, and note which thread waits for CUPTI to leave from then on.

    Args:
        end: what ends it; it may raise anything.
    """
    global _ended_s
    before = _threads()
    try:
        end()
    finally:
        _ended_s = time.monotonic()
        pid = os.getpid()
        name = procfs.thread_name(pid, threading.get_native_id())
        _waiting.update(one for one in _threads() - before if procfs.thread_name(pid, one) == name)


def has_left(torch: Any) -> bool:
    """Call CUDA, which ends the wait of the thread that makes CUPTI leave; for the end of the process.

    Args:
        torch: the module.

    Returns:
        False if it waits all the same: then the destructors must not run.
    """
    if _ended_s == float("-inf") or os.environ.get(WORD) != "1" or not torch.cuda.is_initialized():
        return True
    return _call_until_left(torch, LAST_CALLS_SECONDS)


def check_has_left(torch: Any) -> None:
    """Call CUDA where a thread still waits for that; for the training's thread, before a recording begins.

    Args:
        torch: the module.

    Raises:
        RuntimeError: it waits all the same: a recording would wait for it for ever.
    """
    if _is_awaited() and not _call_until_left(torch, 0.0):
        raise RuntimeError("CUPTI has not left the process since its last capture: try again after some steps")


def _call_until_left(torch: Any, least_seconds: float) -> bool:
    began = time.monotonic()
    while (taken := time.monotonic() - began) < AT_MOST_SECONDS and (taken < least_seconds or _is_awaited()):
        with suppress(Exception):  # the training may have ended for an error of CUDA's
            torch.cuda.current_stream().query()
        time.sleep(_BETWEEN_CALLS_SECONDS)
    return not _is_awaited()


def _is_awaited() -> bool:
    _waiting.intersection_update(_threads())  # a number is given again to another thread
    return bool(_waiting)


def _threads() -> set[int]:
    """Return the kernel's numbers of the threads that are none of Python's; none where they cannot be read."""
    return {*procfs.thread_ids(os.getpid())} - {thread.native_id or 0 for thread in threading.enumerate()}


def is_leaving(torch: Any) -> bool:
    """Return True if CUPTI may be on its way out of this process."""
    leaves = os.environ.get(WORD) == "1" and torch.cuda.is_initialized()
    return leaves and time.monotonic() - _ended_s < GONE_AFTER_SECONDS


def cuda_of(torch: Any) -> tuple[int, ...]:
    """Return the version of CUDA that torch was built for: (12, 8); () without one."""
    version = getattr(getattr(torch, "version", None), "cuda", None)
    try:
        return tuple(int(part) for part in str(version).split(".")[:2])
    except ValueError:
        return ()
