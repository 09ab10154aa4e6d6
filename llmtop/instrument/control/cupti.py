"""Unloads CUPTI, PyTorch's profiler's source of GPU events, when a recording has ended.

PyTorch leaves it there unless TEARDOWN_CUPTI is "1" (pytorch#144455): on an H100 the steps of a launch-bound
training took 35 % longer from its first capture on, until it ended. Before CUDA 12.6 a recording after it could
crash a process with CUDA graphs, so there it stays. It goes in the first calls of CUDA after the recording;
one that began before them could wait for ever (kineto#1554).
"""

from __future__ import annotations

import os
import time
from typing import Any

WORD = "TEARDOWN_CUPTI"
FIRST_CUDA = (12, 6)
GONE_AFTER_SECONDS = 2.0
"""Time by which a training has called CUDA many times."""

_ended_s = float("-inf")


def leave_when_done(torch: Any) -> None:
    """Make PyTorch release CUPTI when a recording ends; the user's own setting counts. Before it begins.

    It is asked for good: what has been torn down once must be made again, of which PyTorch thinks only while the
    word stands.
    """
    if WORD not in os.environ and cuda_of(torch) >= FIRST_CUDA:
        os.environ[WORD] = "1"


def has_ended() -> None:
    """A recording has ended just now."""
    global _ended_s
    _ended_s = time.monotonic()


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
