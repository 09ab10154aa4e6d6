"""Sending a signal to a process that the screen shows, and to no other that has got its pid since."""

from __future__ import annotations

import os
import signal

from llmtop.errors import NotPossibleHere
from llmtop.model.snapshot import Process

SIGNALS: tuple[tuple[signal.Signals, str], ...] = (
    (signal.SIGTERM, "ask the process to end"),
    (signal.SIGINT, "interrupt the process, as ctrl+c does"),
    (signal.SIGSTOP, "stop the process until it is continued"),
    (signal.SIGCONT, "continue a stopped process"),
    (signal.SIGKILL, "end the process at once; nothing is saved"),
)
"""Signals that can be sent, with their meaning."""

_SAME_START = 0.05  # seconds by which two readings of one start time may differ (kernel ticks are 10 ms)


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to exactly this process.

    Raises:
        NotPossibleHere: it has ended, is in another container, or belongs to another user.
    """
    import psutil

    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        raise NotPossibleHere(f"process {process.pid} has ended, or cannot be seen from here") from None
    try:
        # With the handle open the pid cannot be reused between this check and the signal.
        started = psutil.Process(process.pid).create_time()
        if process.started_at is None or abs(started - process.started_at) > _SAME_START:
            raise NotPossibleHere(f"pid {process.pid} is another process now, so no signal was sent")
        signal.pidfd_send_signal(handle, number)
    except PermissionError:
        owner = process.user or "another user"
        raise NotPossibleHere(
            f"process {process.pid} belongs to {owner}: sudo kill -{number.name.removeprefix('SIG')} {process.pid}"
        ) from None
    except (psutil.Error, ProcessLookupError):
        raise NotPossibleHere(f"process {process.pid} has ended") from None
    finally:
        os.close(handle)
